//! SOCKS5 side of the proxy (RFC 1928), without authentication: streams and datagrams.

mod datagram_relay;
pub(crate) mod message;

pub(crate) use self::datagram_relay::DatagramRelay;

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
    NO_ACCEPTABLE_METHOD, NO_AUTHENTICATION, ParseResult, ReplyCode, SocksCommand,
    SocksMessageError, SocksRequest, VERSION,
};
use crate::{
    limits::ProxyLimits,
    policy_gate::{ConnectRequest, PolicyGate},
    tunnel::{self, TunnelEnd},
};

/// Serves the single request of a connection.
pub(crate) async fn serve(
    gate: &PolicyGate,
    datagrams: Option<&DatagramRelay>,
    mut stream: TcpStream,
    peer: SocketAddr,
) {
    let limits = &gate.limits;
    let handshake = timeout(limits.handshake_timeout, handshake(&mut stream)).await;
    let (request, buffered) = match handshake {
        Ok(Ok(read)) => read,
        Ok(Err(error)) => return reply_and_close(stream, error.code(), limits).await,
        Err(_) => return,
    };
    let connect_request = ConnectRequest {
        protocol: NetworkProtocol::Socks5Tcp,
        host: request.host,
        port: request.port,
        method: None,
        client: peer,
    };
    match request.command {
        SocksCommand::Connect if connect_request.port == 0 => {
            reply_and_close(stream, Some(ReplyCode::Failed), limits).await
        }
        SocksCommand::Connect => {
            let client = TunnelEnd { stream, buffered };
            connect(gate, &connect_request, client).await;
        }
        SocksCommand::Associate => match datagrams {
            Some(datagrams) if gate.mode == ProxyMode::Full => {
                associate(datagrams, stream, limits).await;
            }
            Some(_) | None => {
                reply_and_close(stream, Some(ReplyCode::UnknownCommand), limits).await
            }
        },
        SocksCommand::Unknown => {
            reply_and_close(stream, Some(ReplyCode::UnknownCommand), limits).await
        }
    }
}

/// Rejects a connection above the limit.
pub(crate) async fn reject(mut stream: TcpStream, limits: &ProxyLimits) {
    if let Ok(Ok(_)) = timeout(limits.close_timeout, handshake(&mut stream)).await {
        reply_and_close(stream, Some(ReplyCode::Failed), limits).await;
    }
}

async fn connect(gate: &PolicyGate, request: &ConnectRequest, mut client: TunnelEnd) {
    let server = match gate.mode {
        ProxyMode::Limited => Err(gate.deny_by_mode(request)),
        ProxyMode::Full => gate.connect(request).await,
    };
    match server {
        Ok(server) => {
            let reply = message::encode_reply(ReplyCode::Succeeded, UNSPECIFIED_ADDRESS);
            if client.stream.write_all(&reply).await.is_ok() {
                tunnel::copy_both(client, server.into(), gate.limits.idle_timeout).await;
            }
        }
        Err(error) => reply_and_close(client.stream, Some((&error).into()), &gate.limits).await,
    }
}

/// Relays datagrams until the client closes the connection.
async fn associate(datagrams: &DatagramRelay, mut stream: TcpStream, limits: &ProxyLimits) {
    let Ok(local) = stream.local_addr() else {
        return;
    };
    let _association = datagrams.associate();
    let reply = message::encode_reply(ReplyCode::Succeeded, datagrams.address(local.ip()));
    if stream.write_all(&reply).await.is_err() {
        return;
    }
    let mut discarded = [0; 64];
    // The protocol defines no data here. Received bytes only reset the idle timeout.
    while let Ok(Ok(1..)) = timeout(limits.idle_timeout, stream.read(&mut discarded)).await {}
}

async fn handshake(stream: &mut TcpStream) -> Result<(SocksRequest, Vec<u8>), SocksHandshakeError> {
    let mut buffer = Vec::new();
    let greeting = read_message(stream, &mut buffer, message::parse_greeting).await?;
    if !greeting {
        stream.write_all(&[VERSION, NO_ACCEPTABLE_METHOD]).await?;
        return Err(SocksHandshakeError::Method);
    }
    stream.write_all(&[VERSION, NO_AUTHENTICATION]).await?;
    let request = read_message(stream, &mut buffer, message::parse_request).await?;
    Ok((request, buffer))
}

/// Reads one message. Leaves the bytes after it in `buffer`.
async fn read_message<T>(
    stream: &mut TcpStream,
    buffer: &mut Vec<u8>,
    parse: impl Fn(&[u8]) -> ParseResult<T>,
) -> Result<T, SocksHandshakeError> {
    loop {
        if let Some((message, length)) = parse(buffer)? {
            buffer.drain(..length);
            return Ok(message);
        }
        // Longer than any message, so the buffer stays small.
        let mut chunk = [0; 512];
        match stream.read(&mut chunk).await? {
            0 => return Err(SocksHandshakeError::Closed),
            count => buffer.extend_from_slice(&chunk[..count]),
        }
    }
}

/// Sends a reply code, if there is one, and closes the connection.
async fn reply_and_close(mut stream: TcpStream, code: Option<ReplyCode>, limits: &ProxyLimits) {
    let close = async {
        if let Some(code) = code {
            stream
                .write_all(&message::encode_reply(code, UNSPECIFIED_ADDRESS))
                .await?;
        }
        tunnel::close_gracefully(&mut stream).await
    };
    // Errors are ignored: the client is gone or does not read.
    drop(timeout(limits.close_timeout, close).await);
}

/// Why a handshake failed.
#[derive(Debug, thiserror::Error)]
enum SocksHandshakeError {
    /// Peer: it closed the connection.
    #[error("the connection was closed")]
    Closed,
    /// Peer: it requires authentication.
    #[error("authentication is not supported")]
    Method,
    /// Peer: invalid SOCKS5 message.
    #[error(transparent)]
    Message(#[from] SocksMessageError),
    /// Peer: reading or writing failed.
    #[error("the connection failed")]
    Stream(#[from] io::Error),
}

impl SocksHandshakeError {
    /// Returns the reply code for the client, if any.
    fn code(&self) -> Option<ReplyCode> {
        match self {
            Self::Message(SocksMessageError::AddressKind) => Some(ReplyCode::UnknownAddress),
            Self::Message(SocksMessageError::Host | SocksMessageError::Malformed) => {
                Some(ReplyCode::Failed)
            }
            Self::Message(SocksMessageError::Version)
            | Self::Closed
            | Self::Method
            | Self::Stream(_) => None,
        }
    }
}

/// Bound address in replies: the real one is not disclosed.
const UNSPECIFIED_ADDRESS: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);
