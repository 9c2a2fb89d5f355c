//! The executor's end of a relay: one websocket with many streams, each of which is a link.
//!
//! Invariant: a harness that the [validator](HarnessValidator) has not accepted gets a reset
//! without a reason, or learns that the registry rejects the executor itself. Reliable streams are
//! parked for a while when their connection is lost.

mod connection;
mod keepalive;
mod pending_handshakes;
mod stream_table;
#[cfg(test)]
mod tests;

use std::{
    fmt, io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use exec_relay::{
    frame::StreamId,
    identity::{NoiseIdentity, NoisePublicKey},
};
use futures_util::future::BoxFuture;
use tokio::{sync::mpsc, time::sleep_until};

use self::{connection::ExecutorConnection, stream_table::StreamTable};
use crate::{
    link::{Link, LinkReadError},
    websocket::socket::BinarySocket,
};

/// Serves the streams of harnesses over consecutive connections.
pub struct RelayExecutor {
    identity: Arc<NoiseIdentity>,
    environment_id: String,
    validator: Arc<dyn HarnessValidator>,
    links: mpsc::Sender<Link>,
    streams: Arc<Mutex<StreamTable>>,
}

/// How a connection ended. Plain streams have ended, reliable ones are parked.
#[derive(Debug)]
#[non_exhaustive]
pub enum ExecutorDisconnect {
    /// The relay closed it.
    Closed,
    /// Reading failed.
    Read(LinkReadError),
    /// Writing failed, or the relay did not answer pings.
    Write(io::Error),
    /// The receiver of links is closed.
    ReceiverClosed,
}

impl RelayExecutor {
    /// Creates an executor that sends its streams to `links`. New streams are reset while the
    /// channel is full.
    pub fn new(
        identity: Arc<NoiseIdentity>,
        environment_id: String,
        validator: Arc<dyn HarnessValidator>,
        links: mpsc::Sender<Link>,
    ) -> Self {
        Self {
            identity,
            environment_id,
            validator,
            links,
            streams: Arc::default(),
        }
    }

    /// Serves one connection until it ends. Harnesses can resume reliable streams of the previous
    /// connection. Dropping the future closes the connection.
    pub async fn serve(
        &mut self,
        socket: BinarySocket,
        registration_id: String,
    ) -> ExecutorDisconnect {
        let park_on_drop = ParkOnDrop(Arc::clone(&self.streams));
        let ended = ExecutorConnection::new(self, &self.streams, socket, registration_id)
            .run()
            .await;
        drop(park_on_drop);
        ended
    }
}

impl fmt::Debug for RelayExecutor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Executor")
            .field("environment_id", &self.environment_id)
            .finish_non_exhaustive()
    }
}

/// Parks the streams when the connection ends for any reason.
struct ParkOnDrop(Arc<Mutex<StreamTable>>);

impl Drop for ParkOnDrop {
    fn drop(&mut self) {
        let now = tokio::time::Instant::now();
        lock(&self.0).park_all(now.into_std());
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            return;
        };
        // Without a connection, this task expires the parked streams.
        let streams = Arc::downgrade(&self.0);
        drop(runtime.spawn(async move {
            loop {
                let next = streams.upgrade().and_then(|all| lock(&all).poll_expiry());
                let Some(next) = next else {
                    return;
                };
                sleep_until(next.into()).await;
                if let Some(streams) = streams.upgrade() {
                    lock(&streams).expire(tokio::time::Instant::now().into_std());
                }
            }
        }));
    }
}

fn lock(streams: &Mutex<StreamTable>) -> MutexGuard<'_, StreamTable> {
    streams.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Validates harnesses, for example by asking a registry.
pub trait HarnessValidator: Send + Sync {
    /// Validates a claim. The future is dropped when the outcome no longer matters, and counts as
    /// [`ValidationOutcome::Refused`] after ten seconds.
    fn validate(&self, claim: HarnessClaim) -> BoxFuture<'static, ValidationOutcome>;
}

/// Outcome of the validation of a harness.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ValidationOutcome {
    /// The harness may open the stream.
    Accepted,
    /// The harness is refused, or validation failed. The harness gets no reason.
    Refused,
    /// The registry rejects the executor's own credential (401). The harness is informed, because
    /// its retries cannot succeed.
    ExecutorUnauthenticated,
}

/// Claim of a harness from its first handshake message.
#[derive(Clone, Eq, PartialEq)]
pub struct HarnessClaim {
    /// The registration under which the executor was reached.
    pub registration_id: String,
    /// The requested stream. Untrusted text.
    pub stream_id: StreamId,
    /// The key that the harness claims to hold.
    pub harness_key: NoisePublicKey,
    /// Authorization issued by the registry to the harness. Secret; only for the registry.
    pub authorization: String,
}

impl fmt::Debug for HarnessClaim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Claim")
            .field("registration_id", &self.registration_id)
            .field("stream_id", &self.stream_id)
            .field("harness_key", &self.harness_key)
            .finish_non_exhaustive()
    }
}
