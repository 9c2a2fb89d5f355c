//! Where clients find this hub.

use http::uri::Authority;
use url::Url;

/// The address that goes into URLs: what the operator said, or else what the client itself used.
#[derive(Clone, Debug)]
pub struct PublicUrl {
    fixed: Option<Url>,
    scheme: Scheme,
}

#[derive(Clone, Copy, Debug)]
enum Scheme {
    Plain,
    Tls,
}

impl PublicUrl {
    /// Takes what the operator said: an `http`, `https`, `ws` or `wss` URL, possibly with a path
    /// under which a proxy serves the hub.
    pub fn fixed(url: &str) -> Result<Self, HostError> {
        let mut url = Url::parse(url.trim()).map_err(|_| HostError::Public)?;
        let scheme = match url.scheme() {
            "http" | "ws" => Scheme::Plain,
            "https" | "wss" => Scheme::Tls,
            _ => return Err(HostError::Public),
        };
        if !url.has_host()
            || !url.username().is_empty()
            || url.password().is_some()
            || url.query().is_some()
            || url.fragment().is_some()
        {
            return Err(HostError::Public);
        }
        url.set_scheme(scheme.websocket())
            .map_err(|()| HostError::Public)?;
        Ok(Self {
            fixed: Some(url),
            scheme,
        })
    }

    /// Takes the `Host` header of each request.
    pub const fn plain() -> Self {
        Self {
            fixed: None,
            scheme: Scheme::Plain,
        }
    }

    /// Takes the `Host` header of each request, which came over TLS.
    pub const fn tls() -> Self {
        Self {
            fixed: None,
            scheme: Scheme::Tls,
        }
    }

    /// Returns the host name that the operator said, if that is what it is.
    pub fn host_name(&self) -> Option<&str> {
        self.fixed.as_ref()?.domain()
    }

    /// Returns the websocket URL of this hub without a trailing slash, for a client that sent this
    /// `Host` header.
    pub fn websocket(&self, host: Option<&str>) -> Result<String, HostError> {
        if let Some(fixed) = &self.fixed {
            return Ok(fixed.as_str().trim_end_matches('/').to_owned());
        }
        let host: Authority = host
            .ok_or(HostError::Host)?
            .parse()
            .map_err(|_| HostError::Host)?;
        if host.as_str().contains('@') || host.host().is_empty() {
            return Err(HostError::Host);
        }
        Ok(format!("{}://{host}", self.scheme.websocket()))
    }
}

impl Scheme {
    const fn websocket(self) -> &'static str {
        match self {
            Self::Plain => "ws",
            Self::Tls => "wss",
        }
    }
}

/// Why the hub's own address is not known.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum HostError {
    /// Caller: the public URL is not one.
    #[error(
        "public URL must be http(s)://host[:port][/path] without credentials, query or fragment"
    )]
    Public,
    /// Peer: the request names no host, or none that can be part of a URL.
    #[error("request has no usable Host header")]
    Host,
}
