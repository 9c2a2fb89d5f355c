//! Error codes and the error object of the wire. Peers act on the code, not on the message.

use serde::{Deserialize, Serialize};

/// Stable number of a kind of failure.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(transparent)]
pub struct ErrorCode(pub i64);

impl ErrorCode {
    /// Malformed message, lifecycle violation, unknown process, duplicate id, refused path.
    pub const INVALID_REQUEST: Self = Self(-32600);
    /// Unknown method.
    pub const METHOD_NOT_FOUND: Self = Self(-32601);
    /// The parameters do not decode or are out of range.
    pub const INVALID_PARAMS: Self = Self(-32602);
    /// Host failure: spawn or I/O error.
    pub const INTERNAL: Self = Self(-32603);
    /// A path or handle does not exist.
    pub const NOT_FOUND: Self = Self(-32004);
    /// The session to resume has a live connection.
    pub const SESSION_ATTACHED: Self = Self(-32010);
}

/// Formats an error and its causes on one line. Leaves out a cause that the text ends with.
pub fn error_chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.ends_with(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    text
}

/// The `error` member of a response.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize, thiserror::Error)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[error("{message} ({})", code.0)]
pub struct RpcError {
    /// Kind of failure.
    pub code: ErrorCode,
    /// Human-readable description.
    pub message: String,
}

impl RpcError {
    /// Creates an error.
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
        }
    }

    /// Creates an error with code -32600.
    pub fn invalid_request(message: impl Into<String>) -> Self {
        Self::new(ErrorCode::INVALID_REQUEST, message)
    }

    /// Creates an error with code -32602.
    pub fn invalid_params(message: impl Into<String>) -> Self {
        Self::new(ErrorCode::INVALID_PARAMS, message)
    }

    /// Creates an error with code -32603.
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(ErrorCode::INTERNAL, message)
    }
}
