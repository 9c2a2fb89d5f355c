//! Request and response heads: parses and validates them, determines the body, and writes the head
//! for the other side. Pure.

#[cfg(test)]
mod tests;

use std::fmt::Write as _;

use super::message_head::{BodyFraming, FramingError, HeaderFields, write_field};
use crate::{
    limits,
    target_host::{HostError, TargetHost},
};

/// A request that the proxy can forward.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct ProxyRequest {
    pub(crate) method: String,
    pub(crate) host: TargetHost,
    pub(crate) port: u16,
    pub(crate) kind: RequestKind,
    pub(crate) version: HttpVersion,
}

/// Kind of a request.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum RequestKind {
    /// A tunnel.
    Connect,
    /// A plain HTTP request.
    Plain {
        /// Path and query for the server.
        path: String,
        /// Header fields.
        fields: HeaderFields,
        /// Body framing.
        framing: BodyFraming,
        /// The client requests an upgrade to websocket.
        websocket: bool,
    },
}

/// Supported HTTP versions.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum HttpVersion {
    /// 1.0, which does not support chunks.
    Http10,
    /// 1.1.
    Http11,
}

impl ProxyRequest {
    /// Parses a head, which ends with an empty line.
    pub(crate) fn parse(head: &[u8]) -> Result<Self, HttpRequestError> {
        let is_bare_line_feed =
            |(at, &byte): (usize, &u8)| byte == b'\n' && (at == 0 || head[at - 1] != b'\r');
        if head.iter().enumerate().any(is_bare_line_feed) {
            return Err(HttpRequestError::LineEnd);
        }
        let mut space = [httparse::EMPTY_HEADER; limits::MAX_FIELDS];
        let mut parsed = httparse::Request::new(&mut space);
        match parsed.parse(head) {
            Ok(httparse::Status::Complete(length)) if length == head.len() => {}
            Ok(_) => return Err(HttpRequestError::Syntax),
            Err(httparse::Error::TooManyHeaders) => return Err(HttpRequestError::TooManyFields),
            Err(_) => return Err(HttpRequestError::Syntax),
        }
        let (Some(method), Some(target), Some(version)) =
            (parsed.method, parsed.path, parsed.version)
        else {
            return Err(HttpRequestError::Syntax);
        };
        if method.len() > MAX_METHOD {
            return Err(HttpRequestError::Syntax);
        }
        let version = if version == 0 {
            HttpVersion::Http10
        } else {
            HttpVersion::Http11
        };
        let fields = HeaderFields::from_parsed(parsed.headers);
        let framing = fields.request_framing()?;
        if framing == BodyFraming::Chunked && version == HttpVersion::Http10 {
            return Err(FramingError::Coding.into());
        }
        if fields.values("host").count() > 1 {
            return Err(HttpRequestError::MultipleHosts);
        }
        let (authority, kind) = if method == "CONNECT" {
            if framing != BodyFraming::Length(0) {
                return Err(HttpRequestError::ConnectBody);
            }
            (target, RequestKind::Connect)
        } else {
            let (authority, path) = split_url(target)?;
            let websocket = method == "GET"
                && version == HttpVersion::Http11
                && framing == BodyFraming::Length(0)
                && fields.contains_token("connection", "upgrade")
                && fields.contains_token("upgrade", "websocket");
            let path = match path.as_bytes() {
                [b'/', ..] => path.to_owned(),
                [] if method == "OPTIONS" => "*".to_owned(),
                _ => format!("/{path}"),
            };
            let kind = RequestKind::Plain {
                path,
                fields,
                framing,
                websocket,
            };
            (authority, kind)
        };
        let default_port = (kind != RequestKind::Connect).then_some(HTTP_PORT);
        let (host, port) = split_authority(authority, default_port)?;
        Ok(Self {
            method: method.to_owned(),
            host,
            port,
            kind,
            version,
        })
    }

    /// Returns whether the client requests an upgrade to websocket.
    pub(crate) fn is_websocket(&self) -> bool {
        match self.kind {
            RequestKind::Plain { websocket, .. } => websocket,
            RequestKind::Connect => false,
        }
    }

    /// Removes the upgrade to websocket.
    pub(crate) fn drop_upgrade(&mut self) {
        if let RequestKind::Plain { websocket, .. } = &mut self.kind {
            *websocket = false;
        }
    }

    /// Writes the head for the server. The host is always that of the URL. Empty for CONNECT, which
    /// is not forwarded.
    pub(crate) fn write_head(&self) -> Vec<u8> {
        let RequestKind::Plain {
            path,
            fields,
            framing,
            websocket,
        } = &self.kind
        else {
            return Vec::new();
        };
        let version = match self.version {
            HttpVersion::Http10 => "1.0",
            HttpVersion::Http11 => "1.1",
        };
        let mut line = format!(
            "{} {path} HTTP/{version}\r\nHost: {}",
            self.method, self.host
        );
        if self.port != HTTP_PORT {
            // Writing to a string cannot fail.
            let _ = write!(line, ":{}", self.port);
        }
        let mut out = line.into_bytes();
        out.extend_from_slice(b"\r\n");
        fields.write_end_to_end(&mut out);
        match framing {
            BodyFraming::Chunked => write_field(&mut out, "Transfer-Encoding", b"chunked"),
            BodyFraming::Length(length) if fields.values("content-length").next().is_some() => {
                write_field(&mut out, "Content-Length", length.to_string().as_bytes());
            }
            BodyFraming::Length(_) | BodyFraming::UntilClose => {}
        }
        if *websocket {
            write_field(&mut out, "Connection", b"Upgrade");
            write_field(&mut out, "Upgrade", b"websocket");
        } else {
            write_field(&mut out, "Connection", b"close");
        }
        out.extend_from_slice(b"\r\n");
        out
    }
}

/// Why a request is refused. Peer: all variants.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub(crate) enum HttpRequestError {
    #[error("a line does not end with CRLF")]
    LineEnd,
    #[error("not an HTTP/1 request")]
    Syntax,
    #[error("more than {} header fields", limits::MAX_FIELDS)]
    TooManyFields,
    #[error("more than one Host field")]
    MultipleHosts,
    #[error("CONNECT must not have a body")]
    ConnectBody,
    #[error("the target must be an absolute http URL; use CONNECT for other schemes")]
    Target,
    #[error("the target must not contain a user name")]
    User,
    #[error("the port must be a number from 1 to 65535")]
    Port,
    #[error("invalid host: {0}")]
    Host(#[from] HostError),
    #[error("the body has {0}")]
    Framing(#[from] FramingError),
}

/// Splits `http://authority/path?query`. Refuses fragments.
fn split_url(target: &str) -> Result<(&str, &str), HttpRequestError> {
    let scheme = target.get(..HTTP_SCHEME.len());
    let rest = match scheme {
        Some(scheme) if scheme.eq_ignore_ascii_case(HTTP_SCHEME) => &target[HTTP_SCHEME.len()..],
        Some(_) | None => return Err(HttpRequestError::Target),
    };
    if rest.contains('#') || !rest.is_ascii() {
        return Err(HttpRequestError::Target);
    }
    Ok(rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len())))
}

/// Splits `host:port`. Without a default, the port is required.
fn split_authority(
    text: &str,
    default: Option<u16>,
) -> Result<(TargetHost, u16), HttpRequestError> {
    if text.contains('@') {
        return Err(HttpRequestError::User);
    }
    let colon = match text.rfind(']') {
        Some(bracket) => text[bracket..].find(':').map(|at| bracket + at),
        None => text.find(':'),
    };
    let (host, port) = match colon {
        Some(at) => (&text[..at], &text[at + 1..]),
        None => (text, ""),
    };
    let port = match (port.as_bytes(), default) {
        ([], Some(default)) => default,
        ([b'0'..=b'9', ..], _) => port.parse().map_err(|_| HttpRequestError::Port)?,
        _ => return Err(HttpRequestError::Port),
    };
    if port == 0 {
        return Err(HttpRequestError::Port);
    }
    // A bare IPv6 address is refused above: the text after its first colon is not a valid port.
    Ok((TargetHost::parse(host)?, port))
}

const HTTP_SCHEME: &str = "http://";
const HTTP_PORT: u16 = 80;
/// Longer than any method.
const MAX_METHOD: usize = 32;

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
