//! Followers that are slower than the process.

use std::time::Duration;

use exec_core::log::Event;
use exec_env::process::Pace;
use exec_wire::process::WaitUntil;
use futures_util::StreamExt;

use crate::{
    pattern,
    running::{Running, follow},
    subject::Subject,
    within::within,
};

/// More than all buffers between a process and its follower hold together.
const BYTES: usize = 24 << 20;
/// How long a process that ought to be paused is watched. One that is not would be done by then.
const WATCHED: Duration = Duration::from_millis(1500);

pub async fn a_follower_that_does_not_read_pauses_the_process(subject: &Subject) {
    let running = subject
        .start(subject.probe(&["emit", &BYTES.to_string()]))
        .await;
    let wait = running.process.wait(WaitUntil::Exited, Some(WATCHED));
    let status = within("the wait is over", wait).await.unwrap();
    assert_eq!(status.exit, None, "nobody took its output");
    let told = running.finish().await;
    assert_eq!(told.code(), 0);
    pattern::assert_same(&told.stdout(), &pattern::bytes(BYTES));
}

pub async fn a_paused_process_can_be_terminated(subject: &Subject) {
    let running = subject
        .start(subject.probe(&["emit", &BYTES.to_string()]))
        .await;
    let wait = running
        .process
        .wait(WaitUntil::Exited, Some(Duration::from_millis(300)));
    assert_eq!(within("the wait is over", wait).await.unwrap().exit, None);
    let terminate = running.process.terminate(Default::default());
    assert_eq!(within("it is terminated", terminate).await, Ok(true));
    let told = running.finish().await;
    assert_eq!(told.code(), 137);
    let stdout = told.stdout();
    pattern::assert_same(&stdout, &pattern::bytes(stdout.len()));
}

pub async fn a_paused_process_holds_up_no_other(subject: &Subject) {
    let paused = subject
        .start(subject.probe(&["emit", &BYTES.to_string()]))
        .await;
    let wait = paused
        .process
        .wait(WaitUntil::Exited, Some(Duration::from_millis(300)));
    assert_eq!(within("the wait is over", wait).await.unwrap().exit, None);
    let other = subject.start(subject.sh("exit 4", &[])).await;
    let status = within("it ends", other.process.wait(WaitUntil::Closed, None))
        .await
        .unwrap();
    assert_eq!(status.exit.map(|exit| exit.code), Some(4));
}

pub async fn a_free_follower_does_not_hold_up_the_process(subject: &Subject) {
    let command = subject.probe(&["emit", &BYTES.to_string()]);
    let started = within("a command starts", subject.backend.start(command))
        .await
        .unwrap();
    let free = follow(&started.process, Pace::Free);
    let closed = within("it ends", started.process.wait(WaitUntil::Closed, None))
        .await
        .unwrap();
    assert_eq!(closed.exit.map(|exit| exit.code), Some(0));
    let events = within("what is left comes", free.collect::<Vec<_>>()).await;
    assert!(
        events.is_sorted_by(|one, other| one.seq() < other.seq()),
        "numbers are skipped only"
    );
    assert!(matches!(events.last(), Some(Event::Closed(_))));
}

pub async fn a_dropped_follower_lets_the_process_go_on(subject: &Subject) {
    let Running { process, .. } = subject
        .start(subject.probe(&["emit", &BYTES.to_string()]))
        .await;
    let closed = within("it ends", process.wait(WaitUntil::Closed, None))
        .await
        .unwrap();
    assert_eq!(closed.exit.map(|exit| exit.code), Some(0));
}
