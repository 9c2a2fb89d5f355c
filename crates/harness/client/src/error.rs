//! Errors of calls and connections, and the party that must act.

use std::time::Duration;

use exec_env::environment::DisconnectReason;
#[cfg(feature = "remote")]
use exec_registry::{api::RegistryErrorCode, registry::RegistryError};
use exec_transport::connect;
use exec_wire::{
    error::{ErrorCode, RpcError, error_chain},
    id::{OutputSeq, ProcessId, SessionId},
};

/// Why a call or a connection attempt failed.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ExecServerError {
    /// Peer: the server returned an error.
    #[error(transparent)]
    Remote(RpcError),
    /// Caller: too many calls are pending.
    #[error("too many pending calls: limit is {0}")]
    TooManyCalls(usize),
    /// Caller: the send buffer is full.
    #[error("send buffer is full: limit is {0} bytes")]
    SendBufferFull(usize),
    /// Caller: the id names a process that this client still follows.
    #[error("process id `{0}` is in use")]
    IdInUse(ProcessId),
    /// Caller: the server does not know the process, or has forgotten it.
    #[error("server does not know process `{0}`")]
    UnknownProcess(ProcessId),
    /// Caller: the process has fewer events than `after`, so it is a different process.
    #[error("process `{process}` has no event {}: its last event is {}", .after.0, .last.0)]
    NoSuchEvent {
        /// The process.
        process: ProcessId,
        /// The requested start.
        after: OutputSeq,
        /// The last event of the process.
        last: OutputSeq,
    },
    /// Peer: the result does not match the method's schema.
    #[error("invalid result of `{method}`: {reason}")]
    Malformed {
        /// The method.
        method: &'static str,
        /// The decoding error.
        reason: String,
    },
    /// Peer: the response did not arrive in time.
    #[error("`{method}` was not answered within {limit:?}")]
    Timeout {
        /// The method.
        method: &'static str,
        /// The time limit.
        limit: Duration,
    },
    /// Transport: the connection broke before the response, and the call cannot be retried safely.
    /// It may or may not have taken effect. The client itself continues.
    #[error("connection broke before `{method}` was answered: {reason}")]
    Interrupted {
        /// The method.
        method: &'static str,
        /// Why the connection broke.
        reason: String,
    },
    /// No session could be opened. The inner error says who must act.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The session is permanently lost.
    #[error(transparent)]
    Disconnected(#[from] DisconnectReason),
}

/// The party that must act.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum FaultParty {
    /// The caller: the same call would fail again.
    Caller,
    /// The server: it refused, or violated the protocol.
    Peer,
    /// The connection: it broke, or could not be opened.
    Transport,
    /// No one: the session has ended, with everything that belonged to it.
    Session,
}

impl ExecServerError {
    /// Returns the party that must act.
    pub fn fault(&self) -> FaultParty {
        match self {
            Self::TooManyCalls(_)
            | Self::SendBufferFull(_)
            | Self::IdInUse(_)
            | Self::UnknownProcess(_)
            | Self::NoSuchEvent { .. } => FaultParty::Caller,
            Self::Remote(_) | Self::Malformed { .. } | Self::Timeout { .. } => FaultParty::Peer,
            Self::Interrupted { .. } => FaultParty::Transport,
            Self::Connect(error) => error.fault(),
            Self::Disconnected(DisconnectReason::Session(_)) => FaultParty::Session,
            Self::Disconnected(DisconnectReason::Protocol(_)) => FaultParty::Peer,
            Self::Disconnected(DisconnectReason::Transport(_) | _) => FaultParty::Transport,
        }
    }

    /// Converts to a server error, for traits without a more specific one.
    pub(crate) fn into_rpc(self) -> RpcError {
        let text = self.to_string();
        match self.into_disconnect() {
            Ok(_) => RpcError::new(DISCONNECTED, text),
            Err(Self::Remote(error)) => error,
            Err(_) => RpcError::internal(text),
        }
    }

    /// Separates connection failures from failures of the call.
    pub(crate) fn into_disconnect(self) -> Result<DisconnectReason, Self> {
        match self {
            Self::Disconnected(reason) => Ok(reason),
            Self::Connect(error) => Ok(error.into_disconnect()),
            Self::Interrupted { .. } => Ok(DisconnectReason::Transport(self.to_string())),
            Self::Remote(_)
            | Self::TooManyCalls(_)
            | Self::SendBufferFull(_)
            | Self::IdInUse(_)
            | Self::UnknownProcess(_)
            | Self::NoSuchEvent { .. }
            | Self::Malformed { .. }
            | Self::Timeout { .. } => Err(self),
        }
    }
}

/// The stock client's code for a lost connection.
const DISCONNECTED: ErrorCode = ErrorCode(-32000);

/// Why no session could be opened. Nothing is left open.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// Caller: the address is invalid.
    #[error("{0}")]
    Address(String),
    /// Transport: the link could not be opened.
    #[error("{0}")]
    Link(String),
    /// Peer: the server is busy.
    #[error("{0}")]
    Busy(String),
    /// Peer: the server permanently rejects this client's link.
    #[error("{0}")]
    Rejected(String),
    /// Caller: the credentials were rejected.
    #[error("{0}")]
    Denied(String),
    /// Peer: the executor is offline.
    #[error("{0}")]
    Offline(String),
    /// No one: a different server than the one with the session answers at the address.
    #[error("{0}")]
    Replaced(String),
    /// Peer: the server refused the session, for example because it does not exist.
    #[error("server refused the session: {0}")]
    Refused(RpcError),
    /// Peer: the server did not answer in time.
    #[error("server did not answer `initialize` within {0:?}")]
    Timeout(Duration),
    /// Transport: the link ended.
    #[error("connection broke before `initialize` was answered: {0}")]
    Broken(String),
    /// Peer: the server sent an invalid message.
    #[error("handshake failed: {0}")]
    Malformed(String),
    /// Peer: the server resumed a different session.
    #[error("server resumed session `{resumed}` instead of `{requested}`")]
    WrongSession {
        /// The requested session.
        requested: SessionId,
        /// The resumed session.
        resumed: SessionId,
    },
}

impl ConnectError {
    /// Returns the party that must act.
    pub fn fault(&self) -> FaultParty {
        match self {
            Self::Address(_) | Self::Denied(_) => FaultParty::Caller,
            Self::Offline(_) => FaultParty::Peer,
            Self::Link(_) | Self::Broken(_) => FaultParty::Transport,
            Self::Replaced(_) => FaultParty::Session,
            Self::Refused(_) | Self::Timeout(_) | Self::Malformed(_) => FaultParty::Peer,
            Self::Busy(_) | Self::Rejected(_) | Self::WrongSession { .. } => FaultParty::Peer,
        }
    }

    /// Returns whether a retry may succeed: the server may be temporarily unreachable or busy, or
    /// may not have noticed the end of the previous connection yet.
    pub(crate) fn is_transient(&self) -> bool {
        let is_unavailable = matches!(self, Self::Link(_) | Self::Busy(_) | Self::Offline(_));
        let is_interrupted = matches!(self, Self::Timeout(_) | Self::Broken(_));
        is_unavailable || is_interrupted || self.is_attached()
    }

    /// Returns whether the requested session is attached to another connection.
    pub(crate) fn is_attached(&self) -> bool {
        matches!(self, Self::Refused(error) if error.code == ErrorCode::SESSION_ATTACHED)
    }

    /// Converts to the reason for a lost session.
    pub(crate) fn into_disconnect(self) -> DisconnectReason {
        let text = self.to_string();
        match self {
            Self::Refused(_) | Self::Replaced(_) => DisconnectReason::Session(text),
            Self::Malformed(_) | Self::WrongSession { .. } => DisconnectReason::Protocol(text),
            Self::Address(_)
            | Self::Link(_)
            | Self::Busy(_)
            | Self::Rejected(_)
            | Self::Denied(_)
            | Self::Offline(_)
            | Self::Timeout(_)
            | Self::Broken(_) => DisconnectReason::Transport(text),
        }
    }
}

impl From<connect::ConnectError> for ConnectError {
    fn from(error: connect::ConnectError) -> Self {
        let text = error_chain(&error);
        if matches!(error, connect::ConnectError::ExecutorChanged) {
            return Self::Replaced(text);
        }
        if let Some(refusal) = actionable_refusal(&error) {
            return refusal(text);
        }
        match error.fault() {
            connect::ConnectFault::Caller => Self::Address(text),
            connect::ConnectFault::Transport => Self::Link(text),
            connect::ConnectFault::Peer if error.is_transient() => Self::Busy(text),
            connect::ConnectFault::Peer => Self::Rejected(text),
        }
    }
}

/// Returns the variant of a refusal by the registry or an HTTP server that a person can act on.
#[expect(
    clippy::wildcard_enum_match_arm,
    reason = "all other errors are classified by their fault, which names every variant"
)]
fn actionable_refusal(error: &connect::ConnectError) -> Option<fn(String) -> ConnectError> {
    match error {
        connect::ConnectError::Refused {
            status: 401 | 403, ..
        } => Some(ConnectError::Denied),
        #[cfg(feature = "remote")]
        connect::ConnectError::Grant { source, .. } => match source.downcast_ref()? {
            RegistryError::Denied { .. } => Some(ConnectError::Denied),
            RegistryError::Refused {
                code: Some(RegistryErrorCode::EnvironmentOffline),
                ..
            } => Some(ConnectError::Offline),
            _ => None,
        },
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_classified() {
        let session = SessionId::new("s");
        let refusal = |code| ExecServerError::from(ConnectError::Refused(RpcError::new(code, "")));
        let faults = [
            (ExecServerError::TooManyCalls(1), FaultParty::Caller),
            (
                ConnectError::Address(String::new()).into(),
                FaultParty::Caller,
            ),
            (
                ExecServerError::Remote(RpcError::internal("")),
                FaultParty::Peer,
            ),
            (refusal(ErrorCode::INVALID_REQUEST), FaultParty::Peer),
            (
                ConnectError::Link(String::new()).into(),
                FaultParty::Transport,
            ),
            (
                DisconnectReason::Transport(String::new()).into(),
                FaultParty::Transport,
            ),
            (
                DisconnectReason::Session(String::new()).into(),
                FaultParty::Session,
            ),
            (
                DisconnectReason::Protocol(String::new()).into(),
                FaultParty::Peer,
            ),
            (
                ConnectError::WrongSession {
                    requested: session.clone(),
                    resumed: session,
                }
                .into(),
                FaultParty::Peer,
            ),
        ];
        for (error, fault) in faults {
            assert_eq!(error.fault(), fault, "{error:?}");
        }
    }

    #[test]
    fn wrong_token_and_offline_executor_are_distinguished() {
        use connect::ConnectError as Error;
        let refused = |status| {
            let reason = String::new();
            ConnectError::from(Error::Refused { status, reason })
        };
        let ticket = |source: RegistryError| {
            ConnectError::from(Error::Grant {
                fault: connect::ConnectFault::Peer,
                is_transient: false,
                source: Box::new(source),
            })
        };
        let answered = |code| RegistryError::Refused {
            status: 409,
            code,
            text: None,
        };
        let denied = RegistryError::Denied {
            status: 403,
            text: None,
        };
        assert!(matches!(refused(401), ConnectError::Denied(_)));
        assert!(matches!(refused(403), ConnectError::Denied(_)));
        assert!(matches!(refused(404), ConnectError::Rejected(_)));
        assert!(matches!(refused(503), ConnectError::Busy(_)));
        assert!(matches!(ticket(denied), ConnectError::Denied(_)));
        let offline = ticket(answered(Some(RegistryErrorCode::EnvironmentOffline)));
        assert!(matches!(offline, ConnectError::Offline(_)) && offline.is_transient());
        assert!(matches!(ticket(answered(None)), ConnectError::Rejected(_)));
        assert!(!refused(401).is_transient());
        assert_eq!(refused(401).fault(), FaultParty::Caller);
        assert_eq!(offline.fault(), FaultParty::Peer);
    }

    #[test]
    fn only_transient_errors_are_retried() {
        let refused = |code| ConnectError::Refused(RpcError::new(code, ""));
        assert!(ConnectError::Link(String::new()).is_transient());
        assert!(ConnectError::Busy(String::new()).is_transient());
        assert!(!ConnectError::Rejected(String::new()).is_transient());
        assert!(ConnectError::Broken(String::new()).is_transient());
        assert!(ConnectError::Timeout(Duration::ZERO).is_transient());
        assert!(refused(ErrorCode::SESSION_ATTACHED).is_transient());
        assert!(!refused(ErrorCode::INVALID_REQUEST).is_transient());
        assert!(!ConnectError::Malformed(String::new()).is_transient());
        let replaced = ConnectError::from(connect::ConnectError::ExecutorChanged);
        assert_eq!(
            replaced,
            ConnectError::Replaced("executor key changed".to_owned())
        );
        assert!(!replaced.is_transient());
        assert!(matches!(
            replaced.into_disconnect(),
            DisconnectReason::Session(_)
        ));
    }
}
