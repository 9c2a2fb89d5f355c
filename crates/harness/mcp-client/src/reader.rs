//! From the events of a server's process to messages.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

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

use crate::{error::McpTransportError, pending_requests::Calls};

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

/// Gathers bytes until a line is whole.
#[derive(Debug)]
pub(crate) struct Lines {
    limit: usize,
    partial: Vec<u8>,
    whole: VecDeque<Vec<u8>>,
}

/// Peer: a line has more bytes than it may have.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct TooLong;

impl Lines {
    /// Begins empty. A line may have `limit` bytes, its end not counted.
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            limit,
            partial: Vec::new(),
            whole: VecDeque::new(),
        }
    }

    /// Takes a chunk. Lines before one that is too long can still be taken.
    pub(crate) fn push(&mut self, mut chunk: &[u8]) -> Result<(), TooLong> {
        while let Some(end) = memchr::memchr(b'\n', chunk) {
            self.append(&chunk[..end])?;
            let mut line = std::mem::take(&mut self.partial);
            if line.last() == Some(&b'\r') {
                line.pop();
            }
            self.whole.push_back(line);
            chunk = &chunk[end + 1..];
        }
        self.append(chunk)
    }

    /// Returns the next whole line, without its end.
    pub(crate) fn next(&mut self) -> Option<Vec<u8>> {
        self.whole.pop_front()
    }

    fn append(&mut self, bytes: &[u8]) -> Result<(), TooLong> {
        if self.partial.len() + bytes.len() > self.limit {
            return Err(TooLong);
        }
        self.partial.extend_from_slice(bytes);
        Ok(())
    }
}

/// Lines that are kept: a stack trace's end.
const KEPT_LINES: usize = 20;
/// Longest part of a line that is kept or logged.
const KEPT_LINE_BYTES: usize = 1 << 10;

/// The standard error of one server.
#[derive(Debug)]
pub(crate) struct Stderr {
    server: String,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    kept: VecDeque<String>,
    /// A line without its end, as far as it will be kept.
    partial: Vec<u8>,
}

impl Stderr {
    pub(crate) fn new(server: &str) -> Self {
        Self {
            server: server.to_owned(),
            state: Mutex::default(),
        }
    }

    /// Takes a chunk, cut anywhere.
    pub(crate) fn push(&self, chunk: &[u8]) {
        let mut state = self.lock();
        let mut parts = chunk.split(|byte| *byte == b'\n').peekable();
        while let Some(part) = parts.next() {
            let room = KEPT_LINE_BYTES.saturating_sub(state.partial.len());
            state
                .partial
                .extend_from_slice(&part[..room.min(part.len())]);
            if parts.peek().is_some() {
                let line = std::mem::take(&mut state.partial);
                self.keep(&mut state, &line);
            }
        }
    }

    /// Returns the last lines, and what has no end yet.
    pub(crate) fn last_words(&self) -> String {
        let state = self.lock();
        let partial = String::from_utf8_lossy(&state.partial);
        let kept = state.kept.iter().map(String::as_str);
        let lines: Vec<&str> = kept.chain([partial.trim_end()]).collect();
        lines.join("\n").trim_end().to_owned()
    }

    fn keep(&self, state: &mut State, line: &[u8]) {
        let line = String::from_utf8_lossy(line).trim_end().to_owned();
        if line.is_empty() {
            return;
        }
        tracing::info!(server = self.server, "{line}");
        if state.kept.len() == KEPT_LINES {
            state.kept.pop_front();
        }
        state.kept.push_back(line);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(lines: &mut Lines) -> Vec<String> {
        std::iter::from_fn(|| lines.next())
            .map(|line| String::from_utf8(line).unwrap())
            .collect()
    }

    #[test]
    fn lines_are_the_same_however_they_were_cut() {
        let text = "one\ntwo\r\n\nthr\u{e9}e\nrest".as_bytes();
        for size in 1..=text.len() {
            let mut lines = Lines::new(100);
            for chunk in text.chunks(size) {
                lines.push(chunk).unwrap();
            }
            assert_eq!(
                taken(&mut lines),
                ["one", "two", "", "thr\u{e9}e"],
                "cut by {size}"
            );
        }
    }

    #[test]
    fn a_line_is_at_most_as_long_as_the_limit() {
        let mut lines = Lines::new(4);
        assert_eq!(lines.push(b"ab\nabcd\n"), Ok(()));
        assert_eq!(lines.push(b"abc"), Ok(()));
        assert_eq!(lines.push(b"de\n"), Err(TooLong));
        assert_eq!(taken(&mut lines), ["ab", "abcd"]);
    }
}

#[cfg(test)]
mod stderr_tests {
    use super::*;

    #[test]
    fn the_last_lines_are_kept_however_they_were_cut() {
        for size in [1, 3, 1000] {
            let stderr = Stderr::new("s");
            for chunk in b"warning: a\r\n\nerror: b\nhalf".chunks(size) {
                stderr.push(chunk);
            }
            assert_eq!(stderr.last_words(), "warning: a\nerror: b\nhalf");
        }
    }

    #[test]
    fn lines_are_bounded_in_number_and_length() {
        let stderr = Stderr::new("s");
        for number in 0..1000 {
            stderr.push(format!("{number} ").as_bytes());
            stderr.push(&vec![b'x'; 10_000]);
            stderr.push(b"\n");
        }
        stderr.push(&vec![b'y'; 10_000]);
        let words = stderr.last_words();
        let lines: Vec<&str> = words.lines().collect();
        assert_eq!(lines.len(), KEPT_LINES + 1);
        assert!(lines[0].starts_with("980 x"));
        assert!(lines.iter().all(|line| line.len() <= KEPT_LINE_BYTES));
    }

    #[test]
    fn without_a_word_there_are_no_last_words() {
        assert_eq!(Stderr::new("s").last_words(), "");
    }
}
