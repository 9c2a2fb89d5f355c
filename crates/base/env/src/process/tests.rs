//! Communicating and collecting, on a process that does as it is told.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use exec_core::log::Retention;
use exec_wire::{id::OutputSeq, process::WriteStatus};
use tokio::time::Instant;

use super::{
    Collect, Collected, Communicate, CommunicateError, ExecProcess, ProcessError,
    fake_process::Fake,
};
use crate::environment::Disconnect;

fn fake() -> (Arc<Fake>, Arc<dyn ExecProcess>) {
    let fake = Arc::new(Fake::new("p"));
    (Arc::clone(&fake), fake)
}

fn gone() -> ProcessError {
    Disconnect::Transport("cut".to_owned()).into()
}

const INPUT: Bytes = Bytes::from_static(b"input");

#[tokio::test(start_paused = true)]
async fn a_process_that_is_starting_is_tried_again() {
    let (fake, process) = fake();
    fake.answers(&[
        Ok(WriteStatus::Starting),
        Err(ProcessError::StdinFull),
        Ok(WriteStatus::Starting),
    ]);
    let both = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(fake.input(), (INPUT.to_vec(), true));
        fake.prints("done");
        fake.exits(3);
        fake.closes();
    };
    let (communicated, ()) = tokio::join!(process.communicate(INPUT, Communicate::default()), both);
    let communicated = communicated.unwrap();
    assert_eq!(communicated.stdout.data, b"done");
    assert_eq!(communicated.exit.as_ref().map(|exit| exit.code), Some(3));
    assert!(communicated.closed && !communicated.truncated() && !communicated.running());
}

#[tokio::test(start_paused = true)]
async fn a_process_that_never_gets_started_is_given_up() {
    let (fake, process) = fake();
    fake.answers(&vec![Ok(WriteStatus::Starting); 10_000]);
    let outcome = process.communicate(INPUT, Communicate::default()).await;
    assert_eq!(
        outcome,
        Err(CommunicateError::NotStarted(process.id().clone()))
    );
}

#[tokio::test(start_paused = true)]
async fn an_unknown_process_is_an_error_unless_its_close_comes() {
    let (fake, process) = fake();
    fake.answers(&[Ok(WriteStatus::UnknownProcess)]);
    let outcome = process.communicate(INPUT, Communicate::default()).await;
    assert_eq!(
        outcome,
        Err(CommunicateError::Unknown(process.id().clone()))
    );
    fake.answers(&[Ok(WriteStatus::UnknownProcess)]);
    fake.exits(0);
    fake.closes();
    let outcome = process.communicate(INPUT, Communicate::default()).await;
    assert!(outcome.unwrap().closed);
}

#[tokio::test(start_paused = true)]
async fn an_input_that_is_closed_early_is_no_error() {
    for answer in [Ok(WriteStatus::StdinClosed), Err(ProcessError::Terminated)] {
        let (fake, process) = fake();
        fake.answers(&[answer]);
        let both = async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            fake.exits(0);
            fake.closes();
        };
        let (outcome, ()) = tokio::join!(process.communicate(INPUT, Communicate::default()), both);
        assert!(outcome.unwrap().closed);
        assert_eq!(fake.input(), (vec![], false));
    }
}

#[tokio::test(start_paused = true)]
async fn a_failure_ends_communication_at_once() {
    let (fake, process) = fake();
    fake.prints("something");
    fake.fails(gone());
    let before = Instant::now();
    let outcome = process.communicate(INPUT, Communicate::default()).await;
    assert_eq!(outcome, Err(CommunicateError::Process(gone())));
    assert_eq!(Instant::now(), before);
}

#[tokio::test(start_paused = true)]
async fn when_the_time_is_up_what_came_is_returned() {
    let (fake, process) = fake();
    fake.prints("so far");
    let communicate = Communicate {
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

async fn window(process: &Arc<dyn ExecProcess>, after: OutputSeq, max_bytes: usize) -> Collected {
    let collect = Collect {
        after,
        window: Duration::from_secs(10),
        max_bytes,
    };
    process.collect(collect).await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_cap_ends_a_window_before_the_chunk_that_exceeds_it() {
    let (fake, process) = fake();
    for text in ["one", "two", "three", "a chunk beyond the cap"] {
        fake.prints(text);
    }
    fake.exits(0);
    fake.closes();
    let before = Instant::now();
    let mut last = OutputSeq(0);
    let mut shown = Vec::new();
    for _ in 0..4 {
        let collected = window(&process, last, 7).await;
        last = collected.last;
        let exit = collected.exit.is_some();
        let text = String::from_utf8(collected.bytes()).unwrap();
        shown.push((text, exit, collected.running, collected.closed));
    }
    let shown: Vec<_> = shown
        .iter()
        .map(|(a, b, c, d)| (&a[..], *b, *c, *d))
        .collect();
    assert_eq!(
        shown,
        [
            ("onetwo", false, true, false),
            ("three", false, true, false),
            ("a chunk beyond the cap", false, true, false),
            ("", true, false, true),
        ]
    );
    let behind = window(&process, last, 7).await;
    assert_eq!(
        (behind.closed, behind.running, behind.exit),
        (true, false, None)
    );
    assert_eq!(Instant::now(), before, "no window waited");
}

#[tokio::test(start_paused = true)]
async fn an_exit_without_a_close_is_told_once_and_the_window_goes_on() {
    let (fake, process) = fake();
    fake.exits(2);
    let first = window(&process, OutputSeq(0), 100).await;
    assert_eq!(first.exit.as_ref().map(|exit| exit.code), Some(2));
    assert!(!first.running && !first.closed);
    fake.prints("of a descendant");
    let second = window(&process, first.last, 100).await;
    assert_eq!((second.exit.clone(), second.running), (None, false));
    assert_eq!(second.bytes(), b"of a descendant");
}

#[tokio::test(start_paused = true)]
async fn what_fell_out_between_two_windows_is_counted() {
    let retention = Retention {
        bytes: 3,
        chunks: 10,
    };
    let fake = Arc::new(Fake::retaining("p", retention));
    let process: Arc<dyn ExecProcess> = fake.clone();
    fake.prints("1");
    let first = window(&process, OutputSeq(0), 1).await;
    for text in ["2", "3", "456"] {
        fake.prints(text);
    }
    let second = window(&process, first.last, 100).await;
    assert_eq!(
        (&second.bytes()[..], second.missed_chunks),
        (&b"456"[..], 2)
    );
}

#[tokio::test(start_paused = true)]
async fn output_before_a_failure_is_given_first() {
    let (fake, process) = fake();
    fake.prints("last words");
    fake.fails(gone());
    let first = window(&process, OutputSeq(0), 100).await;
    assert_eq!(first.bytes(), b"last words");
    let second = process.collect(Collect::after_write(first.last)).await;
    assert_eq!(second, Err(gone()));
}

#[tokio::test]
async fn a_process_that_never_pauses_is_left_when_the_time_is_up() {
    let (fake, process) = fake();
    fake.never_pauses();
    let window = Duration::from_millis(20);
    let collect = Collect {
        after: OutputSeq(0),
        window,
        max_bytes: usize::MAX,
    };
    let collected = process.collect(collect).await.unwrap();
    assert!(collected.running && collected.missed_chunks == 0);
    let communicate = Communicate {
        max_bytes: 100,
        time_limit: Some(window),
    };
    let communicated = process.communicate(INPUT, communicate).await.unwrap();
    assert!(communicated.running());
}

#[tokio::test(start_paused = true)]
async fn a_window_may_be_longer_than_any_clock_goes() {
    let (fake, process) = fake();
    fake.exits(0);
    fake.closes();
    let collect = Collect {
        window: Duration::MAX,
        ..Collect::after_start()
    };
    assert!(process.collect(collect).await.unwrap().closed);
}

#[tokio::test(start_paused = true)]
async fn what_is_there_when_the_time_is_up_is_in_the_window() {
    let (fake, process) = fake();
    let chunks = 1000;
    for _ in 0..chunks {
        fake.prints("x");
    }
    let collect = Collect {
        after: OutputSeq(0),
        window: Duration::ZERO,
        max_bytes: usize::MAX,
    };
    let collected = process.collect(collect).await.unwrap();
    assert_eq!(collected.chunks.len(), chunks);
}

#[tokio::test(start_paused = true)]
async fn a_write_that_learns_of_a_disconnect_ends_communication_at_once() {
    let (fake, process) = fake();
    fake.answers(&[Err(gone())]);
    let before = Instant::now();
    let outcome = process.communicate(INPUT, Communicate::default()).await;
    assert_eq!(outcome, Err(CommunicateError::Process(gone())));
    assert_eq!(Instant::now(), before);
}
