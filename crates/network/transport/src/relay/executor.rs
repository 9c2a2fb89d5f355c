//! The executor's end of a relay: one websocket with many streams, each of which is a link.
//!
//! Invariant: a harness that the [validator](HarnessValidator) has not accepted gets a reset
//! without a reason, or learns that the registry rejects the executor itself. Reliable streams are
//! parked in the stream table for a while when their connection is lost.

mod connection;
mod keepalive;
#[cfg(test)]
mod tests;

use std::{
    collections::HashMap,
    fmt, io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use exec_relay::{
    frame::StreamId,
    identity::{NoiseIdentity, NoisePublicKey},
    stream::DeliveryMode,
};
use futures_util::future::BoxFuture;
use tokio::{sync::mpsc, time::sleep_until};

use self::connection::ExecutorConnection;
use super::{
    StreamCloseReason,
    stream_shared::{ReadyQueue, StreamShared},
};
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

/// Maximum number of streams, as in the stock executor. New streams evict parked ones.
const MAX_STREAMS: usize = 128;
/// How long a reliable stream stays parked after its connection, or that of its harness, was lost.
/// Shorter than the 25 seconds in which a harness reconnects, so that both ends agree on failure.
const PARK_TIMEOUT: Duration = Duration::from_secs(20);

#[derive(Debug, Default)]
struct StreamTable {
    /// Ready streams, shared by the drivers of all connections.
    ready_queue: Arc<ReadyQueue>,
    entries: HashMap<StreamId, StreamEntry>,
}

#[derive(Debug)]
struct StreamEntry {
    shared: Arc<StreamShared>,
    delivery: DeliveryMode,
    harness_key: NoisePublicKey,
    parked_at: Option<Instant>,
}

impl StreamTable {
    /// Returns whether another stream fits, counting parked ones as evictable.
    fn has_capacity(&self) -> bool {
        let mut entries = self.entries.values();
        self.entries.len() < MAX_STREAMS || entries.any(|entry| entry.parked_at.is_some())
    }

    /// Evicts the stream parked for the longest time, if the table is full.
    fn evict_oldest_parked(&mut self) {
        if self.entries.len() < MAX_STREAMS {
            return;
        }
        let parked = self.entries.iter().filter_map(|(id, entry)| {
            let since = entry.parked_at?;
            Some((since, id.clone()))
        });
        if let Some((_, oldest)) = parked.min() {
            self.remove(&oldest, StreamCloseReason::Lost);
        }
    }

    /// Adds a stream; there must be capacity. Ends the parked streams of the same harness, which it
    /// will not resume.
    fn insert(
        &mut self,
        shared: Arc<StreamShared>,
        delivery: DeliveryMode,
        harness_key: NoisePublicKey,
    ) {
        self.entries.retain(|_, entry| {
            let superseded = entry.parked_at.is_some() && entry.harness_key == harness_key;
            if superseded {
                entry.shared.close(StreamCloseReason::Lost);
            }
            !superseded
        });
        self.evict_oldest_parked();
        let entry = StreamEntry {
            shared: Arc::clone(&shared),
            delivery,
            harness_key,
            parked_at: None,
        };
        self.entries.insert(shared.id().clone(), entry);
    }

    /// Returns an active stream. A parked one becomes active: its harness is back.
    fn active(&mut self, id: &StreamId, now: Instant) -> Option<&StreamEntry> {
        let entry = self.entries.get_mut(id)?;
        if entry.parked_at.take().is_some() {
            entry.shared.handle_reconnect(now);
        }
        Some(entry)
    }

    fn contains(&self, id: &StreamId) -> bool {
        self.entries.contains_key(id)
    }

    /// Returns whether a stream with this delivery mode is active.
    fn has_active(&self, delivery: DeliveryMode) -> bool {
        let mut entries = self.entries.values();
        entries.any(|entry| entry.delivery == delivery && entry.parked_at.is_none())
    }

    /// Handles the loss of the path to a harness: parks or ends its stream.
    fn park(&mut self, id: &StreamId, now: Instant) {
        match self.entries.get_mut(id) {
            Some(entry) if entry.delivery == DeliveryMode::Reliable => entry.park(now),
            Some(_) => self.remove(id, StreamCloseReason::Reset),
            None => {}
        }
    }

    /// Handles the loss of the executor's own connection.
    fn park_all(&mut self, now: Instant) {
        self.entries.retain(|_, entry| match entry.delivery {
            DeliveryMode::Reliable => {
                entry.park(now);
                true
            }
            DeliveryMode::Plain => {
                entry.shared.close(StreamCloseReason::Lost);
                false
            }
        });
    }

    /// Ends a stream and removes it.
    fn remove(&mut self, id: &StreamId, reason: StreamCloseReason) {
        if let Some(entry) = self.entries.remove(id) {
            entry.shared.close(reason);
        }
    }

    /// Ends a stream after its link is done. Returns whether it was still in the table: another
    /// stream may use its id by now.
    fn finish(&mut self, shared: &Arc<StreamShared>) -> bool {
        let entry = self.entries.get(shared.id());
        let is_current = entry.is_some_and(|entry| Arc::ptr_eq(&entry.shared, shared));
        if is_current {
            self.remove(shared.id(), StreamCloseReason::Closed);
        }
        is_current
    }

    /// Ends streams that were parked for too long.
    fn expire(&mut self, now: Instant) {
        self.entries.retain(|_, entry| {
            let is_expired = entry.parked_until().is_some_and(|until| now >= until);
            if is_expired {
                entry.shared.close(StreamCloseReason::Lost);
            }
            !is_expired
        });
    }

    /// Returns when the next parked stream expires.
    fn poll_expiry(&self) -> Option<Instant> {
        self.entries
            .values()
            .filter_map(StreamEntry::parked_until)
            .min()
    }

    /// Returns the active streams with an expired deadline.
    fn due_streams(&self, now: Instant) -> Vec<Arc<StreamShared>> {
        let is_due = |entry: &&StreamEntry| {
            let deadline = entry.shared.poll_timeout();
            entry.parked_at.is_none() && deadline.is_some_and(|deadline| now >= deadline)
        };
        let due = self.entries.values().filter(is_due);
        due.map(|entry| Arc::clone(&entry.shared)).collect()
    }

    /// Returns the next deadline of any stream.
    fn poll_timeout(&self) -> Option<Instant> {
        let next =
            |entry: &StreamEntry| entry.parked_until().or_else(|| entry.shared.poll_timeout());
        self.entries.values().filter_map(next).min()
    }
}

impl StreamEntry {
    fn park(&mut self, now: Instant) {
        if self.parked_at.is_none() {
            self.parked_at = Some(now);
            self.shared.handle_disconnect(now);
        }
    }

    fn parked_until(&self) -> Option<Instant> {
        self.parked_at.map(|since| since + PARK_TIMEOUT)
    }
}

impl Drop for StreamTable {
    fn drop(&mut self) {
        for entry in self.entries.values() {
            entry.shared.close(StreamCloseReason::Lost);
        }
    }
}
