//! The messages of SOCKS5. Pure.
//!
//! Each parser tells how long the message is, that more bytes are needed, or that it is none.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
};

use crate::{policy_gate::Refusal, target_host::Host};

/// What was parsed, and how many bytes of it there were. `None`: more are needed.
pub(crate) type Parsed<T> = Result<Option<(T, usize)>, MessageError>;

/// What a client wants.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Request {
    pub(crate) command: Command,
    pub(crate) host: Host,
    pub(crate) port: u16,
}

/// What is to be done with a host.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Command {
    /// Connect to it.
    Connect,
    /// Send datagrams from there.
    Associate,
    /// Something else.
    Unknown,
}

/// Parses what a client says first; tells whether it would do without authentication.
pub(crate) fn greeting(bytes: &[u8]) -> Parsed<bool> {
    match bytes {
        [] | [VERSION] => Ok(None),
        [VERSION, count, methods @ ..] => {
            let methods = methods.get(..usize::from(*count));
            Ok(methods.map(|methods| (methods.contains(&NO_AUTHENTICATION), 2 + methods.len())))
        }
        [_, ..] => Err(MessageError::Version),
    }
}

/// Parses a request.
pub(crate) fn request(bytes: &[u8]) -> Parsed<Request> {
    match bytes {
        [] | [VERSION] | [VERSION, _] => Ok(None),
        [VERSION, command, 0, place @ ..] => {
            let command = match command {
                1 => Command::Connect,
                3 => Command::Associate,
                _ => Command::Unknown,
            };
            let found = parse_place(place)?;
            Ok(found.map(|((host, port), length)| {
                let request = Request {
                    command,
                    host,
                    port,
                };
                (request, 3 + length)
            }))
        }
        [VERSION, ..] => Err(MessageError::Malformed),
        [_, ..] => Err(MessageError::Version),
    }
}

/// Parses the head of a datagram; what follows it is for the host. Fragments are not taken.
pub(crate) fn datagram(bytes: &[u8]) -> Result<(Host, u16, &[u8]), MessageError> {
    let [0, 0, 0, place @ ..] = bytes else {
        return Err(MessageError::Malformed);
    };
    let ((host, port), length) = parse_place(place)?.ok_or(MessageError::Malformed)?;
    Ok((host, port, &place[length..]))
}

/// Writes a datagram that came from `source`.
pub(crate) fn write_datagram(source: SocketAddr, data: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(&[0, 0, 0]);
    write_place(source, out);
    out.extend_from_slice(data);
}

/// Writes the answer to a request.
pub(crate) fn reply(code: Code, bound: SocketAddr) -> Vec<u8> {
    let mut out = vec![VERSION, code as u8, 0];
    write_place(bound, &mut out);
    out
}

/// How a request went.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u8)]
pub(crate) enum Code {
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

impl From<&Refusal> for Code {
    fn from(refusal: &Refusal) -> Self {
        match refusal {
            Refusal::Blocked(_) => Self::Blocked,
            Refusal::Unknown => Self::HostUnreachable,
            Refusal::Unreachable(kind) => {
                let known = UNREACHABLE.iter().find(|(known, _)| known == kind);
                known.map_or(Self::Failed, |(_, code)| *code)
            }
        }
    }
}

/// Why bytes are no message. Peer: all of them.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub(crate) enum MessageError {
    #[error("this is not version 5")]
    Version,
    #[error("a message is malformed")]
    Malformed,
    #[error("an address is of an unknown kind")]
    AddressKind,
    #[error("a name is no host")]
    Host,
}

fn parse_place(bytes: &[u8]) -> Parsed<(Host, u16)> {
    let Some((&kind, rest)) = bytes.split_first() else {
        return Ok(None);
    };
    let (host, rest) = match kind {
        1 => match rest.split_first_chunk::<4>() {
            Some((octets, rest)) => (Host::from(IpAddr::V4(Ipv4Addr::from(*octets))), rest),
            None => return Ok(None),
        },
        4 => match rest.split_first_chunk::<16>() {
            Some((octets, rest)) => (Host::from(IpAddr::V6(Ipv6Addr::from(*octets))), rest),
            None => return Ok(None),
        },
        3 => {
            let named = rest
                .split_first()
                .and_then(|(&length, rest)| rest.split_at_checked(usize::from(length)));
            let Some((name, rest)) = named else {
                return Ok(None);
            };
            let name = std::str::from_utf8(name).map_err(|_| MessageError::Host)?;
            (Host::parse(name).map_err(|_| MessageError::Host)?, rest)
        }
        _ => return Err(MessageError::AddressKind),
    };
    let Some((port, rest)) = rest.split_first_chunk::<2>() else {
        return Ok(None);
    };
    Ok(Some((
        (host, u16::from_be_bytes(*port)),
        bytes.len() - rest.len(),
    )))
}

fn write_place(address: SocketAddr, out: &mut Vec<u8>) {
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
const UNREACHABLE: [(io::ErrorKind, Code); 4] = [
    (io::ErrorKind::ConnectionRefused, Code::ConnectionRefused),
    (io::ErrorKind::NetworkUnreachable, Code::NetworkUnreachable),
    (io::ErrorKind::HostUnreachable, Code::HostUnreachable),
    (io::ErrorKind::TimedOut, Code::HostUnreachable),
];

/// The version of SOCKS.
pub(crate) const VERSION: u8 = 5;
/// The one method that is spoken.
pub(crate) const NO_AUTHENTICATION: u8 = 0;
/// Says that none of the client's methods is spoken.
pub(crate) const NO_METHOD: u8 = 0xff;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn greetings_are_read_whole() {
        assert_eq!(greeting(&[]), Ok(None));
        assert_eq!(greeting(&[5, 2, 0]), Ok(None));
        assert_eq!(greeting(&[5, 2, 2, 0, 9]), Ok(Some((true, 4))));
        assert_eq!(greeting(&[5, 1, 2]), Ok(Some((false, 3))));
        assert_eq!(greeting(&[5, 0]), Ok(Some((false, 2))));
        assert_eq!(greeting(&[4, 1]), Err(MessageError::Version));
    }

    #[test]
    fn requests_name_hosts_in_three_ways() {
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
            let (request, length) = request(bytes).unwrap().unwrap();
            assert_eq!((request.host.as_str(), request.port), (host, 80));
            assert_eq!((request.command, length), (Command::Connect, bytes.len()));
        }
        for bytes in [
            &b"\x05\x01\0\x03\x00\0\x50"[..],
            b"\x05\x01\0\x03\x03a b\0\x50",
            b"\x05\x01\0\x03\x02\xff\xfe\0\x50",
            b"\x05\x01\x01\x01\0\0\0\0\0\x50",
            b"\x05\x01\0\x02\0\0\0\0\0\x50",
            b"\x04\x01\0\x50",
        ] {
            assert!(request(bytes).is_err(), "{bytes:?}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_make_a_parser_panic(mut bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            drop((greeting(&bytes), request(&bytes), datagram(&bytes)));
            for (at, byte) in [5, 1, 0, 3].into_iter().enumerate() {
                if let Some(place) = bytes.get_mut(at) {
                    *place = byte;
                }
                drop((greeting(&bytes), request(&bytes), datagram(&bytes)));
            }
        }

        #[test]
        fn a_request_is_the_same_however_the_bytes_come(
            name in "[a-z]{1,20}",
            port: u16,
            rest in proptest::collection::vec(any::<u8>(), 0..20),
        ) {
            let mut bytes = vec![5, 1, 0, 3, u8::try_from(name.len()).unwrap()];
            bytes.extend(name.bytes());
            bytes.extend(port.to_be_bytes());
            let length = bytes.len();
            for end in 0..length {
                prop_assert_eq!(request(&bytes[..end]), Ok(None));
            }
            bytes.extend(rest);
            let (request, used) = request(&bytes).unwrap().unwrap();
            prop_assert_eq!((request.host.as_str(), request.port, used), (&*name, port, length));
        }

        #[test]
        fn datagrams_are_read_as_they_were_written(address: SocketAddr, data: Vec<u8>) {
            let mut out = Vec::new();
            write_datagram(address, &data, &mut out);
            let (host, port, found) = datagram(&out).unwrap();
            prop_assert_eq!(host, Host::from(address.ip()));
            prop_assert_eq!((port, found), (address.port(), &data[..]));
        }
    }
}
