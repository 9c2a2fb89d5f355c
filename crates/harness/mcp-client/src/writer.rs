//! Writes messages to a server's stdin one at a time, and stops the server at the end.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use exec_env::{
    environment::DisconnectReason,
    process::{ExecProcess, ProcessError},
};
use exec_wire::process::{TerminateMode, WaitUntil, WriteStatus};
use tokio::{
    select,
    sync::{mpsc, oneshot},
    time,
};

use crate::{
    reader::StderrTail,
    transport::{McpTransportError, PendingRequests, SendResult},
};

/// Maximum size of one write: a message may exceed the limit of the connection to the environment.
const MAX_WRITE_BYTES: usize = 256 << 10;
/// Backoff before a write is retried.
const WRITE_BACKOFF: Duration = Duration::from_millis(10);
/// Maximum number of retries while the process is starting: half a minute.
const MAX_RETRIES: usize = 3000;
/// How long to wait for the exit event after a failed write. The exit is more informative than the
/// write error.
const EXIT_EVENT_TIMEOUT: Duration = Duration::from_secs(2);

/// A line for the server, and the receiver of its write result.
#[derive(Debug)]
pub(crate) struct OutgoingLine {
    pub(crate) line: Bytes,
    pub(crate) written: oneshot::Sender<SendResult>,
}

/// Writes to one server, owns its process, and stops it.
#[derive(Debug)]
pub(crate) struct ServerWriter {
    pub(crate) process: Arc<dyn ExecProcess>,
    pub(crate) pending: Arc<PendingRequests>,
    pub(crate) stderr: Arc<StderrTail>,
    /// Timeout for exiting after its stdin was closed.
    pub(crate) exit_timeout: Duration,
    /// Timeout for exiting after SIGTERM.
    pub(crate) terminate_timeout: Duration,
}

impl ServerWriter {
    /// Writes lines until the transport is dropped, then stops the server.
    pub(crate) async fn run(
        self,
        mut lines: mpsc::Receiver<OutgoingLine>,
        closing: oneshot::Receiver<()>,
    ) {
        select! {
            () = self.write_all(&mut lines) => {}
            // Sent or dropped: the transport is closed.
            _ = closing => {}
        }
        drop(lines);
        self.pending
            .end(McpTransportError::Closed(self.stderr.server.clone()));
        self.stop().await;
    }

    async fn write_all(&self, lines: &mut mpsc::Receiver<OutgoingLine>) {
        while let Some(OutgoingLine { line, written }) = lines.recv().await {
            let outcome = match self.pending.ended() {
                Some(end) => Err(end),
                None => select! {
                    outcome = self.write(line) => outcome,
                    end = self.pending.wait_for_end() => Err(end),
                },
            };
            // The caller may have been dropped.
            written.send(outcome).ok();
        }
    }

    async fn write(&self, mut line: Bytes) -> SendResult {
        let total = line.len();
        while !line.is_empty() {
            let is_first = line.len() == total;
            let chunk = line.split_to(MAX_WRITE_BYTES.min(line.len()));
            if let Err(error) = self.write_chunk(chunk).await {
                // The server would read the next line as the rest of this one.
                if !is_first {
                    self.pending.end(error.clone());
                }
                return Err(error);
            }
        }
        Ok(())
    }

    async fn write_chunk(&self, chunk: Bytes) -> SendResult {
        let mut attempts = 0;
        let failure = loop {
            match self.process.write(None, chunk.clone()).await {
                Ok(WriteStatus::Accepted) => return Ok(()),
                Ok(WriteStatus::Starting) | Err(ProcessError::StdinFull)
                    if attempts < MAX_RETRIES =>
                {
                    attempts += 1;
                    time::sleep(WRITE_BACKOFF).await;
                }
                Ok(WriteStatus::StdinClosed) => break None,
                Ok(status @ (WriteStatus::Starting | WriteStatus::UnknownProcess)) => {
                    let refused = format!("write returned the status `{status:?}`");
                    break Some(DisconnectReason::Protocol(refused).into());
                }
                Err(error) => break Some(error),
            }
        };
        // If the exit event arrives meanwhile, this future is dropped.
        time::sleep(EXIT_EVENT_TIMEOUT).await;
        Err(match failure {
            Some(error) => self.stderr.lost(error),
            None => McpTransportError::StdinClosed {
                server: self.stderr.server.clone(),
                stderr: self.stderr.last_stderr(),
            },
        })
    }

    /// Stops the server in bounded time. Dropping the handle kills the remaining processes.
    async fn stop(&self) {
        let process = &self.process;
        if process.status().exit.is_some() {
            return;
        }
        // A failure does not matter: the wait below is bounded.
        time::timeout(CALL_TIMEOUT, process.close_stdin(None))
            .await
            .ok();
        if exits(process, self.exit_timeout).await {
            return;
        }
        let timeout_ms = u64::try_from(self.terminate_timeout.as_millis()).unwrap_or(u64::MAX);
        let graceful = process.terminate(TerminateMode::Graceful { timeout_ms });
        time::timeout(CALL_TIMEOUT, graceful).await.ok();
        if exits(process, self.terminate_timeout.saturating_add(CALL_TIMEOUT)).await {
            return;
        }
        let force = process.terminate(TerminateMode::Force);
        time::timeout(CALL_TIMEOUT, force).await.ok();
    }
}

/// Timeout of a call to the environment, because its connection may be lost.
const CALL_TIMEOUT: Duration = Duration::from_secs(2);

/// Returns whether the process exits within `limit`, or its state is unknown.
async fn exits(process: &Arc<dyn ExecProcess>, limit: Duration) -> bool {
    let wait = process.wait(WaitUntil::Exited, Some(limit));
    match time::timeout(limit.saturating_add(CALL_TIMEOUT), wait).await {
        Ok(Ok(status)) => status.exit.is_some(),
        Ok(Err(_)) => true,
        Err(_) => false,
    }
}
