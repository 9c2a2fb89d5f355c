//! Where sockets come in: who they are, and the whole of their life.

use std::{sync::Arc, time::Duration};

use exec_transport::websocket::socket::Socket;
use http::StatusCode;
use tokio::{sync::watch, time::timeout};

use super::{ExecutorAttachment, Farewell, executor, harness};
use crate::{
    circuit::Ending,
    exchange::{Dial, Exchange},
    metrics::Metrics,
    store::{AttachError, ConnectionId, NodeName, Presence, Store, Timestamp},
    switch::Switch,
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
