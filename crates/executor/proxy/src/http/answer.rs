//! What the proxy itself says to a client.

use std::{io, time::Duration};

use tokio::{io::AsyncWriteExt, net::TcpStream, time::timeout};

use crate::{gate::Refusal, tunnel};

/// An answer of the proxy's own, after which the connection is closed.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Answer {
    status: &'static str,
    error: &'static str,
    text: String,
}

impl Answer {
    /// Says that the request is not one.
    pub(super) fn bad(text: impl ToString) -> Self {
        Self::new("400 Bad Request", "bad-request", text.to_string())
    }

    /// Says that the head of the request did not come in time.
    pub(super) fn late() -> Self {
        Self::new(
            "408 Request Timeout",
            "timeout",
            "no request in time".into(),
        )
    }

    /// Says that the head of the request is too large.
    pub(super) fn too_large() -> Self {
        Self::new(
            "431 Request Header Fields Too Large",
            "bad-request",
            "the head of the request is too large".into(),
        )
    }

    /// Says that the server did not answer with a response.
    pub(super) fn bad_gateway() -> Self {
        Self::new(
            "502 Bad Gateway",
            "bad-gateway",
            "the server gave no response".into(),
        )
    }

    /// Says that there are too many connections.
    pub(super) fn busy() -> Self {
        Self::new(
            "503 Service Unavailable",
            "busy",
            "too many connections".into(),
        )
    }

    /// Writes the answer and closes the connection, so that the client gets to read it.
    pub(super) async fn send(self, mut stream: TcpStream, limit: Duration) {
        let Self {
            status,
            error,
            text,
        } = self;
        let message = format!(
            "HTTP/1.1 {status}\r\nContent-Type: text/plain; charset=utf-8\r\n\
             Content-Length: {}\r\nx-proxy-error: {error}\r\nConnection: close\r\n\r\n{text}\n",
            text.len() + 1
        );
        let write = async {
            stream.write_all(message.as_bytes()).await?;
            tunnel::part(&mut stream).await
        };
        // The client is gone, or does not read. Either way there is nobody to tell.
        drop(timeout(limit, write).await);
    }

    fn new(status: &'static str, error: &'static str, text: String) -> Self {
        Self {
            status,
            error,
            text,
        }
    }
}

impl From<Refusal> for Answer {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Blocked(reason) => Self::new(
                "403 Forbidden",
                "blocked-by-allowlist",
                format!("blocked by the network policy: {reason}"),
            ),
            Refusal::Unknown => Self::new(
                "502 Bad Gateway",
                "unknown-host",
                "the host name has no address".into(),
            ),
            Refusal::Unreachable(io::ErrorKind::TimedOut) => Self::new(
                "504 Gateway Timeout",
                "timeout",
                "the host does not accept the connection in time".into(),
            ),
            Refusal::Unreachable(kind) => Self::new(
                "502 Bad Gateway",
                "unreachable",
                format!("cannot connect to the host: {kind}"),
            ),
        }
    }
}
