//! The proxy's HTTP side: CONNECT, and requests in plain HTTP.
//!
//! Invariant: of what a client sends after the head of a request in plain HTTP, only the body
//! reaches the server. A second request behind it could name another host. Not here: keeping
//! connections open; each one carries one request.
//!
//! Serves one connection: reads what it wants, lets the gate decide, and carries it.
//!
//! What the proxy itself says to a client.

pub(crate) mod chunked_body;
mod exchange;
pub(crate) mod message_head;
pub(crate) mod request;
pub(crate) mod response;

use std::{io, net::SocketAddr, time::Duration};

use exec_wire::network::{NetworkProtocol, ProxyMode};
use tokio::{
    io::AsyncWriteExt,
    net::TcpStream,
    time::{error::Elapsed, timeout},
};

use self::{
    exchange::{Outcome, exchange},
    message_head::{HeadBuffer, HeadError},
    request::{Kind, Request},
};
use crate::{
    limits::Limits,
    policy_gate::{Gate, Refusal, Wish},
    tunnel::{self, End},
};

/// Serves the one request of a connection.
pub(crate) async fn serve(gate: &Gate, mut client: TcpStream, peer: SocketAddr) {
    let limits = &gate.limits;
    let mut buffer = HeadBuffer::default();
    let (head, early) = match timeout(limits.handshake, buffer.read(&mut client)).await {
        Ok(Ok(read)) => read,
        Ok(Err(HeadError::TooLarge)) => {
            return Answer::too_large().send(client, limits.farewell).await;
        }
        Ok(Err(HeadError::Nothing | HeadError::Cut | HeadError::Read(_))) => return,
        Err(Elapsed { .. }) => return Answer::late().send(client, limits.farewell).await,
    };
    let request = match Request::parse(&head) {
        Ok(request) => request,
        Err(error) => return Answer::bad(error).send(client, limits.farewell).await,
    };
    let client = End {
        stream: client,
        early,
    };
    match request.kind {
        Kind::Connect => connect(gate, &request, client, peer).await,
        Kind::Plain { .. } => plain(gate, request, client, peer).await,
    }
}

/// Tells a client that there are too many.
pub(crate) async fn turn_away(client: TcpStream, limits: &Limits) {
    Answer::busy().send(client, limits.farewell).await;
}

async fn connect(gate: &Gate, request: &Request, mut client: End, peer: SocketAddr) {
    let wish = wish(request, NetworkProtocol::HttpsConnect, peer);
    let server = match gate.mode {
        ProxyMode::Limited => Err(gate.refuse_by_mode(&wish)),
        ProxyMode::Full => gate.connect(&wish).await,
    };
    match server {
        Ok(server) => {
            if client.stream.write_all(ESTABLISHED).await.is_ok() {
                tunnel::join(client, server.into(), gate.limits.idle).await;
            }
        }
        Err(refusal) => {
            Answer::from(refusal)
                .send(client.stream, gate.limits.farewell)
                .await
        }
    }
}

async fn plain(gate: &Gate, mut request: Request, mut client: End, peer: SocketAddr) {
    let limits = &gate.limits;
    let wish = wish(&request, NetworkProtocol::Http, peer);
    let harmless = matches!(request.method.as_str(), "GET" | "HEAD" | "OPTIONS");
    let server = match gate.mode {
        ProxyMode::Limited if !harmless => Err(gate.refuse_by_mode(&wish)),
        ProxyMode::Limited => {
            // A websocket would be a tunnel, which this mode does not have.
            request.forgo_websocket();
            gate.connect(&wish).await
        }
        ProxyMode::Full => gate.connect(&wish).await,
    };
    let mut server = match server {
        Ok(server) => server,
        Err(refusal) => {
            return Answer::from(refusal)
                .send(client.stream, limits.farewell)
                .await;
        }
    };
    let exchange = exchange(
        &request,
        &client.early,
        &mut client.stream,
        &mut server,
        limits.idle,
    );
    match exchange.await {
        Outcome::Done => {
            drop(server);
            // The client is gone, or does not close. Either way it has the response.
            drop(timeout(limits.farewell, tunnel::part(&mut client.stream)).await);
        }
        Outcome::Switched(early) => {
            let server = End {
                stream: server,
                early,
            };
            tunnel::join(client, server, limits.idle).await;
        }
        Outcome::NoResponse => {
            Answer::bad_gateway()
                .send(client.stream, limits.farewell)
                .await
        }
        Outcome::Cut => {
            // A reset tells both that this is not the end, also where the end is that of the
            // connection. If it cannot be had, lengths still tell most of them.
            drop(client.stream.set_zero_linger());
            drop(server.set_zero_linger());
        }
    }
}

fn wish(request: &Request, protocol: NetworkProtocol, client: SocketAddr) -> Wish {
    Wish {
        protocol,
        host: request.host.clone(),
        port: request.port,
        method: Some(request.method.clone()),
        client,
    }
}

const ESTABLISHED: &[u8] = b"HTTP/1.1 200 Connection established\r\n\r\n";

/// An answer of the proxy's own, after which the connection is closed.
#[derive(Clone, Debug, Eq, PartialEq)]
struct Answer {
    status: &'static str,
    error: &'static str,
    text: String,
}

impl Answer {
    /// Says that the request is not one.
    fn bad(text: impl ToString) -> Self {
        Self::new("400 Bad Request", "bad-request", text.to_string())
    }

    /// Says that the head of the request did not come in time.
    fn late() -> Self {
        Self::new(
            "408 Request Timeout",
            "timeout",
            "no request in time".into(),
        )
    }

    /// Says that the head of the request is too large.
    fn too_large() -> Self {
        Self::new(
            "431 Request Header Fields Too Large",
            "bad-request",
            "the head of the request is too large".into(),
        )
    }

    /// Says that the server did not answer with a response.
    fn bad_gateway() -> Self {
        Self::new(
            "502 Bad Gateway",
            "bad-gateway",
            "the server gave no response".into(),
        )
    }

    /// Says that there are too many connections.
    fn busy() -> Self {
        Self::new(
            "503 Service Unavailable",
            "busy",
            "too many connections".into(),
        )
    }

    /// Writes the answer and closes the connection, so that the client gets to read it.
    async fn send(self, mut stream: TcpStream, limit: Duration) {
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
