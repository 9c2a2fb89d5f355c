//! `collect`: windows of output.

use std::{sync::Arc, time::Duration};

use exec_env::process::{CollectOptions, CollectedOutput, ExecProcess};
use exec_wire::id::OutputSeq;
use tokio::time::Instant;

use crate::{
    bounded_wait::within,
    followed_process::{FollowedProcess, contains},
    pattern,
    scratch_dir::ScratchDir,
    subject::{Subject, on_terminal, piped},
};

/// Timeout that never expires within a case.
const LONG: Duration = Duration::from_secs(60);
/// Timeout that expires before the command produces anything.
const SHORT: Duration = Duration::from_millis(50);
const CAP: usize = 1 << 20;

async fn window(
    process: &Arc<dyn ExecProcess>,
    after: OutputSeq,
    window: Duration,
) -> CollectedOutput {
    let collect = CollectOptions {
        after,
        window,
        max_bytes: CAP,
    };
    within("collect window ends", process.collect(collect))
        .await
        .unwrap()
}

fn code(collected: &CollectedOutput) -> Option<i32> {
    collected.exit.as_ref().map(|exit| exit.code)
}

/// Collects windows until the process closes.
async fn windows(process: &Arc<dyn ExecProcess>, max_bytes: usize) -> Vec<CollectedOutput> {
    let mut windows: Vec<CollectedOutput> = Vec::new();
    while windows.last().is_none_or(|window| !window.closed) {
        let collect = CollectOptions {
            after: windows.last().map_or(OutputSeq(0), |window| window.last),
            window: LONG,
            max_bytes,
        };
        let next = within("collect window ends", process.collect(collect)).await;
        windows.push(next.unwrap());
    }
    windows
}

pub async fn collect_window_ends_with_the_process(subject: &Subject) {
    let FollowedProcess { process, .. } = subject.start(subject.sh("echo out; exit 3", &[])).await;
    let begun = Instant::now();
    let collected = window(&process, OutputSeq(0), LONG).await;
    assert!(begun.elapsed() < LONG / 2);
    assert_eq!(collected.bytes(), b"out\n");
    assert_eq!((code(&collected), collected.closed), (Some(3), true));
    assert!(!collected.running);
}

pub async fn collect_window_ends_at_its_timeout(subject: &Subject) {
    let mut running = subject.start(piped(subject.command(&["cat"]))).await;
    running.write(b"early").await;
    running.until_stdout_contains("early").await;
    let collected = window(&running.process, OutputSeq(0), SHORT).await;
    assert_eq!(collected.bytes(), b"early");
    assert!(collected.running && !collected.closed);
    assert_eq!(collected.exit, None);
}

pub async fn output_after_a_window_is_only_in_the_next_window(subject: &Subject) {
    let mut running = subject.start(subject.cat("onetwo".len())).await;
    running.write(b"one").await;
    running.until_stdout_contains("one").await;
    let first = window(&running.process, OutputSeq(0), SHORT).await;
    running.write(b"two").await;
    running.until_stdout_contains("two").await;
    running.close_stdin().await;
    let second = window(&running.process, first.last, LONG).await;
    assert_eq!(
        (&first.bytes()[..], &second.bytes()[..]),
        (&b"one"[..], &b"two"[..])
    );
    assert_eq!((code(&second), second.closed), (Some(0), true));
    let third = window(&running.process, second.last, LONG).await;
    assert!(third.chunks.is_empty() && third.exit.is_none() && third.closed);
    assert!(!third.running);
}

pub async fn collect_window_without_timeout_returns_pending_output(subject: &Subject) {
    let mut running = subject.start(piped(subject.command(&["cat"]))).await;
    running.write(b"there").await;
    running.until_stdout_contains("there").await;
    let collected = window(&running.process, OutputSeq(0), Duration::ZERO).await;
    assert_eq!(collected.bytes(), b"there");
}

pub async fn capped_windows_return_every_byte_once_and_one_exit(subject: &Subject) {
    const BYTES: usize = 16 << 20;
    let FollowedProcess { process, .. } = subject
        .start(piped(subject.sh(
            r#"read line; exec "$1" emit "$2""#,
            &[subject.probe_path(), &BYTES.to_string()],
        )))
        .await;
    // The log must not drop output between two windows.
    let hold = process.hold(OutputSeq(0));
    let go = process.write(None, "go\n".into());
    within("write is accepted", go).await.unwrap();
    let mut output = Vec::new();
    let (mut last, mut exits) = (OutputSeq(0), Vec::new());
    loop {
        let collect = CollectOptions {
            after: last,
            window: LONG,
            max_bytes: 100_000,
        };
        let collected = within("collect window ends", process.collect(collect)).await;
        let collected = collected.unwrap();
        assert_eq!(collected.missed_chunks, 0);
        let bytes = collected.bytes();
        assert!(bytes.len() <= 100_000, "a chunk is smaller than the cap");
        output.extend(bytes);
        last = collected.last;
        hold.acknowledge(last);
        exits.extend(code(&collected));
        if collected.closed {
            break;
        }
    }
    assert_eq!(exits, [0]);
    pattern::assert_same(&output, &pattern::bytes(BYTES));
}

pub async fn collect_windows_work_on_a_terminal(subject: &Subject) {
    let script = "stty -echo; echo ready; read line; echo \"<$line>\"; exit 5";
    let command = on_terminal(subject.sh(script, &[]), 24, 80);
    let mut running = subject.start(command).await;
    running.until_terminal_contains("ready").await;
    let first = window(&running.process, OutputSeq(0), SHORT).await;
    assert!(contains(&first.bytes(), "ready") && first.running);
    running.write(b"word\n").await;
    let second = window(&running.process, first.last, LONG).await;
    assert_eq!(second.bytes(), b"<word>\r\n");
    assert_eq!((code(&second), second.closed), (Some(5), true));
}

pub async fn exit_is_reported_while_a_descendant_holds_the_output(subject: &Subject) {
    let scratch = ScratchDir::new();
    let gate = scratch.gate();
    let script = r#"(read line <"$1"; echo late) & echo early; exit 4"#;
    let mut running = subject.start(subject.sh(script, &[gate.path()])).await;
    running.exit().await;
    let first = window(&running.process, OutputSeq(0), SHORT).await;
    assert_eq!(first.bytes(), b"early\n");
    assert_eq!(
        (code(&first), first.running, first.closed),
        (Some(4), false, false)
    );
    gate.open();
    let second = window(&running.process, first.last, LONG).await;
    assert_eq!(second.bytes(), b"late\n");
    assert_eq!(
        (code(&second), second.running, second.closed),
        (None, false, true)
    );
}

pub async fn output_dropped_before_a_window_is_counted(subject: &Subject) {
    const BYTES: usize = 4 << 20;
    let command = subject.probe(&["emit", &BYTES.to_string()]);
    let started = within("command starts", subject.backend.start(command)).await;
    let process = started.unwrap().process;
    let closed = process.wait(exec_wire::process::WaitUntil::Closed, None);
    within("process closes", closed).await.unwrap();
    let windows = windows(&process, CAP).await;
    let output: Vec<u8> = windows.iter().flat_map(CollectedOutput::bytes).collect();
    assert!(windows[0].missed_chunks > 0);
    assert!(windows[1..].iter().all(|window| window.missed_chunks == 0));
    pattern::assert_same(&output, &pattern::bytes(BYTES)[BYTES - output.len()..]);
}
