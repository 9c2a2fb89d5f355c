//! What a proxy or a bridge holds at most, and how long it waits.

use std::time::Duration;

/// Bounds of one proxy or bridge.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Limits {
    /// Connections at a time. The next one is told so and closed.
    pub max_connections: usize,
    /// Questions that wait for somebody's decision. The next one is denied.
    pub max_pending_decisions: usize,
    /// What a decision may take longer than its own timeout, for the way there and back.
    pub decision_grace: Duration,
    /// How long a client may take to say what it wants.
    pub handshake_timeout: Duration,
    /// How long a name may take to be looked up, and each of its addresses to be connected to.
    pub connect_timeout: Duration,
    /// How long a connection lasts without a byte in either direction.
    pub idle_timeout: Duration,
    /// How long the last words to a client may take. Without the wait, closing a socket with
    /// unread bytes would destroy what the client has yet to read.
    pub close_timeout: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_connections: 256,
            max_pending_decisions: 32,
            decision_grace: Duration::from_secs(5),
            handshake_timeout: Duration::from_secs(30),
            connect_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(600),
            close_timeout: Duration::from_secs(1),
        }
    }
}

/// The longest head of a request or response, and the longest trailer.
pub(crate) const MAX_HEAD_BYTES: usize = 64 * 1024;

/// The most fields of a head.
pub(crate) const MAX_FIELDS: usize = 100;

/// The size of a buffer; each connection has one in each direction.
pub(crate) const BUFFER_BYTES: usize = 32 * 1024;

/// Addresses of a name that are tried.
pub(crate) const MAX_ADDRESSES: usize = 8;

/// Clients at a time that are told that there are too many. More are closed without a word.
pub(crate) const MAX_REJECTING: usize = 32;

/// Names that are looked up at a time. Each look-up takes a thread, which cannot be stopped.
pub(crate) const MAX_LOOKUPS: usize = 16;

/// The longest reason that a decision may give.
pub(crate) const MAX_REASON_BYTES: usize = 1024;
