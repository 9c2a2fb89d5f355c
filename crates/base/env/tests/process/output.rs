//! Communicating and collecting, with a scripted process.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use exec_core::output_log::RetentionLimits;
use exec_env::{
    environment::DisconnectReason,
    process::{
        CollectOptions, CollectedOutput, CommunicateError, CommunicateOptions, ExecProcess,
        ProcessError,
    },
};
use exec_test_support::fake_process::FakeProcess;
use exec_wire::{
    id::{OutputSeq, ProcessId},
    process::WriteStatus,
};
use tokio::time::Instant;

fn fake() -> (FakeProcess, Arc<dyn ExecProcess>) {
    let fake = FakeProcess::default();
    let process = fake.handle(ProcessId::new("p").unwrap());
    (fake, process)
}

fn disconnected() -> ProcessError {
    DisconnectReason::Transport("cut".to_owned()).into()
}

const INPUT: Bytes = Bytes::from_static(b"input");

#[tokio::test(start_paused = true)]
async fn communicate_retries_writes_while_the_process_starts() {
    let (fake, process) = fake();
    fake.script_writes([
        Ok(WriteStatus::Starting),
        Err(ProcessError::StdinFull),
        Ok(WriteStatus::Starting),
    ]);
    let both = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(fake.input(), (INPUT.to_vec(), true));
        fake.print("done");
        fake.exit(3);
        fake.close();
    };
    let (communicated, ()) = tokio::join!(
        process.communicate(INPUT, CommunicateOptions::default()),
        both
    );
    let communicated = communicated.unwrap();
    assert_eq!(communicated.stdout.data, b"done");
    assert_eq!(communicated.exit.as_ref().map(|exit| exit.code), Some(3));
    assert!(communicated.closed && !communicated.truncated() && !communicated.running());
}

#[tokio::test(start_paused = true)]
async fn communicate_fails_if_the_process_never_starts() {
    let (fake, process) = fake();
    fake.script_writes(vec![Ok(WriteStatus::Starting); 10_000]);
    let outcome = process
        .communicate(INPUT, CommunicateOptions::default())
        .await;
    assert_eq!(
        outcome,
        Err(CommunicateError::NotStarted(process.id().clone()))
    );
}

#[tokio::test(start_paused = true)]
async fn unknown_process_is_an_error_unless_its_close_arrives() {
    let (fake, process) = fake();
    fake.script_writes([Ok(WriteStatus::UnknownProcess)]);
    let outcome = process
        .communicate(INPUT, CommunicateOptions::default())
        .await;
    assert_eq!(
        outcome,
        Err(CommunicateError::Unknown(process.id().clone()))
    );
    fake.script_writes([Ok(WriteStatus::UnknownProcess)]);
    fake.exit(0);
    fake.close();
    let outcome = process
        .communicate(INPUT, CommunicateOptions::default())
        .await;
    assert!(outcome.unwrap().closed);
}

#[tokio::test(start_paused = true)]
async fn communicate_succeeds_if_stdin_closes_early() {
    for answer in [Ok(WriteStatus::StdinClosed), Err(ProcessError::Terminated)] {
        let (fake, process) = fake();
        fake.script_writes([answer]);
        let both = async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            fake.exit(0);
            fake.close();
        };
        let (outcome, ()) = tokio::join!(
            process.communicate(INPUT, CommunicateOptions::default()),
            both
        );
        assert!(outcome.unwrap().closed);
        assert_eq!(fake.input(), (vec![], false));
    }
}

#[tokio::test(start_paused = true)]
async fn stream_failure_ends_communicate_immediately() {
    let (fake, process) = fake();
    fake.print("something");
    fake.fail(disconnected());
    let before = Instant::now();
    let outcome = process
        .communicate(INPUT, CommunicateOptions::default())
        .await;
    assert_eq!(outcome, Err(CommunicateError::Process(disconnected())));
    assert_eq!(Instant::now(), before);
}

#[tokio::test(start_paused = true)]
async fn communicate_returns_partial_output_at_its_time_limit() {
    let (fake, process) = fake();
    fake.print("so far");
    let communicate = CommunicateOptions {
        max_bytes: 4,
        time_limit: Some(Duration::from_secs(1)),
    };
    let outcome = process.communicate(INPUT, communicate).await.unwrap();
    assert_eq!(
        (&outcome.stdout.data[..], outcome.stdout.omitted),
        (&b"soar"[..], 2)
    );
    assert!(outcome.truncated() && outcome.running() && !outcome.closed);
}

async fn window(
    process: &Arc<dyn ExecProcess>,
    after: OutputSeq,
    max_bytes: usize,
) -> CollectedOutput {
    let collect = CollectOptions {
        after,
        window: Duration::from_secs(10),
        max_bytes,
    };
    process.collect(collect).await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn byte_limit_ends_a_window_before_the_chunk_that_exceeds_it() {
    let (fake, process) = fake();
    for text in ["one", "two", "three", "a chunk beyond the cap"] {
        fake.print(text);
    }
    fake.exit(0);
    fake.close();
    let before = Instant::now();
    let mut last = OutputSeq(0);
    let mut windows = Vec::new();
    for _ in 0..4 {
        let collected = window(&process, last, 7).await;
        last = collected.last;
        let exit = collected.exit.is_some();
        let text = String::from_utf8(collected.bytes()).unwrap();
        windows.push((text, exit, collected.running, collected.closed));
    }
    let windows: Vec<_> = windows
        .iter()
        .map(|(a, b, c, d)| (&a[..], *b, *c, *d))
        .collect();
    assert_eq!(
        windows,
        [
            ("onetwo", false, true, false),
            ("three", false, true, false),
            ("a chunk beyond the cap", false, true, false),
            ("", true, false, true),
        ]
    );
    let after_close = window(&process, last, 7).await;
    assert_eq!(
        (after_close.closed, after_close.running, after_close.exit),
        (true, false, None)
    );
    assert_eq!(Instant::now(), before, "no window waited");
}

#[tokio::test(start_paused = true)]
async fn exit_without_close_is_reported_once_and_collection_continues() {
    let (fake, process) = fake();
    fake.exit(2);
    let first = window(&process, OutputSeq(0), 100).await;
    assert_eq!(first.exit.as_ref().map(|exit| exit.code), Some(2));
    assert!(!first.running && !first.closed);
    fake.print("of a descendant");
    let second = window(&process, first.last, 100).await;
    assert_eq!((second.exit.clone(), second.running), (None, false));
    assert_eq!(second.bytes(), b"of a descendant");
}

#[tokio::test(start_paused = true)]
async fn chunks_dropped_between_windows_are_counted() {
    let retention = RetentionLimits {
        bytes: 3,
        chunks: 10,
    };
    let (fake, process) = fake();
    fake.limit_retention(retention);
    fake.print("1");
    let first = window(&process, OutputSeq(0), 1).await;
    for text in ["2", "3", "456"] {
        fake.print(text);
    }
    let second = window(&process, first.last, 100).await;
    assert_eq!(
        (&second.bytes()[..], second.missed_chunks),
        (&b"456"[..], 2)
    );
}

#[tokio::test(start_paused = true)]
async fn output_before_a_failure_is_returned_first() {
    let (fake, process) = fake();
    fake.print("last words");
    fake.fail(disconnected());
    let first = window(&process, OutputSeq(0), 100).await;
    assert_eq!(first.bytes(), b"last words");
    let second = process
        .collect(CollectOptions::after_write(first.last))
        .await;
    assert_eq!(second, Err(disconnected()));
}

#[tokio::test]
async fn endless_output_does_not_outlast_the_time_limit() {
    let (fake, process) = fake();
    fake.print_endlessly();
    let window = Duration::from_millis(20);
    let collect = CollectOptions {
        after: OutputSeq(0),
        window,
        max_bytes: usize::MAX,
    };
    let collected = process.collect(collect).await.unwrap();
    assert!(collected.running && collected.missed_chunks == 0);
    let communicate = CommunicateOptions {
        max_bytes: 100,
        time_limit: Some(window),
    };
    let communicated = process.communicate(INPUT, communicate).await.unwrap();
    assert!(communicated.running());
}

#[tokio::test(start_paused = true)]
async fn window_of_maximum_duration_is_accepted() {
    let (fake, process) = fake();
    fake.exit(0);
    fake.close();
    let collect = CollectOptions {
        window: Duration::MAX,
        ..CollectOptions::after_start()
    };
    assert!(process.collect(collect).await.unwrap().closed);
}

#[tokio::test(start_paused = true)]
async fn output_available_at_the_deadline_is_collected() {
    let (fake, process) = fake();
    let chunks = 1000;
    for _ in 0..chunks {
        fake.print("x");
    }
    let collect = CollectOptions {
        after: OutputSeq(0),
        window: Duration::ZERO,
        max_bytes: usize::MAX,
    };
    let collected = process.collect(collect).await.unwrap();
    assert_eq!(collected.chunks.len(), chunks);
}

#[tokio::test(start_paused = true)]
async fn disconnected_write_ends_communicate_immediately() {
    let (fake, process) = fake();
    fake.script_writes([Err(disconnected())]);
    let before = Instant::now();
    let outcome = process
        .communicate(INPUT, CommunicateOptions::default())
        .await;
    assert_eq!(outcome, Err(CommunicateError::Process(disconnected())));
    assert_eq!(Instant::now(), before);
}
