//! Error codes of the wire and the error object. The code is what a peer keys on.

use serde::{Deserialize, Serialize};

/// A stable number that tells a peer what kind of failure it met.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(transparent)]
pub struct ErrorCode(pub i64);

impl ErrorCode {
    /// Malformed message, lifecycle violation, unknown process, duplicate id, refused path.
    pub const INVALID_REQUEST: Self = Self(-32600);
    /// No such method.
    pub const METHOD_NOT_FOUND: Self = Self(-32601);
    /// The parameters do not decode, or ask for what cannot be.
    pub const INVALID_PARAMS: Self = Self(-32602);
    /// The host refused: spawn failures, I/O errors.
    pub const INTERNAL: Self = Self(-32603);
    /// A path or handle does not exist.
    pub const NOT_FOUND: Self = Self(-32004);
    /// The session to resume has a live connection.
    pub const SESSION_ATTACHED: Self = Self(-32010);
}

/// The `error` member of an answer.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize, thiserror::Error)]
#[error("{message} ({})", code.0)]
pub struct RpcError {
    /// What kind of failure.
    pub code: ErrorCode,
    /// What happened, for people.
    pub message: String,
}

impl RpcError {
    /// Builds an error from its code and text.
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
        }
    }

    /// Builds a -32600.
    pub fn invalid_request(message: impl Into<String>) -> Self {
        Self::new(ErrorCode::INVALID_REQUEST, message)
    }

    /// Builds a -32602.
    pub fn invalid_params(message: impl Into<String>) -> Self {
        Self::new(ErrorCode::INVALID_PARAMS, message)
    }

    /// Builds a -32603.
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(ErrorCode::INTERNAL, message)
    }
}
