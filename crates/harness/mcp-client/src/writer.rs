//! From messages to a server's stdin, one at a time; then the end of the server.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use exec_env::{
    disconnect::Disconnect,
    process::{ExecProcess, ProcessError},
};
use exec_wire::process::{TerminateMode, WaitUntil, WriteStatus};
use tokio::{
    select,
    sync::{mpsc, oneshot},
    time,
};

use crate::{
    error::McpTransportError,
    pending_requests::{Calls, Sent},
    reader::Stderr,
};

/// Part of a line that is handed to the process at once: a message may be larger than one of the
/// connection to its environment.
const PIECE_BYTES: usize = 256 << 10;
/// How long to wait before a write is tried again.
const RETRY: Duration = Duration::from_millis(10);
/// How often a process may be said to be starting: half a minute.
const STARTING: usize = 3000;
/// How long the end may come after a write that failed. A process that ended takes no input, and its
/// end says more.
const END_BEHIND: Duration = Duration::from_secs(2);

/// A line for the server, and who waits until it is written.
#[derive(Debug)]
pub(crate) struct Outgoing {
    pub(crate) line: Bytes,
    pub(crate) written: oneshot::Sender<Sent>,
}

/// Writes to one server. It owns the process, and ends it.
#[derive(Debug)]
pub(crate) struct Writer {
    pub(crate) server: String,
    pub(crate) process: Arc<dyn ExecProcess>,
    pub(crate) calls: Arc<Calls>,
    pub(crate) stderr: Arc<Stderr>,
    pub(crate) ending: Ending,
}

impl Writer {
    /// Writes lines until the transport is gone, then ends the server.
    pub(crate) async fn run(
        self,
        mut lines: mpsc::Receiver<Outgoing>,
        closing: oneshot::Receiver<()>,
    ) {
        select! {
            () = self.write_all(&mut lines) => {}
            // Said or dropped: the transport is gone.
            _ = closing => {}
        }
        drop(lines);
        self.calls
            .end(McpTransportError::Closed(self.server.clone()));
        self.ending.run(&self.process).await;
    }

    async fn write_all(&self, lines: &mut mpsc::Receiver<Outgoing>) {
        while let Some(Outgoing { line, written }) = lines.recv().await {
            let outcome = match self.calls.ended() {
                Some(end) => Err(end),
                None => select! {
                    outcome = self.write(line) => outcome,
                    end = self.calls.until_ended() => Err(end),
                },
            };
            // Whoever sent it may have lost interest.
            written.send(outcome).ok();
        }
    }

    async fn write(&self, mut line: Bytes) -> Sent {
        let whole = line.len();
        while !line.is_empty() {
            let is_first = line.len() == whole;
            let piece = line.split_to(PIECE_BYTES.min(line.len()));
            if let Err(error) = self.write_piece(piece).await {
                // The next line would be read as the rest of this one.
                if !is_first {
                    self.calls.end(error.clone());
                }
                return Err(error);
            }
        }
        Ok(())
    }

    async fn write_piece(&self, piece: Bytes) -> Sent {
        let mut attempts = 0;
        let failure = loop {
            match self.process.write(None, piece.clone()).await {
                Ok(WriteStatus::Accepted) => return Ok(()),
                Ok(WriteStatus::Starting) | Err(ProcessError::StdinFull) if attempts < STARTING => {
                    attempts += 1;
                    time::sleep(RETRY).await;
                }
                Ok(WriteStatus::StdinClosed) => break None,
                Ok(status @ (WriteStatus::Starting | WriteStatus::UnknownProcess)) => {
                    let refused = format!("it answers `{status:?}` to a write");
                    break Some(Disconnect::Protocol(refused).into());
                }
                Err(error) => break Some(error),
            }
        };
        // If the end comes meanwhile, this is not polled to its own.
        time::sleep(END_BEHIND).await;
        Err(match failure {
            Some(error) => self.lost(error),
            None => McpTransportError::StdinClosed {
                server: self.server.clone(),
                stderr: self.stderr.last_words(),
            },
        })
    }

    fn lost(&self, error: ProcessError) -> McpTransportError {
        McpTransportError::Lost {
            server: self.server.clone(),
            error,
            stderr: self.stderr.last_words(),
        }
    }
}

/// How long a call may take that only passes something on: a connection may be gone.
const CALL: Duration = Duration::from_secs(2);

/// How long a server has to end.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Ending {
    /// When its input has ended.
    pub(crate) exit: Duration,
    /// When it was signalled.
    pub(crate) terminate: Duration,
}

impl Ending {
    /// Ends a server in bounded time. What is left is killed when the handle is dropped.
    pub(crate) async fn run(self, process: &Arc<dyn ExecProcess>) {
        if process.status().exit.is_some() {
            return;
        }
        // Whether it was told does not matter: it is waited for no longer than that.
        time::timeout(CALL, process.close_stdin(None)).await.ok();
        if exits(process, self.exit).await {
            return;
        }
        let timeout_ms = u64::try_from(self.terminate.as_millis()).unwrap_or(u64::MAX);
        let graceful = process.terminate(TerminateMode::Graceful { timeout_ms });
        time::timeout(CALL, graceful).await.ok();
        if exits(process, self.terminate.saturating_add(CALL)).await {
            return;
        }
        let force = process.terminate(TerminateMode::Force);
        time::timeout(CALL, force).await.ok();
    }
}

/// Tells whether the process ends within `limit`, or nothing more can be learned of it.
async fn exits(process: &Arc<dyn ExecProcess>, limit: Duration) -> bool {
    let wait = process.wait(WaitUntil::Exited, Some(limit));
    match time::timeout(limit.saturating_add(CALL), wait).await {
        Ok(Ok(status)) => status.exit.is_some(),
        Ok(Err(_)) => true,
        Err(_) => false,
    }
}
