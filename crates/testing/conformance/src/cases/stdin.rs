//! The way to a process's stdin.

use std::time::Duration;

use bytes::Bytes;
use exec_env::process::ProcessError;
use exec_wire::{
    error::ErrorCode,
    id::WriteId,
    process::{TerminateMode, WriteStatus},
};
use futures_util::future::{join, join_all};

use crate::{
    bounded_wait::within,
    difference::Difference,
    followed_process::{Running, assert_closed},
    pattern,
    subject::{Subject, piped},
};

/// How long something that ought not to happen is waited for.
const WATCHED: Duration = Duration::from_millis(700);

/// A program that repeats at least so many bytes.
async fn cat(subject: &Subject, bytes: usize) -> Running {
    subject.start(subject.cat(bytes)).await
}

pub async fn a_write_reaches_stdin(subject: &Subject) {
    let mut running = cat(subject, "hello".len()).await;
    running.write(b"hello").await;
    running.until_says("hello").await;
}

pub async fn close_stdin_ends_cat(subject: &Subject) {
    let running = cat(subject, "all".len()).await;
    running.write(b"all").await;
    running.close_stdin().await;
    let told = running.finish().await;
    assert_eq!((told.text().as_str(), told.code()), ("all", 0));
}

pub async fn every_byte_survives_both_ways(subject: &Subject) {
    let bytes: Vec<u8> = (0..=255).collect();
    let running = cat(subject, bytes.len()).await;
    running.write(&bytes).await;
    running.close_stdin().await;
    assert_eq!(running.finish().await.stdout(), bytes);
}

pub async fn a_repeated_write_id_is_written_once(subject: &Subject) {
    let running = cat(subject, "12".len()).await;
    for (id, data) in [("a", "1"), ("b", "2"), ("a", "3"), ("a", "1")] {
        let write = running
            .process
            .write(Some(WriteId::new(id).unwrap()), Bytes::from(data));
        assert_eq!(
            within("a write is taken", write).await,
            Ok(WriteStatus::Accepted)
        );
    }
    running.close_stdin().await;
    assert_eq!(running.finish().await.text(), "12");
}

pub async fn writes_keep_the_order_in_which_they_were_called(subject: &Subject) {
    let lines: Vec<String> = (0..100).map(|line| format!("{line}\n")).collect();
    let running = cat(subject, lines.concat().len()).await;
    let writes = lines
        .iter()
        .map(|line| running.process.write(None, Bytes::from(line.clone())));
    let mut writes: Vec<_> = writes.collect();
    // Awaiting them the other way round changes nothing.
    writes.reverse();
    let close = running.process.close_stdin(None);
    for status in within("writes are taken", join_all(writes)).await {
        assert_eq!(status, Ok(WriteStatus::Accepted));
    }
    let closed = within("the end is answered", close).await;
    assert_closed(&subject.capabilities, closed, WriteStatus::Accepted);
    assert_eq!(running.finish().await.text(), lines.concat());
}

pub async fn a_large_write_arrives_whole(subject: &Subject) {
    const BYTES: usize = 4 << 20;
    let running = cat(subject, BYTES).await;
    let write = running
        .process
        .write(None, Bytes::from(pattern::bytes(BYTES)));
    let close = running.process.close_stdin(None);
    let told = running.finish().await;
    let (written, closed) = within("both are answered", join(write, close)).await;
    assert_eq!(written, Ok(WriteStatus::Accepted));
    assert_closed(&subject.capabilities, closed, WriteStatus::Accepted);
    pattern::assert_same(&told.stdout(), &pattern::bytes(BYTES));
}

pub async fn a_process_without_stdin_cannot_be_written_to(subject: &Subject) {
    let running = subject
        .start(subject.sh("read line; echo \"<$line>\"", &[]))
        .await;
    let write = running.process.write(None, Bytes::from_static(b"x"));
    assert_eq!(
        within("a write is answered", write).await,
        Ok(WriteStatus::StdinClosed)
    );
    let close = running.process.close_stdin(None);
    let closed = within("an end is answered", close).await;
    assert_closed(&subject.capabilities, closed, WriteStatus::StdinClosed);
    assert_eq!(running.finish().await.text(), "<>\n");
}

pub async fn a_closed_stdin_takes_nothing_more(subject: &Subject) {
    let scratch = crate::scratch_dir::Scratch::new();
    let gate = scratch.gate();
    let script = r#"cat; read line <"$1""#;
    let running = subject
        .start(piped(subject.sh(script, &[gate.path()])))
        .await;
    running.close_stdin().await;
    if subject.differs(Difference::NoCloseStdin) {
        return running.write(b"x").await;
    }
    let write = running.process.write(None, Bytes::from_static(b"x"));
    assert_eq!(
        within("a write is answered", write).await,
        Ok(WriteStatus::StdinClosed)
    );
    gate.open();
    assert_eq!(running.finish().await.text(), "");
}

pub async fn a_write_after_terminate_fails(subject: &Subject) {
    let running = cat(subject, 1).await;
    let terminate = running.process.terminate(TerminateMode::Force);
    assert_eq!(within("it is terminated", terminate).await, Ok(true));
    let write = || {
        let write = running.process.write(None, Bytes::from_static(b"x"));
        within("a write is answered", write)
    };
    let mut written = write().await;
    if subject.differs(Difference::LateWritesAreTaken) {
        within("writes come to fail", async {
            while written.is_ok() {
                written = write().await;
            }
        })
        .await;
    }
    match written {
        Err(ProcessError::Terminated) => {}
        Err(ProcessError::Remote(error)) => assert_eq!(error.code, ErrorCode::INTERNAL),
        other => panic!("expected a failure: {other:?}"),
    }
}

pub async fn writes_that_wait_hold_up_nobody(subject: &Subject) {
    let running = subject
        .start(piped(subject.command(&["sleep", "1000"])))
        .await;
    // More chunks, and more bytes, than the queue and the pipe hold.
    let chunk = Bytes::from(vec![b'x'; 4096]);
    let writes: Vec<_> = (0..300)
        .map(|_| running.process.write(None, chunk.clone()))
        .collect();
    if subject.differs(Difference::SerialRequests) {
        let start = subject.backend.start(subject.sh("exit 5", &[]));
        let started = tokio::time::timeout(WATCHED, start).await;
        return assert!(started.is_err(), "what waits holds up what comes after");
    }
    let other = subject.start(subject.sh("exit 5", &[])).await;
    assert_eq!(other.finish().await.code(), 5);
    let terminate = running.process.terminate(TerminateMode::Force);
    assert_eq!(within("it is terminated", terminate).await, Ok(true));
    assert_eq!(running.finish().await.code(), 137);
    // Taken or discarded: in any case nobody waits for ever.
    drop(within("writes are answered", join_all(writes)).await);
}
