//! Answers that nobody received.

use super::stage::{Stage, command, seen, write};
use crate::unified::{CallId, ExecCommand, WaitFor, WriteStdin};

fn call(name: &str) -> CallId {
    CallId(name.to_owned())
}

#[tokio::test(start_paused = true)]
async fn output_that_was_not_received_is_shown_again_before_what_came_since() {
    let stage = Stage::new();
    stage.backend.next(|fake| fake.prints("one\n"));
    let number = stage.run(command()).await.running.unwrap();
    let (_, fake) = stage.backend.started(0).await;
    stage.exec.was_not_received(&call("c"));
    fake.prints("two\n");
    let output = stage.look(number).await.unwrap();
    assert_eq!(seen(&output), ("one\ntwo\n", None, true));
    let output = stage.look(number).await.unwrap();
    assert_eq!(seen(&output), ("", None, true), "this one was received");
    stage.exec.was_not_received(&call("c"));
    let output = stage.look(number).await.unwrap();
    assert_eq!(seen(&output), ("", None, true), "it is no longer the last");
}

#[tokio::test(start_paused = true)]
async fn what_is_shown_again_is_waited_for_as_if_it_were_new() {
    let stage = Stage::new();
    stage.backend.next(|fake| fake.prints("ready\n"));
    let number = stage.run(command()).await.running.unwrap();
    stage.exec.was_not_received(&call("c"));
    for wait in [
        WaitFor::Bytes(6),
        WaitFor::Pattern(regex::bytes::Regex::new("ready").unwrap()),
    ] {
        let look = WriteStdin {
            wait,
            ..write(number, "")
        };
        let output = stage.exec.write_stdin(look).await.unwrap();
        assert_eq!(seen(&output), ("ready\n", None, true));
        assert!(output.wall_time.is_zero());
        stage.exec.was_not_received(&call("w"));
    }
}

#[tokio::test(start_paused = true)]
async fn an_end_that_was_not_received_is_known_until_it_is() {
    let stage = Stage::new();
    stage.backend.next(|fake| {
        fake.prints("done\n");
        fake.exits(3);
        fake.closes();
    });
    let output = stage.run(command()).await;
    assert_eq!(seen(&output), ("done\n", Some(3), false));
    assert!(stage.exec.processes().is_empty());
    let (_, fake) = stage.backend.started(0).await;
    assert!(fake.is_dropped(), "what it left behind has ended");
    stage.exec.was_not_received(&call("c"));
    let [summary] = &stage.exec.processes()[..] else {
        panic!("not known");
    };
    assert_eq!(summary.state.exit_code, Some(3));
    let number = summary.number;
    // The one that shows it again may not be received, either.
    for by in ["w", "t"] {
        let output = stage.look(number).await.unwrap();
        assert_eq!(seen(&output), ("done\n", Some(3), false));
        assert!(stage.look(number).await.is_err());
        stage.exec.was_not_received(&call("w"));
        let output = stage.exec.terminate(&call(by), number).await.unwrap();
        assert_eq!(seen(&output), ("done\n", Some(3), false));
        stage.exec.was_not_received(&call(by));
    }
}

#[tokio::test(start_paused = true)]
async fn ends_that_were_received_do_not_drive_out_one_that_was_not() {
    let stage = Stage::new();
    for number in 0..100 {
        stage.backend.next(|fake| {
            fake.exits(0);
            fake.closes();
        });
        let one = ExecCommand {
            call_id: call(&number.to_string()),
            ..command()
        };
        stage.run(one).await;
        if number == 0 {
            stage.exec.was_not_received(&call("0"));
        }
    }
    assert_eq!(stage.exec.processes().len(), 1);
    stage.exec.was_not_received(&call("50"));
    assert_eq!(stage.exec.processes().len(), 1, "it is forgotten");
    for number in 80..100 {
        stage.exec.was_not_received(&call(&number.to_string()));
    }
    assert_eq!(stage.exec.processes().len(), 16, "there is a bound");
}
