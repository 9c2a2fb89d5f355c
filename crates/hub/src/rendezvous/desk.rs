//! Where sockets come in: who they are, and the whole of their life.

use std::{sync::Arc, time::Duration};

use exec_transport::websocket::socket::Socket;
use http::StatusCode;
use tokio::{sync::watch, time::timeout};

use super::{Farewell, executor, harness};
use crate::{
    circuit::Ending,
    exchange::{Dial, Exchange},
    metrics::Metrics,
    store::{AttachError, ConnectionId, NodeName, Presence, Store, Timestamp},
    switch::Switch,
    url::{Pass, PassError, Signer},
};

/// How long the store may take to note that a socket came or went.
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

impl Rendezvous {
    /// Decides on an upgrade by its path and query, at `now`.
    pub async fn admit(
        &self,
        path: &str,
        query: Option<&str>,
        now: Timestamp,
    ) -> Result<Pass, Refusal> {
        let pass = self.signer.check(path, query, now)?;
        if *self.stopping.borrow() {
            return Err(Refusal::Stopping);
        }
        if let Pass::Executor {
            environment,
            registration,
        } = &pass
        {
            let current = timeout(STORE_TIMEOUT, self.store.registration(environment))
                .await
                .ok()
                .and_then(Result::ok)
                .ok_or(Refusal::Store)?;
            if current.is_none_or(|current| current.id != *registration) {
                return Err(Refusal::Superseded);
            }
        }
        Ok(pass)
    }

    /// Serves a socket until it ends. Dropping the future cuts it.
    pub async fn serve(&self, pass: Pass, mut socket: Socket) {
        let role = match &pass {
            Pass::Executor { .. } => Role::Executor,
            Pass::Harness { .. } => Role::Harness,
        };
        let open = match role {
            Role::Executor => &self.metrics.executors,
            Role::Harness => &self.metrics.harnesses,
        };
        open.increment(1);
        let farewell = self.relay(pass, &mut socket).await;
        open.decrement(1);
        self.metrics.ended(role.name(), farewell);
        tracing::debug!(role = role.name(), reason = farewell.name(), "socket ended");
        farewell.say(&mut socket).await;
    }

    async fn relay(&self, pass: Pass, socket: &mut Socket) -> Farewell {
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
                self.relay_executor(&presence, socket).await
            }
            Pass::Harness {
                environment,
                registration,
                harness,
            } => {
                let dial = Dial {
                    environment,
                    registration,
                    harness,
                };
                let mut stopping = self.stopping.clone();
                tokio::select! {
                    farewell = self.relay_harness(dial, socket) => farewell,
                    _ = stopping.wait_for(|stopping| *stopping) => Ending::Stopping.into(),
                }
            }
        }
    }

    /// The switch comes before the store: whoever learns from the store that the executor is here
    /// finds it in the switch, and a registration that is superseded meanwhile is noticed by one of
    /// them.
    async fn relay_executor(&self, presence: &Presence, socket: &mut Socket) -> Farewell {
        let mut attachment = self.switch.attach(
            presence.environment.clone(),
            presence.registration.clone(),
            presence.connection.clone(),
        );
        // The switch closes what it knows when the hub stops. This socket may have come after that.
        if *self.stopping.borrow() {
            return Ending::Stopping.into();
        }
        let farewell = match timeout(STORE_TIMEOUT, self.store.attach(presence.clone())).await {
            Ok(Ok(())) => executor::relay(socket, &mut attachment, &self.metrics).await,
            Ok(Err(AttachError::Superseded)) => Farewell::Superseded,
            Ok(Err(error @ AttachError::Store(_))) => {
                tracing::warn!(environment = %presence.environment, %error, "executor not attached");
                Farewell::Store
            }
            Err(_) => Farewell::Store,
        };
        drop(attachment);
        // In any case: a store that failed may have noted the socket nevertheless.
        let detached = self.store.detach(presence, Timestamp::now());
        match timeout(STORE_TIMEOUT, detached).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::warn!(environment = %presence.environment, %error, "executor not detached");
            }
            Err(_) => tracing::warn!(environment = %presence.environment, "executor not detached"),
        }
        farewell
    }

    async fn relay_harness(&self, dial: Dial, socket: &mut Socket) -> Farewell {
        match timeout(DIAL_TIMEOUT, self.exchange.dial(dial)).await {
            Ok(Ok(circuit)) => harness::relay(socket, circuit, &self.metrics).await,
            Ok(Err(error)) => error.into(),
            Err(_) => Ending::Unreachable.into(),
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Role {
    Executor,
    Harness,
}

impl Role {
    const fn name(self) -> &'static str {
        match self {
            Self::Executor => "executor",
            Self::Harness => "harness",
        }
    }
}
