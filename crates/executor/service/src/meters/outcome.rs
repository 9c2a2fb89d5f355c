//! How a request ended.

use exec_wire::error::{ErrorCode, RpcError};

/// How a request ended. The names are few and fixed, whatever clients send.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Outcome {
    /// With a result.
    Ok,
    /// With -32600.
    InvalidRequest,
    /// With -32602.
    InvalidParams,
    /// With -32004.
    NotFound,
    /// With -32010.
    SessionAttached,
    /// With -32603.
    Internal,
    /// With another code.
    OtherError,
    /// Without an answer: its connection ended first.
    Cancelled,
}

impl Outcome {
    /// Every one of them.
    pub const ALL: [Self; 8] = [
        Self::Ok,
        Self::InvalidRequest,
        Self::InvalidParams,
        Self::NotFound,
        Self::SessionAttached,
        Self::Internal,
        Self::OtherError,
        Self::Cancelled,
    ];

    /// Returns how an answer with this error is counted.
    pub fn of(error: &RpcError) -> Self {
        match error.code {
            ErrorCode::INVALID_REQUEST => Self::InvalidRequest,
            ErrorCode::INVALID_PARAMS => Self::InvalidParams,
            ErrorCode::NOT_FOUND => Self::NotFound,
            ErrorCode::SESSION_ATTACHED => Self::SessionAttached,
            ErrorCode::INTERNAL => Self::Internal,
            _ => Self::OtherError,
        }
    }

    /// Returns the code that travels, if there is one that is always the same.
    pub fn code(self) -> Option<i64> {
        let code = match self {
            Self::Ok | Self::OtherError | Self::Cancelled => return None,
            Self::InvalidRequest => ErrorCode::INVALID_REQUEST,
            Self::InvalidParams => ErrorCode::INVALID_PARAMS,
            Self::NotFound => ErrorCode::NOT_FOUND,
            Self::SessionAttached => ErrorCode::SESSION_ATTACHED,
            Self::Internal => ErrorCode::INTERNAL,
        };
        Some(code.0)
    }

    /// Returns its name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::InvalidRequest => "invalid_request",
            Self::InvalidParams => "invalid_params",
            Self::NotFound => "not_found",
            Self::SessionAttached => "session_attached",
            Self::Internal => "internal",
            Self::OtherError => "other_error",
            Self::Cancelled => "cancelled",
        }
    }
}
