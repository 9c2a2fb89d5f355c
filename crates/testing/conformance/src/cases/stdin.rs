//! Writes to a process's stdin.

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
    followed_process::{FollowedProcess, assert_closed},
    pattern,
    subject::{Subject, piped},
};

/// How long a case waits for something that must not happen.
const OBSERVATION_TIME: Duration = Duration::from_millis(700);

/// Starts a program that echoes at least `bytes` bytes.
async fn cat(subject: &Subject, bytes: usize) -> FollowedProcess {
    subject.start(subject.cat(bytes)).await
}

pub async fn write_reaches_stdin(subject: &Subject) {
    let mut running = cat(subject, "hello".len()).await;
    running.write(b"hello").await;
    running.until_stdout_contains("hello").await;
}

pub async fn close_stdin_ends_cat(subject: &Subject) {
    let running = cat(subject, "all".len()).await;
    running.write(b"all").await;
    running.close_stdin().await;
    let told = running.finish().await;
    assert_eq!((told.text().as_str(), told.code()), ("all", 0));
}

pub async fn stdin_and_stdout_preserve_every_byte(subject: &Subject) {
    let bytes: Vec<u8> = (0..=255).collect();
    let running = cat(subject, bytes.len()).await;
    running.write(&bytes).await;
    running.close_stdin().await;
    assert_eq!(running.finish().await.stdout(), bytes);
}

pub async fn repeated_write_id_is_written_once(subject: &Subject) {
    let running = cat(subject, "12".len()).await;
    for (id, data) in [("a", "1"), ("b", "2"), ("a", "3"), ("a", "1")] {
        let write = running
            .process
            .write(Some(WriteId::new(id).unwrap()), Bytes::from(data));
        assert_eq!(
            within("write is accepted", write).await,
            Ok(WriteStatus::Accepted)
        );
    }
    running.close_stdin().await;
    assert_eq!(running.finish().await.text(), "12");
}

pub async fn writes_are_delivered_in_call_order(subject: &Subject) {
    let lines: Vec<String> = (0..100).map(|line| format!("{line}\n")).collect();
    let running = cat(subject, lines.concat().len()).await;
    let writes = lines
        .iter()
        .map(|line| running.process.write(None, Bytes::from(line.clone())));
    let mut writes: Vec<_> = writes.collect();
    // Awaiting the writes in reverse order must not change their order.
    writes.reverse();
    let close = running.process.close_stdin(None);
    for status in within("writes are accepted", join_all(writes)).await {
        assert_eq!(status, Ok(WriteStatus::Accepted));
    }
    let closed = within("close-stdin response arrives", close).await;
    assert_closed(&subject.capabilities, closed, WriteStatus::Accepted);
    assert_eq!(running.finish().await.text(), lines.concat());
}

pub async fn large_write_arrives_complete(subject: &Subject) {
    const BYTES: usize = 4 << 20;
    let running = cat(subject, BYTES).await;
    let write = running
        .process
        .write(None, Bytes::from(pattern::bytes(BYTES)));
    let close = running.process.close_stdin(None);
    let told = running.finish().await;
    let (written, closed) = within("both responses arrive", join(write, close)).await;
    assert_eq!(written, Ok(WriteStatus::Accepted));
    assert_closed(&subject.capabilities, closed, WriteStatus::Accepted);
    pattern::assert_same(&told.stdout(), &pattern::bytes(BYTES));
}

pub async fn write_without_stdin_is_refused(subject: &Subject) {
    let running = subject
        .start(subject.sh("read line; echo \"<$line>\"", &[]))
        .await;
    let write = running.process.write(None, Bytes::from_static(b"x"));
    assert_eq!(
        within("write response arrives", write).await,
        Ok(WriteStatus::StdinClosed)
    );
    let close = running.process.close_stdin(None);
    let closed = within("close-stdin response arrives", close).await;
    assert_closed(&subject.capabilities, closed, WriteStatus::StdinClosed);
    assert_eq!(running.finish().await.text(), "<>\n");
}

pub async fn write_after_close_stdin_is_refused(subject: &Subject) {
    let scratch = crate::scratch_dir::ScratchDir::new();
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
        within("write response arrives", write).await,
        Ok(WriteStatus::StdinClosed)
    );
    gate.open();
    assert_eq!(running.finish().await.text(), "");
}

pub async fn a_write_after_terminate_fails(subject: &Subject) {
    let running = cat(subject, 1).await;
    let terminate = running.process.terminate(TerminateMode::Force);
    assert_eq!(within("terminate completes", terminate).await, Ok(true));
    let write = || {
        let write = running.process.write(None, Bytes::from_static(b"x"));
        within("write response arrives", write)
    };
    let mut written = write().await;
    if subject.differs(Difference::LateWritesAreTaken) {
        within("writes start to fail", async {
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

pub async fn blocked_writes_do_not_block_other_calls(subject: &Subject) {
    let running = subject
        .start(piped(subject.command(&["sleep", "1000"])))
        .await;
    // More chunks and bytes than the write queue and the pipe hold.
    let chunk = Bytes::from(vec![b'x'; 4096]);
    let writes: Vec<_> = (0..300)
        .map(|_| running.process.write(None, chunk.clone()))
        .collect();
    if subject.differs(Difference::SerialRequests) {
        let start = subject.backend.start(subject.sh("exit 5", &[]));
        let started = tokio::time::timeout(OBSERVATION_TIME, start).await;
        return assert!(started.is_err(), "what waits holds up what comes after");
    }
    let other = subject.start(subject.sh("exit 5", &[])).await;
    assert_eq!(other.finish().await.code(), 5);
    let terminate = running.process.terminate(TerminateMode::Force);
    assert_eq!(within("terminate completes", terminate).await, Ok(true));
    assert_eq!(running.finish().await.code(), 137);
    // Each write is accepted or discarded, but none hangs.
    drop(within("write responses arrive", join_all(writes)).await);
}
