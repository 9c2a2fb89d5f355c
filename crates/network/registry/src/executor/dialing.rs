//! How an executor opens websockets.

use exec_transport::{
    connect::{Address, CONNECT_TIMEOUT, ConnectError, Headers, Proxy, WebSocket},
    tls::Trust,
    websocket::socket::Socket,
};
use uuid::Uuid;

use crate::api::Secret;

/// What holds for every websocket that is opened.
#[derive(Clone, Debug, Default)]
pub struct Dialing {
    /// Whose certificates are accepted.
    pub trust: Trust,
    /// Who is asked for a tunnel. What is on this machine is dialled without.
    pub proxy: Option<Proxy>,
    /// What is sent with every upgrade, such as the name of a cluster.
    pub headers: Headers,
}

impl Dialing {
    /// Opens the websocket of a rendezvous. Each attempt has a number of its own, by which both sides
    /// find it in their logs.
    pub(super) async fn rendezvous(&self, url: &Secret) -> Result<Socket, ConnectError> {
        let address: Address = url.expose().parse()?;
        if matches!(address, Address::Unix(_)) {
            // A registry is somewhere else, and knows no paths of this machine.
            return Err(ConnectError::NotWebSocket(
                "its URL is the path of a socket",
            ));
        }
        let proxy = self.proxy(&address);
        let mut headers = self.headers.clone();
        headers.add("x-request-id", &request_id())?;
        let socket = WebSocket {
            headers,
            trust: self.trust.clone(),
            connect_timeout: CONNECT_TIMEOUT,
            ..WebSocket::new(address)
        };
        match proxy {
            Some(proxy) => socket.open_socket_through(proxy).await,
            None => socket.open_socket().await,
        }
    }

    /// Returns who is asked for a tunnel to an address.
    pub(crate) fn proxy(&self, address: &Address) -> Option<&Proxy> {
        let near = match address {
            Address::Network(host) => host.is_loopback(),
            Address::Unix(_) => true,
        };
        self.proxy.as_ref().filter(|_| !near)
    }
}

fn request_id() -> String {
    format!("req_{}", Uuid::new_v4().simple())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_numbered_in_lower_case_hexadecimal() {
        let (one, two) = (request_id(), request_id());
        assert_ne!(one, two);
        for id in [one, two] {
            let digits = id.strip_prefix("req_").unwrap();
            assert_eq!(digits.len(), 32);
            assert!(
                digits
                    .bytes()
                    .all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
            );
        }
    }

    #[test]
    fn this_machine_is_dialled_without_a_proxy() {
        let dialing = Dialing {
            proxy: Some("http://p.test:3128".parse().unwrap()),
            ..Dialing::default()
        };
        for (url, asked) in [
            ("wss://a.test/x", true),
            ("ws://10.0.0.1", true),
            ("ws://localhost:1", false),
            ("ws://127.0.0.1:1/x", false),
            ("unix:///tmp/x", false),
        ] {
            let address = url.parse().unwrap();
            assert_eq!(dialing.proxy(&address).is_some(), asked, "{url}");
        }
    }

    #[tokio::test]
    async fn a_url_that_leads_nowhere_is_an_error_and_not_a_panic() {
        for url in ["", "x", "http://a.test", "unix:///tmp/x", "ws://"] {
            let refused = Dialing::default().rendezvous(&Secret::new(url)).await;
            assert!(refused.is_err(), "{url}");
        }
    }
}
