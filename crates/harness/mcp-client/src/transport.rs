//! An rmcp transport over the stdin and stdout of a server process.
//!
//! rmcp reports the reason of a failure to a caller only if *sending* its request fails. So sending
//! a request completes with its response: if the server exits before, sending fails with the
//! reason, and the end of the transport fails all pending requests.

use std::{
    borrow::Cow,
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use bytes::Bytes;
use exec_core::output_log::{BackpressureMode, ExitInfo, FollowOptions, FollowStart};
use exec_env::process::{ExecProcess, ProcessError};
use exec_wire::id::OutputSeq;
use rmcp::{
    RoleClient,
    model::{ClientNotification, ClientRequest, JsonRpcMessage, RequestId},
    service::{RxJsonRpcMessage, TxJsonRpcMessage},
    transport::Transport,
};
use tokio::{
    sync::{mpsc, oneshot, watch},
    task::{self, JoinHandle},
    time::{self, Duration, Instant},
};

use crate::{
    config::McpServerConfig,
    reader::{LineSplitter, ServerReader, StderrTail},
    writer::{OutgoingLine, ServerWriter},
};

/// Capacity for received messages. When full, the server is blocked.
const INCOMING_CAPACITY: usize = 64;
/// Capacity for outgoing messages. When full, sending waits.
const OUTGOING_CAPACITY: usize = 16;
/// Delay between the end of the server and the end of the transport, so that pending requests fail
/// with the reason before rmcp fails them without one.
const END_DELAY: Duration = Duration::from_millis(20);

/// A transport to an MCP server in an environment. Dropping it closes the server's stdin, then
/// terminates the server gracefully, then kills it.
#[derive(Debug)]
pub struct McpTransport {
    pending: Arc<PendingRequests>,
    stderr: Arc<StderrTail>,
    incoming: mpsc::Receiver<RxJsonRpcMessage<RoleClient>>,
    outgoing: Option<mpsc::Sender<OutgoingLine>>,
    closing: Option<oneshot::Sender<()>>,
    writer: Option<JoinHandle<()>>,
    end_at: Option<Instant>,
}

impl McpTransport {
    /// Takes over a process with a piped stdin. Nothing else may write to it.
    pub fn new(process: Arc<dyn ExecProcess>, config: &McpServerConfig) -> Self {
        let pending = Arc::<PendingRequests>::default();
        let stderr = Arc::new(StderrTail::new(&config.name));
        let (messages, incoming) = mpsc::channel(INCOMING_CAPACITY);
        let (outgoing, lines) = mpsc::channel(OUTGOING_CAPACITY);
        let (closing, closed) = oneshot::channel();
        let events = process.follow(FollowOptions {
            start: FollowStart::After(OutputSeq(0)),
            backpressure: BackpressureMode::Pause,
        });
        let reader = ServerReader {
            lines: LineSplitter::new(config.max_line_bytes),
            stderr: Arc::clone(&stderr),
            pending: Arc::clone(&pending),
            messages,
        };
        // The task ends with the events of the process.
        drop(tokio::spawn(reader.run(events)));
        let writer = ServerWriter {
            process,
            pending: Arc::clone(&pending),
            stderr: Arc::clone(&stderr),
            exit_timeout: config.exit_timeout,
            terminate_timeout: config.terminate_timeout,
        };
        Self {
            pending,
            stderr,
            incoming,
            outgoing: Some(outgoing),
            closing: Some(closing),
            writer: Some(tokio::spawn(writer.run(lines, closed))),
            end_at: None,
        }
    }

    /// Returns an observer, for when rmcp owns the transport.
    pub fn watch(&self) -> ServerWatch {
        ServerWatch {
            pending: Arc::clone(&self.pending),
            stderr: Arc::clone(&self.stderr),
        }
    }
}

/// Observes the end of a server.
#[derive(Clone, Debug)]
pub struct ServerWatch {
    pending: Arc<PendingRequests>,
    stderr: Arc<StderrTail>,
}

impl ServerWatch {
    /// Returns why the transport has ended, if it has.
    pub fn ended(&self) -> Option<McpTransportError> {
        self.pending.ended()
    }

    /// Waits until the transport ends, and returns the reason.
    pub async fn wait_for_end(&self) -> McpTransportError {
        self.pending.wait_for_end().await
    }

    /// Returns the last lines of the server's stderr.
    pub fn last_stderr(&self) -> String {
        self.stderr.last_stderr()
    }
}

impl Transport<RoleClient> for McpTransport {
    type Error = McpTransportError;

    fn name() -> Cow<'static, str> {
        "mcp server in an environment".into()
    }

    /// Sends a message. Sending a request completes with its response, and fails if the server
    /// exits before.
    fn send(
        &mut self,
        message: TxJsonRpcMessage<RoleClient>,
    ) -> impl Future<Output = SendResult> + Send + 'static {
        let response = self.register(&message);
        let (line, outgoing) = (encode(&message), self.outgoing.clone());
        let (pending, server) = (Arc::clone(&self.pending), self.stderr.server.clone());
        async move {
            let (response, line) = (response?, line?);
            let closed = || pending.ended().unwrap_or(McpTransportError::Closed(server));
            let (sender, written) = oneshot::channel();
            let Some(outgoing) = outgoing else {
                return Err(closed());
            };
            let queued = outgoing.send(OutgoingLine {
                line,
                written: sender,
            });
            if queued.await.is_err() {
                return Err(closed());
            }
            written.await.unwrap_or_else(|_| Err(closed()))?;
            match response {
                // Released without a result: the server has sent a message.
                Some(response) => response.await.unwrap_or(Ok(())),
                None => Ok(()),
            }
        }
    }

    async fn receive(&mut self) -> Option<RxJsonRpcMessage<RoleClient>> {
        if let Some(message) = self.incoming.recv().await {
            return Some(message);
        }
        let end_at = *self
            .end_at
            .get_or_insert_with(|| Instant::now() + END_DELAY);
        time::sleep_until(end_at).await;
        // rmcp polls this together with pending sends, and drops it when one is ready. Yielding
        // once ensures that none is left.
        task::yield_now().await;
        None
    }

    /// Stops the server, in bounded time.
    async fn close(&mut self) -> Result<(), McpTransportError> {
        self.outgoing = None;
        self.closing = None;
        if let Some(writer) = &mut self.writer {
            // The runtime reports a panic of the task.
            writer.await.ok();
        }
        self.writer = None;
        Ok(())
    }
}

impl McpTransport {
    /// Registers a request, or completes a cancelled one.
    fn register(
        &self,
        message: &TxJsonRpcMessage<RoleClient>,
    ) -> Result<Option<oneshot::Receiver<SendResult>>, McpTransportError> {
        match message {
            JsonRpcMessage::Request(request) => {
                let release_on = if matches!(
                    &request.request,
                    ClientRequest::InitializeRequest(_) | ClientRequest::DiscoverRequest(_)
                ) {
                    ReleaseOn::FirstMessage
                } else {
                    ReleaseOn::Response
                };
                self.pending
                    .register(request.id.clone(), release_on)
                    .map(Some)
            }
            JsonRpcMessage::Notification(notification) => {
                if let ClientNotification::CancelledNotification(cancelled) =
                    &notification.notification
                    && let Some(id) = &cancelled.params.request_id
                {
                    // A cancelled request gets no response.
                    self.pending.finish(id, Ok(()));
                }
                Ok(None)
            }
            JsonRpcMessage::Response(_) | JsonRpcMessage::Error(_) => Ok(None),
        }
    }
}

fn encode(message: &TxJsonRpcMessage<RoleClient>) -> Result<Bytes, McpTransportError> {
    let mut line = serde_json::to_vec(message)
        .map_err(|error| McpTransportError::Encode(error.to_string()))?;
    line.push(b'\n');
    Ok(line.into())
}

/// Why a message cannot be sent, or will not get a response.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum McpTransportError {
    /// Peer: the server exited.
    #[error("mcp server `{server}` {}{}", exit_text(.exit), stderr_suffix(.stderr))]
    Exited {
        /// Name of the server.
        server: String,
        /// Exit of the server.
        exit: Box<ExitInfo>,
        /// Last lines of its stderr.
        stderr: String,
    },
    /// Transport: the state of the server is unknown.
    #[error("mcp server `{server}` is unreachable: {error}{}", stderr_suffix(.stderr))]
    Lost {
        /// Name of the server.
        server: String,
        /// Cause.
        error: ProcessError,
        /// Last lines of its stderr.
        stderr: String,
    },
    /// Peer: the server is running, but has closed its stdin.
    #[error("mcp server `{server}` has closed its stdin{}", stderr_suffix(.stderr))]
    StdinClosed {
        /// Name of the server.
        server: String,
        /// Last lines of its stderr.
        stderr: String,
    },
    /// Peer: it wrote an overlong line.
    #[error("mcp server `{server}` wrote a line of more than {limit} bytes")]
    LineTooLong {
        /// Name of the server.
        server: String,
        /// Maximum length in bytes.
        limit: usize,
    },
    /// Peer: the response is malformed.
    #[error("mcp server `{server}` sent a malformed response: {reason}")]
    Malformed {
        /// Name of the server.
        server: String,
        /// Why it is malformed.
        reason: String,
    },
    /// Caller: the message cannot be encoded as JSON.
    #[error("message cannot be encoded: {0}")]
    Encode(String),
    /// Caller: the transport was closed.
    #[error("transport to mcp server `{0}` is closed")]
    Closed(String),
}

fn exit_text(exit: &ExitInfo) -> String {
    match exit.signal {
        Some(signal) => format!("was killed by {signal}"),
        None => format!("exited with code {}", exit.code),
    }
}

pub(crate) fn stderr_suffix(stderr: &str) -> String {
    if stderr.is_empty() {
        String::new()
    } else {
        format!("; its last stderr: {stderr}")
    }
}

/// Result of sending a message.
pub(crate) type SendResult = Result<(), McpTransportError>;

/// Event that completes the sending of a request.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum ReleaseOn {
    /// Its response.
    Response,
    /// Any message of the server. Before the handshake, rmcp receives only after sending completes.
    FirstMessage,
}

/// Pending requests of one transport.
#[derive(Debug, Default)]
pub(crate) struct PendingRequests {
    requests: Mutex<HashMap<RequestId, (ReleaseOn, oneshot::Sender<SendResult>)>>,
    end: watch::Sender<Option<McpTransportError>>,
}

impl PendingRequests {
    /// Registers a request. Fails after the end of the transport.
    fn register(
        &self,
        id: RequestId,
        release_on: ReleaseOn,
    ) -> Result<oneshot::Receiver<SendResult>, McpTransportError> {
        let mut requests = self.lock();
        if let Some(end) = self.ended() {
            return Err(end);
        }
        let (sender, receiver) = oneshot::channel();
        requests.insert(id, (release_on, sender));
        Ok(receiver)
    }

    /// Completes a request.
    pub(crate) fn finish(&self, id: &RequestId, sent: SendResult) {
        let requests = self.lock().remove(id);
        if let Some((_, sender)) = requests {
            // The caller may have been dropped.
            sender.send(sent).ok();
        }
    }

    /// Completes the requests that wait for any message.
    pub(crate) fn handle_first_message(&self) {
        self.lock()
            .retain(|_, (release_on, _)| *release_on != ReleaseOn::FirstMessage);
    }

    /// Fails all pending and future requests. The first reason counts.
    pub(crate) fn end(&self, error: McpTransportError) {
        self.end.send_if_modified(|end| {
            let first = end.is_none();
            end.get_or_insert(error);
            first
        });
        let (requests, end) = (std::mem::take(&mut *self.lock()), self.ended());
        for (_, sender) in requests.into_values() {
            if let Some(end) = end.clone() {
                sender.send(Err(end)).ok();
            }
        }
    }

    /// Returns the reason of the end, if the transport has ended.
    pub(crate) fn ended(&self) -> Option<McpTransportError> {
        self.end.borrow().clone()
    }

    /// Waits for the end of the transport.
    pub(crate) async fn wait_for_end(&self) -> McpTransportError {
        let mut end = self.end.subscribe();
        loop {
            if let Some(end) = end.borrow_and_update().clone() {
                return end;
            }
            // Cannot fail: `self` owns the sender.
            end.changed().await.ok();
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<RequestId, (ReleaseOn, oneshot::Sender<SendResult>)>> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn closed() -> McpTransportError {
        McpTransportError::Closed("s".to_owned())
    }

    #[test]
    fn request_completes_with_its_response() {
        let pending = PendingRequests::default();
        let [one, two] = [1, 2].map(RequestId::Number);
        let mut first = pending.register(one.clone(), ReleaseOn::Response).unwrap();
        let mut second = pending.register(two, ReleaseOn::Response).unwrap();
        pending.handle_first_message();
        assert!(first.try_recv().is_err());
        pending.finish(&one, Ok(()));
        pending.finish(&one, Ok(()));
        assert_eq!(first.try_recv(), Ok(Ok(())));
        pending.end(closed());
        assert_eq!(second.try_recv(), Ok(Err(closed())));
    }

    #[test]
    fn first_end_reason_counts_and_later_requests_fail() {
        let pending = PendingRequests::default();
        pending.end(closed());
        pending.end(McpTransportError::Encode("late".to_owned()));
        let refused = pending.register(RequestId::Number(1), ReleaseOn::Response);
        assert_eq!(refused.unwrap_err(), closed());
    }

    #[test]
    fn handshake_completes_with_the_first_message() {
        let pending = PendingRequests::default();
        let id = RequestId::Number(0);
        let mut sent = pending.register(id, ReleaseOn::FirstMessage).unwrap();
        assert_eq!(sent.try_recv(), Err(oneshot::error::TryRecvError::Empty));
        pending.handle_first_message();
        assert_eq!(sent.try_recv(), Err(oneshot::error::TryRecvError::Closed));
    }
}
