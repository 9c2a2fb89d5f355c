//! Determines the account of a TCP peer over loopback.
//!
//! The kernel reports the owner of every socket in this network namespace through `sock_diag(7)`;
//! one exact query finds the peer's socket.
//! Elsewhere: peers on unix sockets, whose credentials come with the connection.

use std::net::{IpAddr, SocketAddr};

use rustix::{
    io::Errno,
    net::{
        AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, recv, send,
        socket_with,
    },
};

/// Whether a peer may use a listener without authentication.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum PeerAccount {
    /// The account of this process, or root.
    Own,
    /// Another account, or the peer has closed its socket, so that its account is unknown.
    Other,
    /// The kernel does not report the account.
    Unknown,
}

impl PeerAccount {
    /// Looks up the owner of the socket connected from `peer` to `local`.
    pub(crate) fn of(peer: SocketAddr, local: SocketAddr) -> Self {
        let ours = rustix::process::geteuid().as_raw();
        match socket_owner(peer, local) {
            Ok(Some(owner)) if owner == ours || owner == 0 => Self::Own,
            Ok(_) => Self::Other,
            Err(error) => {
                tracing::debug!(%error, "failed to look up the account of a loopback peer");
                Self::Unknown
            }
        }
    }
}

/// Returns the owner of an open socket with these endpoints, or `None`. A socket that its process
/// has closed lingers with uid 0 and counts as absent.
fn socket_owner(from: SocketAddr, to: SocketAddr) -> Result<Option<u32>, Errno> {
    let socket = socket_with(
        AddressFamily::NETLINK,
        SocketType::DGRAM,
        SocketFlags::CLOEXEC,
        Some(netlink::SOCK_DIAG),
    )?;
    send(&socket, &diag_request(from, to), SendFlags::empty())?;
    let mut response = [0; 512];
    // The kernel answers before `send` returns.
    let (length, _) = recv(&socket, &mut response, RecvFlags::DONTWAIT)?;
    parse_response(&response[..length])
}

/// Encodes the request: a `struct nlmsghdr` and a `struct inet_diag_req_v2`.
fn diag_request(from: SocketAddr, to: SocketAddr) -> Vec<u8> {
    let (from_ip, to_ip) = (from.ip().to_canonical(), to.ip().to_canonical());
    let family = match from_ip {
        IpAddr::V4(_) => AddressFamily::INET,
        IpAddr::V6(_) => AddressFamily::INET6,
    };
    let mut message = Vec::with_capacity(128);
    message.extend(REQUEST_BYTES.to_ne_bytes());
    message.extend(SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    message.extend(NLM_F_REQUEST.to_ne_bytes());
    message.extend([0; 8]);
    let family = u8::try_from(family.as_raw()).unwrap_or_default();
    message.extend([family, IPPROTO_TCP, 0, 0]);
    // All states, any interface, no cookie.
    message.extend(u32::MAX.to_ne_bytes());
    message.extend(from.port().to_be_bytes());
    message.extend(to.port().to_be_bytes());
    message.extend(address(from_ip));
    message.extend(address(to_ip));
    message.extend(0_u32.to_ne_bytes());
    message.extend([u8::MAX; 8]);
    message
}

/// Encodes an address in the kernel's sixteen bytes.
fn address(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(ip) => {
            let mut bytes = [0; 16];
            bytes[..4].copy_from_slice(&ip.octets());
            bytes
        }
        IpAddr::V6(ip) => ip.octets(),
    }
}

/// Parses a `struct nlmsghdr` with a `struct inet_diag_msg` or an error.
fn parse_response(message: &[u8]) -> Result<Option<u32>, Errno> {
    let word = |at: usize| {
        let bytes = message.get(at..at + 4)?.try_into().ok()?;
        Some(u32::from_ne_bytes(bytes))
    };
    let kind = message.get(4..6).and_then(|kind| kind.try_into().ok());
    match kind.map(u16::from_ne_bytes) {
        Some(SOCK_DIAG_BY_FAMILY) => {
            let state = message.get(17).copied();
            let owner = word(80).zip(word(84)).ok_or(Errno::BADMSG)?;
            Ok(match owner {
                // No inode: no process has the socket open.
                (_, 0) => None,
                (owner, _) => (state != Some(TCP_LISTEN)).then_some(owner),
            })
        }
        Some(NLMSG_ERROR) => {
            let code = word(16).ok_or(Errno::BADMSG)?;
            match Errno::from_raw_os_error(code.cast_signed().wrapping_neg()) {
                Errno::NOENT => Ok(None),
                error => Err(error),
            }
        }
        Some(_) | None => Err(Errno::BADMSG),
    }
}

const REQUEST_BYTES: u32 = 72;
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLMSG_ERROR: u16 = 2;
const NLM_F_REQUEST: u16 = 1;
const IPPROTO_TCP: u8 = 6;
const TCP_LISTEN: u8 = 10;

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    fn connected(address: &str) -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind(address).unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (server, _) = listener.accept().unwrap();
        (client, server)
    }

    fn owner(server: &TcpStream) -> Option<u32> {
        let (peer, local) = (server.peer_addr().unwrap(), server.local_addr().unwrap());
        socket_owner(peer, local).unwrap()
    }

    #[test]
    fn owner_of_an_open_socket_is_found() {
        let ours = rustix::process::geteuid().as_raw();
        for address in ["127.0.0.1:0", "127.8.8.8:0"] {
            let (_client, server) = connected(address);
            assert_eq!(owner(&server), Some(ours), "{address}");
        }
        if TcpListener::bind("[::1]:0").is_ok() {
            let (_client, server) = connected("[::1]:0");
            assert_eq!(owner(&server), Some(ours));
        }
    }

    #[test]
    fn closed_socket_has_no_owner() {
        let (client, server) = connected("127.0.0.1:0");
        drop(client);
        assert_eq!(owner(&server), None);
    }

    #[test]
    fn truncated_response_is_an_error() {
        let mut response = [0; 88];
        response[4..6].copy_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
        for length in 0..response.len() {
            assert_eq!(
                parse_response(&response[..length]),
                Err(Errno::BADMSG),
                "{length}"
            );
        }
    }
}
