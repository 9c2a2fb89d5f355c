//! Opening links to a server: over a websocket, plain or by TLS, over a unix socket, or to a program
//! that is started for it.
//! Invariant: a future that is dropped leaves no connection and no program behind; whatever fails
//! tells whom to blame, and no text repeats a secret.
//! Not here: sessions, coming back after a disconnect (`exec-client`).

mod program;
mod proxy;
mod request_headers;
mod server_address;
#[cfg(test)]
mod tests;
mod upgrade_request;
mod websocket;

use std::{io, path::PathBuf, time::Duration};

use exec_relay::handshake::HandshakeError;
use tokio_rustls::rustls::{self, CertificateError};

use crate::tls::TlsError;

#[cfg(any(test, fuzzing))]
pub(crate) use self::upgrade_request::fuzz_response;
pub use self::{
    program::{Exit, Program},
    proxy::{Proxy, ProxyError},
    request_headers::{BearerToken, HeaderError, Headers, TokenError},
    server_address::{Address, AddressError, Host, Scheme},
    websocket::{CONNECT_TIMEOUT, WebSocket},
};
pub use crate::confinement::{ListenerTrust, UntrustedListener};

/// Why a server could not be reached. In every case nothing is left open or running.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// Caller: the URL is not one of a server.
    #[error("URL of the server is refused")]
    Address(#[from] AddressError),
    /// Caller: a header cannot be sent.
    #[error(transparent)]
    Header(#[from] HeaderError),
    /// Caller: the token is none.
    #[error(transparent)]
    Token(#[from] TokenError),
    /// Caller: others could read the token on its way.
    #[error("a bearer token is sent over wss:// or to this machine only, not to `{0}`")]
    TokenInTheClear(String),
    /// Caller: the certificates to trust cannot be used.
    #[error(transparent)]
    Trust(#[from] TlsError),
    /// Caller: the program cannot be started.
    #[error("cannot start `{program}`")]
    Start {
        /// The program.
        program: String,
        /// Why.
        source: io::Error,
    },
    /// Caller: the program cannot be started where it is to work.
    #[error("cannot work in `{}`", path.display())]
    WorkingDirectory {
        /// The directory.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Transport: the host's name has no address.
    #[error("cannot resolve `{host}`")]
    Resolve {
        /// The name.
        host: String,
        /// Why.
        source: io::Error,
    },
    /// Transport: no connection came about, such as where nobody listens.
    #[error("cannot connect to `{peer}`")]
    Unreachable {
        /// Where the server was thought to be.
        peer: String,
        /// Why.
        source: io::Error,
    },
    /// Caller: this process may not connect to the unix socket, as in a sandbox.
    #[error("this process may not connect to `{peer}`")]
    Forbidden {
        /// The socket.
        peer: String,
        /// Why.
        source: io::Error,
    },
    /// Peer: what listens on the unix socket is not what the client may talk to. Nothing was sent.
    #[error("refused to use `{peer}`: {source}")]
    Untrusted {
        /// The socket.
        peer: String,
        /// Why.
        source: UntrustedListener,
    },
    /// Transport: the connection broke before it could be used.
    #[error("connection broke")]
    Io(#[from] io::Error),
    /// Transport: it took too long.
    #[error("connecting to `{peer}` took longer than {within:?}")]
    Timeout {
        /// Where the server was thought to be.
        peer: String,
        /// How long it might have taken.
        within: Duration,
    },
    /// Peer: its certificate is not accepted.
    #[error("certificate of `{host}` is not accepted: {fault}")]
    Certificate {
        /// The host that was asked for.
        host: String,
        /// What is wrong with it.
        fault: CertificateFault,
        /// The same in the words of the library.
        source: rustls::Error,
    },
    /// Peer: it and we do not agree on TLS, or it speaks none.
    #[error("TLS with `{host}` failed")]
    Tls {
        /// The host that was asked for.
        host: String,
        /// Why.
        source: rustls::Error,
    },
    /// Peer: it refused the websocket.
    #[error("server refused the connection: {status} {reason}")]
    Refused {
        /// The HTTP status.
        status: u16,
        /// What the server said, or what the status means.
        reason: String,
    },
    /// Peer: it hung up before the end of its answer.
    #[error("server closed the connection before it answered")]
    Closed,
    /// Peer: its answer is not one of a websocket server.
    #[error("server does not speak websocket: {0}")]
    NotWebSocket(&'static str),
    /// Whoever tells the way to an executor, such as a registry, did not.
    #[error("no way to the executor is known")]
    Ticket {
        /// Who has to act.
        fault: Fault,
        /// Whether the same may work a moment later.
        is_passing: bool,
        /// Why.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// Peer: another executor answers under the name of the one that held the session.
    #[error("executor key changed")]
    ExecutorChanged,
    /// Peer: the handshake with the executor failed.
    #[error("handshake with the executor failed")]
    Handshake(#[from] HandshakeError),
    /// Peer: the executor did not accept the stream, and does not say why.
    #[error("executor refused the stream")]
    StreamRefused,
    /// Peer: the relay does not keep to the rules.
    #[error("{0}")]
    Relay(&'static str),
    /// Peer: the proxy on the way opens no tunnel.
    #[error("proxy refused the connection: {status}")]
    ProxyRefused {
        /// The HTTP status.
        status: u16,
    },
    /// Peer: what should be a proxy is none.
    #[error("proxy opens no tunnel: {0}")]
    NotProxy(&'static str),
}

/// Who has to act on an error.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Fault {
    /// Whoever connects: what was asked for cannot work. Asking again does not help.
    Caller,
    /// Whoever runs the server: it was reached, and did not let us in.
    Peer,
    /// What lies between: nobody was reached. It may pass.
    Transport,
}

impl ConnectError {
    /// Tells who has to act.
    pub fn fault(&self) -> Fault {
        match self {
            Self::Address(_)
            | Self::Header(_)
            | Self::Token(_)
            | Self::TokenInTheClear(_)
            | Self::Forbidden { .. }
            | Self::Trust(_)
            | Self::Start { .. }
            | Self::WorkingDirectory { .. } => Fault::Caller,
            Self::Resolve { .. }
            | Self::Unreachable { .. }
            | Self::Io(_)
            | Self::Timeout { .. } => Fault::Transport,
            Self::Certificate { .. }
            | Self::Untrusted { .. }
            | Self::Tls { .. }
            | Self::Refused { .. }
            | Self::Closed
            | Self::NotWebSocket(_)
            | Self::ExecutorChanged
            | Self::Handshake(_)
            | Self::StreamRefused
            | Self::Relay(_)
            | Self::ProxyRefused { .. }
            | Self::NotProxy(_) => Fault::Peer,
            Self::Ticket { fault, .. } => *fault,
        }
    }

    /// Tells whether the same may work a moment later, such as while a server is started again.
    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "for all others it is the fault that tells, which names every variant"
    )]
    pub fn is_passing(&self) -> bool {
        match self {
            // Too slow, too many, or out of order; whoever is not let in stays outside.
            Self::Refused { status, .. } | Self::ProxyRefused { status } => {
                matches!(status, 408 | 429 | 500..=599)
            }
            Self::Ticket { is_passing, .. } => *is_passing,
            // An executor that has just registered anew refuses what was meant for its old self.
            Self::Closed | Self::StreamRefused | Self::Handshake(HandshakeError::Rejected) => true,
            error => error.fault() == Fault::Transport,
        }
    }
}

/// Peer: why its certificate is not accepted.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum CertificateFault {
    /// Its time is over.
    #[error("it has expired")]
    Expired,
    /// Its time has not begun.
    #[error("it is not valid yet")]
    NotYetValid,
    /// Nobody who is trusted has issued it.
    #[error("its issuer is not trusted")]
    UnknownIssuer,
    /// It is for another host.
    #[error("it is not for this host name")]
    WrongName,
    /// It was taken back.
    #[error("it is revoked")]
    Revoked,
    /// Something else, which the source tells.
    #[error("it cannot be verified")]
    Unverified,
}

impl CertificateFault {
    /// Tells what is wrong, if the failure is about a certificate.
    fn of(error: &rustls::Error) -> Option<Self> {
        let rustls::Error::InvalidCertificate(error) = error else {
            return None;
        };
        #[expect(
            clippy::wildcard_enum_match_arm,
            reason = "the enum grows, and what is not named here is told by the source"
        )]
        Some(match error {
            CertificateError::Expired | CertificateError::ExpiredContext { .. } => Self::Expired,
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
                Self::NotYetValid
            }
            // A signature is bad where a trusted issuer has the name, but not the key: such as one
            // that was made again.
            CertificateError::UnknownIssuer | CertificateError::BadSignature => Self::UnknownIssuer,
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                Self::WrongName
            }
            CertificateError::Revoked => Self::Revoked,
            _ => Self::Unverified,
        })
    }
}
