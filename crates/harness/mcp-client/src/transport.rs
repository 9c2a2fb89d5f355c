//! An rmcp transport over the stdin and stdout of a server process.

use std::{borrow::Cow, sync::Arc};

use bytes::Bytes;
use exec_core::output_log::{BackpressureMode, FollowOptions, FollowStart};
use exec_env::process::ExecProcess;
use exec_wire::id::OutputSeq;
use rmcp::{
    RoleClient,
    model::{ClientNotification, ClientRequest, JsonRpcMessage},
    service::{RxJsonRpcMessage, TxJsonRpcMessage},
    transport::Transport,
};
use tokio::{
    sync::{mpsc, oneshot},
    task::{self, JoinHandle},
    time::{self, Duration, Instant},
};

use crate::{
    config::McpServerConfig,
    error::McpTransportError,
    pending_requests::{PendingRequests, ReleaseOn, SendResult},
    reader::{ServerReader, StderrTail},
    writer::{OutgoingLine, ServerWriter, ShutdownTimeouts},
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
    server: String,
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
        let server = config.name.clone();
        let (pending, stderr) = (
            Arc::new(PendingRequests::new()),
            Arc::new(StderrTail::new(&server)),
        );
        let (messages, incoming) = mpsc::channel(INCOMING_CAPACITY);
        let (outgoing, lines) = mpsc::channel(OUTGOING_CAPACITY);
        let (closing, closed) = oneshot::channel();
        let events = process.follow(FollowOptions {
            start: FollowStart::After(OutputSeq(0)),
            backpressure: BackpressureMode::Pause,
        });
        let reader = ServerReader::new(
            server.clone(),
            config.max_line_bytes,
            Arc::clone(&stderr),
            Arc::clone(&pending),
            messages,
        );
        // The task ends with the events of the process.
        drop(tokio::spawn(reader.run(events)));
        let writer = ServerWriter {
            server: server.clone(),
            process,
            pending: Arc::clone(&pending),
            stderr: Arc::clone(&stderr),
            shutdown: ShutdownTimeouts {
                exit: config.exit_timeout,
                terminate: config.terminate_timeout,
            },
        };
        Self {
            server,
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
        let (pending, server) = (Arc::clone(&self.pending), self.server.clone());
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
