//! The websockets of executors and harnesses, and the frames between them.
//!
//! One task owns each socket. A frame is read, its stream id is looked at, and the very bytes go
//! into a circuit to the task of the other socket. What one side does not take is not read from the
//! other.
//! Not here: which URL is whose (`url`), which stream belongs to whom (`switch`), what frames say.

mod executor;
mod harness;
#[cfg(test)]
mod tests;

use std::{
    future::poll_fn,
    io,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use exec_transport::{
    link::ReadError,
    websocket::socket::{Socket, SocketWriter},
};
use http::StatusCode;
use tokio::{runtime::Handle, sync::watch, time::timeout};

use crate::{
    circuit::Ending,
    circuit_dialer::{Dial, DialError, Exchange},
    executor_table::{Attachment, Switch},
    limits,
    metrics::Metrics,
    store::{AttachError, ConnectionId, NodeName, Presence, Store, Timestamp},
    url::{Pass, PassError, Signer},
};

/// How long the store may take to record an executor. Executors give the upgrade ten seconds.
const STORE_TIMEOUT: Duration = Duration::from_secs(5);
/// How long another node may take to answer.
const DIAL_TIMEOUT: Duration = Duration::from_secs(5);

/// Takes in the websockets of executors and harnesses.
#[derive(Debug)]
pub struct Rendezvous {
    /// Checks URLs.
    pub signer: Arc<Signer>,
    /// Knows which registrations are current.
    pub store: Arc<dyn Store>,
    /// Finds executors, on whichever node.
    pub exchange: Arc<dyn Exchange>,
    /// The executors of this process.
    pub switch: Arc<Switch>,
    /// This process.
    pub node: NodeName,
    /// What is counted.
    pub metrics: Arc<Metrics>,
    /// Becomes true when the hub stops.
    pub stopping: watch::Receiver<bool>,
}

/// Why a socket is not let in.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// Peer: the URL opens nothing.
    #[error(transparent)]
    Url(#[from] PassError),
    /// Peer: another registration has taken this one's place.
    #[error("registration is not current")]
    Superseded,
    /// Host: the store cannot be asked. The executor keeps its URL and tries again.
    #[error("store is not available")]
    Store,
    /// Host: the hub stops.
    #[error("hub is stopping")]
    Stopping,
}

impl Refusal {
    /// Returns the answer to the upgrade.
    pub const fn status(&self) -> StatusCode {
        match self {
            Self::Url(error) => error.status(),
            Self::Superseded => StatusCode::GONE,
            Self::Store | Self::Stopping => StatusCode::SERVICE_UNAVAILABLE,
        }
    }

    /// Returns a short name, for programs and the audit log.
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Url(error) => error.code(),
            Self::Superseded => "superseded",
            Self::Store => "store_unavailable",
            Self::Stopping => "stopping",
        }
    }
}

/// A socket that may be opened. Its upgrade has not been answered yet.
#[derive(Debug)]
pub enum Admission {
    /// An executor that harnesses can reach from now on. Dropping it detaches the executor.
    Executor(ExecutorAttachment),
    /// A harness and what it asks for.
    Harness(Dial),
}

impl Rendezvous {
    /// Decides on an upgrade by its path and query, at `now`.
    ///
    /// An executor is attached when this returns, before its upgrade is answered: a harness that
    /// asks for it as soon as the executor sees the answer finds it online.
    pub async fn admit(
        &self,
        path: &str,
        query: Option<&str>,
        now: Timestamp,
    ) -> Result<Admission, Refusal> {
        let pass = self.signer.check(path, query, now)?;
        if *self.stopping.borrow() {
            return Err(Refusal::Stopping);
        }
        match pass {
            Pass::Executor {
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
                    .unwrap_or(Err(Refusal::Store))
                    .map(Admission::Executor)
            }
            Pass::Harness {
                environment,
                registration,
                harness,
            } => Ok(Admission::Harness(Dial {
                environment,
                registration,
                harness,
            })),
        }
    }

    /// Attaches an executor to the switch and to the store.
    ///
    /// The switch comes before the store: whoever learns from the store that the executor is here
    /// finds it in the switch, and a registration that is superseded meanwhile is noticed by one of
    /// them. The registration is checked before both, so that a URL of the past closes no socket.
    async fn attach(&self, presence: Presence) -> Result<ExecutorAttachment, Refusal> {
        let current = self.store.registration(&presence.environment).await;
        let current = current.map_err(|_| Refusal::Store)?;
        if current.is_none_or(|current| current.id != presence.registration) {
            return Err(Refusal::Superseded);
        }
        let attachment = ExecutorAttachment::new(&self.switch, &self.store, presence.clone());
        // The switch closes what it knows when the hub stops. This socket may have come after that.
        if *self.stopping.borrow() {
            return Err(Refusal::Stopping);
        }
        match self.store.attach(presence.clone()).await {
            Ok(()) => Ok(attachment),
            Err(AttachError::Superseded) => Err(Refusal::Superseded),
            Err(error @ AttachError::Store(_)) => {
                tracing::warn!(environment = %presence.environment, %error, "executor not attached");
                Err(Refusal::Store)
            }
        }
    }

    /// Serves a socket until it ends. Dropping the future cuts it.
    pub async fn serve(&self, admission: Admission, mut socket: Socket) {
        let (role, open) = match &admission {
            Admission::Executor(_) => ("executor", &self.metrics.executors),
            Admission::Harness(_) => ("harness", &self.metrics.harnesses),
        };
        open.increment(1);
        let farewell = self.relay(admission, &mut socket).await;
        open.decrement(1);
        self.metrics.ended(role, farewell);
        tracing::debug!(role, reason = farewell.name(), "socket ended");
        farewell.say(&mut socket).await;
    }

    async fn relay(&self, admission: Admission, socket: &mut Socket) -> Farewell {
        match admission {
            Admission::Executor(mut attachment) => {
                let slot = attachment.slot();
                let farewell = executor::relay(socket, slot, &self.metrics).await;
                attachment.detach().await;
                farewell
            }
            Admission::Harness(dial) => {
                let mut stopping = self.stopping.clone();
                tokio::select! {
                    farewell = self.relay_harness(dial, socket) => farewell,
                    _ = stopping.wait_for(|stopping| *stopping) => Ending::Stopping.into(),
                }
            }
        }
    }

    async fn relay_harness(&self, dial: Dial, socket: &mut Socket) -> Farewell {
        match timeout(DIAL_TIMEOUT, self.exchange.dial(dial)).await {
            Ok(Ok(circuit)) => harness::relay(socket, circuit, &self.metrics).await,
            Ok(Err(error)) => error.into(),
            Err(_) => Ending::Unreachable.into(),
        }
    }
}

/// How long the store may take to record that an executor is gone.
const DETACH_TIMEOUT: Duration = Duration::from_secs(5);

/// An executor that harnesses can reach. Dropping it detaches the executor in the background, so
/// that an upgrade that fails after it was agreed to leaves nothing behind.
#[derive(Debug)]
pub struct ExecutorAttachment {
    // Dropped before the presence: whoever finds the presence gone finds the slot gone, too.
    slot: Attachment,
    presence: PresenceGuard,
}

impl ExecutorAttachment {
    /// Puts the executor into the switch. The caller attaches `presence` to the store; it is
    /// detached with this in any case, as a store that failed may have recorded it nevertheless.
    fn new(switch: &Arc<Switch>, store: &Arc<dyn Store>, presence: Presence) -> Self {
        let slot = switch.attach(
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

    /// The executor's place in the switch.
    fn slot(&mut self) -> &mut Attachment {
        &mut self.slot
    }

    /// What is recorded of the executor.
    pub(crate) fn presence(&self) -> &Presence {
        &self.presence.presence
    }

    /// Detaches the executor from the switch and from the store.
    async fn detach(self) {
        let Self { slot, mut presence } = self;
        drop(slot);
        detach(&*presence.store, &presence.presence).await;
        presence.is_detached = true;
    }
}

/// Detaches the presence from the store when it is dropped, unless that was done.
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
        // Without a runtime the process ends, and with it every presence of this node.
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
        Ok(Err(error)) => tracing::warn!(%environment, %error, "executor not detached"),
        Err(_) => tracing::warn!(%environment, "executor not detached in time"),
    }
}

/// Why a socket ends.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Farewell {
    /// The peer closed it.
    Peer,
    /// The connection broke, or the peer was silent, or took nothing, for too long.
    Lost,
    /// The peer does not speak websocket.
    Protocol,
    /// A message is too long.
    TooLong,
    /// A message is no frame.
    Garbage,
    /// A message is text.
    Text,
    /// There is no executor to talk to.
    NoExecutor,
    /// This executor has too many harnesses.
    Busy,
    /// The way to the other side ended.
    Circuit(Ending),
}

impl Farewell {
    /// Returns a short name, for metrics.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Peer => "closed",
            Self::Lost => "lost",
            Self::Protocol => "protocol",
            Self::TooLong => "too_long",
            Self::Garbage => "garbage",
            Self::Text => "text",
            Self::NoExecutor => "no_executor",
            Self::Busy => "busy",
            Self::Circuit(ending) => ending.name(),
        }
    }

    /// Returns the close code (RFC 6455 section 7.4) and a reason for people.
    const fn close(self) -> Option<(u16, &'static str)> {
        Some(match self {
            // Nobody is there to be told.
            Self::Lost => return None,
            Self::Peer => (1000, ""),
            Self::Protocol => (1002, "not a websocket frame"),
            Self::TooLong => (1009, "message is too long"),
            Self::Garbage => (1007, "not a relay frame"),
            Self::Text => (1003, "text is not relayed"),
            Self::NoExecutor => (1013, "executor is not connected"),
            Self::Busy => (1013, "too many harnesses"),
            Self::Circuit(ending) => (ending.close_code(), ending.text()),
        })
    }

    /// Returns why a socket cannot be read any further.
    fn unreadable(error: &ReadError) -> Self {
        match error {
            ReadError::TooLong(_) => Self::TooLong,
            ReadError::Protocol(_) => Self::Protocol,
            ReadError::InvalidUtf8 => Self::Garbage,
            // Whatever else: nobody is there to be told.
            ReadError::Io(_) | ReadError::Exited(_) | _ => Self::Lost,
        }
    }

    /// Closes a socket, within bounds. Whatever it has not taken by then is lost with it.
    async fn say(self, socket: &mut Socket) {
        let Some((code, reason)) = self.close() else {
            return;
        };
        let closed = async {
            poll_fn(|cx| socket.writer.poll_close_with(code, reason, cx)).await?;
            // What the peer has sent meanwhile is taken off the connection: otherwise the system
            // would cut it, and the peer might not get to read the code.
            while let Ok(Some(_)) = socket.reader.next().await {}
            io::Result::Ok(())
        };
        match timeout(limits::CLOSE, closed).await {
            Ok(Ok(())) | Err(_) => {}
            Ok(Err(error)) => tracing::trace!(%error, "socket was gone before it was closed"),
        }
    }
}

impl From<Ending> for Farewell {
    fn from(ending: Ending) -> Self {
        Self::Circuit(ending)
    }
}

impl From<DialError> for Farewell {
    fn from(error: DialError) -> Self {
        match error {
            DialError::Offline => Self::NoExecutor,
            DialError::Busy => Self::Busy,
            DialError::Unreachable => Self::Circuit(Ending::Unreachable),
        }
    }
}

/// How a flush went.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Flush {
    /// Nothing is left.
    Done,
    /// The peer does not take it all now. The task is woken when it takes more.
    Blocked,
}

/// Hands over what is buffered, and what the socket itself has to say, such as a ping.
fn flush(writer: &mut SocketWriter, cx: &mut Context<'_>) -> Result<Flush, Farewell> {
    loop {
        let blocked = match writer.poll_flush(cx) {
            Poll::Ready(Ok(())) => false,
            Poll::Ready(Err(_)) => return Err(Farewell::Lost),
            Poll::Pending => true,
        };
        match writer.poll_upkeep(cx) {
            Poll::Ready(Err(_)) => return Err(Farewell::Lost),
            Poll::Ready(Ok(())) if !blocked => {}
            Poll::Ready(Ok(())) | Poll::Pending => {
                return Ok(if blocked { Flush::Blocked } else { Flush::Done });
            }
        }
    }
}
