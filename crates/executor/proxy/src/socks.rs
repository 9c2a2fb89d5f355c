//! SOCKS5 side of the proxy (RFC 1928), without authentication: streams and datagrams.
//!
//! Message parsers are pure. Each returns the message and its length, or that more bytes are
//! needed, or an error.

mod datagram_relay;

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
};

use exec_wire::network::{NetworkProtocol, ProxyMode};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

pub(crate) use self::datagram_relay::DatagramRelay;
use crate::{
    limits::ProxyLimits,
    policy_gate::{ConnectError, ConnectRequest, PolicyGate},
    target_host::TargetHost,
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
        Ok(Err(HandshakeFailure(code))) => return reply_and_close(stream, code, limits).await,
        Err(_) => return,
    };
    let connect_request = ConnectRequest {
        protocol: NetworkProtocol::Socks5Tcp,
        host: request.host,
        port: request.port,
        method: None,
        client: Some(peer),
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
    match gate.connect_tunnel(request).await {
        Ok(server) => {
            let reply = encode_reply(ReplyCode::Succeeded, UNSPECIFIED_ADDRESS);
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
    let reply = encode_reply(ReplyCode::Succeeded, datagrams.address(local.ip()));
    if stream.write_all(&reply).await.is_err() {
        return;
    }
    let mut discarded = [0; 64];
    // The protocol defines no data here. Received bytes only reset the idle timeout.
    while let Ok(Ok(1..)) = timeout(limits.idle_timeout, stream.read(&mut discarded)).await {}
}

async fn handshake(stream: &mut TcpStream) -> Result<(SocksRequest, Vec<u8>), HandshakeFailure> {
    let mut buffer = Vec::new();
    let greeting = read_message(stream, &mut buffer, parse_greeting).await?;
    if !greeting {
        stream.write_all(&[VERSION, NO_ACCEPTABLE_METHOD]).await?;
        return Err(HandshakeFailure(None));
    }
    stream.write_all(&[VERSION, NO_AUTHENTICATION]).await?;
    let request = read_message(stream, &mut buffer, parse_request).await?;
    Ok((request, buffer))
}

/// Reads one message. Leaves the bytes after it in `buffer`.
async fn read_message<T>(
    stream: &mut TcpStream,
    buffer: &mut Vec<u8>,
    parse: impl Fn(&[u8]) -> ParseResult<T>,
) -> Result<T, HandshakeFailure> {
    loop {
        if let Some((message, length)) = parse(buffer)? {
            buffer.drain(..length);
            return Ok(message);
        }
        // Longer than any message, so the buffer stays small.
        let mut chunk = [0; 512];
        match stream.read(&mut chunk).await? {
            0 => return Err(HandshakeFailure(None)),
            count => buffer.extend_from_slice(&chunk[..count]),
        }
    }
}

/// Sends a reply code, if there is one, and closes the connection.
async fn reply_and_close(mut stream: TcpStream, code: Option<ReplyCode>, limits: &ProxyLimits) {
    let close = async {
        if let Some(code) = code {
            stream
                .write_all(&encode_reply(code, UNSPECIFIED_ADDRESS))
                .await?;
        }
        tunnel::close_gracefully(&mut stream).await
    };
    // Errors are ignored: the client is gone or does not read.
    drop(timeout(limits.close_timeout, close).await);
}

/// Peer: the handshake failed. Holds the reply code for the client, if there is one.
#[derive(Debug)]
struct HandshakeFailure(Option<ReplyCode>);

impl From<io::Error> for HandshakeFailure {
    fn from(_: io::Error) -> Self {
        Self(None)
    }
}

impl From<SocksMessageError> for HandshakeFailure {
    fn from(error: SocksMessageError) -> Self {
        Self(match error {
            SocksMessageError::AddressKind => Some(ReplyCode::UnknownAddress),
            SocksMessageError::Host | SocksMessageError::Malformed => Some(ReplyCode::Failed),
            SocksMessageError::Version => None,
        })
    }
}

/// Bound address in replies: the real one is not disclosed.
const UNSPECIFIED_ADDRESS: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);

/// Parsed message and its length. `None` if more bytes are needed.
pub(crate) type ParseResult<T> = Result<Option<(T, usize)>, SocksMessageError>;

/// Request of a client.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct SocksRequest {
    pub(crate) command: SocksCommand,
    pub(crate) host: TargetHost,
    pub(crate) port: u16,
}

/// Command of a request.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum SocksCommand {
    /// Open a TCP connection.
    Connect,
    /// Relay UDP datagrams.
    Associate,
    /// Any other command.
    Unknown,
}

/// Parses the greeting. Returns whether the client accepts no authentication.
pub(crate) fn parse_greeting(bytes: &[u8]) -> ParseResult<bool> {
    match bytes {
        [] | [VERSION] => Ok(None),
        [VERSION, count, methods @ ..] => {
            let methods = methods.get(..usize::from(*count));
            Ok(methods.map(|methods| (methods.contains(&NO_AUTHENTICATION), 2 + methods.len())))
        }
        [_, ..] => Err(SocksMessageError::Version),
    }
}

/// Parses a request.
pub(crate) fn parse_request(bytes: &[u8]) -> ParseResult<SocksRequest> {
    match bytes {
        [] | [VERSION] | [VERSION, _] => Ok(None),
        [VERSION, command, 0, address @ ..] => {
            let command = match command {
                1 => SocksCommand::Connect,
                3 => SocksCommand::Associate,
                _ => SocksCommand::Unknown,
            };
            let parsed = parse_address(address)?;
            Ok(parsed.map(|((host, port), length)| {
                let request = SocksRequest {
                    command,
                    host,
                    port,
                };
                (request, 3 + length)
            }))
        }
        [VERSION, ..] => Err(SocksMessageError::Malformed),
        [_, ..] => Err(SocksMessageError::Version),
    }
}

/// Parses the header of a datagram. Returns the payload. Fragments are refused.
pub(crate) fn parse_datagram(bytes: &[u8]) -> Result<(TargetHost, u16, &[u8]), SocksMessageError> {
    let [0, 0, 0, address @ ..] = bytes else {
        return Err(SocksMessageError::Malformed);
    };
    let ((host, port), length) = parse_address(address)?.ok_or(SocksMessageError::Malformed)?;
    Ok((host, port, &address[length..]))
}

/// Writes a datagram received from `source`.
pub(crate) fn write_datagram(source: SocketAddr, data: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(&[0, 0, 0]);
    write_address(source, out);
    out.extend_from_slice(data);
}

/// Encodes the reply to a request.
pub(crate) fn encode_reply(code: ReplyCode, bound: SocketAddr) -> Vec<u8> {
    let mut out = vec![VERSION, code as u8, 0];
    write_address(bound, &mut out);
    out
}

/// Reply code of a request.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u8)]
pub(crate) enum ReplyCode {
    /// Success.
    Succeeded = 0,
    /// General failure.
    Failed = 1,
    /// Denied by the policy.
    Blocked = 2,
    /// Network unreachable.
    NetworkUnreachable = 3,
    /// Host unreachable.
    HostUnreachable = 4,
    /// Connection refused.
    ConnectionRefused = 5,
    /// Command not supported.
    UnknownCommand = 7,
    /// Address type not supported.
    UnknownAddress = 8,
}

impl From<&ConnectError> for ReplyCode {
    fn from(refusal: &ConnectError) -> Self {
        match refusal {
            ConnectError::Blocked(_) => Self::Blocked,
            ConnectError::UnknownHost => Self::HostUnreachable,
            ConnectError::Unreachable(kind) => {
                let known = CONNECT_FAILURE_CODES
                    .iter()
                    .find(|(known, _)| known == kind);
                known.map_or(Self::Failed, |(_, code)| *code)
            }
        }
    }
}

/// Why a message is invalid. Peer: all variants.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub(crate) enum SocksMessageError {
    #[error("not SOCKS version 5")]
    Version,
    #[error("malformed message")]
    Malformed,
    #[error("unknown address type")]
    AddressKind,
    #[error("invalid host name")]
    Host,
}

fn parse_address(bytes: &[u8]) -> ParseResult<(TargetHost, u16)> {
    let Some((&kind, rest)) = bytes.split_first() else {
        return Ok(None);
    };
    let (host, rest) = match kind {
        1 => match rest.split_first_chunk::<4>() {
            Some((octets, rest)) => (TargetHost::from(IpAddr::V4(Ipv4Addr::from(*octets))), rest),
            None => return Ok(None),
        },
        4 => match rest.split_first_chunk::<16>() {
            Some((octets, rest)) => (TargetHost::from(IpAddr::V6(Ipv6Addr::from(*octets))), rest),
            None => return Ok(None),
        },
        3 => {
            let named = rest
                .split_first()
                .and_then(|(&length, rest)| rest.split_at_checked(usize::from(length)));
            let Some((name, rest)) = named else {
                return Ok(None);
            };
            let name = std::str::from_utf8(name).map_err(|_| SocksMessageError::Host)?;
            (
                TargetHost::parse(name).map_err(|_| SocksMessageError::Host)?,
                rest,
            )
        }
        _ => return Err(SocksMessageError::AddressKind),
    };
    let Some((port, rest)) = rest.split_first_chunk::<2>() else {
        return Ok(None);
    };
    Ok(Some((
        (host, u16::from_be_bytes(*port)),
        bytes.len() - rest.len(),
    )))
}

fn write_address(address: SocketAddr, out: &mut Vec<u8>) {
    match address.ip() {
        IpAddr::V4(ip) => {
            out.push(1);
            out.extend_from_slice(&ip.octets());
        }
        IpAddr::V6(ip) => {
            out.push(4);
            out.extend_from_slice(&ip.octets());
        }
    }
    out.extend_from_slice(&address.port().to_be_bytes());
}

/// Connect errors with their own reply code.
const CONNECT_FAILURE_CODES: [(io::ErrorKind, ReplyCode); 4] = [
    (
        io::ErrorKind::ConnectionRefused,
        ReplyCode::ConnectionRefused,
    ),
    (
        io::ErrorKind::NetworkUnreachable,
        ReplyCode::NetworkUnreachable,
    ),
    (io::ErrorKind::HostUnreachable, ReplyCode::HostUnreachable),
    (io::ErrorKind::TimedOut, ReplyCode::HostUnreachable),
];

/// SOCKS version.
pub(crate) const VERSION: u8 = 5;
/// The only supported authentication method.
pub(crate) const NO_AUTHENTICATION: u8 = 0;
/// None of the client's authentication methods is supported.
pub(crate) const NO_ACCEPTABLE_METHOD: u8 = 0xff;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn greetings_are_parsed() {
        assert_eq!(parse_greeting(&[]), Ok(None));
        assert_eq!(parse_greeting(&[5, 2, 0]), Ok(None));
        assert_eq!(parse_greeting(&[5, 2, 2, 0, 9]), Ok(Some((true, 4))));
        assert_eq!(parse_greeting(&[5, 1, 2]), Ok(Some((false, 3))));
        assert_eq!(parse_greeting(&[5, 0]), Ok(Some((false, 2))));
        assert_eq!(parse_greeting(&[4, 1]), Err(SocksMessageError::Version));
    }

    #[test]
    fn requests_accept_all_address_types() {
        for (bytes, host) in [
            (&[5, 1, 0, 1, 127, 0, 0, 1, 0, 80][..], "127.0.0.1"),
            (b"\x05\x01\0\x03\x0bExample.com\0\x50", "example.com"),
            (b"\x05\x01\0\x03\x05127.1\0\x50", "127.0.0.1"),
            (
                b"\x05\x01\0\x04\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x01\0\x50",
                "::1",
            ),
            (
                b"\x05\x01\0\x04\0\0\0\0\0\0\0\0\0\0\xff\xff\x0a\0\0\x01\0\x50",
                "10.0.0.1",
            ),
        ] {
            let (request, length) = parse_request(bytes).unwrap().unwrap();
            assert_eq!((request.host.as_str(), request.port), (host, 80));
            assert_eq!(
                (request.command, length),
                (SocksCommand::Connect, bytes.len())
            );
        }
        for bytes in [
            &b"\x05\x01\0\x03\x00\0\x50"[..],
            b"\x05\x01\0\x03\x03a b\0\x50",
            b"\x05\x01\0\x03\x02\xff\xfe\0\x50",
            b"\x05\x01\x01\x01\0\0\0\0\0\x50",
            b"\x05\x01\0\x02\0\0\0\0\0\x50",
            b"\x04\x01\0\x50",
        ] {
            assert!(parse_request(bytes).is_err(), "{bytes:?}");
        }
    }

    proptest! {
        #[test]
        fn parsers_never_panic(mut bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            drop((parse_greeting(&bytes), parse_request(&bytes), parse_datagram(&bytes)));
            for (at, byte) in [5, 1, 0, 3].into_iter().enumerate() {
                if let Some(address) = bytes.get_mut(at) {
                    *address = byte;
                }
                drop((parse_greeting(&bytes), parse_request(&bytes), parse_datagram(&bytes)));
            }
        }

        #[test]
        fn request_does_not_depend_on_chunking(
            name in "[a-z]{1,20}",
            port: u16,
            rest in proptest::collection::vec(any::<u8>(), 0..20),
        ) {
            let mut bytes = vec![5, 1, 0, 3, u8::try_from(name.len()).unwrap()];
            bytes.extend(name.bytes());
            bytes.extend(port.to_be_bytes());
            let length = bytes.len();
            for end in 0..length {
                prop_assert_eq!(parse_request(&bytes[..end]), Ok(None));
            }
            bytes.extend(rest);
            let (request, used) = parse_request(&bytes).unwrap().unwrap();
            prop_assert_eq!((request.host.as_str(), request.port, used), (&*name, port, length));
        }

        #[test]
        fn datagrams_round_trip(address: SocketAddr, data: Vec<u8>) {
            let mut out = Vec::new();
            write_datagram(address, &data, &mut out);
            let (host, port, parsed) = parse_datagram(&out).unwrap();
            prop_assert_eq!(host, TargetHost::from(address.ip()));
            prop_assert_eq!((port, parsed), (address.port(), &data[..]));
        }
    }
}
