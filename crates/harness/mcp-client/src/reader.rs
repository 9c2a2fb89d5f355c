//! From the events of a server's process to messages.

use std::sync::Arc;

use exec_core::log::Exit;
use exec_env::process::{EventStream, ExecProcessEvent, ProcessError};
use exec_wire::process::OutputStream;
use futures_util::StreamExt;
use rmcp::{
    RoleClient,
    model::{JsonRpcMessage, RequestId},
    service::RxJsonRpcMessage,
};
use serde::Deserialize;
use tokio::{
    sync::mpsc,
    time::{self, Duration, Instant},
};

use crate::{calls::Calls, error::McpTransportError, lines::Lines, stderr::Stderr};

/// How long output may come after the exit: a server's last answer, or its last words. A descendant
/// that holds the output for longer does not hide the end.
const AFTER_EXIT: Duration = Duration::from_secs(1);
/// How much of a line that is no message is logged.
const SHOWN_BYTES: usize = 200;

/// Reads one server.
#[derive(Debug)]
pub(crate) struct Reader {
    server: String,
    lines: Lines,
    max_line_bytes: usize,
    stderr: Arc<Stderr>,
    calls: Arc<Calls>,
    messages: mpsc::Sender<RxJsonRpcMessage<RoleClient>>,
}

/// What a line without a message may still tell.
#[derive(Deserialize)]
struct Envelope {
    id: RequestId,
    method: Option<serde::de::IgnoredAny>,
}

impl Reader {
    pub(crate) fn new(
        server: String,
        max_line_bytes: usize,
        stderr: Arc<Stderr>,
        calls: Arc<Calls>,
        messages: mpsc::Sender<RxJsonRpcMessage<RoleClient>>,
    ) -> Self {
        Self {
            server,
            lines: Lines::new(max_line_bytes),
            max_line_bytes,
            stderr,
            calls,
            messages,
        }
    }

    /// Reads until the server's end, and tells it to everybody who waits.
    pub(crate) async fn run(mut self, mut events: EventStream) {
        let end = self.read(&mut events).await;
        tracing::debug!(server = self.server, %end, "mcp server is over");
        self.calls.end(end);
        drop(self.messages);
        // A process that nobody reads would be held up on its way to the end.
        while let Some(event) = events.next().await {
            if let ExecProcessEvent::Output(chunk) = event
                && chunk.stream == OutputStream::Stderr
            {
                self.stderr.push(&chunk.data);
            }
        }
    }

    async fn read(&mut self, events: &mut EventStream) -> McpTransportError {
        let mut exited: Option<(Exit, Instant)> = None;
        loop {
            let event = match &exited {
                None => events.next().await,
                Some((exit, until)) => match time::timeout_at(*until, events.next()).await {
                    Ok(event) => event,
                    Err(_) => return self.exited(exit.clone()),
                },
            };
            match event {
                Some(ExecProcessEvent::Output(chunk)) => match chunk.stream {
                    OutputStream::Stdout => {
                        if let Err(error) = self.take(&chunk.data).await {
                            return error;
                        }
                    }
                    OutputStream::Stderr | OutputStream::Pty => self.stderr.push(&chunk.data),
                },
                Some(ExecProcessEvent::Exited(_, exit)) => {
                    exited = Some((exit, Instant::now() + AFTER_EXIT));
                }
                Some(ExecProcessEvent::Failed(error)) => return self.lost(error),
                Some(ExecProcessEvent::Closed(_)) | None => {
                    return match exited {
                        Some((exit, _)) => self.exited(exit),
                        None => self.lost(ended_early()),
                    };
                }
            }
        }
    }

    /// Hands on the messages that are whole with this chunk. Waits for room.
    async fn take(&mut self, chunk: &[u8]) -> Result<(), McpTransportError> {
        let pushed = self.lines.push(chunk);
        while let Some(line) = self.lines.next() {
            let Some(message) = self.decode(&line) else {
                continue;
            };
            let answered = match &message {
                JsonRpcMessage::Response(response) => Some(response.id.clone()),
                JsonRpcMessage::Error(error) => error.id.clone(),
                JsonRpcMessage::Request(_) | JsonRpcMessage::Notification(_) => None,
            };
            // If the transport was dropped, what the server still says is of no interest.
            self.messages.send(message).await.ok();
            self.calls.first_message();
            if let Some(id) = answered {
                self.calls.finish(&id, Ok(()));
            }
        }
        pushed.map_err(|_| McpTransportError::LineTooLong {
            server: self.server.clone(),
            limit: self.max_line_bytes,
        })
    }

    /// Reads a line. One that is no message is passed over: servers print what they should log. Only
    /// an answer that somebody waits for is not, for nothing else would come.
    fn decode(&self, line: &[u8]) -> Option<RxJsonRpcMessage<RoleClient>> {
        if line.is_empty() {
            return None;
        }
        let error = match serde_json::from_slice(line) {
            Ok(message) => return Some(message),
            Err(error) => error,
        };
        let shown = String::from_utf8_lossy(&line[..line.len().min(SHOWN_BYTES)]);
        tracing::warn!(server = self.server, %error, "mcp server wrote what is no message: {shown}");
        if let Ok(Envelope { id, method: None }) = serde_json::from_slice(line) {
            let malformed = McpTransportError::Malformed {
                server: self.server.clone(),
                reason: error.to_string(),
            };
            self.calls.finish(&id, Err(malformed));
        }
        None
    }

    fn exited(&self, exit: Exit) -> McpTransportError {
        McpTransportError::Exited {
            server: self.server.clone(),
            exit: Box::new(exit),
            stderr: self.stderr.last_words(),
        }
    }

    fn lost(&self, error: ProcessError) -> McpTransportError {
        McpTransportError::Lost {
            server: self.server.clone(),
            error,
            stderr: self.stderr.last_words(),
        }
    }
}

/// Tells that the events of a process ended although it was not over.
fn ended_early() -> ProcessError {
    let broken = "events of a process ended before its close".to_owned();
    exec_env::disconnect::Disconnect::Protocol(broken).into()
}
