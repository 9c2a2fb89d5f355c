//! Numbers that only grow, and numbers that go up and down.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use super::Meters;

/// A number that only grows.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn increment(&self) {
        self.add(1);
    }

    pub(crate) fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    /// Counts what has a length.
    pub(crate) fn add_bytes(&self, bytes: usize) {
        self.add(bytes as u64);
    }

    /// Returns what was counted so far.
    pub fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// How many of something there are now.
#[derive(Debug, Default)]
pub struct Gauge(AtomicU64);

impl Gauge {
    pub(crate) fn enter(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn leave(&self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }

    /// Returns how many there are.
    pub fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// One of the connections that are open. It is none any more when this is dropped.
#[derive(Debug)]
pub(crate) struct Held(Arc<Meters>);

impl Held {
    pub(crate) fn connection(meters: &Arc<Meters>) -> Self {
        meters.connections_opened.increment();
        meters.connections.enter();
        Self(Arc::clone(meters))
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.0.connections.leave();
    }
}
