//! Serves one connection: reads what it wants, lets the gate decide, and carries it.

use std::net::SocketAddr;

use exec_wire::network::{NetworkProtocol, ProxyMode};
use tokio::{
    io::AsyncWriteExt,
    net::TcpStream,
    time::{error::Elapsed, timeout},
};

use super::{
    answer::Answer,
    exchange::{Outcome, exchange},
    head::{HeadBuffer, HeadError},
    request::{Kind, Request},
};
use crate::{
    gate::{Gate, Wish},
    limits::Limits,
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
