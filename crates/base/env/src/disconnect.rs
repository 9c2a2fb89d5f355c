//! Why a remote end is out of reach for good.

/// Why nothing can be done on a remote host any more. Whoever recovers connections has given up.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Disconnect {
    /// Transport: the connection is gone, and no other could be made in time.
    #[error("connection to the exec-server is gone: {0}")]
    Transport(String),
    /// Session: the server does not know it any more; what belonged to it has ended.
    #[error("session on the exec-server is lost: {0}")]
    Session(String),
    /// Peer: it broke a promise of the protocol, which the text names.
    #[error("exec-server broke the protocol: {0}")]
    Protocol(String),
}
