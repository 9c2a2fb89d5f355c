//! The table of an executor's streams, active and parked.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use exec_relay::{frame::StreamId, identity::NoisePublicKey, stream::DeliveryMode};

use crate::relay::{
    StreamCloseReason,
    stream_shared::{ReadyQueue, StreamShared},
};

/// Maximum number of streams, as in the stock executor. New streams evict parked ones.
pub(super) const MAX_STREAMS: usize = 128;
/// How long a reliable stream stays parked after its connection, or that of its harness, was lost.
/// Shorter than the 25 seconds in which a harness reconnects, so that both ends agree on failure.
const PARK_TIMEOUT: Duration = Duration::from_secs(20);

#[derive(Debug, Default)]
pub(super) struct StreamTable {
    /// Ready streams, shared by the drivers of all connections.
    pub(super) ready_queue: Arc<ReadyQueue>,
    entries: HashMap<StreamId, StreamEntry>,
}

#[derive(Debug)]
pub(super) struct StreamEntry {
    pub(super) shared: Arc<StreamShared>,
    pub(super) delivery: DeliveryMode,
    harness_key: NoisePublicKey,
    parked_at: Option<Instant>,
}

impl StreamTable {
    /// Returns whether another stream fits, counting parked ones as evictable.
    pub(super) fn has_capacity(&self) -> bool {
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
    pub(super) fn insert(
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
    pub(super) fn active(&mut self, id: &StreamId, now: Instant) -> Option<&StreamEntry> {
        let entry = self.entries.get_mut(id)?;
        if entry.parked_at.take().is_some() {
            entry.shared.handle_reconnect(now);
        }
        Some(entry)
    }

    pub(super) fn contains(&self, id: &StreamId) -> bool {
        self.entries.contains_key(id)
    }

    /// Returns whether a stream with this delivery mode is active.
    pub(super) fn has_active(&self, delivery: DeliveryMode) -> bool {
        let mut entries = self.entries.values();
        entries.any(|entry| entry.delivery == delivery && entry.parked_at.is_none())
    }

    /// Handles the loss of the path to a harness: parks or ends its stream.
    pub(super) fn park(&mut self, id: &StreamId, now: Instant) {
        match self.entries.get_mut(id) {
            Some(entry) if entry.delivery == DeliveryMode::Reliable => entry.park(now),
            Some(_) => self.remove(id, StreamCloseReason::Reset),
            None => {}
        }
    }

    /// Handles the loss of the executor's own connection.
    pub(super) fn park_all(&mut self, now: Instant) {
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
    pub(super) fn remove(&mut self, id: &StreamId, reason: StreamCloseReason) {
        if let Some(entry) = self.entries.remove(id) {
            entry.shared.close(reason);
        }
    }

    /// Ends a stream after its link is done. Returns whether it was still in the table: another
    /// stream may use its id by now.
    pub(super) fn finish(&mut self, shared: &Arc<StreamShared>) -> bool {
        let entry = self.entries.get(shared.id());
        let is_current = entry.is_some_and(|entry| Arc::ptr_eq(&entry.shared, shared));
        if is_current {
            self.remove(shared.id(), StreamCloseReason::Closed);
        }
        is_current
    }

    /// Ends streams that were parked for too long.
    pub(super) fn expire(&mut self, now: Instant) {
        self.entries.retain(|_, entry| {
            let is_over = entry.parked_until().is_some_and(|until| now >= until);
            if is_over {
                entry.shared.close(StreamCloseReason::Lost);
            }
            !is_over
        });
    }

    /// Returns when the next parked stream expires.
    pub(super) fn poll_expiry(&self) -> Option<Instant> {
        self.entries
            .values()
            .filter_map(StreamEntry::parked_until)
            .min()
    }

    /// Returns the active streams with an expired deadline.
    pub(super) fn due_streams(&self, now: Instant) -> Vec<Arc<StreamShared>> {
        let is_due = |entry: &&StreamEntry| {
            let deadline = entry.shared.poll_timeout();
            entry.parked_at.is_none() && deadline.is_some_and(|deadline| now >= deadline)
        };
        let due = self.entries.values().filter(is_due);
        due.map(|entry| Arc::clone(&entry.shared)).collect()
    }

    /// Returns the next deadline of any stream.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
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
