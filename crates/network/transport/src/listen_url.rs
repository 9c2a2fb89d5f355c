//! The address of a listener, as given to `--listen`.
//! Invariant: pure. Host names are rejected instead of resolved, so the bound address is the
//! written one. Elsewhere: binding.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// Default listen address: a free port on loopback.
pub const DEFAULT_LISTEN_URL: &str = "ws://127.0.0.1:0";

/// Returns the lock file of a server on the unix socket at `path`.
pub fn lock_path(path: &Path) -> PathBuf {
    let mut lock = path.as_os_str().to_owned();
    lock.push(".lock");
    lock.into()
}

/// Address of a listener.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub enum ListenUrl {
    /// `ws://IP:PORT`: websocket. Port 0 selects a free one.
    Ws(SocketAddr),
    /// `wss://IP:PORT`: websocket over TLS. Port 0 selects a free one.
    Wss(SocketAddr),
    /// `unix:///path`: websocket over a unix socket at this absolute path.
    Unix(PathBuf),
    /// `stdio` or `stdio://`: one client on stdin and stdout.
    Stdio,
    /// `off`: no listener.
    Off,
}

impl ListenUrl {
    /// Returns whether the server listens on a socket.
    pub fn has_socket(&self) -> bool {
        matches!(self, Self::Ws(_) | Self::Wss(_) | Self::Unix(_))
    }

    /// Returns whether only this machine can connect.
    ///
    /// True for addresses that are not on a network, and for IPv4 loopback written as IPv6.
    pub fn is_loopback(&self) -> bool {
        match self {
            Self::Ws(address) | Self::Wss(address) => address.ip().to_canonical().is_loopback(),
            Self::Unix(_) | Self::Stdio | Self::Off => true,
        }
    }

    /// Returns whether clients connect over TCP and thus need authentication.
    pub fn is_network(&self) -> bool {
        matches!(self, Self::Ws(_) | Self::Wss(_))
    }
}

impl Default for ListenUrl {
    /// Same as [`DEFAULT_LISTEN_URL`].
    fn default() -> Self {
        Self::Ws(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))
    }
}

impl FromStr for ListenUrl {
    type Err = ListenUrlParseError;

    fn from_str(url: &str) -> Result<Self, Self::Err> {
        match url {
            "stdio" | "stdio://" => return Ok(Self::Stdio),
            "off" => return Ok(Self::Off),
            _ => {}
        }
        let Some((scheme, rest)) = url.split_once("://") else {
            return Err(ListenUrlParseError::Unsupported(url.to_owned()));
        };
        let address = || {
            rest.parse::<SocketAddr>()
                .map_err(|_| ListenUrlParseError::InvalidAddress(url.to_owned()))
        };
        match scheme {
            "ws" => address().map(Self::Ws),
            "wss" => address().map(Self::Wss),
            "unix" if rest.len() > 1 && rest.starts_with('/') && !rest.contains('\0') => {
                Ok(Self::Unix(PathBuf::from(rest)))
            }
            "unix" => Err(ListenUrlParseError::InvalidPath(url.to_owned())),
            _ => Err(ListenUrlParseError::Unsupported(url.to_owned())),
        }
    }
}

impl fmt::Display for ListenUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ws(address) => write!(f, "ws://{address}"),
            Self::Wss(address) => write!(f, "wss://{address}"),
            Self::Unix(path) => write!(f, "unix://{}", path.display()),
            Self::Stdio => f.write_str("stdio"),
            Self::Off => f.write_str("off"),
        }
    }
}

/// Caller: the text is not a listen URL. The message lists the valid forms.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ListenUrlParseError {
    /// The scheme is missing or not supported.
    #[error(
        "unsupported listen URL `{0}`; supported are ws://IP:PORT, wss://IP:PORT, unix:///path, \
         stdio, stdio:// and off"
    )]
    Unsupported(String),
    /// The part after `ws://` or `wss://` is not a numeric address with a port.
    #[error(
        "invalid address in listen URL `{0}`; supported is IP:PORT with a numeric IP, such as \
         127.0.0.1:0 or [::1]:8080, and no host name or path"
    )]
    InvalidAddress(String),
    /// The part after `unix://` is not an absolute path.
    #[error("invalid path in listen URL `{0}`; supported is an absolute one, as in unix:///path")]
    InvalidPath(String),
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(url: &str) -> Result<ListenUrl, ListenUrlParseError> {
        url.parse()
    }

    fn address(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    #[test]
    fn supported_urls_are_parsed() {
        let urls = [
            ("ws://127.0.0.1:0", ListenUrl::Ws(address("127.0.0.1:0"))),
            (
                "ws://0.0.0.0:65535",
                ListenUrl::Ws(address("0.0.0.0:65535")),
            ),
            ("ws://[::1]:8080", ListenUrl::Ws(address("[::1]:8080"))),
            (
                "wss://192.0.2.7:443",
                ListenUrl::Wss(address("192.0.2.7:443")),
            ),
            (
                "unix:///run/exec.sock",
                ListenUrl::Unix(PathBuf::from("/run/exec.sock")),
            ),
            ("stdio", ListenUrl::Stdio),
            ("stdio://", ListenUrl::Stdio),
            ("off", ListenUrl::Off),
        ];
        for (url, expected) in urls {
            assert_eq!(parse(url), Ok(expected), "{url}");
        }
    }

    #[test]
    fn addresses_must_be_numeric_and_have_a_port() {
        let urls = [
            "ws://localhost:0",
            "wss://example.org:443",
            "ws://127.0.0.1",
            "ws://127.0.0.1:",
            "ws://127.0.0.1:65536",
            "ws://127.0.0.1:0/",
            "ws://127.0.0.1:0/path",
            "ws://user@127.0.0.1:0",
            "ws://::1:8080",
            "ws://[::1]",
            "ws://:0",
            "ws://",
        ];
        for url in urls {
            assert_eq!(
                parse(url),
                Err(ListenUrlParseError::InvalidAddress(url.to_owned()))
            );
        }
    }

    #[test]
    fn unix_paths_must_be_absolute() {
        for url in [
            "unix://",
            "unix:///",
            "unix://run/exec.sock",
            "unix://./x",
            "unix:///a\0b",
        ] {
            assert_eq!(
                parse(url),
                Err(ListenUrlParseError::InvalidPath(url.to_owned()))
            );
        }
    }

    #[test]
    fn other_schemes_are_unsupported() {
        let urls = [
            "",
            "127.0.0.1:0",
            "http://127.0.0.1:0",
            "WS://127.0.0.1:0",
            "stdio:",
            "on",
            "unix:/x",
        ];
        for url in urls {
            let error = parse(url).unwrap_err();
            assert_eq!(error, ListenUrlParseError::Unsupported(url.to_owned()));
            assert!(error.to_string().contains("ws://IP:PORT"), "{error}");
        }
    }

    #[test]
    fn loopback_covers_every_address_unreachable_from_other_machines() {
        let inside = [
            DEFAULT_LISTEN_URL,
            "ws://127.8.8.8:1",
            "wss://[::1]:1",
            "ws://[::ffff:127.0.0.1]:1",
            "unix:///x",
            "stdio",
            "off",
        ];
        for url in inside {
            assert!(parse(url).unwrap().is_loopback(), "{url}");
        }
        for url in [
            "ws://0.0.0.0:1",
            "ws://[::]:1",
            "wss://192.0.2.7:1",
            "ws://[fe80::1]:1",
        ] {
            assert!(!parse(url).unwrap().is_loopback(), "{url}");
        }
    }

    #[test]
    fn default_matches_the_default_url() {
        assert_eq!(parse(DEFAULT_LISTEN_URL), Ok(ListenUrl::default()));
    }

    #[test]
    fn display_round_trips() {
        for url in [
            "ws://127.0.0.1:0",
            "wss://[::1]:443",
            "unix:///run/x",
            "stdio",
            "off",
        ] {
            assert_eq!(parse(url).unwrap().to_string(), url);
        }
    }
}
