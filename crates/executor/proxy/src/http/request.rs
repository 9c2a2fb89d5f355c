//! Request heads: parses and validates them, and writes the head for the server. Pure.

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

/// Splits `host:port`. The port is required if there is no default.
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

#[cfg(test)]
mod tests;
