//! Backpressure: followers that are slower than the process.

use std::time::Duration;

use exec_core::output_log::BackpressureMode;
use exec_env::process::ExecProcessEvent as Event;
use exec_wire::process::{TerminateMode, WaitUntil};
use futures_util::StreamExt;

use crate::{
    bounded_wait::within,
    difference::Difference,
    followed_process::{FollowedProcess, follow},
    pattern,
    scratch_dir::ScratchDir,
    subject::Subject,
};

/// More than all buffers between a process and its follower hold together.
const BYTES: usize = 24 << 20;
/// The same for servers without flow control per process: the socket buffers of both hops fill
/// first, and Linux grows each to 32 MiB on the receiving side and 4 MiB on the sending side.
const SHARED_WINDOW_BYTES: usize = 96 << 20;
/// How long a case observes a paused process. A running process would finish within that time.
const OBSERVATION_TIME: Duration = Duration::from_millis(700);

/// Returns a number of bytes that a process cannot write while nothing reads them.
fn unbuffered_bytes(subject: &Subject) -> usize {
    if subject.differs(Difference::SharedWindow) {
        SHARED_WINDOW_BYTES
    } else {
        BYTES
    }
}

/// Starts a process that writes more than all buffers hold, and asserts that it does not finish
/// while nothing reads.
async fn paused(subject: &Subject) -> FollowedProcess {
    let bytes = unbuffered_bytes(subject).to_string();
    let scratch = ScratchDir::new();
    let lifeline = scratch.lifeline();
    let script = r#""$1" emit "$2"; echo held >"$3""#;
    let arguments = [subject.probe_path(), &bytes, lifeline.path()];
    let running = subject.start(subject.sh(script, &arguments)).await;
    let done = tokio::time::timeout(OBSERVATION_TIME, lifeline.held()).await;
    assert!(
        done.is_err(),
        "process wrote all output although nothing read it"
    );
    running
}

pub async fn stalled_follower_pauses_the_process(subject: &Subject) {
    let running = paused(subject).await;
    let told = running.finish().await;
    pattern::assert_same(&told.stdout(), &pattern::bytes(unbuffered_bytes(subject)));
}

pub async fn wait_for_a_paused_process_times_out(subject: &Subject) {
    let running = paused(subject).await;
    let wait = running
        .process
        .wait(WaitUntil::Exited, Some(Duration::from_millis(20)));
    assert_eq!(within("wait times out", wait).await.unwrap().exit, None);
}

pub async fn paused_process_can_be_terminated(subject: &Subject) {
    let running = paused(subject).await;
    let terminate = running.process.terminate(TerminateMode::Force);
    assert_eq!(within("terminate completes", terminate).await, Ok(true));
    let told = running.finish().await;
    assert_eq!(told.code(), 137);
    let stdout = told.stdout();
    pattern::assert_same(&stdout, &pattern::bytes(stdout.len()));
}

pub async fn paused_process_does_not_block_others(subject: &Subject) {
    let paused = paused(subject).await;
    let other = subject.start(subject.sh("exit 4", &[])).await;
    let status = within(
        "process closes",
        other.process.wait(WaitUntil::Closed, None),
    )
    .await
    .unwrap();
    assert_eq!(status.exit.map(|exit| exit.code), Some(4));
    drop(paused);
}

pub async fn unthrottled_follower_does_not_block_the_process(subject: &Subject) {
    let command = subject.probe(&["emit", &BYTES.to_string()]);
    let started = within("command starts", subject.backend.start(command))
        .await
        .unwrap();
    let free = follow(&started.process, BackpressureMode::Skip);
    let closed = within(
        "process closes",
        started.process.wait(WaitUntil::Closed, None),
    )
    .await
    .unwrap();
    assert_eq!(closed.exit.map(|exit| exit.code), Some(0));
    let events = within("remaining events arrive", free.collect::<Vec<_>>()).await;
    assert!(
        events.is_sorted_by(|one, other| one.seq() < other.seq()),
        "sequence numbers must increase"
    );
    assert!(matches!(events.last(), Some(Event::Closed(_))));
}

pub async fn dropping_a_follower_resumes_the_process(subject: &Subject) {
    let FollowedProcess { process, .. } = subject
        .start(subject.probe(&["emit", &BYTES.to_string()]))
        .await;
    let closed = within("process closes", process.wait(WaitUntil::Closed, None))
        .await
        .unwrap();
    assert_eq!(closed.exit.map(|exit| exit.code), Some(0));
}
