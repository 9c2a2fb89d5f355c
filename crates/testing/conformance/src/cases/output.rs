//! Delivery of output.

use exec_core::output_log::{BackpressureMode, FollowOptions, FollowStart};
use exec_env::process::ExecProcessEvent as Event;
use futures_util::StreamExt;

use crate::{
    bounded_wait::within,
    followed_process::follow,
    pattern,
    subject::{Subject, piped},
};

pub async fn stdout_keeps_its_order(subject: &Subject) {
    let script = "i=0; while [ $i -lt 500 ]; do echo $i; i=$((i+1)); done";
    let told = subject.start(subject.sh(script, &[])).await.finish().await;
    let expected: String = (0..500).map(|line| format!("{line}\n")).collect();
    assert_eq!(told.text(), expected);
}

pub async fn stdout_and_stderr_are_separate(subject: &Subject) {
    let script = "echo one; echo two >&2; echo three";
    let told = subject.start(subject.sh(script, &[])).await.finish().await;
    assert_eq!(told.text(), "one\nthree\n");
    assert_eq!(told.stderr(), b"two\n");
    assert_eq!(told.terminal(), b"");
}

pub async fn big_output_arrives_complete_and_in_order(subject: &Subject) {
    const BYTES: usize = 8 << 20;
    let told = subject
        .start(subject.probe(&["emit", &BYTES.to_string()]))
        .await
        .finish()
        .await;
    assert_eq!(told.code(), 0);
    pattern::assert_same(&told.stdout(), &pattern::bytes(BYTES));
}

pub async fn late_follower_receives_retained_output(subject: &Subject) {
    let mut running = subject.start(subject.cat("before".len())).await;
    running.write(b"before").await;
    running.until_stdout_contains("before").await;
    let late = follow(&running.process, BackpressureMode::Skip);
    running.close_stdin().await;
    let process = running.process.clone();
    let told = running.finish().await;
    assert_eq!(
        within("late follower reaches the end", late.collect::<Vec<_>>()).await,
        told.0
    );
    // Also after the process has closed.
    let later = follow(&process, BackpressureMode::Pause);
    assert_eq!(
        within(
            "follower after close reaches the end",
            later.collect::<Vec<_>>()
        )
        .await,
        told.0
    );
}

pub async fn follower_from_now_sees_only_new_output(subject: &Subject) {
    let mut running = subject.start(piped(subject.command(&["cat"]))).await;
    running.write(b"before").await;
    running.until_stdout_contains("before").await;
    let mut from_now = running.process.follow(FollowOptions {
        start: FollowStart::Now,
        backpressure: BackpressureMode::Skip,
    });
    running.write(b"after").await;
    let first = within("event arrives", from_now.next()).await;
    assert!(matches!(first, Some(Event::Output(chunk)) if &chunk.data[..] == b"after"));
}
