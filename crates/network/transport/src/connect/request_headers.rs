//! Headers and bearer token that a caller adds to an upgrade request.

use std::fmt;

use http::{HeaderName, HeaderValue, header};

/// Maximum number of headers. Servers accept about a hundred, including those of the handshake.
const MAX_HEADERS: usize = 64;
/// Maximum size of all names and values. Servers accept 8 to 64 KiB.
const MAX_BYTES: usize = 16 << 10;

/// Names used by the handshake, names that change how the request is framed, and `Origin`, which
/// only web pages send.
const RESERVED_NAMES: &[HeaderName] = &[
    header::CONNECTION,
    header::CONTENT_LENGTH,
    header::EXPECT,
    header::HOST,
    header::ORIGIN,
    header::SEC_WEBSOCKET_ACCEPT,
    header::SEC_WEBSOCKET_EXTENSIONS,
    header::SEC_WEBSOCKET_KEY,
    header::SEC_WEBSOCKET_PROTOCOL,
    header::SEC_WEBSOCKET_VERSION,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
];

/// Headers for the server or an intermediary in front of it. `Debug` shows only their names.
#[derive(Clone, Default, Eq, PartialEq)]
pub struct RequestHeaders {
    lines: Vec<(HeaderName, HeaderValue)>,
    bytes: usize,
    /// Kept separately: it is subject to the same rule as a bearer token.
    authorization: Option<HeaderValue>,
}

impl RequestHeaders {
    /// Creates the headers from names and values.
    ///
    /// # Errors
    /// Fails on the first header that is rejected.
    pub fn new<N, V>(headers: impl IntoIterator<Item = (N, V)>) -> Result<Self, RequestHeaderError>
    where
        N: AsRef<str>,
        V: AsRef<str>,
    {
        let mut all = Self::default();
        for (name, value) in headers {
            all.add(name.as_ref(), value.as_ref())?;
        }
        Ok(all)
    }

    /// Adds a header. A name may occur more than once.
    ///
    /// # Errors
    /// Fails if the header is malformed or reserved, or if there are too many.
    pub fn add(&mut self, name: &str, value: &str) -> Result<(), RequestHeaderError> {
        let parsed = HeaderName::from_bytes(name.as_bytes())
            .map_err(|_| RequestHeaderError::Name(name.escape_debug().to_string()))?;
        if parsed == header::AUTHORIZATION {
            return Err(RequestHeaderError::Authorization);
        }
        if RESERVED_NAMES.contains(&parsed) {
            return Err(RequestHeaderError::Reserved(parsed.to_string()));
        }
        let value = HeaderValue::from_bytes(value.as_bytes())
            .map_err(|_| RequestHeaderError::Value(parsed.to_string()))?;
        let bytes = self.bytes + parsed.as_str().len() + value.len() + ": \r\n".len();
        if self.lines.len() >= MAX_HEADERS || bytes > MAX_BYTES {
            return Err(RequestHeaderError::TooMany);
        }
        self.bytes = bytes;
        self.lines.push((parsed, value));
        Ok(())
    }

    /// Sets `Authorization`, for example to a signature of the request. A bearer token takes
    /// precedence. It is sent only where a bearer token may be sent.
    pub fn authorize(&mut self, value: HeaderValue) {
        self.authorization = Some(value);
    }

    /// Returns the value of `Authorization`.
    pub(super) fn authorization(&self) -> Option<&[u8]> {
        self.authorization.as_ref().map(HeaderValue::as_bytes)
    }

    /// Returns all values, which may be secret.
    pub(super) fn values(&self) -> impl Iterator<Item = &[u8]> {
        let lines = self.lines.iter().map(|(_, value)| value.as_bytes());
        lines.chain(self.authorization())
    }

    /// Appends the headers in wire format.
    pub(super) fn encode(&self, request: &mut Vec<u8>) {
        for (name, value) in &self.lines {
            append_header(request, name.as_str(), value.as_bytes());
        }
    }
}

/// Appends one header in wire format.
pub(super) fn append_header(request: &mut Vec<u8>, name: &str, value: &[u8]) {
    request.extend_from_slice(name.as_bytes());
    request.extend_from_slice(b": ");
    request.extend_from_slice(value);
    request.extend_from_slice(b"\r\n");
}

impl fmt::Debug for RequestHeaders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.lines.iter().map(|(name, _)| name.as_str());
        f.debug_list().entries(names).finish()
    }
}

/// Caller: the header is rejected. The error omits its value.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum RequestHeaderError {
    /// The name contains an invalid character.
    #[error("`{0}` is not a valid header name")]
    Name(String),
    /// The value contains a control character.
    #[error("value of header `{0}` contains a control character")]
    Value(String),
    /// The name is reserved.
    #[error("header `{0}` cannot be set")]
    Reserved(String),
    /// `Authorization` has its own setter, which hides the value.
    #[error("header `authorization` is set by a bearer token or by a signature")]
    Authorization,
    /// There are too many headers for one request.
    #[error("more than {MAX_HEADERS} headers, or {MAX_BYTES} bytes of them")]
    TooMany,
}

/// A token for `Authorization: Bearer …`. `Debug` hides it.
#[derive(Clone, Eq, PartialEq)]
pub struct BearerToken(HeaderValue);

impl BearerToken {
    /// Creates a token with surrounding whitespace trimmed.
    ///
    /// # Errors
    /// Fails if the token is empty, or if a header cannot carry it.
    pub fn new(token: &str) -> Result<Self, InvalidBearerToken> {
        let token = token.trim();
        if token.is_empty() {
            return Err(InvalidBearerToken::Empty);
        }
        let mut value = HeaderValue::from_bytes(format!("{BEARER_PREFIX}{token}").as_bytes())
            .map_err(|_| InvalidBearerToken::Character)?;
        value.set_sensitive(true);
        Ok(Self(value))
    }

    /// Returns the value of the header.
    pub(super) fn authorization(&self) -> &[u8] {
        self.0.as_bytes()
    }

    /// Returns the token itself.
    pub(super) fn secret(&self) -> &[u8] {
        self.0
            .as_bytes()
            .get(BEARER_PREFIX.len()..)
            .unwrap_or_default()
    }
}

/// Scheme in front of the token.
const BEARER_PREFIX: &str = "Bearer ";

impl fmt::Debug for BearerToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BearerToken(..)")
    }
}

/// Caller: the text is not a valid bearer token. The error omits it.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidBearerToken {
    /// The token is empty.
    #[error("bearer token is empty")]
    Empty,
    /// The token contains a character that a header cannot carry.
    #[error("bearer token holds a control character")]
    Character,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_keep_their_order_and_debug_hides_values() {
        let headers =
            RequestHeaders::new([("X-Key", "s3cret"), ("x-b", ""), ("X-Key", "é")]).unwrap();
        let mut request = Vec::new();
        headers.encode(&mut request);
        assert_eq!(request, "x-key: s3cret\r\nx-b: \r\nx-key: é\r\n".as_bytes());
        assert_eq!(format!("{headers:?}"), r#"["x-key", "x-b", "x-key"]"#);
    }

    #[test]
    fn reserved_header_names_are_rejected() {
        for name in [
            "Origin",
            "host",
            "CONNECTION",
            "Upgrade",
            "Sec-WebSocket-Key",
            "content-length",
        ] {
            let refused = Err(RequestHeaderError::Reserved(name.to_ascii_lowercase()));
            assert_eq!(RequestHeaders::new([(name, "x")]), refused);
        }
        assert_eq!(
            RequestHeaders::new([("authorization", "Basic x")]),
            Err(RequestHeaderError::Authorization)
        );
    }

    #[test]
    fn authorization_is_kept_apart_and_hidden() {
        let mut headers = RequestHeaders::new([("x-a", "b")]).unwrap();
        headers.authorize(HeaderValue::from_static("Scheme s3cret"));
        let mut request = Vec::new();
        headers.encode(&mut request);
        assert_eq!(request, b"x-a: b\r\n");
        assert_eq!(headers.authorization(), Some(&b"Scheme s3cret"[..]));
        assert!(headers.values().any(|value| value == b"Scheme s3cret"));
        assert!(!format!("{headers:?}").contains("s3cret"));
    }

    #[test]
    fn header_injection_is_rejected() {
        for name in ["", "a b", "a:", "a\r\nb", "ü"] {
            assert!(
                matches!(
                    RequestHeaders::new([(name, "x")]),
                    Err(RequestHeaderError::Name(_))
                ),
                "{name:?}"
            );
        }
        for value in ["a\r\nb: c", "a\nb", "\0"] {
            assert_eq!(
                RequestHeaders::new([("a", value)]),
                Err(RequestHeaderError::Value("a".to_owned()))
            );
        }
    }

    #[test]
    fn header_count_and_size_are_bounded() {
        let many = (0..MAX_HEADERS).map(|n| (format!("h{n}"), "x"));
        let mut headers = RequestHeaders::new(many).unwrap();
        assert_eq!(
            headers.add("one-more", "x"),
            Err(RequestHeaderError::TooMany)
        );
        let long = "x".repeat(MAX_BYTES);
        assert_eq!(
            RequestHeaders::new([("a", &long)]),
            Err(RequestHeaderError::TooMany)
        );
    }
}

#[cfg(test)]
mod token_tests {
    use super::*;

    #[test]
    fn bearer_token_is_trimmed_and_hidden_in_debug() {
        let token = BearerToken::new(" s3cret é\n").unwrap();
        assert_eq!(token.authorization(), "Bearer s3cret é".as_bytes());
        assert_eq!(format!("{token:?}"), "BearerToken(..)");
    }

    #[test]
    fn token_that_no_header_can_carry_is_rejected() {
        assert_eq!(BearerToken::new(" \n"), Err(InvalidBearerToken::Empty));
        for text in ["a\r\nX: y", "a\0b", "a\x7fb"] {
            assert_eq!(BearerToken::new(text), Err(InvalidBearerToken::Character));
        }
    }
}
