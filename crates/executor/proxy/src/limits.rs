//! Limits and timeouts of a proxy or bridge.

use std::time::Duration;

/// Limits of one proxy or bridge.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ProxyLimits {
    /// Concurrent connections. Further ones are rejected with an error.
    pub max_connections: usize,
    /// Concurrent decisions of the client. Further hosts are denied.
    pub max_pending_decisions: usize,
    /// Time that a decision may take beyond its own timeout, for the round trip to the client.
    pub decision_grace: Duration,
    /// Timeout for the request head or the SOCKS5 handshake.
    pub handshake_timeout: Duration,
    /// Timeout for resolving a name, and for connecting to each of its addresses.
    pub connect_timeout: Duration,
    /// Timeout of a connection without traffic in either direction.
    pub idle_timeout: Duration,
    /// Timeout for delivering the final response. Closing a socket with unread bytes immediately
    /// would discard data that the client has not read yet.
    pub close_timeout: Duration,
}

impl Default for ProxyLimits {
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

/// Maximum size of a request head, response head or trailer.
pub(crate) const MAX_HEAD_BYTES: usize = 64 * 1024;

/// Maximum number of header fields.
pub(crate) const MAX_FIELDS: usize = 100;

/// Buffer size; each connection has one buffer per direction.
pub(crate) const BUFFER_BYTES: usize = 32 * 1024;

/// Maximum number of addresses that are tried per name.
pub(crate) const MAX_ADDRESSES: usize = 8;

/// Concurrent connections that are being rejected with an error. Further ones are closed silently.
pub(crate) const MAX_REJECTING: usize = 32;

/// Concurrent name lookups. Each one occupies a thread, which cannot be cancelled.
pub(crate) const MAX_LOOKUPS: usize = 16;

/// Maximum length of the reason in a decision.
pub(crate) const MAX_REASON_BYTES: usize = 1024;
