//! Response heads: parses them, determines the body, and writes the head for the client. Pure.

use super::{
    message_head::{BodyFraming, FramingError, HeaderFields, write_field},
    request::{HttpVersion, ProxyRequest},
};
use crate::limits;

/// Response of a server.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct ProxyResponse {
    status: u16,
    reason: String,
    fields: HeaderFields,
}

/// What follows the head of a response.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum BodyKind {
    /// Another response: this one is interim.
    Interim,
    /// An upgraded protocol.
    Switch,
    /// No body.
    Empty,
    /// A body.
    Body(BodyFraming),
}

impl ProxyResponse {
    /// Parses a head, which ends with an empty line.
    pub(crate) fn parse(head: &[u8]) -> Result<Self, HttpResponseError> {
        let mut space = [httparse::EMPTY_HEADER; limits::MAX_FIELDS];
        let mut parsed = httparse::Response::new(&mut space);
        // Lenient, because the fields are written anew for the client.
        let parsing = httparse::ParserConfig::default()
            .allow_spaces_after_header_name_in_responses(true)
            .parse_response(&mut parsed, head);
        match parsing {
            Ok(httparse::Status::Complete(length)) if length == head.len() => {}
            Ok(_) | Err(_) => return Err(HttpResponseError::Syntax),
        }
        match parsed.code {
            Some(status @ 100..=599) => Ok(Self {
                status,
                reason: parsed.reason.unwrap_or_default().to_owned(),
                fields: HeaderFields::from_parsed(parsed.headers),
            }),
            Some(_) | None => Err(HttpResponseError::Syntax),
        }
    }

    /// Returns what follows the head of the response to `request`.
    pub(crate) fn body_kind(&self, request: &ProxyRequest) -> Result<BodyKind, HttpResponseError> {
        let framing = self.fields.response_framing()?;
        match self.status {
            101 => Ok(BodyKind::Switch),
            100..=199 => Ok(BodyKind::Interim),
            204 | 304 => Ok(BodyKind::Empty),
            _ if request.method == "HEAD" => Ok(BodyKind::Empty),
            _ if framing == BodyFraming::Chunked && request.version == HttpVersion::Http10 => {
                Err(HttpResponseError::Version)
            }
            _ => Ok(BodyKind::Body(framing)),
        }
    }

    /// Writes the head for the client.
    pub(crate) fn write_head(&self, body_kind: BodyKind) -> Vec<u8> {
        let mut out = format!("HTTP/1.1 {} {}\r\n", self.status, self.reason).into_bytes();
        self.fields.write_end_to_end(&mut out);
        let is_transfer_encoded = self.fields.values("transfer-encoding").next().is_some();
        match body_kind {
            BodyKind::Switch => {
                write_field(&mut out, "Connection", b"Upgrade");
                self.fields.write_named("Upgrade", &mut out);
            }
            BodyKind::Interim => {}
            BodyKind::Empty | BodyKind::Body(_) => {
                write_field(&mut out, "Connection", b"close");
                if is_transfer_encoded {
                    self.fields.write_named("Transfer-Encoding", &mut out);
                } else if let Ok(Some(length)) = self.fields.content_length() {
                    write_field(&mut out, "Content-Length", length.to_string().as_bytes());
                }
            }
        }
        out.extend_from_slice(b"\r\n");
        out
    }
}

/// Why a response is refused. Peer: all variants.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub(crate) enum HttpResponseError {
    #[error("not an HTTP/1 response")]
    Syntax,
    #[error("the client does not support chunks")]
    Version,
    #[error("the body has {0}")]
    Framing(#[from] FramingError),
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn request(method: &str, version: &str) -> ProxyRequest {
        ProxyRequest::parse(format!("{method} http://a/ HTTP/{version}\r\n\r\n").as_bytes())
            .unwrap()
    }

    #[test]
    fn body_kind_follows_from_request_and_head() {
        let (length, chunked) = (
            "Content-Length: 3\r\n",
            "Transfer-Encoding: gzip, chunked\r\n",
        );
        let both = format!("{length}{chunked}");
        let two = "Content-Length: 3\r\nContent-Length: 4\r\n";
        for (method, status, fields, expected) in [
            (
                "GET",
                "200 OK",
                length,
                Ok(BodyKind::Body(BodyFraming::Length(3))),
            ),
            (
                "GET",
                "200 OK",
                chunked,
                Ok(BodyKind::Body(BodyFraming::Chunked)),
            ),
            (
                "GET",
                "200 OK",
                &both,
                Ok(BodyKind::Body(BodyFraming::Chunked)),
            ),
            (
                "GET",
                "200",
                "",
                Ok(BodyKind::Body(BodyFraming::UntilClose)),
            ),
            (
                "GET",
                "200 OK",
                two,
                Err(HttpResponseError::Framing(FramingError::Length)),
            ),
            ("HEAD", "200 OK", length, Ok(BodyKind::Empty)),
            ("GET", "204 No", length, Ok(BodyKind::Empty)),
            ("GET", "304 No", length, Ok(BodyKind::Empty)),
            ("GET", "100 Continue", "", Ok(BodyKind::Interim)),
            ("GET", "101 Switch", "", Ok(BodyKind::Switch)),
        ] {
            let head = format!("HTTP/1.1 {status}\r\n{fields}\r\n");
            let response = ProxyResponse::parse(head.as_bytes()).unwrap();
            assert_eq!(
                response.body_kind(&request(method, "1.1")),
                expected,
                "{method} {head}"
            );
        }
        let response =
            ProxyResponse::parse(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n");
        assert_eq!(
            response.unwrap().body_kind(&request("GET", "1.0")),
            Err(HttpResponseError::Version)
        );
    }

    #[test]
    fn response_head_is_forwarded_with_one_framing() {
        let head = b"HTTP/1.0 200 Fine\nA: b\nConnection: keep-alive\nKeep-Alive: 1\n\
            Content-Length: 3\nTransfer-Encoding: chunked\n\n";
        let response = ProxyResponse::parse(head).unwrap();
        let out = response.write_head(BodyKind::Body(BodyFraming::Chunked));
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "HTTP/1.1 200 Fine\r\nA: b\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
        );
    }

    proptest! {
        #[test]
        fn parser_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            drop(ProxyResponse::parse(&bytes));
        }
    }
}
