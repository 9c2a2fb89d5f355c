//! What a registry says when it refuses.

use serde::{Deserialize, Serialize};
use serde_json::Value;

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
