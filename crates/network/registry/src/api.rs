//! What is said to a registry and what it says, member by member.
//!
//! Readers ignore members they do not know, except in keys. Secrets are types that hide themselves.
//! Not here: who sends it (`registry`), who answers (`exec-hub`).

pub mod sigv4;

use std::{fmt, sync::Arc};

use exec_relay::identity::PublicKey;
use serde::{
    Deserialize, Serialize,
    de::{DeserializeOwned, Error},
};
use serde_json::Value;

/// The only way to secure a stream that both sides know.
pub const SECURITY_PROFILE: &str = "noise_hybrid_ik_v1";

/// The header that names the stream which a `validate` is about.
pub const STREAM_ID_HEADER: &str = "x-codex-noise-stream-id";

/// `register`: an executor offers an environment.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Register {
    /// Always [`SECURITY_PROFILE`].
    pub security_profile: String,
    /// The key that harnesses are to expect.
    pub executor_public_key: PublicKey,
}

/// The answer to [`Register`].
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Registered {
    /// The environment that was offered.
    pub environment_id: String,
    /// Where the executor waits for harnesses. Whoever holds it is the executor.
    pub url: Secret,
    /// Always [`SECURITY_PROFILE`].
    pub security_profile: String,
    /// Names this registration; the next one supersedes it.
    pub executor_registration_id: String,
}

/// `connect`: a harness asks for the way to an environment.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Connect {
    /// The key that the harness will prove to hold.
    pub harness_public_key: PublicKey,
}

/// The answer to [`Connect`]. Its members belong together and serve for one connection.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Connected {
    /// The environment that was asked for.
    pub environment_id: String,
    /// Where the harness meets the executor. Whoever holds it may try.
    pub url: Secret,
    /// Always [`SECURITY_PROFILE`].
    pub security_profile: String,
    /// The registration of the executor that waits there.
    pub executor_registration_id: String,
    /// The key that this executor will prove to hold.
    pub executor_public_key: PublicKey,
    /// What the harness shows to the executor, and the executor to the registry.
    pub harness_key_authorization: Secret,
}

/// `validate`: an executor asks whether a harness may come in.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Validate {
    /// The registration under which the harness came.
    pub executor_registration_id: String,
    /// The key that the harness proved to hold.
    pub harness_public_key: PublicKey,
    /// What the harness showed.
    pub harness_key_authorization: Secret,
}

/// The answer to [`Validate`].
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Validated {
    /// Whether it may.
    pub valid: bool,
}

/// The only direct transport there is.
pub const DIRECT_TRANSPORT: &str = "direct_jsonrpc_v1";

/// `direct/register`: an executor asks where it is awaited.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct DirectRegister {
    /// Always [`DIRECT_TRANSPORT`].
    pub transport: String,
}

/// The answer to [`DirectRegister`].
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct DirectRegistered {
    /// The environment that was offered.
    pub environment_id: String,
    /// Always [`DIRECT_TRANSPORT`].
    pub transport: String,
    /// Names this registration.
    pub registration_id: String,
    /// The websocket to dial. It may carry a secret.
    pub url: Secret,
}

/// A secret text, such as an authorization or a signed URL. `Debug` hides it.
#[derive(Clone, Deserialize, Eq, PartialEq, Serialize)]
#[serde(transparent)]
pub struct Secret(String);

impl Secret {
    /// Takes a text.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// Returns the text. Whoever calls this sees to it that it is not shown.
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// Returns the text, and nothing is left.
    pub fn into_exposed(self) -> String {
        self.0
    }

    /// Tells whether there is nothing but blanks in it.
    pub fn is_blank(&self) -> bool {
        self.0.trim().is_empty()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// Reads a JSON object. A list is refused, though its members might be in the right order.
///
/// # Errors
/// When it is none, or not the one that is expected.
pub fn read_object<T: DeserializeOwned>(json: &[u8]) -> Result<T, serde_json::Error> {
    let begins = json.iter().find(|byte| !byte.is_ascii_whitespace());
    if begins.is_some_and(|byte| *byte != b'{') {
        return Err(serde_json::Error::custom("it is not an object"));
    }
    serde_json::from_slice(json)
}

/// Longest name. It stands in URLs, which servers bound at about 8 KiB.
const MAX_ID_BYTES: usize = 256;

/// The name of an environment. It becomes part of a URL as it is: a slash in it makes more segments.
#[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct EnvironmentId(Arc<str>);

impl EnvironmentId {
    /// Takes a name, without the blanks around it.
    ///
    /// # Errors
    /// When nothing is left, or when it would lead to another place than the environment's.
    pub fn new(id: &str) -> Result<Self, EnvironmentIdError> {
        let id = id.trim();
        if id.is_empty() {
            return Err(EnvironmentIdError::Empty);
        }
        if id.len() > MAX_ID_BYTES {
            return Err(EnvironmentIdError::TooLong);
        }
        // A query or a fragment would cut the path off, and a backslash counts as a slash.
        let strange = |c: char| c.is_control() || matches!(c, '?' | '#' | '\\');
        if let Some(found) = id.chars().find(|c| strange(*c)) {
            return Err(EnvironmentIdError::Character(found));
        }
        if id.split('/').any(is_dots) {
            return Err(EnvironmentIdError::Dots);
        }
        Ok(Self(id.into()))
    }

    /// Returns the name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Tells whether a segment leads upwards or nowhere, also as URLs spell dots.
fn is_dots(segment: &str) -> bool {
    let plain = segment.to_ascii_lowercase().replace("%2e", ".");
    matches!(plain.as_str(), "." | "..")
}

impl fmt::Display for EnvironmentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Caller: the text cannot name an environment.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum EnvironmentIdError {
    /// There is nothing in it.
    #[error("environment id is empty")]
    Empty,
    /// It is too long for a URL.
    #[error("environment id is longer than {MAX_ID_BYTES} bytes")]
    TooLong,
    /// It holds a character that does not belong into the path of a URL.
    #[error("environment id holds {0:?}")]
    Character(char),
    /// One of its segments would lead upwards.
    #[error("environment id has a segment `.` or `..`")]
    Dots,
}

/// The body of a refusal: `{"error":{"code":…,"message":…}}`. Some registries say `detail` instead.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
pub struct ErrorBody {
    /// What was wrong.
    pub error: ErrorDetail,
}

/// What was wrong.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct ErrorDetail {
    /// For programs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// For people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

impl ErrorBody {
    /// Says what was wrong.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self::with_code(code.as_str(), message)
    }

    /// Says what was wrong, with a code of one's own.
    pub fn with_code(code: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            error: ErrorDetail {
                code: Some(code.into()),
                message: Some(message.into()),
            },
        }
    }

    /// Reads a body. `error` goes before `detail`; whatever is neither is no such body.
    pub fn read(body: &[u8]) -> Option<Self> {
        let Value::Object(mut members) = serde_json::from_slice(body).ok()? else {
            return None;
        };
        let found = match members.remove("error") {
            Some(Value::Null) | None => members.remove("detail"),
            found @ Some(_) => found,
        }?;
        // A list would be read as the members in their order.
        if !found.is_object() {
            return None;
        }
        let error: ErrorDetail = serde_json::from_value(found).ok()?;
        let said_something = error.code.is_some() || error.message.is_some();
        said_something.then_some(Self { error })
    }
}

/// Codes that somebody acts upon.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum Code {
    /// Another registration of the environment is under way. The executor asks again.
    RegistrationConflict,
    /// The registry cannot tell at the moment who is asking. The executor asks again.
    AuthenticationServiceUnavailable,
    /// No executor is there. The harness asks again.
    EnvironmentOffline,
}

impl Code {
    const ALL: [Self; 3] = [
        Self::RegistrationConflict,
        Self::AuthenticationServiceUnavailable,
        Self::EnvironmentOffline,
    ];

    /// Returns the code as it is written.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::RegistrationConflict => "registration_conflict",
            Self::AuthenticationServiceUnavailable => "authentication_service_unavailable",
            Self::EnvironmentOffline => "environment_offline",
        }
    }

    /// Finds a code by how it is written.
    pub fn find(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|code| code.as_str() == text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_no_object() {
        assert!(
            read_object::<Validated>(br#" {"valid":true}"#)
                .unwrap()
                .valid
        );
        for json in ["[true]", "true", "", " ", "{}", "{\"valid\":true} x"] {
            assert!(read_object::<Validated>(json.as_bytes()).is_err(), "{json}");
        }
    }

    #[test]
    fn an_id_is_trimmed_and_otherwise_kept() {
        for id in ["env-1", "a/b", "a b", "..a", "ä"] {
            let padded = format!(" {id}\n");
            assert_eq!(EnvironmentId::new(&padded).unwrap().as_str(), id);
        }
    }

    #[test]
    fn what_would_lead_elsewhere_is_refused() {
        assert_eq!(EnvironmentId::new(" \t"), Err(EnvironmentIdError::Empty));
        for (id, found) in [("a?b", '?'), ("a#b", '#'), ("a\nb", '\n'), ("a\\b", '\\')] {
            let refused = Err(EnvironmentIdError::Character(found));
            assert_eq!(EnvironmentId::new(id), refused);
        }
        for id in ["..", "a/../b", "a/%2E%2e", "."] {
            assert_eq!(
                EnvironmentId::new(id),
                Err(EnvironmentIdError::Dots),
                "{id}"
            );
        }
        assert!(EnvironmentId::new(&"x".repeat(MAX_ID_BYTES)).is_ok());
        let long = "x".repeat(MAX_ID_BYTES + 1);
        assert_eq!(EnvironmentId::new(&long), Err(EnvironmentIdError::TooLong));
    }

    fn code(body: &str) -> Option<String> {
        ErrorBody::read(body.as_bytes())?.error.code
    }

    #[test]
    fn the_code_sits_in_either_envelope() {
        let own = serde_json::to_string(&ErrorBody::new(Code::EnvironmentOffline, "off")).unwrap();
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
    fn anything_else_is_opaque() {
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
    fn codes_are_found_by_how_they_are_written() {
        for known in Code::ALL {
            assert_eq!(Code::find(known.as_str()), Some(known));
        }
        assert_eq!(Code::find("other"), None);
    }
}
