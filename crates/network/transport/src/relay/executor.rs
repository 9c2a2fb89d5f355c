//! The executor's end of a relay: one websocket, many streams, each a link for whoever serves it.
//!
//! Invariant: a harness that the [validator](Validator) has not approved gets a reset that says
//! nothing, or learns that the registry rejects the executor itself. Reliable streams outlive their connection, parked, for a while.

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
    identity::{Identity, PublicKey},
};
use futures_util::future::BoxFuture;
use tokio::{sync::mpsc, time::sleep_until};

use self::{connection::ExecutorConnection, stream_table::StreamTable};
use crate::{
    link::{Link, ReadError},
    websocket::socket::Socket,
};

/// Serves the streams of harnesses, on one connection after the other.
pub struct Executor {
    identity: Arc<Identity>,
    environment_id: String,
    validator: Arc<dyn Validator>,
    links: mpsc::Sender<Link>,
    streams: Arc<Mutex<StreamTable>>,
}

/// How a connection ended. Its plain streams have ended, its reliable ones are parked.
#[derive(Debug)]
#[non_exhaustive]
pub enum Ended {
    /// The relay closed it.
    Closed,
    /// It cannot be read any further.
    Read(ReadError),
    /// It cannot be written to, or its pings stay unanswered.
    Write(io::Error),
    /// Nobody takes links any more.
    Unwanted,
}

impl Executor {
    /// Makes an executor whose streams go to `links`. When those are not taken, new streams are
    /// reset.
    pub fn new(
        identity: Arc<Identity>,
        environment_id: String,
        validator: Arc<dyn Validator>,
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

    /// Serves one connection until it ends. Reliable streams of the one before are still there, for
    /// their harnesses to come back to. Dropping the future drops the connection.
    pub async fn serve(&mut self, socket: Socket, registration_id: String) -> Ended {
        let park_on_drop = ParkOnDrop(Arc::clone(&self.streams));
        let ended = ExecutorConnection::new(self, &self.streams, socket, registration_id)
            .run()
            .await;
        drop(park_on_drop);
        ended
    }
}

impl fmt::Debug for Executor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Executor")
            .field("environment_id", &self.environment_id)
            .finish_non_exhaustive()
    }
}

/// Parks the streams when their connection is gone, however it went.
struct ParkOnDrop(Arc<Mutex<StreamTable>>);

impl Drop for ParkOnDrop {
    fn drop(&mut self) {
        let now = tokio::time::Instant::now();
        lock(&self.0).park_all(now.into_std());
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            return;
        };
        // Until there is a connection again, nobody else looks at the clock.
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

/// Asks the registry about harnesses.
pub trait Validator: Send + Sync {
    /// Tells whether a claim holds. It is dropped when the answer no longer matters, and counts as
    /// [`ValidationOutcome::Refused`] after ten seconds.
    fn validate(&self, claim: Claim) -> BoxFuture<'static, ValidationOutcome>;
}

/// What the registry says about a harness.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ValidationOutcome {
    /// It may come in.
    Accepted,
    /// It may not, or nobody could be asked. The harness learns nothing else.
    Refused,
    /// The registry rejects the executor's own credential (401). The harness is told, as no other
    /// attempt of it can succeed.
    ExecutorUnauthenticated,
}

/// What a harness claims in its first message.
#[derive(Clone, Eq, PartialEq)]
pub struct Claim {
    /// The registration under which the executor was reached.
    pub registration_id: String,
    /// The stream that the harness wants. Untrusted text.
    pub stream_id: StreamId,
    /// The key that the harness says it holds.
    pub harness_key: PublicKey,
    /// What the registry gave the harness: a secret for the registry alone.
    pub authorization: String,
}

impl fmt::Debug for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Claim")
            .field("registration_id", &self.registration_id)
            .field("stream_id", &self.stream_id)
            .field("harness_key", &self.harness_key)
            .finish_non_exhaustive()
    }
}
