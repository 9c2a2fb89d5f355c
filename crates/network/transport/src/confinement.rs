//! Account and confinement of a local peer process, and the listeners on a unix socket that a
//! client trusts.
//!
//! A sandboxed command runs under the same account as the server. If its sandbox lets it connect,
//! it could make the server run what the sandbox forbids; if it can listen where a client expects
//! the server, it would receive what the client runs. Restrictions that no process can shed
//! identify it: `no_new_privs`, seccomp filters, the capability bounding set, and nested user and
//! PID namespaces.
//!
//! The credentials of a peer on a unix socket come with the connection. For a TCP peer over
//! loopback, the kernel reports the owner of every socket in this network namespace through
//! `sock_diag(7)`; one exact query finds the peer's socket.
//! Elsewhere: the decision which accounts are served ([`listener`](crate::listener)).

use std::{
    fs, io,
    net::{IpAddr, SocketAddr},
    path::PathBuf,
};

use rustix::{
    io::Errno,
    net::{
        AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, recv, send,
        socket_with,
    },
};
use tokio::net::UnixStream;

/// How the restrictions of another process compare with those of this one.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Confinement {
    /// It has no restriction that this process does not have.
    NotStricter,
    /// It has at least one restriction more.
    Stricter,
    /// It has exited.
    Gone,
    /// It is not visible from here: it runs in an outer or sibling container. A sandbox started
    /// from here is visible.
    Invisible,
}

impl Confinement {
    /// Compares a process, given by the pid that the kernel reported for the peer of a socket.
    pub(crate) fn of(process: Option<i32>) -> Self {
        let Some(process) = process.filter(|process| *process > 0) else {
            return Self::Invisible;
        };
        let Some(ours) = ProcessRestrictions::of("self") else {
            return Self::Invisible;
        };
        match ProcessRestrictions::of(&process.to_string()) {
            Some(theirs) if theirs.exceeds(&ours) => Self::Stricter,
            Some(_) => Self::NotStricter,
            None => Self::Gone,
        }
    }
}

/// Returns whether a process is more restricted than this one. An exited process counts as more
/// restricted, because its restrictions are unknown.
pub(crate) fn is_more_confined(process: Option<i32>) -> bool {
    match Confinement::of(process) {
        Confinement::Stricter | Confinement::Gone => true,
        Confinement::NotStricter | Confinement::Invisible => false,
    }
}

/// Restrictions that a process can gain but not shed.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
struct ProcessRestrictions {
    no_new_privileges: u32,
    seccomp_filters: u32,
    /// Number of nested PID namespaces, counted from the one of the mounted procfs.
    process_namespaces: usize,
    /// Capabilities missing from the bounding set.
    dropped_capabilities: u64,
    /// User namespace. `None` if this process may not inspect it, as for a process outside its
    /// namespace.
    user_namespace: Option<PathBuf>,
}

impl ProcessRestrictions {
    fn of(process: &str) -> Option<Self> {
        let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
        Some(Self {
            user_namespace: fs::read_link(format!("/proc/{process}/ns/user")).ok(),
            ..Self::parse(&status)
        })
    }

    fn parse(status: &str) -> Self {
        let value = |name: &str| {
            let mut lines = status.lines();
            let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            value.map_or("", str::trim)
        };
        let capabilities = u64::from_str_radix(value("CapBnd"), 16).unwrap_or(u64::MAX);
        Self {
            no_new_privileges: value("NoNewPrivs").parse().unwrap_or_default(),
            seccomp_filters: value("Seccomp_filters").parse().unwrap_or_default(),
            process_namespaces: value("NSpid").split_whitespace().count(),
            dropped_capabilities: !capabilities,
            user_namespace: None,
        }
    }

    fn exceeds(&self, ours: &Self) -> bool {
        let is_other_namespace =
            |theirs, ours| matches!((theirs, ours), (Some(theirs), Some(ours)) if theirs != ours);
        self.no_new_privileges > ours.no_new_privileges
            || self.seccomp_filters > ours.seccomp_filters
            || self.process_namespaces > ours.process_namespaces
            || self.dropped_capabilities & !ours.dropped_capabilities != 0
            || is_other_namespace(self.user_namespace.as_ref(), ours.user_namespace.as_ref())
    }
}

/// Which listeners a client accepts on a unix socket.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum ListenerTrust {
    /// Any listener: the caller trusts the path.
    #[default]
    Any,
    /// A process of this account with no more restrictions than this one. Otherwise a sandboxed
    /// command could place its own socket there and receive what the client runs.
    OwnAccount,
}

/// Peer: the client does not trust the process that listens on the socket.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum UntrustedListener {
    /// It belongs to another account.
    #[error("it belongs to account {account}, and this process to account {ours}")]
    OtherAccount {
        /// The account of the listener.
        account: u32,
        /// The account of this process.
        ours: u32,
    },
    /// It runs in a sandbox.
    #[error("process {process} listens there in a stricter sandbox than this process runs in")]
    Confined {
        /// The listener.
        process: i32,
    },
}

impl ListenerTrust {
    /// Checks the process that listens at the other end of a connection.
    ///
    /// # Errors
    /// Fails if the kernel does not report credentials, or if the listener has exited meanwhile.
    pub(crate) fn check(self, stream: &UnixStream) -> io::Result<Result<(), UntrustedListener>> {
        if self == Self::Any {
            return Ok(Ok(()));
        }
        let listener = stream.peer_cred()?;
        let (account, ours) = (listener.uid(), rustix::process::geteuid().as_raw());
        if account != ours {
            return Ok(Err(UntrustedListener::OtherAccount { account, ours }));
        }
        match Confinement::of(listener.pid()) {
            Confinement::NotStricter | Confinement::Invisible => Ok(Ok(())),
            Confinement::Stricter => Ok(Err(UntrustedListener::Confined {
                process: listener.pid().unwrap_or_default(),
            })),
            Confinement::Gone => Err(io::ErrorKind::ConnectionReset.into()),
        }
    }
}

/// Returns whether the socket connected from `peer` to `local` belongs to an account other than
/// that of this process and root, or was closed by the peer. `false` if the kernel does not report
/// the account.
pub(crate) fn is_other_account(peer: SocketAddr, local: SocketAddr) -> bool {
    let ours = rustix::process::geteuid().as_raw();
    match socket_owner(peer, local) {
        Ok(owner) => owner.is_none_or(|owner| owner != ours && owner != 0),
        Err(error) => {
            tracing::debug!(%error, "failed to look up the account of a loopback peer");
            false
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
    use super::*;

    #[test]
    fn a_single_additional_restriction_counts_as_stricter() {
        let of = |no_new_privileges, seccomp_filters| ProcessRestrictions {
            no_new_privileges,
            seccomp_filters,
            ..ProcessRestrictions::default()
        };
        let nested = |process_namespaces| ProcessRestrictions {
            process_namespaces,
            ..ProcessRestrictions::default()
        };
        let without = |dropped_capabilities| ProcessRestrictions {
            dropped_capabilities,
            ..ProcessRestrictions::default()
        };
        let users = |namespace: Option<&str>| ProcessRestrictions {
            user_namespace: namespace.map(PathBuf::from),
            ..ProcessRestrictions::default()
        };
        for (theirs, ours, exceeds) in [
            (of(0, 0), of(0, 0), false),
            (of(1, 0), of(0, 0), true),
            (of(1, 2), of(1, 1), true),
            (of(1, 1), of(1, 1), false),
            (of(0, 0), of(1, 1), false),
            (nested(2), nested(1), true),
            (nested(1), nested(1), false),
            (without(0b110), without(0b100), true),
            (without(0b100), without(0b110), false),
            (users(Some("user:[1]")), users(Some("user:[2]")), true),
            (users(Some("user:[1]")), users(Some("user:[1]")), false),
            (users(None), users(Some("user:[2]")), false),
        ] {
            assert_eq!(theirs.exceeds(&ours), exceeds, "{theirs:?} {ours:?}");
        }
    }

    #[test]
    fn restrictions_are_parsed_by_exact_field_name() {
        let status = "Name:\tNoNewPrivs: 0\nNSpid:\t70\t2\nNoNewPrivs:\t1\nSeccomp:\t2\nSeccomp_filters:\t3\n\
                      CapBnd:\tfffffffffffffffe\n";
        let read = ProcessRestrictions::parse(status);
        assert_eq!((read.no_new_privileges, read.seccomp_filters), (1, 3));
        assert_eq!((read.process_namespaces, read.dropped_capabilities), (2, 1));
        assert_eq!(
            ProcessRestrictions::parse(""),
            ProcessRestrictions::default()
        );
    }

    #[test]
    fn only_an_ended_process_counts_as_more_confined_than_this_one() {
        let own_pid = i32::try_from(std::process::id()).ok();
        assert!(!is_more_confined(own_pid));
        assert!(is_more_confined(Some(i32::MAX)));
        assert!(!is_more_confined(Some(0)));
        assert!(!is_more_confined(None));
    }
}

#[cfg(test)]
mod peer_account_tests {
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
