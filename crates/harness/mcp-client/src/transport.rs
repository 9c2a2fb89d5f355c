//! A server's stdin and stdout as a transport of rmcp.

use std::{borrow::Cow, sync::Arc};

use bytes::Bytes;
use exec_core::log::{Follow, From, Pace};
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
    pending_requests::{Calls, Sent, Until},
    reader::{Reader, Stderr},
    writer::{Ending, Outgoing, Writer},
};

/// Messages that wait to be received; then the server is held up.
const INCOMING: usize = 64;
/// Messages that wait to be written, beside the one that is; then sending waits.
const OUTGOING: usize = 16;
/// How long after the end those who wait for an answer are told why, before rmcp is told that the
/// transport is over, which it passes on without a reason.
const SETTLE: Duration = Duration::from_millis(20);

/// A transport to an MCP server that runs in an environment. When it is dropped, the server's input
/// is ended, then the server: first gracefully, then by force.
#[derive(Debug)]
pub struct McpTransport {
    server: String,
    calls: Arc<Calls>,
    stderr: Arc<Stderr>,
    incoming: mpsc::Receiver<RxJsonRpcMessage<RoleClient>>,
    outgoing: Option<mpsc::Sender<Outgoing>>,
    closing: Option<oneshot::Sender<()>>,
    writer: Option<JoinHandle<()>>,
    over: Option<Instant>,
}

impl McpTransport {
    /// Takes a process that was started with a stdin that can be written. Nothing else may write to it.
    pub fn new(process: Arc<dyn ExecProcess>, config: &McpServerConfig) -> Self {
        let server = config.name.clone();
        let (calls, stderr) = (Arc::new(Calls::new()), Arc::new(Stderr::new(&server)));
        let (messages, incoming) = mpsc::channel(INCOMING);
        let (outgoing, lines) = mpsc::channel(OUTGOING);
        let (closing, closed) = oneshot::channel();
        let events = process.follow(Follow {
            from: From::After(OutputSeq(0)),
            pace: Pace::Held,
        });
        let reader = Reader::new(
            server.clone(),
            config.max_line_bytes,
            Arc::clone(&stderr),
            Arc::clone(&calls),
            messages,
        );
        // It ends with the process's events.
        drop(tokio::spawn(reader.run(events)));
        let writer = Writer {
            server: server.clone(),
            process,
            calls: Arc::clone(&calls),
            stderr: Arc::clone(&stderr),
            ending: Ending {
                exit: config.exit_timeout,
                terminate: config.terminate_timeout,
            },
        };
        Self {
            server,
            calls,
            stderr,
            incoming,
            outgoing: Some(outgoing),
            closing: Some(closing),
            writer: Some(tokio::spawn(writer.run(lines, closed))),
            over: None,
        }
    }

    /// Returns how to learn of the server's fate when rmcp owns the transport.
    pub fn watch(&self) -> Watch {
        Watch {
            calls: Arc::clone(&self.calls),
            stderr: Arc::clone(&self.stderr),
        }
    }
}

/// Learns of a server's fate.
#[derive(Clone, Debug)]
pub struct Watch {
    calls: Arc<Calls>,
    stderr: Arc<Stderr>,
}

impl Watch {
    /// Returns why the server cannot be spoken to any more, if it cannot.
    pub fn ended(&self) -> Option<McpTransportError> {
        self.calls.ended()
    }

    /// Waits until the server cannot be spoken to any more, and tells why.
    pub async fn until_ended(&self) -> McpTransportError {
        self.calls.until_ended().await
    }

    /// Returns the last lines that it wrote to its standard error.
    pub fn last_words(&self) -> String {
        self.stderr.last_words()
    }
}

impl Transport<RoleClient> for McpTransport {
    type Error = McpTransportError;

    fn name() -> Cow<'static, str> {
        "mcp server in an environment".into()
    }

    /// Sends a message. A request is sent when it is answered: until then it fails with the server.
    fn send(
        &mut self,
        message: TxJsonRpcMessage<RoleClient>,
    ) -> impl Future<Output = Sent> + Send + 'static {
        let answer = self.register(&message);
        let (line, outgoing) = (encode(&message), self.outgoing.clone());
        let (calls, server) = (Arc::clone(&self.calls), self.server.clone());
        async move {
            let (answer, line) = (answer?, line?);
            let closed = || calls.ended().unwrap_or(McpTransportError::Closed(server));
            let (tell, written) = oneshot::channel();
            let Some(outgoing) = outgoing else {
                return Err(closed());
            };
            let queued = outgoing.send(Outgoing {
                line,
                written: tell,
            });
            if queued.await.is_err() {
                return Err(closed());
            }
            written.await.unwrap_or_else(|_| Err(closed()))?;
            match answer {
                // Let go of without a word, it was heard.
                Some(answer) => answer.await.unwrap_or(Ok(())),
                None => Ok(()),
            }
        }
    }

    async fn receive(&mut self) -> Option<RxJsonRpcMessage<RoleClient>> {
        if let Some(message) = self.incoming.recv().await {
            return Some(message);
        }
        let over = *self.over.get_or_insert_with(|| Instant::now() + SETTLE);
        time::sleep_until(over).await;
        // rmcp polls this beside the outcomes of sending, and drops it for one that is ready. Who is
        // polled twice knows that none is left.
        task::yield_now().await;
        None
    }

    /// Ends the server, and waits for that in bounded time.
    async fn close(&mut self) -> Result<(), McpTransportError> {
        self.outgoing = None;
        self.closing = None;
        if let Some(writer) = &mut self.writer {
            // A panic of the task's is reported by the runtime.
            writer.await.ok();
        }
        self.writer = None;
        Ok(())
    }
}

impl McpTransport {
    /// Begins to wait for what a message brings about.
    fn register(
        &self,
        message: &TxJsonRpcMessage<RoleClient>,
    ) -> Result<Option<oneshot::Receiver<Sent>>, McpTransportError> {
        match message {
            JsonRpcMessage::Request(request) => {
                let until = if matches!(
                    &request.request,
                    ClientRequest::InitializeRequest(_) | ClientRequest::DiscoverRequest(_)
                ) {
                    Until::FirstMessage
                } else {
                    Until::Answer
                };
                self.calls.register(request.id.clone(), until).map(Some)
            }
            JsonRpcMessage::Notification(notification) => {
                if let ClientNotification::CancelledNotification(cancelled) =
                    &notification.notification
                    && let Some(id) = &cancelled.params.request_id
                {
                    // No answer will come.
                    self.calls.finish(id, Ok(()));
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
