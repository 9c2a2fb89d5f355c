//! HTTP side of the proxy: CONNECT, and requests in plain HTTP.
//!
//! Invariant: after the head of a plain request, only the body reaches the server. A second request
//! behind it could name another host. Each connection carries one request; keep-alive is not
//! supported.

pub(crate) mod exchange;
pub(crate) mod message;
pub(crate) mod message_head;

use std::{borrow::Cow, io, net::SocketAddr};

use exec_wire::network::{NetworkProtocol, ProxyMode};
use tokio::{
    io::AsyncWriteExt,
    net::TcpStream,
    time::{error::Elapsed, timeout},
};

use self::{
    exchange::{ExchangeOutcome, exchange},
    message::{HttpRequestError, ProxyRequest, RequestKind},
    message_head::{HeadBuffer, HeadError},
};
use crate::{
    limits::ProxyLimits,
    policy_gate::{ConnectError, ConnectRequest, PolicyGate},
    tunnel::{self, TunnelEnd},
};

/// Serves the single request of a connection.
pub(crate) async fn serve(gate: &PolicyGate, mut client: TcpStream, peer: SocketAddr) {
    let limits = &gate.limits;
    let mut buffer = HeadBuffer::default();
    let (head, buffered) = match timeout(limits.handshake_timeout, buffer.read(&mut client)).await {
        Ok(Ok(read)) => read,
        Ok(Err(HeadError::TooLarge)) => return TOO_LARGE.send(client, limits).await,
        Ok(Err(HeadError::Closed | HeadError::Truncated | HeadError::Read(_))) => return,
        Err(Elapsed { .. }) => return REQUEST_TIMEOUT.send(client, limits).await,
    };
    let request = match ProxyRequest::parse(&head) {
        Ok(request) => request,
        Err(error) => return ErrorResponse::from(error).send(client, limits).await,
    };
    let client = TunnelEnd {
        stream: client,
        buffered,
    };
    match request.kind {
        RequestKind::Connect => open_tunnel(gate, &request, client, peer).await,
        RequestKind::Plain { .. } => forward_plain(gate, request, client, peer).await,
    }
}

/// Rejects a connection above the limit.
pub(crate) async fn reject(client: TcpStream, limits: &ProxyLimits) {
    UNAVAILABLE.send(client, limits).await;
}

async fn open_tunnel(
    gate: &PolicyGate,
    request: &ProxyRequest,
    mut client: TunnelEnd,
    peer: SocketAddr,
) {
    let connect_request = connect_request(request, NetworkProtocol::HttpsConnect, peer);
    match gate.connect_tunnel(&connect_request).await {
        Ok(server) => {
            if client.stream.write_all(ESTABLISHED).await.is_ok() {
                tunnel::copy_both(client, server.into(), gate.limits.idle_timeout).await;
            }
        }
        Err(error) => {
            let response = ErrorResponse::from(error);
            response.send(client.stream, &gate.limits).await;
        }
    }
}

async fn forward_plain(
    gate: &PolicyGate,
    mut request: ProxyRequest,
    mut client: TunnelEnd,
    peer: SocketAddr,
) {
    let limits = &gate.limits;
    let connect_request = connect_request(&request, NetworkProtocol::Http, peer);
    let is_safe_method = matches!(request.method.as_str(), "GET" | "HEAD" | "OPTIONS");
    if gate.mode == ProxyMode::Limited {
        // A websocket would be a tunnel, which this mode does not allow.
        request.drop_upgrade();
    }
    let server = match gate.mode {
        ProxyMode::Limited if !is_safe_method => Err(gate.deny_by_mode(&connect_request)),
        ProxyMode::Limited | ProxyMode::Full => gate.connect(&connect_request).await,
    };
    let mut server = match server {
        Ok(server) => server,
        Err(error) => return ErrorResponse::from(error).send(client.stream, limits).await,
    };
    let exchange = exchange(
        &request,
        &client.buffered,
        &mut client.stream,
        &mut server,
        limits.idle_timeout,
    );
    match exchange.await {
        ExchangeOutcome::Complete => {
            drop(server);
            let closing = tunnel::close_gracefully(&mut client.stream);
            // Errors are ignored: the client has received the response.
            drop(timeout(limits.close_timeout, closing).await);
        }
        ExchangeOutcome::Upgraded(buffered) => {
            let server = TunnelEnd {
                stream: server,
                buffered,
            };
            tunnel::copy_both(client, server, limits.idle_timeout).await;
        }
        ExchangeOutcome::NoResponse => BAD_GATEWAY.send(client.stream, limits).await,
        ExchangeOutcome::Aborted => {
            // A reset shows both peers that the message is incomplete, even if its framing is until
            // close. If it fails, the length still shows this in most cases.
            drop(client.stream.set_zero_linger());
            drop(server.set_zero_linger());
        }
    }
}

fn connect_request(
    request: &ProxyRequest,
    protocol: NetworkProtocol,
    client: SocketAddr,
) -> ConnectRequest {
    ConnectRequest {
        protocol,
        host: request.host.clone(),
        port: request.port,
        method: Some(request.method.clone()),
        client: Some(client),
    }
}

const ESTABLISHED: &[u8] = b"HTTP/1.1 200 Connection established\r\n\r\n";

/// An error response of the proxy itself. The connection is closed afterwards.
#[derive(Clone, Debug, Eq, PartialEq)]
struct ErrorResponse {
    status: &'static str,
    error: &'static str,
    text: Cow<'static, str>,
}

const REQUEST_TIMEOUT: ErrorResponse = ErrorResponse {
    status: "408 Request Timeout",
    error: "timeout",
    text: Cow::Borrowed("the request timed out"),
};
const TOO_LARGE: ErrorResponse = ErrorResponse {
    status: "431 Request Header Fields Too Large",
    error: "bad-request",
    text: Cow::Borrowed("the request head is too large"),
};
const BAD_GATEWAY: ErrorResponse = ErrorResponse {
    status: "502 Bad Gateway",
    error: "bad-gateway",
    text: Cow::Borrowed("the server sent no valid response"),
};
const UNAVAILABLE: ErrorResponse = ErrorResponse {
    status: "503 Service Unavailable",
    error: "busy",
    text: Cow::Borrowed("too many connections"),
};

impl ErrorResponse {
    /// Sends the response and closes the connection gracefully, so that the client can read it.
    async fn send(self, mut stream: TcpStream, limits: &ProxyLimits) {
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
            tunnel::close_gracefully(&mut stream).await
        };
        // Errors are ignored: the client is gone or does not read.
        drop(timeout(limits.close_timeout, write).await);
    }
}

impl From<HttpRequestError> for ErrorResponse {
    fn from(error: HttpRequestError) -> Self {
        Self {
            status: "400 Bad Request",
            error: "bad-request",
            text: error.to_string().into(),
        }
    }
}

impl From<ConnectError> for ErrorResponse {
    fn from(error: ConnectError) -> Self {
        let (status, error, text) = match error {
            ConnectError::Blocked(reason) => (
                "403 Forbidden",
                "blocked-by-allowlist",
                format!("blocked by the network policy: {reason}").into(),
            ),
            ConnectError::UnknownHost => (
                "502 Bad Gateway",
                "unknown-host",
                "the host name cannot be resolved".into(),
            ),
            ConnectError::Unreachable(io::ErrorKind::TimedOut) => (
                "504 Gateway Timeout",
                "timeout",
                "connecting to the host timed out".into(),
            ),
            ConnectError::Unreachable(kind) => (
                "502 Bad Gateway",
                "unreachable",
                format!("cannot connect to the host: {kind}").into(),
            ),
        };
        Self {
            status,
            error,
            text,
        }
    }
}
