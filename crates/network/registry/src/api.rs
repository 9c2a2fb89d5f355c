//! Request and response types of the registry API, shared by clients and by `exec-hub`.
//!
//! Decoders ignore unknown members, except in keys. The `Debug` output of secrets is redacted.
//! Elsewhere: sending requests (`registry`), answering them (`exec-hub`).

pub mod sigv4;

use std::{fmt, sync::Arc};

use exec_relay::identity::NoisePublicKey;
use serde::{
    Deserialize, Serialize,
    de::{DeserializeOwned, Error},
};
use serde_json::Value;

/// The only security profile that both sides support.
pub const SECURITY_PROFILE: &str = "noise_hybrid_ik_v1";

/// Header that carries the id of the stream being validated.
pub const STREAM_ID_HEADER: &str = "x-codex-noise-stream-id";

/// Request body of `register`: an executor offers an environment.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct RegisterRequest {
    /// Always [`SECURITY_PROFILE`].
    pub security_profile: String,
    /// Public key that harnesses must expect.
    pub executor_public_key: NoisePublicKey,
}

/// Response body of `register`.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct RegisterResponse {
    /// The registered environment.
    pub environment_id: String,
    /// Rendezvous websocket of the executor. Possession of this URL authenticates the executor.
    pub url: SecretString,
    /// Always [`SECURITY_PROFILE`].
    pub security_profile: String,
    /// Id of this registration. The next registration supersedes it.
    pub executor_registration_id: String,
}

/// Request body of `connect`: a harness asks for a connection to an environment.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct HarnessConnectRequest {
    /// Public key that the harness will prove it holds.
    pub harness_public_key: NoisePublicKey,
}

/// Response body of `connect`. All members are valid together, for a single connection.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct HarnessConnectResponse {
    /// The requested environment.
    pub environment_id: String,
    /// Rendezvous websocket of the harness. Possession of this URL allows one attempt.
    pub url: SecretString,
    /// Always [`SECURITY_PROFILE`].
    pub security_profile: String,
    /// Current registration of the executor.
    pub executor_registration_id: String,
    /// Public key that the executor will prove it holds.
    pub executor_public_key: NoisePublicKey,
    /// Authorization that the harness presents to the executor, which forwards it to the registry.
    pub harness_key_authorization: SecretString,
}

/// Request body of `validate`: an executor asks whether to accept a harness.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct ValidateRequest {
    /// Registration for which the harness was authorized.
    pub executor_registration_id: String,
    /// Public key that the harness proved it holds.
    pub harness_public_key: NoisePublicKey,
    /// Authorization that the harness presented.
    pub harness_key_authorization: SecretString,
}

/// Response body of `validate`.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct ValidateResponse {
    /// Whether the executor may accept the harness.
    pub valid: bool,
}

/// The only direct transport.
pub const DIRECT_TRANSPORT: &str = "direct_jsonrpc_v1";

/// Request body of `direct/register`: an executor asks which websocket to dial.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct DirectRegisterRequest {
    /// Always [`DIRECT_TRANSPORT`].
    pub transport: String,
}

/// Response body of `direct/register`.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct DirectRegisterResponse {
    /// The registered environment.
    pub environment_id: String,
    /// Always [`DIRECT_TRANSPORT`].
    pub transport: String,
    /// Id of this registration.
    pub registration_id: String,
    /// Websocket to dial. The URL may contain a secret.
    pub url: SecretString,
}

/// A secret string such as an authorization or a signed URL. `Debug` redacts it.
#[derive(Clone, Deserialize, Eq, PartialEq, Serialize)]
#[serde(transparent)]
pub struct SecretString(String);

impl SecretString {
    /// Wraps a secret.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// Returns the secret. The caller must not log or display it.
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// Consumes the wrapper and returns the secret.
    pub fn into_exposed(self) -> String {
        self.0
    }

    /// Returns whether the secret is empty or only whitespace.
    pub fn is_blank(&self) -> bool {
        self.0.trim().is_empty()
    }
}

impl fmt::Debug for SecretString {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// Decodes a JSON object. Rejects arrays, which serde would accept for a struct.
///
/// # Errors
/// Returns an error if the input is not an object of the expected shape.
pub fn read_object<T: DeserializeOwned>(json: &[u8]) -> Result<T, serde_json::Error> {
    let begins = json.iter().find(|byte| !byte.is_ascii_whitespace());
    if begins.is_some_and(|byte| *byte != b'{') {
        return Err(serde_json::Error::custom("expected a JSON object"));
    }
    serde_json::from_slice(json)
}

/// Longest environment id. Ids appear in URLs, which servers limit to about 8 KiB.
const MAX_ID_BYTES: usize = 256;

/// Id of an environment. It is inserted into URLs verbatim, so a slash adds path segments.
#[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct RegistryEnvironmentId(Arc<str>);

impl RegistryEnvironmentId {
    /// Validates an id after trimming whitespace.
    ///
    /// # Errors
    /// Returns an error if the id is empty, too long, or would change the path of a URL.
    pub fn new(id: &str) -> Result<Self, RegistryEnvironmentIdError> {
        let id = id.trim();
        if id.is_empty() {
            return Err(RegistryEnvironmentIdError::Empty);
        }
        if id.len() > MAX_ID_BYTES {
            return Err(RegistryEnvironmentIdError::TooLong);
        }
        // `?` and `#` would end the path, and URL parsers treat a backslash as a slash.
        let is_forbidden = |c: char| c.is_control() || matches!(c, '?' | '#' | '\\');
        if let Some(found) = id.chars().find(|c| is_forbidden(*c)) {
            return Err(RegistryEnvironmentIdError::Character(found));
        }
        if id.split('/').any(is_dots) {
            return Err(RegistryEnvironmentIdError::Dots);
        }
        Ok(Self(id.into()))
    }

    /// Returns the id.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Returns whether a path segment is `.` or `..`, also in percent-encoded form.
fn is_dots(segment: &str) -> bool {
    let plain = segment.to_ascii_lowercase().replace("%2e", ".");
    matches!(plain.as_str(), "." | "..")
}

impl fmt::Display for RegistryEnvironmentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Caller: the text is not a valid environment id.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum RegistryEnvironmentIdError {
    /// The id is empty.
    #[error("environment id is empty")]
    Empty,
    /// The id is too long for a URL.
    #[error("environment id is longer than {MAX_ID_BYTES} bytes")]
    TooLong,
    /// The id contains a character that is not allowed in a URL path.
    #[error("environment id contains {0:?}")]
    Character(char),
    /// A segment of the id is `.` or `..`.
    #[error("environment id has a segment `.` or `..`")]
    Dots,
}

/// Body of an error response: `{"error":{"code":…,"message":…}}`. Some registries use `detail`
/// instead of `error`.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
pub struct ErrorBody {
    /// The error.
    pub error: ErrorDetail,
}

/// Code and message of an error response.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct ErrorDetail {
    /// Machine-readable code.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// Human-readable message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

impl ErrorBody {
    /// Creates a body.
    pub fn new(code: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            error: ErrorDetail {
                code: Some(code.into()),
                message: Some(message.into()),
            },
        }
    }

    /// Decodes a body. `error` takes precedence over `detail`. Returns `None` for any other shape.
    pub fn read(body: &[u8]) -> Option<Self> {
        let Value::Object(mut members) = serde_json::from_slice(body).ok()? else {
            return None;
        };
        let found = match members.remove("error") {
            Some(Value::Null) | None => members.remove("detail"),
            found @ Some(_) => found,
        }?;
        // serde would decode an array as a struct.
        if !found.is_object() {
            return None;
        }
        let error: ErrorDetail = serde_json::from_value(found).ok()?;
        let has_content = error.code.is_some() || error.message.is_some();
        has_content.then_some(Self { error })
    }
}

/// Error codes that clients act on.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum RegistryErrorCode {
    /// Another registration of the environment is in progress. The executor retries.
    RegistrationConflict,
    /// The registry cannot authenticate callers at the moment. The executor retries.
    AuthenticationServiceUnavailable,
    /// The executor is not connected. The harness retries.
    EnvironmentOffline,
}

impl RegistryErrorCode {
    const ALL: [Self; 3] = [
        Self::RegistrationConflict,
        Self::AuthenticationServiceUnavailable,
        Self::EnvironmentOffline,
    ];

    /// Returns the code's wire form.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::RegistrationConflict => "registration_conflict",
            Self::AuthenticationServiceUnavailable => "authentication_service_unavailable",
            Self::EnvironmentOffline => "environment_offline",
        }
    }

    /// Parses a code.
    pub fn find(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|code| code.as_str() == text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrays_are_rejected() {
        assert!(
            read_object::<ValidateResponse>(br#" {"valid":true}"#)
                .unwrap()
                .valid
        );
        for json in ["[true]", "true", "", " ", "{}", "{\"valid\":true} x"] {
            assert!(
                read_object::<ValidateResponse>(json.as_bytes()).is_err(),
                "{json}"
            );
        }
    }

    #[test]
    fn id_is_trimmed_and_otherwise_unchanged() {
        for id in ["env-1", "a/b", "a b", "..a", "ä"] {
            let padded = format!(" {id}\n");
            assert_eq!(RegistryEnvironmentId::new(&padded).unwrap().as_str(), id);
        }
    }

    #[test]
    fn ids_that_would_change_the_url_are_rejected() {
        assert_eq!(
            RegistryEnvironmentId::new(" \t"),
            Err(RegistryEnvironmentIdError::Empty)
        );
        for (id, found) in [("a?b", '?'), ("a#b", '#'), ("a\nb", '\n'), ("a\\b", '\\')] {
            let refused = Err(RegistryEnvironmentIdError::Character(found));
            assert_eq!(RegistryEnvironmentId::new(id), refused);
        }
        for id in ["..", "a/../b", "a/%2E%2e", "."] {
            assert_eq!(
                RegistryEnvironmentId::new(id),
                Err(RegistryEnvironmentIdError::Dots),
                "{id}"
            );
        }
        assert!(RegistryEnvironmentId::new(&"x".repeat(MAX_ID_BYTES)).is_ok());
        let long = "x".repeat(MAX_ID_BYTES + 1);
        assert_eq!(
            RegistryEnvironmentId::new(&long),
            Err(RegistryEnvironmentIdError::TooLong)
        );
    }

    fn code(body: &str) -> Option<String> {
        ErrorBody::read(body.as_bytes())?.error.code
    }

    #[test]
    fn code_is_read_from_error_or_detail() {
        let own = serde_json::to_string(&ErrorBody::new(
            RegistryErrorCode::EnvironmentOffline.as_str(),
            "off",
        ))
        .unwrap();
        assert_eq!(
            own,
            r#"{"error":{"code":"environment_offline","message":"off"}}"#
        );
        assert_eq!(code(&own).as_deref(), Some("environment_offline"));
        let detail = r#"{"detail":{"code":"a","message":"m"}}"#;
        assert_eq!(code(detail).as_deref(), Some("a"));
        let both = r#"{"error":{"code":"a"},"detail":{"code":"b"}}"#;
        assert_eq!(code(both).as_deref(), Some("a"));
        let null = r#"{"error":null,"detail":{"code":"b"}}"#;
        assert_eq!(code(null).as_deref(), Some("b"));
    }

    #[test]
    fn other_bodies_are_not_decoded() {
        for body in [
            "",
            "no",
            "[]",
            "{}",
            r#"{"detail":"text"}"#,
            r#"{"detail":[{"code":"a"}]}"#,
            r#"{"error":["a","b"]}"#,
            r#"{"error":{"code":7}}"#,
            r#"{"error":{}}"#,
        ] {
            assert_eq!(ErrorBody::read(body.as_bytes()), None, "{body}");
        }
    }

    #[test]
    fn codes_parse_from_their_wire_form() {
        for known in RegistryErrorCode::ALL {
            assert_eq!(RegistryErrorCode::find(known.as_str()), Some(known));
        }
        assert_eq!(RegistryErrorCode::find("other"), None);
    }
}
