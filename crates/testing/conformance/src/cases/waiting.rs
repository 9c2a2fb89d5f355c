//! Waiting for an end.

use std::time::Duration;

use exec_wire::process::WaitUntil;

use crate::{
    scratch::Scratch,
    subject::{Subject, piped},
    within::within,
};

pub async fn exited_and_closed_are_waited_for_apart(subject: &Subject) {
    let scratch = Scratch::new();
    let gate = scratch.gate();
    let script = r#"(read line <"$1") & exit 8"#;
    let running = subject.start(subject.sh(script, &[gate.path()])).await;
    let exited = within("it exits", running.process.wait(WaitUntil::Exited, None))
        .await
        .unwrap();
    assert_eq!(exited.exit.map(|exit| exit.code), Some(8));
    assert!(!exited.closed, "a descendant holds the output");
    let closed = running.process.wait(WaitUntil::Closed, None);
    gate.open();
    let closed = within("it closes", closed).await.unwrap();
    assert!(closed.closed);
    // Exit and close are events as well; nobody wrote anything.
    assert_eq!(closed.next_seq.0, 3);
}

pub async fn a_wait_is_over_when_its_time_is(subject: &Subject) {
    let running = subject.start(piped(subject.command(&["cat"]))).await;
    for until in [WaitUntil::Exited, WaitUntil::Closed] {
        let wait = running.process.wait(until, Some(Duration::from_millis(20)));
        let status = within("the time is up", wait).await.unwrap();
        assert_eq!((status.exit, status.closed), (None, false));
    }
}

pub async fn a_wait_after_the_end_is_over_at_once(subject: &Subject) {
    let running = subject.start(subject.sh("exit 1", &[])).await;
    let process = running.process.clone();
    running.finish().await;
    for until in [WaitUntil::Exited, WaitUntil::Closed] {
        let status = within("it is over", process.wait(until, None))
            .await
            .unwrap();
        assert_eq!(
            (status.exit.map(|exit| exit.code), status.closed),
            (Some(1), true)
        );
    }
    assert_eq!(process.status().exit.map(|exit| exit.code), Some(1));
}

pub async fn a_wait_needs_no_follower(subject: &Subject) {
    let command = subject.sh("echo some; exit 1", &[]);
    let started = within("it starts", subject.backend.start(command))
        .await
        .unwrap();
    let wait = started.process.wait(WaitUntil::Closed, None);
    let status = within("it closes", wait).await.unwrap();
    assert_eq!(
        (status.exit.map(|exit| exit.code), status.closed),
        (Some(1), true)
    );
}
