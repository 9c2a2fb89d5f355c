//! Whether a client is connected, for those who show it.

/// Where a client stands with its server.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ConnectionState {
    /// There is a connection, and a session on it.
    Connected,
    /// The connection broke; another one is being opened. Calls wait.
    Reconnecting,
    /// The session is gone, and with it what belonged to it. The next call may begin another one.
    Lost,
}
