use std::time::Duration;

use bytes::Bytes;
use exec_transport::link::Encoding;
use exec_wire::outgoing::Outgoing;
use tokio::time::Instant;

use super::{
    ask, bearer, dial, executor, harness, hear, is_online, path, refused, register, say, upgrade,
};
use crate::{principal::Role, registry::tests::Bench};

#[tokio::test]
async fn messages_go_through_both_ways_whole_and_in_order() {
    let bench = Bench::new().await;
    let alice = bench.token("alice");
    let (mut executor, _served) = executor(&bench, &alice).await;
    let mut harness = harness(&bench, &alice).await;
    say(&mut harness, r#"{"id":1,"method":"initialize"}"#).await;
    assert_eq!(
        hear(&mut executor).await.unwrap(),
        r#"{"id":1,"method":"initialize"}"#
    );
    let large = "x".repeat(3 << 20);
    let send = async {
        for text in ["a", &large, "b"] {
            say(&mut executor, text).await;
        }
    };
    let receive = async {
        for text in ["a", &large, "b"] {
            assert!(hear(&mut harness).await.unwrap() == text);
        }
    };
    tokio::join!(send, receive);
}

#[tokio::test]
async fn when_the_harness_ends_the_executor_is_closed_and_dials_again() {
    let bench = Bench::new().await;
    let alice = bench.token("alice");
    let registered = register(&bench, "env-1", &alice).await;
    for _ in 0..2 {
        let (mut executor, served) = dial(&bench, &alice, &path(&registered)).await;
        let mut harness = harness(&bench, &alice).await;
        say(&mut harness, "hello").await;
        assert_eq!(hear(&mut executor).await.unwrap(), "hello");
        drop(harness);
        assert_eq!(hear(&mut executor).await, None);
        drop(executor);
        served.await.unwrap();
    }
}

#[tokio::test]
async fn when_the_executor_ends_the_harness_is_closed() {
    let bench = Bench::new().await;
    let alice = bench.token("alice");
    let (executor, served) = executor(&bench, &alice).await;
    let mut harness = harness(&bench, &alice).await;
    drop(executor);
    assert_eq!(hear(&mut harness).await, None);
    drop(harness);
    served.await.unwrap();
    assert!(!is_online(&bench));
}

#[tokio::test]
async fn one_harness_at_a_time() {
    let bench = Bench::new().await;
    let (alice, bob) = (
        bench.token("alice"),
        bench.token_for("bob", &[Role::Harness], &["*"]),
    );
    let (mut executor, _served) = executor(&bench, &alice).await;
    let mut first = harness(&bench, &alice).await;
    // Also while the first one's socket is still on its way.
    let second = upgrade("/direct/env-1", bearer(&bob));
    assert_eq!(refused(&bench, &second).await, (409, "environment_busy"));
    say(&mut first, "still here").await;
    assert_eq!(hear(&mut executor).await.unwrap(), "still here");
}

#[tokio::test]
async fn a_harness_that_comes_back_is_not_kept_out_by_its_old_socket() {
    let bench = Bench::new().await;
    let alice = bench.token("alice");
    let registered = register(&bench, "env-1", &alice).await;
    let (mut executor, _served) = dial(&bench, &alice, &path(&registered)).await;
    let mut old = harness(&bench, &alice).await;
    let again = async {
        // The executor is closed, and dials again.
        assert_eq!(hear(&mut executor).await, None);
        dial(&bench, &alice, &path(&registered)).await
    };
    let (mut new, (mut executor, _served)) = tokio::join!(harness(&bench, &alice), again);
    assert_eq!(hear(&mut old).await, None);
    say(&mut new, "back").await;
    assert_eq!(hear(&mut executor).await.unwrap(), "back");
}

#[tokio::test(start_paused = true)]
async fn a_harness_waits_a_moment_for_an_executor_and_not_for_ever() {
    let bench = Bench::new().await;
    let alice = bench.token("alice");
    let unknown = refused(&bench, &upgrade("/direct/env-1", bearer(&alice))).await;
    assert_eq!(unknown, (404, "environment_not_found"));
    let registered = register(&bench, "env-1", &alice).await;
    let start = Instant::now();
    let offline = refused(&bench, &upgrade("/direct/env-1", bearer(&alice))).await;
    assert_eq!(offline, (409, "environment_offline"));
    assert_eq!(start.elapsed().as_secs(), 5);

    let late = async {
        tokio::time::sleep(Duration::from_secs(2)).await;
        dial(&bench, &alice, &path(&registered)).await
    };
    let (mut harness, (mut executor, _served)) = tokio::join!(harness(&bench, &alice), late);
    say(&mut harness, "hello").await;
    assert_eq!(hear(&mut executor).await.unwrap(), "hello");
}

#[tokio::test]
async fn a_harness_that_was_agreed_to_and_did_not_come_keeps_nobody_waiting() {
    let bench = Bench::new().await;
    let alice = bench.token("alice");
    let (mut executor, _served) = executor(&bench, &alice).await;
    let agreed = ask(&bench, &upgrade("/direct/env-1", bearer(&alice))).await;
    drop(agreed.unwrap());
    let mut harness = harness(&bench, &alice).await;
    say(&mut harness, "hello").await;
    assert_eq!(hear(&mut executor).await.unwrap(), "hello");
}

#[tokio::test]
async fn an_executor_that_speaks_first_is_closed() {
    let bench = Bench::new().await;
    let (mut executor, served) = executor(&bench, &bench.token("alice")).await;
    say(&mut executor, "hello").await;
    assert_eq!(hear(&mut executor).await, None);
    drop(executor);
    served.await.unwrap();
}

#[tokio::test]
async fn what_is_no_text_ends_the_pair() {
    let bench = Bench::new().await;
    let alice = bench.token("alice");
    let (mut executor, _served) = executor(&bench, &alice).await;
    let mut harness = harness(&bench, &alice).await;
    let output = Outgoing::command_output(
        &exec_wire::id::ProcessId::new("p1").unwrap(),
        exec_wire::process::OutputStream::Stdout,
        Bytes::from_static(&[0xff, 0xfe]),
    );
    harness.writer.push(output, Encoding::Binary);
    harness.writer.flush().await.unwrap();
    assert_eq!(hear(&mut executor).await, None);
    assert_eq!(hear(&mut harness).await, None);
}

#[tokio::test(start_paused = true)]
async fn an_executor_that_waits_is_pinged_every_half_minute() {
    let bench = Bench::new().await;
    let (mut executor, _served) = executor(&bench, &bench.token("alice")).await;
    let start = Instant::now();
    let ping = std::future::poll_fn(|cx| {
        assert!(executor.reader.poll_message(cx).is_pending());
        // A pong is owed once a ping has come.
        executor.writer.poll_upkeep(cx)
    });
    ping.await;
    assert_eq!(start.elapsed().as_secs(), 30);
}

#[tokio::test]
async fn a_harness_does_not_learn_which_environments_of_others_exist() {
    let bench = Bench::new().await;
    let _executor = executor(&bench, &bench.token("alice")).await;
    for globs in [&[][..], &["box-*"]] {
        let bob = bench.token_for("bob", &[Role::Harness], globs);
        let foreign = refused(&bench, &upgrade("/direct/env-1", bearer(&bob))).await;
        let unknown = refused(&bench, &upgrade("/direct/env-2", bearer(&bob))).await;
        assert_eq!(foreign, unknown);
    }
}
