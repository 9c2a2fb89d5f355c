//! Message heads: reads a head up to the empty line, and derives the body framing from its fields.
//!
//! Invariant: a body has exactly one framing. A head that two parsers could interpret differently
//! is refused.

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt};

use crate::limits;

/// Buffer that collects a head.
#[derive(Debug, Default)]
pub(crate) struct HeadBuffer {
    bytes: Vec<u8>,
    scanned: usize,
}

impl HeadBuffer {
    /// Creates a buffer with bytes that are already read.
    pub(crate) fn with_bytes(bytes: Vec<u8>) -> Self {
        Self { bytes, scanned: 0 }
    }

    /// Reads a head. Returns it with the bytes after it. Cancel safe.
    pub(crate) async fn read(
        &mut self,
        reader: &mut (impl AsyncRead + Unpin),
    ) -> Result<(Vec<u8>, Vec<u8>), HeadError> {
        loop {
            if let Some(end) = self.find_end() {
                let rest = self.bytes.split_off(end);
                self.scanned = 0;
                return Ok((std::mem::take(&mut self.bytes), rest));
            }
            if self.bytes.len() >= limits::MAX_HEAD_BYTES {
                return Err(HeadError::TooLarge);
            }
            let remaining = limits::MAX_HEAD_BYTES - self.bytes.len();
            self.bytes.reserve(remaining.min(4096));
            let mut limited_reader = reader.take(u64::try_from(remaining).unwrap_or(u64::MAX));
            if limited_reader
                .read_buf(&mut self.bytes)
                .await
                .map_err(HeadError::Read)?
                == 0
            {
                return Err(if self.bytes.is_empty() {
                    HeadError::Closed
                } else {
                    HeadError::Truncated
                });
            }
        }
    }

    /// Finds the end of the head, scanning each byte once. Accepts lines without a carriage return;
    /// the parsers decide whether to allow them.
    fn find_end(&mut self) -> Option<usize> {
        let end = (self.scanned..self.bytes.len()).find(|&at| {
            let before = &self.bytes[..at];
            self.bytes[at] == b'\n' && (before.ends_with(b"\n") || before.ends_with(b"\n\r"))
        });
        self.scanned = self.bytes.len();
        end.map(|at| at + 1)
    }
}

/// Why no head was read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HeadError {
    /// Peer: it closed the connection before the first byte.
    #[error("the connection was closed before the request")]
    Closed,
    /// Peer: it closed the connection within the head.
    #[error("the message head is incomplete")]
    Truncated,
    /// Peer: the head exceeds the limit.
    #[error("the message head is too large")]
    TooLarge,
    /// Peer: reading failed.
    #[error("cannot read the message head")]
    Read(#[source] io::Error),
}

/// Header fields in order, with their original names.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct HeaderFields(Vec<(String, Vec<u8>)>);

/// How the end of a body is determined.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum BodyFraming {
    /// By its length.
    Length(u64),
    /// By the last chunk.
    Chunked,
    /// By the end of the connection.
    UntilClose,
}

impl HeaderFields {
    /// Copies parsed fields.
    pub(crate) fn from_parsed(parsed: &[httparse::Header<'_>]) -> Self {
        let owned = |field: &httparse::Header<'_>| (field.name.to_owned(), field.value.to_vec());
        Self(parsed.iter().map(owned).collect())
    }

    /// Returns the values of all fields with this name.
    pub(crate) fn values<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a [u8]> {
        let has_name = move |(field, _): &&(String, Vec<u8>)| field.eq_ignore_ascii_case(name);
        self.0
            .iter()
            .filter(has_name)
            .map(|(_, value)| value.as_slice())
    }

    /// Returns whether a list field of this name contains `token`.
    pub(crate) fn contains_token(&self, name: &str, token: &str) -> bool {
        self.values(name)
            .flat_map(list_items)
            .any(|item| item.eq_ignore_ascii_case(token.as_bytes()))
    }

    /// Returns the value of `Content-Length`. Repetitions must be equal.
    pub(crate) fn content_length(&self) -> Result<Option<u64>, FramingError> {
        let mut length = None;
        for item in self.values("content-length").flat_map(list_items) {
            let value = parse_digits(item).ok_or(FramingError::Length)?;
            if length.is_some_and(|other| other != value) {
                return Err(FramingError::Length);
            }
            length = Some(value);
        }
        Ok(length)
    }

    /// Returns the body framing of a request.
    pub(crate) fn request_framing(&self) -> Result<BodyFraming, FramingError> {
        let length = self.content_length()?;
        let mut encodings = self.values("transfer-encoding");
        match (encodings.next(), encodings.next(), length) {
            (None, _, length) => Ok(BodyFraming::Length(length.unwrap_or(0))),
            (Some(_), _, Some(_)) => Err(FramingError::Both),
            (Some(encoding), None, None) if encoding.eq_ignore_ascii_case(b"chunked") => {
                Ok(BodyFraming::Chunked)
            }
            (Some(_), _, None) => Err(FramingError::Coding),
        }
    }

    /// Returns the body framing of a response, if it has a body. Chunked takes precedence over a
    /// length.
    pub(crate) fn response_framing(&self) -> Result<BodyFraming, FramingError> {
        let last = self.values("transfer-encoding").flat_map(list_items).last();
        match last {
            Some(encoding) if encoding.eq_ignore_ascii_case(b"chunked") => Ok(BodyFraming::Chunked),
            Some(_) => Ok(BodyFraming::UntilClose),
            None => Ok(self
                .content_length()?
                .map_or(BodyFraming::UntilClose, BodyFraming::Length)),
        }
    }

    /// Writes the end-to-end fields, without those for framing and host.
    pub(crate) fn write_end_to_end(&self, out: &mut Vec<u8>) {
        for (name, value) in &self.0 {
            if !is_hop_by_hop(name) && !self.contains_token("connection", name) {
                write_field(out, name, value);
            }
        }
    }

    /// Writes the fields with this name.
    pub(crate) fn write_named(&self, name: &str, out: &mut Vec<u8>) {
        for value in self.values(name) {
            write_field(out, name, value);
        }
    }
}

/// Writes one field.
pub(crate) fn write_field(out: &mut Vec<u8>, name: &str, value: &[u8]) {
    for part in [name.as_bytes(), b": ", value, b"\r\n"] {
        out.extend_from_slice(part);
    }
}

/// Why the body framing is ambiguous.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub(crate) enum FramingError {
    /// Peer: different lengths, or not a number.
    #[error("an ambiguous content length")]
    Length,
    /// Peer: another parser could choose the other framing.
    #[error("both a transfer encoding and a content length")]
    Both,
    /// Peer: only `chunked` is supported.
    #[error("an unsupported transfer encoding")]
    Coding,
}

/// Returns whether a field applies to one connection only, or is written anew for the next one.
fn is_hop_by_hop(name: &str) -> bool {
    let has_prefix = |prefix: &str| {
        let start = name.as_bytes().get(..prefix.len());
        start.is_some_and(|start| start.eq_ignore_ascii_case(prefix.as_bytes()))
    };
    HOP_BY_HOP
        .iter()
        .any(|known| known.eq_ignore_ascii_case(name))
        || has_prefix("proxy-")
}

fn list_items(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value.split(|&byte| byte == b',').map(<[u8]>::trim_ascii)
}

fn parse_digits(text: &[u8]) -> Option<u64> {
    // `parse` accepts a sign, which a length cannot have.
    if text.is_empty() || !text.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(text).ok()?.parse().ok()
}

const HOP_BY_HOP: [&str; 9] = [
    "connection",
    "content-length",
    "host",
    "keep-alive",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    // HTTP/2 by upgrade could carry requests for other hosts.
    "http2-settings",
];

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    async fn read(mut bytes: &[u8]) -> Result<(Vec<u8>, Vec<u8>), HeadError> {
        HeadBuffer::default().read(&mut bytes).await
    }

    #[tokio::test]
    async fn head_ends_at_the_empty_line() {
        for (bytes, head) in [
            ("a\r\nb\r\n\r\nrest", "a\r\nb\r\n\r\n"),
            ("a\n\nrest", "a\n\n"),
            ("a\n\r\nrest", "a\n\r\n"),
            ("\r\n\r\nrest", "\r\n\r\n"),
        ] {
            let (actual, rest) = read(bytes.as_bytes()).await.unwrap();
            assert_eq!(actual, head.as_bytes());
            assert_eq!(rest, b"rest");
        }
    }

    #[tokio::test]
    async fn unterminated_heads_are_refused() {
        assert!(matches!(read(b"").await, Err(HeadError::Closed)));
        assert!(matches!(
            read(b"GET / HTTP/1.1\r\n").await,
            Err(HeadError::Truncated)
        ));
        let endless = vec![b'a'; limits::MAX_HEAD_BYTES + 10];
        assert!(matches!(read(&endless).await, Err(HeadError::TooLarge)));
    }

    proptest! {
        #[test]
        fn head_does_not_depend_on_chunking(text in "[a\r\n]{0,30}") {
            let bytes = text.into_bytes();
            let mut whole = HeadBuffer::with_bytes(bytes.clone());
            let expected = whole.find_end();
            let mut single = HeadBuffer::default();
            let actual = bytes.iter().find_map(|&byte| {
                single.bytes.push(byte);
                single.find_end()
            });
            prop_assert_eq!(actual, expected);
        }
    }

    fn fields(pairs: &[(&str, &str)]) -> HeaderFields {
        let owned = |&(name, value): &(&str, &str)| (name.to_owned(), value.as_bytes().to_vec());
        HeaderFields(pairs.iter().map(owned).collect())
    }

    #[test]
    fn ambiguous_body_framing_is_refused() {
        let (cl, te) = ("Content-Length", "transfer-ENCODING");
        for (pairs, expected) in [
            (vec![], Ok(BodyFraming::Length(0))),
            (vec![(cl, "5")], Ok(BodyFraming::Length(5))),
            (vec![(cl, "5"), (cl, "5")], Ok(BodyFraming::Length(5))),
            (vec![(cl, "5, 5")], Ok(BodyFraming::Length(5))),
            (vec![(cl, "5"), (cl, "6")], Err(FramingError::Length)),
            (vec![(cl, "5,6")], Err(FramingError::Length)),
            (vec![(cl, "+5")], Err(FramingError::Length)),
            (vec![(cl, "-5")], Err(FramingError::Length)),
            (vec![(cl, "5 5")], Err(FramingError::Length)),
            (vec![(cl, "0x5")], Err(FramingError::Length)),
            (vec![(cl, "")], Err(FramingError::Length)),
            (
                vec![(cl, "99999999999999999999")],
                Err(FramingError::Length),
            ),
            (vec![(te, "Chunked")], Ok(BodyFraming::Chunked)),
            (vec![(te, "chunked"), (cl, "5")], Err(FramingError::Both)),
            (
                vec![(te, "chunked"), (te, "chunked")],
                Err(FramingError::Coding),
            ),
            (vec![(te, "gzip, chunked")], Err(FramingError::Coding)),
            (vec![(te, "chunked, identity")], Err(FramingError::Coding)),
            (vec![(te, "xchunked")], Err(FramingError::Coding)),
            (vec![(te, "chunked\u{b}")], Err(FramingError::Coding)),
            (vec![(te, "")], Err(FramingError::Coding)),
        ] {
            assert_eq!(fields(&pairs).request_framing(), expected, "{pairs:?}");
        }
    }

    #[test]
    fn hop_by_hop_fields_are_not_forwarded() {
        let fields = fields(&[
            ("Accept", "*/*"),
            ("Connection", "close, X-Secret"),
            ("x-secret", "1"),
            ("Proxy-Authorization", "Basic"),
            ("PROXY-Connection", "keep-alive"),
            ("Host", "other"),
            ("TE", "trailers"),
            ("Cookie", "a=b"),
        ]);
        let mut out = Vec::new();
        fields.write_end_to_end(&mut out);
        assert_eq!(out, b"Accept: */*\r\nCookie: a=b\r\n");
    }
}
