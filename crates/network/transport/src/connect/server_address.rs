//! URLs of servers, as clients write them.
//! Invariant: pure. No error text contains the URL, which may contain a secret.

#[cfg(test)]
mod tests;

use std::{
    fmt,
    net::{IpAddr, Ipv6Addr},
    path::PathBuf,
    str::FromStr,
};

use http::Uri;

use crate::listen_url::ListenUrl;

/// Address of a websocket server.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum ServerAddress {
    /// `ws://HOST[:PORT][/PATH]` or `wss://…`.
    Network(ServerHost),
    /// `unix:///path`: a socket at this absolute path.
    Unix(PathBuf),
}

/// A server on a network.
#[derive(Clone, Eq, PartialEq)]
pub struct ServerHost {
    /// Whether the connection uses TLS.
    pub scheme: WebSocketScheme,
    /// A host name, or a numeric address without brackets.
    pub name: String,
    /// The port. Default: 80 or 443.
    pub port: u16,
    /// Path and query of the request.
    pub(super) target: String,
}

/// Scheme of a network address.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum WebSocketScheme {
    /// `ws`: unencrypted.
    Ws,
    /// `wss`: over TLS.
    Wss,
}

impl ServerAddress {
    /// Returns whether data sent there is encrypted or stays on this machine.
    pub fn is_private(&self) -> bool {
        match self {
            Self::Network(host) => host.scheme == WebSocketScheme::Wss || host.is_loopback(),
            Self::Unix(_) => true,
        }
    }
}

impl ServerHost {
    /// Returns whether the name is a loopback name or address. Resolves nothing.
    pub fn is_loopback(&self) -> bool {
        self.name.eq_ignore_ascii_case("localhost")
            || self
                .name
                .parse::<IpAddr>()
                .is_ok_and(|ip| ip.to_canonical().is_loopback())
    }

    /// Returns the value of the `Host` header. The port is omitted if it is the scheme's default,
    /// as request signatures require.
    pub(super) fn header(&self) -> String {
        let default = match self.scheme {
            WebSocketScheme::Ws => 80,
            WebSocketScheme::Wss => 443,
        };
        match self.port == default {
            true => self.url_name(),
            false => self.authority(),
        }
    }

    /// Returns host and port in URL form.
    pub(super) fn authority(&self) -> String {
        format!("{}:{}", self.url_name(), self.port)
    }

    /// Returns the name in URL form, with brackets around an IPv6 address.
    fn url_name(&self) -> String {
        match self.name.contains(':') {
            true => format!("[{}]", self.name),
            false => self.name.clone(),
        }
    }
}

impl FromStr for ServerAddress {
    type Err = ServerAddressError;

    fn from_str(url: &str) -> Result<Self, ServerAddressError> {
        let (scheme, rest) = url.split_once("://").ok_or(ServerAddressError::NoScheme)?;
        let (scheme, default) = match scheme.to_ascii_lowercase().as_str() {
            "ws" => (WebSocketScheme::Ws, 80),
            "wss" => (WebSocketScheme::Wss, 443),
            "unix" => return unix(url),
            other if is_scheme(other) => return Err(ServerAddressError::Scheme(other.to_owned())),
            _ => return Err(ServerAddressError::NoScheme),
        };
        if rest.contains('#') {
            return Err(ServerAddressError::Fragment);
        }
        let uri: Uri = url.parse().map_err(|error: http::uri::InvalidUri| {
            ServerAddressError::Malformed(error.to_string())
        })?;
        let authority = uri.authority().ok_or(ServerAddressError::NoHost)?;
        if authority.as_str().contains('@') {
            return Err(ServerAddressError::UserInfo);
        }
        let name = authority.host();
        let port = match authority.as_str().strip_prefix(name) {
            None | Some("") => default,
            Some(port) => port
                .strip_prefix(':')
                .and_then(|port| port.parse().ok())
                .filter(|port| *port > 0)
                .ok_or(ServerAddressError::Port)?,
        };
        let name = match name.strip_prefix('[') {
            Some(name) => {
                let name = name.strip_suffix(']').ok_or(ServerAddressError::NoHost)?;
                name.parse::<Ipv6Addr>()
                    .map_err(|_| ServerAddressError::NoHost)?;
                name
            }
            None => name,
        };
        if name.is_empty() {
            return Err(ServerAddressError::NoHost);
        }
        let query = uri.query().map(|query| format!("?{query}"));
        Ok(Self::Network(ServerHost {
            scheme,
            name: name.to_owned(),
            port,
            target: format!("{}{}", uri.path(), query.unwrap_or_default()),
        }))
    }
}

/// Distinguishes a scheme from other text before `://`, which may be a secret.
fn is_scheme(text: &str) -> bool {
    let mark = |c: char| matches!(c, '+' | '-' | '.');
    text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || mark(c))
}

fn unix(url: &str) -> Result<ServerAddress, ServerAddressError> {
    match url.parse() {
        Ok(ListenUrl::Unix(path)) => Ok(ServerAddress::Unix(path)),
        Ok(_) | Err(_) => Err(ServerAddressError::Path),
    }
}

impl fmt::Display for ServerAddress {
    /// Writes the URL; for a network address without path and query, which may contain a secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Network(host) => host.fmt(f),
            Self::Unix(path) => write!(f, "unix://{}", path.display()),
        }
    }
}

impl fmt::Display for ServerHost {
    /// Writes the URL without path and query, which may contain a secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = match self.scheme {
            WebSocketScheme::Ws => "ws",
            WebSocketScheme::Wss => "wss",
        };
        write!(f, "{scheme}://{}", self.authority())
    }
}

impl fmt::Debug for ServerHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Host({self})")
    }
}

/// Caller: the text is not a server URL. The error omits it, because it may contain a secret.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ServerAddressError {
    /// The scheme is missing.
    #[error("expected ws://HOST:PORT, wss://HOST:PORT or unix:///path")]
    NoScheme,
    /// The scheme is not supported.
    #[error(
        "scheme `{0}` is not supported; expected ws://HOST:PORT, wss://HOST:PORT or unix:///path"
    )]
    Scheme(String),
    /// The host is missing or malformed.
    #[error("host is missing or malformed")]
    NoHost,
    /// The port is not a number from 1 to 65535.
    #[error("port is not a number from 1 to 65535")]
    Port,
    /// The URL contains a user name or password.
    #[error("user names and passwords are not supported; use a bearer token or a header")]
    UserInfo,
    /// The URL has a fragment, which requests do not carry (RFC 6455 section 3).
    #[error("a websocket URL has no fragment (`#`)")]
    Fragment,
    /// The path of a unix socket is not absolute.
    #[error("expected an absolute path, as in unix:///path")]
    Path,
    /// The text is not a URI.
    #[error("{0}")]
    Malformed(String),
}
