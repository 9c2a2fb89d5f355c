//! `http/request`: HTTP requests made by the server.

use std::fmt;

use serde::{
    Deserialize, Deserializer, Serialize,
    de::{self, Visitor},
};

use crate::{base64_bytes::Base64Bytes, id::HttpRequestId};

/// Where Linux distributions keep the trusted roots, as one PEM file. The first usable file is
/// loaded.
///
/// `rustls-native-certs` has the same list, but reads environment variables of the process, which
/// are not those of the environment, and every file of `/etc/ssl/certs` besides the bundle (2 to
/// 14 ms instead of 0.3 ms).
pub const CA_BUNDLES: &[&str] = &[
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/pki/tls/cacert.pem",
    "/etc/ssl/cert.pem",
    "/opt/etc/ssl/certs/ca-certificates.crt",
];

/// `http/request`: makes an HTTP request. An HTTP error status is a successful response.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct HttpRequest {
    /// HTTP method.
    pub method: String,
    /// An `http` or `https` URL.
    pub url: String,
    /// Headers in order. Names may repeat.
    #[serde(default)]
    pub headers: Vec<HttpHeader>,
    /// Body. Absent if it is empty or sent as raw bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body_base64: Option<Base64Bytes>,
    /// Timeout of the whole request. Absent: unlimited.
    #[serde(
        default,
        deserialize_with = "timeout",
        skip_serializing_if = "Option::is_none"
    )]
    pub timeout_ms: Option<u64>,
    /// Handling of redirects.
    #[serde(default)]
    pub redirect_policy: RedirectPolicy,
    /// Request id chosen by the client, unique among its active streams.
    pub request_id: HttpRequestId,
    /// Streams the body in `http/request/bodyDelta` notifications.
    #[serde(default)]
    pub stream_response: bool,
}

/// Decodes a timeout. Errors have the stock server's text.
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

/// `http/request/cancel`: ends a streamed body. No notification of it follows the response.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct CancelHttpRequest {
    /// Request id. Requests without an active stream are ignored.
    pub request_id: HttpRequestId,
}

/// Request header. `Debug` hides the value because it may be a secret.
#[derive(Clone, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct HttpHeader {
    /// Header name.
    pub name: String,
    /// Header value, or the prefix of the variable's value.
    pub value: String,
    /// Environment variable of the server. Its value is appended.
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

/// Handling of redirects.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum RedirectPolicy {
    /// Follows redirects.
    #[default]
    Follow,
    /// Returns the redirect as the response.
    Stop,
}

/// Response to `http/request`.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct HttpResponse {
    /// HTTP status.
    pub status: u16,
    /// Headers in order, with lower-case names. Values that are not text are omitted.
    #[serde(default)]
    pub headers: Vec<HttpResponseHeader>,
    /// Body. Empty if it is streamed, absent if it is sent as raw bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body_base64: Option<Base64Bytes>,
}

/// Response header.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct HttpResponseHeader {
    /// Lower-case name.
    pub name: String,
    /// Header value.
    pub value: String,
}

/// `http/request/bodyDelta`: part of a streamed body, or its end.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct HttpBodyDelta {
    /// Request id.
    pub request_id: HttpRequestId,
    /// Sequence number, starting at 1 without gaps.
    pub seq: u64,
    /// Content. Absent if it is sent as raw bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delta_base64: Option<Base64Bytes>,
    /// This is the last notification.
    #[serde(default)]
    pub done: bool,
    /// Why the body is incomplete.
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
