//! The head of a response: how its body ends, and how it reads when it goes on. Pure.

use super::{
    message_head::{Fields, Framing, FramingError, write_field},
    request::{Request, Version},
};
use crate::limits;

/// A response of a server.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Response {
    status: u16,
    reason: String,
    fields: Fields,
}

/// What comes after the head of a response.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Sequel {
    /// Another response: this one is only on the way.
    Interim,
    /// Another protocol.
    Switch,
    /// Nothing.
    Nothing,
    /// A body.
    Body(Framing),
}

impl Response {
    /// Reads a head, which ends with an empty line.
    pub(crate) fn parse(head: &[u8]) -> Result<Self, ResponseError> {
        let mut space = [httparse::EMPTY_HEADER; limits::MAX_FIELDS];
        let mut parsed = httparse::Response::new(&mut space);
        // The fields are written anew, so that this reaches nobody else.
        let parsing = httparse::ParserConfig::default()
            .allow_spaces_after_header_name_in_responses(true)
            .parse_response(&mut parsed, head);
        match parsing {
            Ok(httparse::Status::Complete(length)) if length == head.len() => {}
            Ok(_) | Err(_) => return Err(ResponseError::Syntax),
        }
        match parsed.code {
            Some(status @ 100..=599) => Ok(Self {
                status,
                reason: parsed.reason.unwrap_or_default().to_owned(),
                fields: Fields::from_parsed(parsed.headers),
            }),
            Some(_) | None => Err(ResponseError::Syntax),
        }
    }

    /// Tells what comes after the head, given the request that it answers.
    pub(crate) fn sequel(&self, request: &Request) -> Result<Sequel, ResponseError> {
        let framing = self.fields.response_framing()?;
        match self.status {
            101 => Ok(Sequel::Switch),
            100..=199 => Ok(Sequel::Interim),
            204 | 304 => Ok(Sequel::Nothing),
            _ if request.method == "HEAD" => Ok(Sequel::Nothing),
            _ if framing == Framing::Chunked && request.version == Version::Http10 => {
                Err(ResponseError::Version)
            }
            _ => Ok(Sequel::Body(framing)),
        }
    }

    /// Writes the head for the client.
    pub(crate) fn write_head(&self, sequel: Sequel) -> Vec<u8> {
        let mut out = format!("HTTP/1.1 {} {}\r\n", self.status, self.reason).into_bytes();
        self.fields.write_end_to_end(&mut out);
        let coded = self.fields.all("transfer-encoding").next().is_some();
        match sequel {
            Sequel::Switch => {
                write_field(&mut out, "Connection", b"Upgrade");
                self.fields.write_all("Upgrade", &mut out);
            }
            Sequel::Interim => {}
            Sequel::Nothing | Sequel::Body(_) => {
                write_field(&mut out, "Connection", b"close");
                if coded {
                    self.fields.write_all("Transfer-Encoding", &mut out);
                } else if let Ok(Some(length)) = self.fields.length() {
                    write_field(&mut out, "Content-Length", length.to_string().as_bytes());
                }
            }
        }
        out.extend_from_slice(b"\r\n");
        out
    }
}

/// Why a response cannot go on. Peer: all of them.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub(crate) enum ResponseError {
    #[error("this is not a response in HTTP/1")]
    Syntax,
    #[error("the client does not know chunks")]
    Version,
    #[error("the body has {0}")]
    Framing(#[from] FramingError),
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn request(method: &str, version: &str) -> Request {
        Request::parse(format!("{method} http://a/ HTTP/{version}\r\n\r\n").as_bytes()).unwrap()
    }

    #[test]
    fn the_sequel_follows_from_request_and_head() {
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
                Ok(Sequel::Body(Framing::Length(3))),
            ),
            ("GET", "200 OK", chunked, Ok(Sequel::Body(Framing::Chunked))),
            ("GET", "200 OK", &both, Ok(Sequel::Body(Framing::Chunked))),
            ("GET", "200", "", Ok(Sequel::Body(Framing::UntilClose))),
            (
                "GET",
                "200 OK",
                two,
                Err(ResponseError::Framing(FramingError::Length)),
            ),
            ("HEAD", "200 OK", length, Ok(Sequel::Nothing)),
            ("GET", "204 No", length, Ok(Sequel::Nothing)),
            ("GET", "304 No", length, Ok(Sequel::Nothing)),
            ("GET", "100 Continue", "", Ok(Sequel::Interim)),
            ("GET", "101 Switch", "", Ok(Sequel::Switch)),
        ] {
            let head = format!("HTTP/1.1 {status}\r\n{fields}\r\n");
            let response = Response::parse(head.as_bytes()).unwrap();
            assert_eq!(
                response.sequel(&request(method, "1.1")),
                expected,
                "{method} {head}"
            );
        }
        let response = Response::parse(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n");
        assert_eq!(
            response.unwrap().sequel(&request("GET", "1.0")),
            Err(ResponseError::Version)
        );
    }

    #[test]
    fn a_head_goes_on_with_one_length() {
        let head = b"HTTP/1.0 200 Fine\nA: b\nConnection: keep-alive\nKeep-Alive: 1\n\
            Content-Length: 3\nTransfer-Encoding: chunked\n\n";
        let response = Response::parse(head).unwrap();
        let out = response.write_head(Sequel::Body(Framing::Chunked));
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "HTTP/1.1 200 Fine\r\nA: b\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
        );
    }

    proptest! {
        #[test]
        fn no_bytes_make_the_parser_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            drop(Response::parse(&bytes));
        }
    }
}
