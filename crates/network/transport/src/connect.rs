//! Opens links to a server: over a websocket with or without TLS, over a unix socket, or to a
//! program that it starts.
//!
//! Invariant: a dropped future leaves no connection and no program behind; every error says who
//! must act, and no error text contains a secret. Elsewhere: sessions and reconnects
//! (`exec-client`).

mod program;
mod proxy;
mod request_headers;
mod server_address;
#[cfg(test)]
mod tests;
mod websocket_connector;

use std::{io, path::PathBuf, time::Duration};

#[cfg(feature = "relay")]
use exec_relay::handshake::NoiseHandshakeError;
use tokio_rustls::rustls::{self, CertificateError};

use crate::tls::TlsError;

#[cfg(any(test, fuzzing))]
pub(crate) use self::websocket_connector::fuzz_response;
pub use self::{
    program::{ProgramExit, ProgramPipes, ServerProgram},
    proxy::{HttpProxy, HttpProxyError},
    request_headers::{BearerToken, InvalidBearerToken, RequestHeaderError, RequestHeaders},
    server_address::{ServerAddress, ServerAddressError, ServerHost, WebSocketScheme},
    websocket_connector::{CONNECT_TIMEOUT, WebSocketConnector},
};
pub use crate::confinement::{ListenerTrust, UntrustedListener};

/// Why connecting to a server failed. No connection or process is left behind.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// Caller: the server URL is invalid.
    #[error("invalid server URL")]
    Address(#[from] ServerAddressError),
    /// Caller: a header cannot be sent.
    #[error(transparent)]
    Header(#[from] RequestHeaderError),
    /// Caller: the bearer token is invalid.
    #[error(transparent)]
    Token(#[from] InvalidBearerToken),
    /// Caller: the token would be sent unencrypted over a network.
    #[error("a bearer token is sent over wss:// or to this machine only, not to `{0}`")]
    TokenOverPlaintext(String),
    /// Caller: the certificates to trust cannot be used.
    #[error(transparent)]
    Trust(#[from] TlsError),
    /// Caller: the program cannot be started.
    #[error("cannot start `{program}`")]
    Start {
        /// The program.
        program: String,
        /// Cause.
        source: io::Error,
    },
    /// Peer: the program at the other end of the link exited before the server answered.
    #[error("server program {0}")]
    Exited(ProgramExit),
    /// A place behind a shell could not be made an environment.
    #[error("{error}")]
    Place {
        /// The party that has to act.
        fault: ConnectFault,
        /// Whether a retry may succeed.
        is_transient: bool,
        /// The failure at the other end, with the next step.
        error: Box<dyn std::error::Error + Send + Sync>,
    },
    /// Caller: the working directory of the program cannot be used.
    #[error("cannot use working directory `{}`", path.display())]
    WorkingDirectory {
        /// The directory.
        path: PathBuf,
        /// Cause.
        source: io::Error,
    },
    /// Transport: the host name does not resolve.
    #[error("cannot resolve `{host}`")]
    Resolve {
        /// The name.
        host: String,
        /// Cause.
        source: io::Error,
    },
    /// Transport: the connection failed, for example because no process listens there.
    #[error("cannot connect to `{peer}`")]
    Unreachable {
        /// Address of the server.
        peer: String,
        /// Cause.
        source: io::Error,
    },
    /// Caller: this process may not connect to the unix socket, for example because of a sandbox.
    #[error("this process may not connect to `{peer}`")]
    Forbidden {
        /// The socket.
        peer: String,
        /// Cause.
        source: io::Error,
    },
    /// Peer: the client does not trust the listener on the unix socket. Nothing was sent.
    #[error("refused to use `{peer}`: {source}")]
    Untrusted {
        /// The socket.
        peer: String,
        /// Cause.
        source: UntrustedListener,
    },
    /// Transport: the connection failed during set-up.
    #[error("connection broke")]
    Io(#[from] io::Error),
    /// Transport: connecting timed out.
    #[error("connecting to `{peer}` took longer than {within:?}")]
    Timeout {
        /// Address of the server.
        peer: String,
        /// The timeout.
        within: Duration,
    },
    /// Peer: its certificate was rejected.
    #[error("certificate of `{host}` is not accepted: {fault}")]
    Certificate {
        /// The requested host.
        host: String,
        /// Why it was rejected.
        fault: CertificateFault,
        /// The error of the TLS library.
        source: rustls::Error,
    },
    /// Peer: the TLS handshake failed, or the peer does not speak TLS.
    #[error("TLS with `{host}` failed")]
    Tls {
        /// The requested host.
        host: String,
        /// Cause.
        source: rustls::Error,
    },
    /// Peer: it refused the websocket.
    #[error("server refused the connection: {status} {reason}")]
    Refused {
        /// The HTTP status.
        status: u16,
        /// Response text of the server, or the meaning of the status.
        reason: String,
    },
    /// Peer: it closed the connection before it sent a complete response.
    #[error("server closed the connection before it responded")]
    Closed,
    /// Peer: its response is not that of a websocket server.
    #[error("server does not speak websocket: {0}")]
    NotWebSocket(&'static str),
    /// The source of grants, such as a registry, returned none.
    #[error("failed to get a grant for the executor")]
    Grant {
        /// The party that has to act.
        fault: ConnectFault,
        /// Whether a retry may succeed.
        is_transient: bool,
        /// Cause.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// Peer: another executor now uses the name of the one that held the session.
    #[error("executor key changed")]
    ExecutorChanged,
    /// Peer: the handshake with the executor failed.
    #[cfg(feature = "relay")]
    #[error("handshake with the executor failed")]
    Handshake(#[from] NoiseHandshakeError),
    /// Peer: the executor reset the stream without a reason.
    #[error("executor refused the stream")]
    StreamRefused,
    /// Peer: the relay violated the protocol.
    #[error("{0}")]
    Relay(&'static str),
    /// Peer: the proxy refused the tunnel.
    #[error("proxy refused the connection: {status}")]
    ProxyRefused {
        /// The HTTP status.
        status: u16,
    },
    /// Peer: the response is not that of an HTTP proxy.
    #[error("invalid proxy response: {0}")]
    NotProxy(&'static str),
}

/// The party that has to act on an error.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ConnectFault {
    /// The connecting side: the request cannot succeed. A retry does not help.
    Caller,
    /// The server's operator: the server was reached and refused.
    Peer,
    /// The network: no server was reached. A retry may help.
    Transport,
}

impl ConnectError {
    /// Returns the party that has to act.
    pub fn fault(&self) -> ConnectFault {
        match self {
            Self::Address(_)
            | Self::Header(_)
            | Self::Token(_)
            | Self::TokenOverPlaintext(_)
            | Self::Forbidden { .. }
            | Self::Trust(_)
            | Self::Start { .. }
            | Self::WorkingDirectory { .. } => ConnectFault::Caller,
            Self::Resolve { .. }
            | Self::Unreachable { .. }
            | Self::Io(_)
            | Self::Timeout { .. } => ConnectFault::Transport,
            Self::Certificate { .. }
            | Self::Untrusted { .. }
            | Self::Tls { .. }
            | Self::Refused { .. }
            | Self::Exited(_)
            | Self::Closed
            | Self::NotWebSocket(_)
            | Self::ExecutorChanged
            | Self::StreamRefused
            | Self::Relay(_)
            | Self::ProxyRefused { .. }
            | Self::NotProxy(_) => ConnectFault::Peer,
            #[cfg(feature = "relay")]
            Self::Handshake(_) => ConnectFault::Peer,
            Self::Grant { fault, .. } | Self::Place { fault, .. } => *fault,
        }
    }

    /// Returns whether a retry may succeed, for example while a server restarts.
    pub fn is_transient(&self) -> bool {
        match self {
            // Timeouts, rate limits and server errors pass; other refusals do not.
            Self::Refused { status, .. } | Self::ProxyRefused { status } => {
                matches!(status, 408 | 429 | 500..=599)
            }
            Self::Grant { is_transient, .. } | Self::Place { is_transient, .. } => *is_transient,
            Self::Exited(_) | Self::Closed | Self::StreamRefused => true,
            // An executor that has just registered again rejects handshakes for its previous
            // registration.
            #[cfg(feature = "relay")]
            Self::Handshake(NoiseHandshakeError::Rejected) => true,
            // `fault` decides for all other variants.
            error => error.fault() == ConnectFault::Transport,
        }
    }
}

/// Peer: why its certificate was rejected.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum CertificateFault {
    /// It has expired.
    #[error("it has expired")]
    Expired,
    /// Its validity has not started.
    #[error("it is not valid yet")]
    NotYetValid,
    /// Its issuer is not trusted.
    #[error("its issuer is not trusted")]
    UnknownIssuer,
    /// It is for another host.
    #[error("it is not for this host name")]
    WrongName,
    /// It was revoked.
    #[error("it is revoked")]
    Revoked,
    /// Another reason, given by the source.
    #[error("it cannot be verified")]
    Unverified,
}

impl CertificateFault {
    /// Returns the reason if the error is about a certificate.
    fn of(error: &rustls::Error) -> Option<Self> {
        let rustls::Error::InvalidCertificate(error) = error else {
            return None;
        };
        #[expect(
            clippy::wildcard_enum_match_arm,
            reason = "the enum is non-exhaustive; the source explains other errors"
        )]
        Some(match error {
            CertificateError::Expired | CertificateError::ExpiredContext { .. } => Self::Expired,
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
                Self::NotYetValid
            }
            // A signature is bad if a trusted issuer has the right name but another key, for
            // example after the issuer was recreated.
            CertificateError::UnknownIssuer | CertificateError::BadSignature => Self::UnknownIssuer,
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                Self::WrongName
            }
            CertificateError::Revoked => Self::Revoked,
            _ => Self::Unverified,
        })
    }
}
