//! Errors of requests to a registry.

use http::StatusCode;

use crate::{
    api::{ErrorBody, RegistryErrorCode},
    credentials::{BodyDisclosure, CredentialError},
    http::{ExchangeError, HttpReply},
};

/// Maximum length of a response body in an error, in characters.
const MAX_TEXT_CHARS: usize = 4096;

/// Why a request to a registry failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RegistryError {
    /// Caller: base URL and environment id do not form a URL.
    #[error("environment id does not form a valid URL")]
    Url(#[source] url::ParseError),
    /// Caller: the connection would not be encrypted.
    #[error("direct transport requires https:// or a loopback address, not `{0}`")]
    InTheClear(String),
    /// Caller: the request cannot be authenticated.
    #[error(transparent)]
    Credential(#[from] CredentialError),
    /// Peer: the stream id is not allowed in a header.
    #[error("stream id is not allowed in a header")]
    StreamId,
    /// Transport: no response arrived. A response that is too long counts as the peer's fault.
    #[error("registry did not respond")]
    Exchange(#[from] ExchangeError),
    /// Caller: the registry does not know the caller (401) or denies access (403).
    #[error("registry refused the credentials: {status}{}", text_suffix(.text.as_ref()))]
    Denied {
        /// The HTTP status.
        status: u16,
        /// Response text, if it may be shown.
        text: Option<String>,
    },
    /// Peer: the registry refused.
    #[error("registry refused: {status}{}", text_suffix(.text.as_ref()))]
    Refused {
        /// The HTTP status.
        status: u16,
        /// The error code, if known.
        code: Option<RegistryErrorCode>,
        /// Response text, if it may be shown.
        text: Option<String>,
    },
    /// Peer: the response of a successful request is malformed.
    #[error("invalid response from the registry")]
    Malformed(#[source] Option<serde_json::Error>),
    /// Peer: a member of the response is missing or does not match the request.
    #[error("response of the registry has a missing or unexpected {0}")]
    ResponseMember(ResponseMember),
}

/// A member of a response.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum ResponseMember {
    /// `environment_id`
    EnvironmentId,
    /// `security_profile`
    SecurityProfile,
    /// `transport`
    Transport,
    /// `url`
    Url,
    /// `executor_registration_id` or `registration_id`
    RegistrationId,
    /// `harness_key_authorization`
    Authorization,
}

impl std::fmt::Display for ResponseMember {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::EnvironmentId => "environment id",
            Self::SecurityProfile => "security profile",
            Self::Transport => "transport",
            Self::Url => "url",
            Self::RegistrationId => "registration id",
            Self::Authorization => "authorization",
        })
    }
}

impl RegistryError {
    /// Creates the error of a response without a success status.
    pub(super) fn refused(reply: &HttpReply, bodies: BodyDisclosure) -> Self {
        let read = ErrorBody::read(&reply.body);
        let text = match bodies {
            BodyDisclosure::Shown => display_text(read.as_ref(), &reply.body),
            BodyDisclosure::Hidden => None,
        };
        let status = reply.status.as_u16();
        if matches!(
            reply.status,
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN
        ) {
            return Self::Denied { status, text };
        }
        let code = read.and_then(|body| RegistryErrorCode::find(body.error.code.as_deref()?));
        Self::Refused { status, code, text }
    }

    /// Creates the error of a malformed success response.
    pub(super) fn malformed(error: serde_json::Error, bodies: BodyDisclosure) -> Self {
        // serde's error messages may repeat values.
        match bodies {
            BodyDisclosure::Shown => Self::Malformed(Some(error)),
            BodyDisclosure::Hidden => Self::Malformed(None),
        }
    }

    /// Returns whether to retry `register`. All other failures are ambiguous: by then, a newer
    /// registration may exist and must not be replaced.
    pub fn may_register_again(&self) -> bool {
        self.was_not_sent()
            || matches!(
                self,
                Self::Refused {
                    status: 503,
                    code: Some(RegistryErrorCode::RegistrationConflict),
                    ..
                } | Self::Refused {
                    status: 502,
                    code: Some(RegistryErrorCode::AuthenticationServiceUnavailable),
                    ..
                }
            )
    }

    /// Returns whether the request cannot have arrived: the registry is down or unreachable.
    pub fn was_not_sent(&self) -> bool {
        matches!(self, Self::Exchange(error) if error.is_unreachable())
    }

    /// Returns whether to retry `connect`.
    pub fn may_connect_again(&self) -> bool {
        match self {
            Self::Exchange(error) => error.is_transient(),
            Self::Refused { status, code, .. } => match status {
                408 | 429 | 500..=599 => true,
                409 => *code == Some(RegistryErrorCode::EnvironmentOffline),
                _ => false,
            },
            Self::Url(_)
            | Self::InTheClear(_)
            | Self::Credential(_)
            | Self::StreamId
            | Self::Denied { .. }
            | Self::Malformed(_)
            | Self::ResponseMember(_) => false,
        }
    }
}

/// Returns the displayable text of an error response: code and message, or the body if it has
/// neither.
fn display_text(read: Option<&ErrorBody>, body: &[u8]) -> Option<String> {
    let text = match read.map(|body| &body.error) {
        Some(error) => {
            let parts = [error.code.as_deref(), error.message.as_deref()];
            let parts: Vec<_> = parts.into_iter().flatten().collect();
            parts.join(": ")
        }
        None => String::from_utf8_lossy(body).into_owned(),
    };
    // Prevents terminal escape sequences.
    let printable = |c: char| if c.is_control() { ' ' } else { c };
    let text: String = text
        .trim()
        .chars()
        .take(MAX_TEXT_CHARS)
        .map(printable)
        .collect();
    (!text.is_empty()).then_some(text)
}

fn text_suffix(text: Option<&String>) -> String {
    text.map_or_else(String::new, |text| format!(": {text}"))
}
