//! Reads messages and stderr of a server from the events of its process.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use exec_core::output_log::ExitInfo;
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

use crate::transport::{McpTransportError, PendingRequests};

/// How long to wait for output after the exit, such as a last response. A descendant that keeps
/// stdout open longer does not hide the exit.
const OUTPUT_AFTER_EXIT_TIMEOUT: Duration = Duration::from_secs(1);
/// Number of bytes logged of an invalid message.
const MAX_LOGGED_BYTES: usize = 200;

/// Reads the output of one server.
#[derive(Debug)]
pub(crate) struct ServerReader {
    pub(crate) lines: LineSplitter,
    pub(crate) stderr: Arc<StderrTail>,
    pub(crate) pending: Arc<PendingRequests>,
    pub(crate) messages: mpsc::Sender<RxJsonRpcMessage<RoleClient>>,
}

/// The part of an invalid message that identifies its request.
#[derive(Deserialize)]
struct ResponseEnvelope {
    id: RequestId,
    method: Option<serde::de::IgnoredAny>,
}

impl ServerReader {
    /// Reads until the server ends, then fails all pending requests.
    pub(crate) async fn run(mut self, mut events: EventStream) {
        let end = self.read(&mut events).await;
        tracing::debug!(server = self.stderr.server, %end, "mcp server ended");
        self.pending.end(end);
        drop(self.messages);
        // Keep reading, so that a full pipe does not block the exit of the process.
        while let Some(event) = events.next().await {
            if let ExecProcessEvent::Output(chunk) = event
                && chunk.stream == OutputStream::Stderr
            {
                self.stderr.push(&chunk.data);
            }
        }
    }

    async fn read(&mut self, events: &mut EventStream) -> McpTransportError {
        let mut exited: Option<(ExitInfo, Instant)> = None;
        loop {
            let event = match &exited {
                None => events.next().await,
                Some((exit, deadline)) => match time::timeout_at(*deadline, events.next()).await {
                    Ok(event) => event,
                    Err(_) => return self.exited(exit.clone()),
                },
            };
            match event {
                Some(ExecProcessEvent::Output(chunk)) => match chunk.stream {
                    OutputStream::Stdout => {
                        if let Err(error) = self.handle_stdout(&chunk.data).await {
                            return error;
                        }
                    }
                    OutputStream::Stderr | OutputStream::Pty => self.stderr.push(&chunk.data),
                },
                Some(ExecProcessEvent::Exited(_, exit)) => {
                    exited = Some((exit, Instant::now() + OUTPUT_AFTER_EXIT_TIMEOUT));
                }
                Some(ExecProcessEvent::Failed(error)) => return self.stderr.lost(error),
                Some(ExecProcessEvent::Closed(_)) | None => {
                    return match exited {
                        Some((exit, _)) => self.exited(exit),
                        None => self.stderr.lost(ProcessError::missing_close()),
                    };
                }
            }
        }
    }

    /// Forwards the complete messages of a chunk. Blocks while the queue is full.
    async fn handle_stdout(&mut self, chunk: &[u8]) -> Result<(), McpTransportError> {
        let pushed = self.lines.push(chunk);
        while let Some(line) = self.lines.next() {
            let Some(message) = self.decode(&line) else {
                continue;
            };
            let response_id = match &message {
                JsonRpcMessage::Response(response) => Some(response.id.clone()),
                JsonRpcMessage::Error(error) => error.id.clone(),
                JsonRpcMessage::Request(_) | JsonRpcMessage::Notification(_) => None,
            };
            // After the transport was dropped, further messages are discarded.
            self.messages.send(message).await.ok();
            self.pending.handle_first_message();
            if let Some(id) = response_id {
                self.pending.finish(&id, Ok(()));
            }
        }
        pushed.map_err(|_| McpTransportError::LineTooLong {
            server: self.stderr.server.clone(),
            limit: self.lines.limit,
        })
    }

    /// Decodes a line. Invalid lines are skipped, because servers print logs to stdout; but an
    /// invalid response fails its request, which would otherwise never complete.
    fn decode(&self, line: &[u8]) -> Option<RxJsonRpcMessage<RoleClient>> {
        if line.is_empty() {
            return None;
        }
        let error = match serde_json::from_slice(line) {
            Ok(message) => return Some(message),
            Err(error) => error,
        };
        let excerpt = String::from_utf8_lossy(&line[..line.len().min(MAX_LOGGED_BYTES)]);
        let server = &self.stderr.server;
        tracing::warn!(server, %error, "skipped an invalid message of an mcp server: {excerpt}");
        if let Ok(ResponseEnvelope { id, method: None }) = serde_json::from_slice(line) {
            let malformed = McpTransportError::Malformed {
                server: server.clone(),
                reason: error.to_string(),
            };
            self.pending.finish(&id, Err(malformed));
        }
        None
    }

    fn exited(&self, exit: ExitInfo) -> McpTransportError {
        McpTransportError::Exited {
            server: self.stderr.server.clone(),
            exit: Box::new(exit),
            stderr: self.stderr.last_stderr(),
        }
    }
}

/// Splits chunks into lines.
#[derive(Debug)]
pub(crate) struct LineSplitter {
    limit: usize,
    partial: Vec<u8>,
    complete: VecDeque<Vec<u8>>,
}

/// Peer: the line is too long.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct LineTooLongError;

impl LineSplitter {
    /// Creates a splitter. A line may have `limit` bytes without its terminator.
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            limit,
            partial: Vec::new(),
            complete: VecDeque::new(),
        }
    }

    /// Adds a chunk. Lines before an overlong one are still available.
    pub(crate) fn push(&mut self, mut chunk: &[u8]) -> Result<(), LineTooLongError> {
        while let Some(end) = memchr::memchr(b'\n', chunk) {
            self.append(&chunk[..end])?;
            let mut line = std::mem::take(&mut self.partial);
            if line.last() == Some(&b'\r') {
                line.pop();
            }
            self.complete.push_back(line);
            chunk = &chunk[end + 1..];
        }
        self.append(chunk)
    }

    /// Returns the next complete line without its terminator.
    pub(crate) fn next(&mut self) -> Option<Vec<u8>> {
        self.complete.pop_front()
    }

    fn append(&mut self, bytes: &[u8]) -> Result<(), LineTooLongError> {
        if self.partial.len() + bytes.len() > self.limit {
            return Err(LineTooLongError);
        }
        self.partial.extend_from_slice(bytes);
        Ok(())
    }
}

/// Maximum number of kept lines: the end of a stack trace.
const MAX_RETAINED_LINES: usize = 20;
/// Maximum length of a kept or logged line.
const MAX_RETAINED_LINE_BYTES: usize = 1 << 10;

/// Logs the stderr of a server and keeps its last lines for errors.
#[derive(Debug)]
pub(crate) struct StderrTail {
    /// Name of the server.
    pub(crate) server: String,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    lines: VecDeque<String>,
    /// Start of an incomplete line, truncated.
    partial: Vec<u8>,
}

impl StderrTail {
    pub(crate) fn new(server: &str) -> Self {
        Self {
            server: server.to_owned(),
            state: Mutex::default(),
        }
    }

    /// Adds a chunk.
    pub(crate) fn push(&self, chunk: &[u8]) {
        let mut state = self.lock();
        let mut parts = chunk.split(|byte| *byte == b'\n').peekable();
        while let Some(part) = parts.next() {
            let capacity = MAX_RETAINED_LINE_BYTES.saturating_sub(state.partial.len());
            state
                .partial
                .extend_from_slice(&part[..capacity.min(part.len())]);
            if parts.peek().is_some() {
                let line = std::mem::take(&mut state.partial);
                self.push_line(&mut state, &line);
            }
        }
    }

    /// Returns the last lines, including an incomplete one.
    pub(crate) fn last_stderr(&self) -> String {
        let state = self.lock();
        let partial = String::from_utf8_lossy(&state.partial);
        let lines = state.lines.iter().map(String::as_str);
        let lines: Vec<&str> = lines.chain([partial.trim_end()]).collect();
        lines.join("\n").trim_end().to_owned()
    }

    /// Returns the error for a server with an unknown state.
    pub(crate) fn lost(&self, error: ProcessError) -> McpTransportError {
        McpTransportError::Lost {
            server: self.server.clone(),
            error,
            stderr: self.last_stderr(),
        }
    }

    fn push_line(&self, state: &mut State, line: &[u8]) {
        let line = String::from_utf8_lossy(line).trim_end().to_owned();
        if line.is_empty() {
            return;
        }
        tracing::info!(server = self.server, "{line}");
        if state.lines.len() == MAX_RETAINED_LINES {
            state.lines.pop_front();
        }
        state.lines.push_back(line);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drain_lines(lines: &mut LineSplitter) -> Vec<String> {
        std::iter::from_fn(|| lines.next())
            .map(|line| String::from_utf8(line).unwrap())
            .collect()
    }

    #[test]
    fn lines_do_not_depend_on_chunk_boundaries() {
        let text = "one\ntwo\r\n\nthr\u{e9}e\nrest".as_bytes();
        for size in 1..=text.len() {
            let mut lines = LineSplitter::new(100);
            for chunk in text.chunks(size) {
                lines.push(chunk).unwrap();
            }
            assert_eq!(
                drain_lines(&mut lines),
                ["one", "two", "", "thr\u{e9}e"],
                "cut by {size}"
            );
        }
    }

    #[test]
    fn overlong_line_is_rejected() {
        let mut lines = LineSplitter::new(4);
        assert_eq!(lines.push(b"ab\nabcd\n"), Ok(()));
        assert_eq!(lines.push(b"abc"), Ok(()));
        assert_eq!(lines.push(b"de\n"), Err(LineTooLongError));
        assert_eq!(drain_lines(&mut lines), ["ab", "abcd"]);
    }
}

#[cfg(test)]
mod stderr_tests {
    use super::*;

    #[test]
    fn last_lines_do_not_depend_on_chunk_boundaries() {
        for size in [1, 3, 1000] {
            let stderr = StderrTail::new("s");
            for chunk in b"warning: a\r\n\nerror: b\nhalf".chunks(size) {
                stderr.push(chunk);
            }
            assert_eq!(stderr.last_stderr(), "warning: a\nerror: b\nhalf");
        }
    }

    #[test]
    fn kept_lines_are_bounded_in_number_and_length() {
        let stderr = StderrTail::new("s");
        for number in 0..1000 {
            stderr.push(format!("{number} ").as_bytes());
            stderr.push(&vec![b'x'; 10_000]);
            stderr.push(b"\n");
        }
        stderr.push(&vec![b'y'; 10_000]);
        let text = stderr.last_stderr();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), MAX_RETAINED_LINES + 1);
        assert!(lines[0].starts_with("980 x"));
        assert!(
            lines
                .iter()
                .all(|line| line.len() <= MAX_RETAINED_LINE_BYTES)
        );
    }

    #[test]
    fn silent_server_has_no_last_stderr() {
        assert_eq!(StderrTail::new("s").last_stderr(), "");
    }
}
