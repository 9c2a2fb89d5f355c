//! Why a registry did not do what it was asked.

use http::StatusCode;

use crate::{
    api::{Code, ErrorBody},
    credentials::{Bodies, CredentialError},
    http::{ExchangeError, Reply},
};

/// Characters of an answer that are shown.
const MAX_SHOWN: usize = 4096;

/// Why a request to a registry failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RegistryError {
    /// Caller: base URL and environment id make no URL.
    #[error("environment id makes no URL")]
    Url(#[source] url::ParseError),
    /// Caller: plain text would travel where others can read it.
    #[error("direct transport needs https:// or this machine, not `{0}`")]
    InTheClear(String),
    /// Caller: there is no way to authenticate.
    #[error(transparent)]
    Credential(#[from] CredentialError),
    /// Peer: the stream id cannot be part of a request.
    #[error("stream id cannot be sent in a header")]
    StreamId,
    /// Transport: no answer came. One that is too long counts as the peer's fault.
    #[error("registry did not answer")]
    Exchange(#[from] ExchangeError),
    /// Caller: it does not know who is asking (401), or does not let them (403).
    #[error("registry refused the credentials: {status}{}", shown(.text.as_ref()))]
    Denied {
        /// The HTTP status.
        status: u16,
        /// What it said, if that may be shown.
        text: Option<String>,
    },
    /// Peer: it refused.
    #[error("registry refused: {status}{}", shown(.text.as_ref()))]
    Refused {
        /// The HTTP status.
        status: u16,
        /// What it meant, if that is known.
        code: Option<Code>,
        /// What it said, if that may be shown.
        text: Option<String>,
    },
    /// Peer: it agreed, and what it said cannot be read.
    #[error("answer of the registry cannot be read")]
    Malformed(#[source] Option<serde_json::Error>),
    /// Peer: it agreed to something else than what was asked.
    #[error("answer of the registry has another or no {0}")]
    Member(Member),
}

/// A member of an answer.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum Member {
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

impl std::fmt::Display for Member {
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
    /// Makes the error of an answer that is not a success.
    pub(super) fn refused(reply: &Reply, bodies: Bodies) -> Self {
        let read = ErrorBody::read(&reply.body);
        let text = match bodies {
            Bodies::Shown => text(read.as_ref(), &reply.body),
            Bodies::Hidden => None,
        };
        let status = reply.status.as_u16();
        if matches!(
            reply.status,
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN
        ) {
            return Self::Denied { status, text };
        }
        let code = read.and_then(|body| Code::find(body.error.code.as_deref()?));
        Self::Refused { status, code, text }
    }

    /// Makes the error of a success that cannot be read.
    pub(super) fn malformed(error: serde_json::Error, bodies: Bodies) -> Self {
        // The library's words repeat values.
        match bodies {
            Bodies::Shown => Self::Malformed(Some(error)),
            Bodies::Hidden => Self::Malformed(None),
        }
    }

    /// Tells whether a `register` is worth another try. All else is ambiguous: a newer registration
    /// may have been made by then, and must not be replaced.
    pub fn may_register_again(&self) -> bool {
        self.was_not_sent()
            || matches!(
                self,
                Self::Refused {
                    status: 503,
                    code: Some(Code::RegistrationConflict),
                    ..
                } | Self::Refused {
                    status: 502,
                    code: Some(Code::AuthenticationServiceUnavailable),
                    ..
                }
            )
    }

    /// Tells whether nobody can have got the request: the registry is not up, or out of reach.
    pub fn was_not_sent(&self) -> bool {
        matches!(self, Self::Exchange(error) if error.is_unreachable())
    }

    /// Tells whether a `connect` is worth another try.
    pub fn may_connect_again(&self) -> bool {
        match self {
            Self::Exchange(error) => error.is_passing(),
            Self::Refused { status, code, .. } => match status {
                408 | 429 | 500..=599 => true,
                409 => *code == Some(Code::EnvironmentOffline),
                _ => false,
            },
            Self::Url(_)
            | Self::InTheClear(_)
            | Self::Credential(_)
            | Self::StreamId
            | Self::Denied { .. }
            | Self::Malformed(_)
            | Self::Member(_) => false,
        }
    }
}

/// Returns what people may read: code and message, or the body if it has neither.
fn text(read: Option<&ErrorBody>, body: &[u8]) -> Option<String> {
    let said = match read.map(|body| &body.error) {
        Some(error) => {
            let parts = [error.code.as_deref(), error.message.as_deref()];
            let parts: Vec<_> = parts.into_iter().flatten().collect();
            parts.join(": ")
        }
        None => String::from_utf8_lossy(body).into_owned(),
    };
    // What others wrote cannot play with the terminal.
    let printable = |c: char| if c.is_control() { ' ' } else { c };
    let said: String = said.trim().chars().take(MAX_SHOWN).map(printable).collect();
    (!said.is_empty()).then_some(said)
}

fn shown(text: Option<&String>) -> String {
    text.map_or_else(String::new, |text| format!(": {text}"))
}
