//! The websocket upgrade request and the check of its response (RFC 6455 section 4.1).

use std::{borrow::Cow, io, time::Duration};

use base64_simd::STANDARD;
use http::StatusCode;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    time::timeout,
};

use super::{BearerToken, ConnectError, RequestHeaders, request_headers};
use crate::websocket::accept_key;

/// Maximum length of a response head.
const MAX_HEAD_BYTES: usize = 16 << 10;
/// Maximum number of headers in a response.
const MAX_HEADERS: usize = 64;
/// How much of a refusal's body is read, and how much of it is shown.
const MAX_BODY_BYTES: usize = 4 << 10;
const MAX_SHOWN_CHARS: usize = 500;
/// Shorter strings are not treated as secrets: they occur in any text.
const MIN_SECRET_BYTES: usize = 4;
/// How long reading the body of a refusal may take.
const BODY_TIMEOUT: Duration = Duration::from_secs(1);

/// An upgrade request.
#[derive(Debug)]
pub(super) struct UpgradeRequest<'a> {
    pub(super) authority: &'a str,
    pub(super) target: &'a str,
    pub(super) headers: &'a RequestHeaders,
    pub(super) bearer_token: Option<&'a BearerToken>,
}

impl UpgradeRequest<'_> {
    /// Upgrades a connection and returns the bytes that followed the response.
    pub(super) async fn upgrade<S>(&self, stream: &mut S) -> Result<Vec<u8>, ConnectError>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let key = STANDARD.encode_to_string(handshake_nonce());
        stream.write_all(&self.encode(&key)).await?;
        stream.flush().await?;
        let mut response_bytes = Vec::new();
        loop {
            // A connection that is cut during the response says nothing about the peer.
            if stream.read_buf(&mut response_bytes).await? == 0 {
                return Err(ConnectError::Closed);
            }
            let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
            let mut response = httparse::Response::new(&mut headers);
            let length = match response.parse(&response_bytes) {
                Ok(httparse::Status::Complete(length)) => length,
                Ok(httparse::Status::Partial) if response_bytes.len() <= MAX_HEAD_BYTES => continue,
                Ok(httparse::Status::Partial) => {
                    return Err(ConnectError::NotWebSocket("its response is too long"));
                }
                Err(_) => return Err(ConnectError::NotWebSocket("its response is not HTTP")),
            };
            let head = ResponseHead(&response);
            let status = response.code.unwrap_or(0);
            if status == 101 {
                head.check(&key)?;
                return Ok(response_bytes.split_off(length));
            }
            let (framing, phrase) = (head.framing(), response.reason.unwrap_or("").to_owned());
            let body = framing.read(stream, response_bytes.split_off(length)).await;
            let candidates = [&body[..], phrase.as_bytes()].map(one_line);
            let shown = candidates
                .into_iter()
                .find(|text| !text.is_empty() && !self.is_secret_in(text));
            let reason = shown.unwrap_or_else(|| status_text(status).to_owned());
            let reason = reason.chars().take(MAX_SHOWN_CHARS).collect();
            return Err(ConnectError::Refused { status, reason });
        }
    }

    /// Returns whether a text contains something secret. A "no such path" response often names the
    /// path.
    fn is_secret_in(&self, text: &str) -> bool {
        let (path, query) = self.target.split_once('?').unwrap_or((self.target, ""));
        let token = self.bearer_token.map(BearerToken::secret);
        let secrets = [path.as_bytes(), query.as_bytes()].into_iter();
        let mut secrets = secrets.chain(token).chain(self.headers.values());
        secrets.any(|secret| {
            let secret = one_line(secret);
            secret.len() >= MIN_SECRET_BYTES && text.contains(&secret)
        })
    }

    fn encode(&self, key: &str) -> Vec<u8> {
        let mut request = format!(
            "GET {} HTTP/1.1\r\nHost: {}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
             Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\n",
            self.target, self.authority
        )
        .into_bytes();
        let token = self.bearer_token.map(BearerToken::authorization);
        if let Some(authorization) = token.or(self.headers.authorization()) {
            request_headers::append_header(&mut request, "Authorization", authorization);
        }
        self.headers.encode(&mut request);
        request.extend_from_slice(b"\r\n");
        request
    }
}

/// The head of a response.
struct ResponseHead<'a>(&'a httparse::Response<'a, 'a>);

impl ResponseHead<'_> {
    /// Checks that the response is a websocket handshake for this request.
    fn check(&self, key: &str) -> Result<(), ConnectError> {
        let refusal = if !self.has("upgrade", "websocket") || !self.has("connection", "upgrade") {
            "it switched to another protocol"
        } else if self.value("sec-websocket-accept") != Some(accept_key(key.as_bytes()).as_bytes())
        {
            "its response belongs to another request"
        } else if self.value("sec-websocket-extensions").is_some() {
            "it uses an extension that was not requested"
        } else if self.value("sec-websocket-protocol").is_some() {
            "it uses a subprotocol that was not requested"
        } else {
            return Ok(());
        };
        Err(ConnectError::NotWebSocket(refusal))
    }

    /// Returns how the body is framed.
    fn framing(&self) -> BodyFraming {
        if self.has("transfer-encoding", "chunked") {
            return BodyFraming::Chunked;
        }
        let length = self
            .value("content-length")
            .and_then(|value| str::from_utf8(value).ok()?.trim().parse().ok());
        BodyFraming::Plain(length.unwrap_or(usize::MAX).min(MAX_BODY_BYTES))
    }

    fn values(&self, name: &str) -> impl Iterator<Item = &[u8]> {
        let named = move |header: &&httparse::Header<'_>| header.name.eq_ignore_ascii_case(name);
        self.0
            .headers
            .iter()
            .filter(named)
            .map(|header| header.value)
    }

    fn value(&self, name: &str) -> Option<&[u8]> {
        self.values(name).next().map(<[u8]>::trim_ascii)
    }

    fn has(&self, name: &str, token: &str) -> bool {
        self.values(name)
            .flat_map(|value| value.split(|byte| *byte == b','))
            .any(|part| part.trim_ascii().eq_ignore_ascii_case(token.as_bytes()))
    }
}

/// How a body is framed.
enum BodyFraming {
    /// Up to this many bytes, or until the peer closes.
    Plain(usize),
    /// Chunked transfer encoding.
    Chunked,
}

impl BodyFraming {
    /// Reads the available body within the timeout. `body` holds the bytes that came with the head.
    async fn read<S: AsyncRead + Unpin>(self, stream: &mut S, mut body: Vec<u8>) -> Vec<u8> {
        let limit = match self {
            Self::Plain(length) => length,
            Self::Chunked => MAX_BODY_BYTES,
        };
        let rest = async {
            let is_whole = |body: &[u8]| match self {
                Self::Plain(length) => body.len() >= length,
                Self::Chunked => body.len() >= limit || body.ends_with(b"0\r\n\r\n"),
            };
            while !is_whole(&body) && stream.read_buf(&mut body).await? > 0 {}
            Ok::<_, io::Error>(())
        };
        // The refusal is reported with the text that has arrived.
        drop(timeout(BODY_TIMEOUT, rest).await);
        body.truncate(limit);
        match self {
            Self::Plain(_) => body,
            Self::Chunked => join_chunks(&body),
        }
    }
}

/// Joins the chunks that have arrived.
fn join_chunks(mut body: &[u8]) -> Vec<u8> {
    let mut joined = Vec::new();
    while let Ok(httparse::Status::Complete((start, length))) = httparse::parse_chunk_size(body) {
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        let rest = &body[start..];
        joined.extend_from_slice(&rest[..length.min(rest.len())]);
        match rest.get(length.saturating_add(2)..) {
            Some(next) if length > 0 => body = next,
            Some(_) | None => break,
        }
    }
    joined
}

/// Returns the standard reason phrase of a status, or an empty string.
fn status_text(status: u16) -> &'static str {
    let status = StatusCode::from_u16(status).ok();
    status
        .and_then(|status| status.canonical_reason())
        .unwrap_or("")
}

/// Collapses text of a peer into one printable line.
fn one_line(text: &[u8]) -> String {
    let text: Cow<'_, str> = String::from_utf8_lossy(text);
    let words: Vec<&str> = text
        .split(|c: char| c.is_whitespace() || c.is_control())
        .filter(|word| !word.is_empty())
        .collect();
    words.join(" ")
}

/// Returns sixteen bytes that distinguish this handshake from a cached one. They are not secret.
fn handshake_nonce() -> [u8; 16] {
    use std::hash::{BuildHasher, RandomState};

    let state = RandomState::new();
    let [high, low] = [state.hash_one(0), state.hash_one(1)];
    (u128::from(high) << 64 | u128::from(low)).to_ne_bytes()
}

/// Parses bytes as a handshake response, for the fuzz target `http_handshake`.
#[cfg(any(test, fuzzing))]
pub(crate) fn fuzz_response(data: &[u8]) {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut response = httparse::Response::new(&mut headers);
    if let Ok(httparse::Status::Complete(length)) = response.parse(data) {
        let head = ResponseHead(&response);
        if head.check("dGhlIHNhbXBsZSBub25jZQ==").is_ok() {
            assert!(head.value("sec-websocket-extensions").is_none());
        }
        let joined = match head.framing() {
            BodyFraming::Plain(limit) => data[length..].iter().take(limit).copied().collect(),
            BodyFraming::Chunked => join_chunks(&data[length..]),
        };
        assert!(!one_line(&joined).contains(char::is_control));
    }
}
