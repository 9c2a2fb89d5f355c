//! `http/request`: a request that the server makes from where it is.

use std::fmt;

use serde::{
    Deserialize, Deserializer, Serialize,
    de::{self, Visitor},
};

use crate::{
    bytes::Base64,
    id::HttpRequestId,
    method::{Method, MethodName},
    process::Empty,
};

/// `http/request`: makes an HTTP request. An error status is a success of this method.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct HttpRequest {
    /// The method, as it is sent.
    pub method: String,
    /// An `http` or `https` URL.
    pub url: String,
    /// Headers in their order; a name may repeat.
    #[serde(default)]
    pub headers: Vec<HttpHeader>,
    /// The body; absent when there is none, or when it travels raw.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body_base64: Option<Base64>,
    /// How long the whole request may take. Absent: as long as it takes.
    #[serde(
        default,
        deserialize_with = "timeout",
        skip_serializing_if = "Option::is_none"
    )]
    pub timeout_ms: Option<u64>,
    /// What becomes of redirections.
    #[serde(default)]
    pub redirect_policy: RedirectPolicy,
    /// The client's name for the request, unique among its active streams.
    pub request_id: HttpRequestId,
    /// Whether the body follows in `http/request/bodyDelta`.
    #[serde(default)]
    pub stream_response: bool,
}

impl Method for HttpRequest {
    const NAME: MethodName = MethodName::HttpRequest;
    type Result = HttpResponse;
}

/// Decodes a time limit. A number that is not one is refused in the stock server's words.
fn timeout<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    deserializer.deserialize_option(TimeoutVisitor)
}

struct TimeoutVisitor;

impl<'de> Visitor<'de> for TimeoutVisitor {
    type Value = Option<u64>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("u64")
    }

    fn visit_none<E: de::Error>(self) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_unit<E: de::Error>(self) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_u64(self)
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<Self::Value, E> {
        Ok(Some(value))
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<Self::Value, E> {
        u64::try_from(value)
            .map(Some)
            .map_err(|_| E::custom(INVALID_NUMBER))
    }

    fn visit_f64<E: de::Error>(self, _: f64) -> Result<Self::Value, E> {
        Err(E::custom(INVALID_NUMBER))
    }
}

const INVALID_NUMBER: &str = "invalid number";

/// `http/request/cancel`: ends a streamed body. Nothing of it follows the answer, not even its end.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CancelHttpRequest {
    /// The request. One that has no active stream is none that could be ended, which is fine.
    pub request_id: HttpRequestId,
}

impl Method for CancelHttpRequest {
    const NAME: MethodName = MethodName::HttpRequestCancel;
    type Result = Empty;
}

/// A header of a request. Its value may be a secret and is not shown.
#[derive(Clone, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct HttpHeader {
    /// Its name.
    pub name: String,
    /// Its value, or what comes before the variable's.
    pub value: String,
    /// A variable of the server's environment, whose value is appended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value_env_var: Option<String>,
}

impl fmt::Debug for HttpHeader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpHeader")
            .field("name", &self.name)
            .field("value_env_var", &self.value_env_var)
            .finish_non_exhaustive()
    }
}

/// What becomes of redirections.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum RedirectPolicy {
    /// They are followed.
    #[default]
    Follow,
    /// They are the response.
    Stop,
}

/// The answer to `http/request`.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct HttpResponse {
    /// The status.
    pub status: u16,
    /// Headers in their order, names in lower case. Values that are not text are left out.
    #[serde(default)]
    pub headers: Vec<HttpResponseHeader>,
    /// The body; empty when it is streamed, absent when it travels raw.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body_base64: Option<Base64>,
}

/// A header of a response.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct HttpResponseHeader {
    /// Its name, in lower case.
    pub name: String,
    /// Its value.
    pub value: String,
}

/// `http/request/bodyDelta`: a part of a streamed body, or its end.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct HttpBodyDelta {
    /// The request.
    pub request_id: HttpRequestId,
    /// Counts from 1, without holes.
    pub seq: u64,
    /// The bytes; absent when they travel raw.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delta_base64: Option<Base64>,
    /// Nothing follows.
    #[serde(default)]
    pub done: bool,
    /// Why the body is not whole.
    #[serde(default)]
    pub error: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_output_hides_header_values() {
        let header = HttpHeader {
            name: "authorization".to_owned(),
            value: "Bearer secret".to_owned(),
            value_env_var: None,
        };
        assert!(!format!("{header:?}").contains("secret"));
    }
}
