//! Followers that are slower than the process.

use std::time::Duration;

use exec_core::log::Pace;
use exec_env::process::ExecProcessEvent as Event;
use exec_wire::process::{TerminateMode, WaitUntil};
use futures_util::StreamExt;

use crate::{
    bounded_wait::within,
    difference::Difference,
    followed_process::{Running, follow},
    pattern,
    scratch_dir::Scratch,
    subject::Subject,
};

/// More than all buffers between a process and its follower hold together.
const BYTES: usize = 24 << 20;
/// The same without flow control for each process. Then the sockets of both hops fill first, and
/// Linux enlarges each to 32 MiB on the receiving side and 4 MiB on the sending one.
const SHARED_WINDOW_BYTES: usize = 96 << 20;
/// How long a process that ought to be paused is watched. One that is not would be done by then.
const WATCHED: Duration = Duration::from_millis(700);

/// Returns how many bytes a process cannot write while nobody reads them.
fn unbuffered_bytes(subject: &Subject) -> usize {
    if subject.differs(Difference::SharedWindow) {
        SHARED_WINDOW_BYTES
    } else {
        BYTES
    }
}

/// Starts a process that writes more than all buffers hold. Asserts that it does not finish while
/// nobody reads.
async fn paused(subject: &Subject) -> Running {
    let bytes = unbuffered_bytes(subject).to_string();
    let scratch = Scratch::new();
    let lifeline = scratch.lifeline();
    let script = r#""$1" emit "$2"; echo held >"$3""#;
    let arguments = [subject.probe_path(), &bytes, lifeline.path()];
    let running = subject.start(subject.sh(script, &arguments)).await;
    let done = tokio::time::timeout(WATCHED, lifeline.held()).await;
    assert!(
        done.is_err(),
        "nobody took its output, and yet it was written"
    );
    running
}

pub async fn a_follower_that_does_not_read_pauses_the_process(subject: &Subject) {
    let running = paused(subject).await;
    let told = running.finish().await;
    pattern::assert_same(&told.stdout(), &pattern::bytes(unbuffered_bytes(subject)));
}

pub async fn a_wait_for_a_paused_process_is_over_when_its_time_is(subject: &Subject) {
    let running = paused(subject).await;
    let wait = running
        .process
        .wait(WaitUntil::Exited, Some(Duration::from_millis(20)));
    assert_eq!(within("the time is up", wait).await.unwrap().exit, None);
}

pub async fn a_paused_process_can_be_terminated(subject: &Subject) {
    let running = paused(subject).await;
    let terminate = running.process.terminate(TerminateMode::Force);
    assert_eq!(within("it is terminated", terminate).await, Ok(true));
    let told = running.finish().await;
    assert_eq!(told.code(), 137);
    let stdout = told.stdout();
    pattern::assert_same(&stdout, &pattern::bytes(stdout.len()));
}

pub async fn a_paused_process_holds_up_no_other(subject: &Subject) {
    let paused = paused(subject).await;
    let other = subject.start(subject.sh("exit 4", &[])).await;
    let status = within("it ends", other.process.wait(WaitUntil::Closed, None))
        .await
        .unwrap();
    assert_eq!(status.exit.map(|exit| exit.code), Some(4));
    drop(paused);
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
