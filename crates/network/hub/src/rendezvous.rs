//! Relay websockets of executors and harnesses.
//!
//! One task owns each websocket. It reads a frame, inspects its stream id, and forwards the
//! unchanged bytes through a circuit to the task of the other websocket. Backpressure: while one
//! side does not read, the other is not read from.
//! Elsewhere: URLs (`url`), the assignment of streams (`executor_table`), the content of frames
//! (`exec-relay`).

mod executor;
#[cfg(test)]
mod tests;

use std::{
    future::poll_fn,
    io,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use exec_relay::frame::FrameRoute;
use exec_transport::{
    link::LinkReadError,
    websocket::socket::{BinarySocket, RawMessage, SocketWriter},
};
use http::StatusCode;
use tokio::{runtime::Handle, sync::watch, time::timeout};

use crate::{
    circuit::{Circuit, CircuitDialer, CloseReason, DialError, DialRequest},
    executor_table::{ExecutorTable, TableAttachment},
    limits,
    metrics::{FrameBatch, HubMetrics},
    store::{AttachError, ConnectionId, NodeName, Presence, Store, Timestamp},
    url::{RendezvousUrlError, UrlClaims, UrlSigner},
};

/// Timeout for recording an executor in the store. Executors allow the upgrade ten seconds.
const STORE_TIMEOUT: Duration = Duration::from_secs(5);
/// Timeout for dialling another node.
const DIAL_TIMEOUT: Duration = Duration::from_secs(5);

/// Accepts the relay websockets of executors and harnesses.
#[derive(Debug)]
pub struct RendezvousAcceptor {
    /// Verifies URLs.
    pub signer: Arc<UrlSigner>,
    /// Current registrations.
    pub store: Arc<dyn Store>,
    /// Opens circuits to executors on any node.
    pub dialer: Arc<dyn CircuitDialer>,
    /// The executors of this process.
    pub executor_table: Arc<ExecutorTable>,
    /// Name of this node.
    pub node: NodeName,
    /// Metrics.
    pub metrics: Arc<HubMetrics>,
    /// Becomes true when the hub shuts down.
    pub stopping: watch::Receiver<bool>,
}

/// Why a websocket is refused.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum UpgradeRefusal {
    /// Peer: the URL is invalid.
    #[error(transparent)]
    Url(#[from] RendezvousUrlError),
    /// Peer: the registration has been superseded.
    #[error("registration is not current")]
    Superseded,
    /// Host: the store is unavailable. The executor keeps its URL and retries.
    #[error("store is not available")]
    Store,
    /// Host: the hub is shutting down.
    #[error("hub is stopping")]
    Stopping,
}

impl UpgradeRefusal {
    /// Returns the status of the refused upgrade.
    pub const fn status(&self) -> StatusCode {
        match self {
            Self::Url(error) => error.status(),
            Self::Superseded => StatusCode::GONE,
            Self::Store | Self::Stopping => StatusCode::SERVICE_UNAVAILABLE,
        }
    }

    /// Returns the error code for clients and the audit log.
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Url(error) => error.code(),
            Self::Superseded => "superseded",
            Self::Store => "store_unavailable",
            Self::Stopping => "stopping",
        }
    }
}

/// An admitted websocket. Its upgrade has not been answered yet.
#[derive(Debug)]
pub enum UpgradeAdmission {
    /// An executor that harnesses can reach from now on. Dropping it detaches the executor.
    Executor(ExecutorAttachment),
    /// A harness and its dial request.
    Harness(DialRequest),
}

impl RendezvousAcceptor {
    /// Admits or refuses an upgrade by its path and query.
    ///
    /// An executor is attached before its upgrade is answered: a harness that connects as soon as
    /// the executor sees the response finds it online.
    pub async fn admit(
        &self,
        path: &str,
        query: Option<&str>,
        now: Timestamp,
    ) -> Result<UpgradeAdmission, UpgradeRefusal> {
        let claims = self.signer.check(path, query, now)?;
        if *self.stopping.borrow() {
            return Err(UpgradeRefusal::Stopping);
        }
        match claims {
            UrlClaims::Executor {
                environment,
                registration,
            } => {
                let presence = Presence {
                    environment,
                    registration,
                    node: self.node.clone(),
                    connection: ConnectionId::generate(),
                };
                timeout(STORE_TIMEOUT, self.attach(presence))
                    .await
                    .unwrap_or(Err(UpgradeRefusal::Store))
                    .map(UpgradeAdmission::Executor)
            }
            UrlClaims::Harness {
                environment,
                registration,
                harness,
            } => Ok(UpgradeAdmission::Harness(DialRequest {
                environment,
                registration,
                harness,
            })),
        }
    }

    /// Attaches an executor to the executor table and to the store.
    ///
    /// The table comes first: a reader that finds the presence in the store finds the executor
    /// in the table, and one of the two notices a superseded registration. The registration is
    /// checked before both, so that an outdated URL closes no websocket.
    async fn attach(&self, presence: Presence) -> Result<ExecutorAttachment, UpgradeRefusal> {
        let current = self.store.registration(&presence.environment).await;
        let current = current.map_err(|_| UpgradeRefusal::Store)?;
        if current.is_none_or(|current| current.id != presence.registration) {
            return Err(UpgradeRefusal::Superseded);
        }
        let attachment =
            ExecutorAttachment::new(&self.executor_table, &self.store, presence.clone());
        // On shutdown the table closes its websockets. This one may have attached after that.
        if *self.stopping.borrow() {
            return Err(UpgradeRefusal::Stopping);
        }
        match self.store.attach(presence.clone()).await {
            Ok(()) => Ok(attachment),
            Err(AttachError::Superseded) => Err(UpgradeRefusal::Superseded),
            Err(error @ AttachError::Store(_)) => {
                tracing::warn!(environment = %presence.environment, %error, "failed to attach executor");
                Err(UpgradeRefusal::Store)
            }
        }
    }

    /// Serves a websocket until it ends. Dropping the future drops the connection.
    pub async fn serve(&self, admission: UpgradeAdmission, mut socket: BinarySocket) {
        let (role, open) = match &admission {
            UpgradeAdmission::Executor(_) => ("executor", &self.metrics.executors),
            UpgradeAdmission::Harness(_) => ("harness", &self.metrics.harnesses),
        };
        open.enter();
        let close_cause = self.relay(admission, &mut socket).await;
        open.leave();
        self.metrics.record_close(role, close_cause);
        tracing::debug!(role, reason = close_cause.name(), "websocket closed");
        close_cause.close_socket(&mut socket).await;
    }

    async fn relay(
        &self,
        admission: UpgradeAdmission,
        socket: &mut BinarySocket,
    ) -> WebSocketClose {
        match admission {
            UpgradeAdmission::Executor(mut attachment) => {
                let slot = &mut attachment.slot;
                let close_cause = executor::relay(socket, slot, &self.metrics).await;
                attachment.detach().await;
                close_cause
            }
            UpgradeAdmission::Harness(dial) => {
                let mut stopping = self.stopping.clone();
                tokio::select! {
                    close_cause = self.relay_harness(dial, socket) => close_cause,
                    _ = stopping.wait_for(|stopping| *stopping) => CloseReason::Stopping.into(),
                }
            }
        }
    }

    async fn relay_harness(&self, dial: DialRequest, socket: &mut BinarySocket) -> WebSocketClose {
        match timeout(DIAL_TIMEOUT, self.dialer.dial(dial)).await {
            Ok(Ok(circuit)) => relay_circuit(socket, circuit, &self.metrics).await,
            Ok(Err(error)) => error.into(),
            Err(_) => CloseReason::Unreachable.into(),
        }
    }
}

/// Timeout for removing an executor from the store.
const DETACH_TIMEOUT: Duration = Duration::from_secs(5);

/// An executor that harnesses can reach. Dropping it detaches the executor in the background, so
/// that a failed upgrade leaves nothing behind.
#[derive(Debug)]
pub struct ExecutorAttachment {
    // Dropped before the presence: once the presence is gone, the table entry is gone, too.
    slot: TableAttachment,
    presence: PresenceGuard,
}

impl ExecutorAttachment {
    /// Attaches the executor to the table. The caller attaches `presence` to the store. Drop
    /// detaches it in any case, because a failed store may have recorded it nevertheless.
    fn new(
        executor_table: &Arc<ExecutorTable>,
        store: &Arc<dyn Store>,
        presence: Presence,
    ) -> Self {
        let slot = executor_table.attach(
            presence.environment.clone(),
            presence.registration.clone(),
            presence.connection.clone(),
        );
        Self {
            slot,
            presence: PresenceGuard {
                store: Arc::clone(store),
                presence,
                is_detached: false,
            },
        }
    }

    /// Returns the presence record.
    pub(crate) fn presence(&self) -> &Presence {
        &self.presence.presence
    }

    /// Detaches the executor from the table and the store.
    async fn detach(self) {
        let Self { slot, mut presence } = self;
        drop(slot);
        detach(&*presence.store, &presence.presence).await;
        presence.is_detached = true;
    }
}

/// Removes the presence from the store on drop, unless that was done.
#[derive(Debug)]
struct PresenceGuard {
    store: Arc<dyn Store>,
    presence: Presence,
    is_detached: bool,
}

impl Drop for PresenceGuard {
    fn drop(&mut self) {
        if self.is_detached {
            return;
        }
        // Without a runtime the process is exiting, and every presence of this node ends with it.
        if let Ok(runtime) = Handle::try_current() {
            let (store, presence) = (Arc::clone(&self.store), self.presence.clone());
            runtime.spawn(async move { detach(&*store, &presence).await });
        }
    }
}

async fn detach(store: &dyn Store, presence: &Presence) {
    let environment = &presence.environment;
    match timeout(DETACH_TIMEOUT, store.detach(presence, Timestamp::now())).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::warn!(%environment, %error, "failed to detach executor"),
        Err(_) => tracing::warn!(%environment, "timeout while detaching executor"),
    }
}

/// Why a websocket closes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum WebSocketClose {
    /// The peer closed it.
    Peer,
    /// The connection broke, or the peer was silent or did not read for too long.
    Lost,
    /// The peer violated the websocket protocol.
    Protocol,
    /// A message is too long.
    TooLong,
    /// A message is not a valid frame.
    Garbage,
    /// A message is text.
    Text,
    /// The executor is not connected.
    NoExecutor,
    /// The executor has its maximum number of harnesses.
    Busy,
    /// The circuit closed.
    Circuit(CloseReason),
}

impl WebSocketClose {
    /// Returns the metric label.
    pub(crate) const fn name(self) -> &'static str {
        self.describe().0
    }

    /// Returns the metric label, and the close code (RFC 6455 section 7.4) and reason. `None`: the
    /// peer is gone.
    const fn describe(self) -> (&'static str, Option<(u16, &'static str)>) {
        match self {
            Self::Peer => ("closed", Some((1000, ""))),
            Self::Lost => ("lost", None),
            Self::Protocol => ("protocol", Some((1002, "not a websocket frame"))),
            Self::TooLong => ("too_long", Some((1009, "message is too long"))),
            Self::Garbage => ("garbage", Some((1007, "not a relay frame"))),
            Self::Text => ("text", Some((1003, "text is not relayed"))),
            Self::NoExecutor => ("no_executor", Some((1013, "executor is not connected"))),
            Self::Busy => ("busy", Some((1013, "too many harnesses"))),
            Self::Circuit(close_reason) => {
                let (name, code, text) = close_reason.describe();
                (name, Some((code, text)))
            }
        }
    }

    /// Returns the close reason for a read error.
    fn from_read_error(error: &LinkReadError) -> Self {
        match error {
            LinkReadError::TooLong(_) => Self::TooLong,
            LinkReadError::Protocol(_) => Self::Protocol,
            LinkReadError::InvalidUtf8 => Self::Garbage,
            // Any other error means that the peer is gone.
            LinkReadError::Io(_) | LinkReadError::Exited(_) | _ => Self::Lost,
        }
    }

    /// Closes a websocket within a time limit. Unsent frames are lost.
    async fn close_socket(self, socket: &mut BinarySocket) {
        let Some((code, reason)) = self.describe().1 else {
            return;
        };
        let closed = async {
            poll_fn(|cx| socket.writer.poll_close_with(code, reason, cx)).await?;
            // Drain what the peer has sent: otherwise the kernel would reset the connection, and
            // the peer might not receive the close code.
            while let Ok(Some(_)) = socket.reader.next().await {}
            io::Result::Ok(())
        };
        match timeout(limits::CLOSE, closed).await {
            Ok(Ok(())) | Err(_) => {}
            Ok(Err(error)) => {
                tracing::trace!(%error, "connection ended before the close completed")
            }
        }
    }
}

impl From<CloseReason> for WebSocketClose {
    fn from(close_reason: CloseReason) -> Self {
        Self::Circuit(close_reason)
    }
}

impl From<DialError> for WebSocketClose {
    fn from(error: DialError) -> Self {
        match error {
            DialError::Offline => Self::NoExecutor,
            DialError::Busy => Self::Busy,
            DialError::Unreachable => Self::Circuit(CloseReason::Unreachable),
        }
    }
}

/// Flushes buffered frames and control frames such as pings. Returns whether everything is written;
/// if not, the task is woken when the peer reads.
fn flush(writer: &mut SocketWriter, cx: &mut Context<'_>) -> Result<bool, WebSocketClose> {
    loop {
        let flushed = match writer.poll_flush(cx) {
            Poll::Ready(Ok(())) => true,
            Poll::Ready(Err(_)) => return Err(WebSocketClose::Lost),
            Poll::Pending => false,
        };
        match writer.poll_keepalive(cx) {
            Poll::Ready(Err(_)) => return Err(WebSocketClose::Lost),
            Poll::Ready(Ok(())) if flushed => {}
            Poll::Ready(Ok(())) | Poll::Pending => return Ok(flushed),
        }
    }
}

/// Forwards frames between a harness websocket and its circuit until either ends, and returns why.
async fn relay_circuit(
    socket: &mut BinarySocket,
    circuit: Circuit,
    metrics: &HubMetrics,
) -> WebSocketClose {
    let mut relay = HarnessRelay {
        socket,
        circuit,
        blocked: None,
        metrics,
    };
    poll_fn(|cx| relay.poll(cx)).await
}

struct HarnessRelay<'a> {
    socket: &'a mut BinarySocket,
    circuit: Circuit,
    /// A frame that the circuit cannot accept yet. Backpressure: nothing is read until it can.
    blocked: Option<Bytes>,
    metrics: &'a HubMetrics,
}

impl HarnessRelay<'_> {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<WebSocketClose> {
        match self.make_progress(cx) {
            Ok(()) => Poll::Pending,
            Err(close_cause) => Poll::Ready(close_cause),
        }
    }

    /// Makes all possible progress; everything blocked has registered `cx`.
    fn make_progress(&mut self, cx: &mut Context<'_>) -> Result<(), WebSocketClose> {
        for _ in 0..limits::ROUNDS {
            let more_to_read = self.read(cx)?;
            let more_to_write = self.write_frames(cx)?;
            // If the socket's buffer was full, continue once it has been flushed.
            let flushed = flush(&mut self.socket.writer, cx)?;
            if !(more_to_read || more_to_write && flushed) {
                return Ok(());
            }
        }
        cx.waker().wake_by_ref();
        Ok(())
    }

    /// Reads from the websocket. Returns whether there may be more.
    fn read(&mut self, cx: &mut Context<'_>) -> Result<bool, WebSocketClose> {
        for _ in 0..limits::ROUND_FRAMES {
            if self.blocked.is_none() {
                let Poll::Ready(message) = self.socket.reader.poll_message(cx) else {
                    return Ok(false);
                };
                match message.map_err(|error| WebSocketClose::from_read_error(&error))? {
                    None => return Err(WebSocketClose::Peer),
                    Some(RawMessage::Text) => return Err(WebSocketClose::Text),
                    Some(RawMessage::Binary(frame)) => {
                        if FrameRoute::peek(&frame).is_err() {
                            self.metrics.garbage.increment();
                            return Err(WebSocketClose::Garbage);
                        }
                        self.blocked = Some(frame);
                    }
                }
            }
            // A closed circuit is noticed below, after its remaining frames.
            let Poll::Ready(Ok(())) = self.circuit.sender.poll_ready(cx) else {
                return Ok(false);
            };
            if let Some(frame) = self.blocked.take()
                && self.circuit.sender.push(frame).is_err()
            {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Takes frames from the circuit. Returns whether there may be more.
    fn write_frames(&mut self, cx: &mut Context<'_>) -> Result<bool, WebSocketClose> {
        let mut forwarded = FrameBatch::default();
        let mut more = true;
        for _ in 0..limits::ROUND_FRAMES {
            if self.socket.writer.buffered() >= limits::WRITE_AHEAD_BYTES {
                break;
            }
            match self.circuit.receiver.poll_frame(cx) {
                Poll::Pending => {
                    more = false;
                    break;
                }
                Poll::Ready(Ok(frame)) => {
                    forwarded.add(frame.len());
                    self.socket.writer.push(frame);
                }
                Poll::Ready(Err(close_reason)) => return Err(close_reason.into()),
            }
        }
        self.metrics.to_harness.add(forwarded);
        Ok(more)
    }
}
