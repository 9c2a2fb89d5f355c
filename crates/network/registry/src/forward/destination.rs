//! Where streams are forwarded to.

use std::{fmt, str::FromStr, time::Duration};

use exec_transport::{
    connect::{Address, AddressError, ConnectError, WebSocket},
    link::Link,
    tls::Trust,
    websocket::{LinkOptions, Sends},
};
use exec_wire::limits;

/// How long a destination may take to answer.
const OPEN_TIMEOUT: Duration = Duration::from_secs(10);

/// A websocket server: `ws://HOST:PORT/PATH` or `wss://…`. Nothing is shown to it but the request.
#[derive(Clone)]
pub struct Destination(Address);

impl Destination {
    /// Opens a websocket to it. Dropping the future leaves none.
    pub(super) async fn open(&self, trust: &Trust) -> Result<Link, ConnectError> {
        let socket = WebSocket {
            trust: trust.clone(),
            connect_timeout: OPEN_TIMEOUT,
            ..WebSocket::new(self.0.clone())
        };
        // Who passes on what it has not read does not call it text.
        let options = LinkOptions {
            sends: Sends::Binary,
            max_message_bytes: limits::MAX_MESSAGE_BYTES,
            budget: None,
        };
        socket.open_with(options, None).await
    }
}

impl FromStr for Destination {
    type Err = DestinationError;

    fn from_str(url: &str) -> Result<Self, DestinationError> {
        match url.trim().parse()? {
            address @ Address::Network(_) => Ok(Self(address)),
            Address::Unix(_) => Err(DestinationError::Unix),
        }
    }
}

impl fmt::Display for Destination {
    /// Writes the URL without path and query, which may hold a secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Destination({self})")
    }
}

/// Caller: the text is no destination.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum DestinationError {
    /// It is no URL of a server.
    #[error("destination is refused: {0}")]
    Address(#[from] AddressError),
    /// It names a socket of this machine's file system.
    #[error("destination begins with ws:// or wss://")]
    Unix,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_destination_is_a_websocket_on_a_network() {
        for url in ["ws://a.test:1/x", " wss://a.test ", "ws://[::1]:80/?q=s"] {
            assert!(url.parse::<Destination>().is_ok(), "{url}");
        }
        for url in [
            "",
            "a.test:1",
            "http://a.test",
            "ws://",
            "unix:///tmp/x",
            "ws://u:p@a.test",
        ] {
            assert!(url.parse::<Destination>().is_err(), "{url}");
        }
        let shown = "ws://a.test/s3cret?k=s3cret"
            .parse::<Destination>()
            .unwrap();
        assert_eq!(
            format!("{shown} {shown:?}"),
            "ws://a.test:80 Destination(ws://a.test:80)"
        );
    }
}
