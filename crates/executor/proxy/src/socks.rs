//! The proxy's SOCKS5 side (RFC 1928), without authentication: streams, and datagrams.
//!
//! Serves one connection: reads what it wants, lets the gate decide, and carries it.

mod datagram_relay;
pub(crate) mod message;

pub(crate) use self::datagram_relay::Datagrams;

use std::{
    io,
    net::{Ipv4Addr, SocketAddr},
};

use exec_wire::network::{NetworkProtocol, ProxyMode};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

use self::message::{
    Code, Command, MessageError, NO_AUTHENTICATION, NO_METHOD, Parsed, Request, VERSION,
};
use crate::{
    limits::Limits,
    policy_gate::{Gate, Wish},
    tunnel::{self, End},
};

/// Serves the one request of a connection.
pub(crate) async fn serve(
    gate: &Gate,
    datagrams: Option<&Datagrams>,
    mut stream: TcpStream,
    peer: SocketAddr,
) {
    let limits = &gate.limits;
    let handshake = timeout(limits.handshake, handshake(&mut stream)).await;
    let (request, early) = match handshake {
        Ok(Ok(read)) => read,
        Ok(Err(error)) => return end(stream, error.code(), limits).await,
        Err(_) => return,
    };
    let wish = Wish {
        protocol: NetworkProtocol::Socks5Tcp,
        host: request.host,
        port: request.port,
        method: None,
        client: peer,
    };
    match request.command {
        Command::Connect if wish.port == 0 => end(stream, Some(Code::Failed), limits).await,
        Command::Connect => {
            let client = End { stream, early };
            connect(gate, &wish, client).await;
        }
        Command::Associate => match datagrams {
            Some(datagrams) if gate.mode == ProxyMode::Full => {
                associate(datagrams, stream, limits).await;
            }
            Some(_) | None => end(stream, Some(Code::UnknownCommand), limits).await,
        },
        Command::Unknown => end(stream, Some(Code::UnknownCommand), limits).await,
    }
}

/// Tells a client that there are too many.
pub(crate) async fn turn_away(mut stream: TcpStream, limits: &Limits) {
    if let Ok(Ok(_)) = timeout(limits.farewell, handshake(&mut stream)).await {
        end(stream, Some(Code::Failed), limits).await;
    }
}

async fn connect(gate: &Gate, wish: &Wish, mut client: End) {
    let server = match gate.mode {
        ProxyMode::Limited => Err(gate.refuse_by_mode(wish)),
        ProxyMode::Full => gate.connect(wish).await,
    };
    match server {
        Ok(server) => {
            let reply = message::reply(Code::Succeeded, NOWHERE);
            if client.stream.write_all(&reply).await.is_ok() {
                tunnel::join(client, server.into(), gate.limits.idle).await;
            }
        }
        Err(refusal) => end(client.stream, Some((&refusal).into()), &gate.limits).await,
    }
}

/// Lets the client send datagrams until it closes the connection.
async fn associate(datagrams: &Datagrams, mut stream: TcpStream, limits: &Limits) {
    let Ok(local) = stream.local_addr() else {
        return;
    };
    let _association = datagrams.associate();
    let reply = message::reply(Code::Succeeded, datagrams.address(local.ip()));
    if stream.write_all(&reply).await.is_err() {
        return;
    }
    let mut waste = [0; 64];
    // Nothing is to be said here. Each word counts as a sign of life.
    while let Ok(Ok(1..)) = timeout(limits.idle, stream.read(&mut waste)).await {}
}

async fn handshake(stream: &mut TcpStream) -> Result<(Request, Vec<u8>), HandshakeError> {
    let mut buffer = Vec::new();
    let greeting = read(stream, &mut buffer, message::greeting).await?;
    if !greeting {
        stream.write_all(&[VERSION, NO_METHOD]).await?;
        return Err(HandshakeError::Method);
    }
    stream.write_all(&[VERSION, NO_AUTHENTICATION]).await?;
    let request = read(stream, &mut buffer, message::request).await?;
    Ok((request, buffer))
}

/// Reads one message; leaves in `buffer` what came after it.
async fn read<T>(
    stream: &mut TcpStream,
    buffer: &mut Vec<u8>,
    parse: impl Fn(&[u8]) -> Parsed<T>,
) -> Result<T, HandshakeError> {
    loop {
        if let Some((message, length)) = parse(buffer)? {
            buffer.drain(..length);
            return Ok(message);
        }
        // A message is shorter than this piece, so that the buffer stays small.
        let mut piece = [0; 512];
        match stream.read(&mut piece).await? {
            0 => return Err(HandshakeError::Closed),
            count => buffer.extend_from_slice(&piece[..count]),
        }
    }
}

/// Says why not, if there is something to say, and closes the connection.
async fn end(mut stream: TcpStream, code: Option<Code>, limits: &Limits) {
    let last_words = async {
        if let Some(code) = code {
            stream.write_all(&message::reply(code, NOWHERE)).await?;
        }
        tunnel::part(&mut stream).await
    };
    // The client is gone, or does not read. Either way there is nobody to tell.
    drop(timeout(limits.farewell, last_words).await);
}

/// Why a client did not get to say what it wants.
#[derive(Debug, thiserror::Error)]
enum HandshakeError {
    /// Peer: it closed the connection.
    #[error("the connection was closed")]
    Closed,
    /// Peer: it wants to authenticate itself.
    #[error("there is no authentication")]
    Method,
    /// Peer: it does not speak SOCKS5.
    #[error(transparent)]
    Message(#[from] MessageError),
    /// Peer: the connection failed.
    #[error("the connection failed")]
    Stream(#[from] io::Error),
}

impl HandshakeError {
    /// Returns what there is to say to the client.
    fn code(&self) -> Option<Code> {
        match self {
            Self::Message(MessageError::AddressKind) => Some(Code::UnknownAddress),
            Self::Message(MessageError::Host | MessageError::Malformed) => Some(Code::Failed),
            Self::Message(MessageError::Version)
            | Self::Closed
            | Self::Method
            | Self::Stream(_) => None,
        }
    }
}

/// Our end of a connection is nobody's business.
const NOWHERE: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);
