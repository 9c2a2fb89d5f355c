//! The messages of SOCKS5. Pure.
//!
//! Each parser tells how long the message is, that more bytes are needed, or that it is none.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
};

use crate::{policy_gate::ConnectError, target_host::TargetHost};

/// What was parsed, and how many bytes of it there were. `None`: more are needed.
pub(crate) type ParseResult<T> = Result<Option<(T, usize)>, SocksMessageError>;

/// What a client wants.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct SocksRequest {
    pub(crate) command: SocksCommand,
    pub(crate) host: TargetHost,
    pub(crate) port: u16,
}

/// What is to be done with a host.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum SocksCommand {
    /// Connect to it.
    Connect,
    /// Send datagrams from there.
    Associate,
    /// Something else.
    Unknown,
}

/// Parses what a client says first; tells whether it would do without authentication.
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
            let found = parse_address(address)?;
            Ok(found.map(|((host, port), length)| {
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

/// Parses the head of a datagram; what follows it is for the host. Fragments are not taken.
pub(crate) fn parse_datagram(bytes: &[u8]) -> Result<(TargetHost, u16, &[u8]), SocksMessageError> {
    let [0, 0, 0, address @ ..] = bytes else {
        return Err(SocksMessageError::Malformed);
    };
    let ((host, port), length) = parse_address(address)?.ok_or(SocksMessageError::Malformed)?;
    Ok((host, port, &address[length..]))
}

/// Writes a datagram that came from `source`.
pub(crate) fn write_datagram(source: SocketAddr, data: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(&[0, 0, 0]);
    write_address(source, out);
    out.extend_from_slice(data);
}

/// Writes the answer to a request.
pub(crate) fn encode_reply(code: ReplyCode, bound: SocketAddr) -> Vec<u8> {
    let mut out = vec![VERSION, code as u8, 0];
    write_address(bound, &mut out);
    out
}

/// How a request went.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u8)]
pub(crate) enum ReplyCode {
    /// Well.
    Succeeded = 0,
    /// It failed for no reason that has a code.
    Failed = 1,
    /// The policy is against it.
    Blocked = 2,
    /// There is no way to the network.
    NetworkUnreachable = 3,
    /// There is no way to the host.
    HostUnreachable = 4,
    /// The host does not want the connection.
    ConnectionRefused = 5,
    /// This is not done here.
    UnknownCommand = 7,
    /// There is no such kind of address.
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

/// Why bytes are no message. Peer: all of them.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub(crate) enum SocksMessageError {
    #[error("this is not version 5")]
    Version,
    #[error("a message is malformed")]
    Malformed,
    #[error("an address is of an unknown kind")]
    AddressKind,
    #[error("a name is no host")]
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

/// Failures to connect that have a code of their own.
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

/// The version of SOCKS.
pub(crate) const VERSION: u8 = 5;
/// The one method that is spoken.
pub(crate) const NO_AUTHENTICATION: u8 = 0;
/// Says that none of the client's methods is spoken.
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
            let (host, port, found) = parse_datagram(&out).unwrap();
            prop_assert_eq!(host, TargetHost::from(address.ip()));
            prop_assert_eq!((port, found), (address.port(), &data[..]));
        }
    }
}
