//! The TCP sockets that listen in a network namespace.
//!
//! In the namespace of this process they come from the kernel's socket diagnostics, which walk only
//! sockets that listen: its cost does not grow with the connections of the host. In another
//! namespace, and where diagnostics are missing, they come from `/proc/<pid>/net`.

use std::{
    fs::File,
    io::{self, BufRead, BufReader, Read},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use exec_process::spawner::TreeMember;
use rustix::{
    io::Errno,
    net::{
        AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, recv, send,
        socket_with,
    },
};

/// Most sockets of a list.
pub(crate) const MAX_SOCKETS: usize = 1024;
/// Most bytes that are read of a file in `/proc`. A connection takes 150.
const MAX_PROC_BYTES: u64 = 32 << 20;

/// A TCP socket that listens.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) struct ListeningSocket {
    pub(crate) port: u16,
    pub(crate) address: IpAddr,
    /// Number by which `/proc/<pid>/fd` names the socket.
    pub(crate) inode: u64,
}

/// Lists the sockets in the network namespace of a process, or in that of this process, by port and
/// address. Blocks briefly.
pub(crate) fn listening_sockets(process: Option<&TreeMember>) -> io::Result<Vec<ListeningSocket>> {
    let member = match process {
        Some(process) => process.network_namespace()?.map(|_| process),
        None => None,
    };
    let mut sockets = match member {
        Some(member) => {
            let sockets = sockets_of_proc(&member.pid().to_string())?;
            // The pid was not reused meanwhile.
            if !member.is_alive() {
                return Err(Errno::SRCH.into());
            }
            sockets
        }
        None => match sockets_of_diagnostics() {
            Ok(sockets) => sockets,
            Err(error) => {
                tracing::debug!(%error, "failed to list sockets by diagnostics");
                sockets_of_proc("self")?
            }
        },
    };
    sockets.sort_unstable();
    // Several sockets can share a port.
    sockets.dedup_by_key(|socket| (socket.port, socket.address));
    sockets.truncate(MAX_SOCKETS);
    Ok(sockets)
}

/// `SOCK_DIAG_BY_FAMILY`.
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
/// `NLM_F_REQUEST | NLM_F_DUMP`.
const DUMP_REQUEST: u16 = 0x301;
const IPPROTO_TCP: u8 = 6;
/// State of a listening socket, in `/proc` and in diagnostics.
const TCP_LISTEN: u8 = 10;
/// Sizes of `nlmsghdr`, `inet_diag_req_v2` and `inet_diag_msg`.
const HEADER_BYTES: usize = 16;
const REQUEST_BYTES: usize = 56;
const MESSAGE_BYTES: usize = 72;

fn sockets_of_diagnostics() -> io::Result<Vec<ListeningSocket>> {
    let socket = socket_with(
        AddressFamily::NETLINK,
        SocketType::RAW,
        SocketFlags::CLOEXEC,
        Some(netlink::SOCK_DIAG),
    )?;
    let mut sockets = Vec::new();
    for family in [AddressFamily::INET, AddressFamily::INET6] {
        send(&socket, &dump_request(family), SendFlags::empty())?;
        // The kernel makes the next part of a dump when one is received, so this never waits.
        let mut buffer = vec![0; 64 << 10];
        loop {
            let (count, _) = recv(&socket, &mut buffer[..], RecvFlags::DONTWAIT)?;
            if read_dump(&buffer[..count.min(64 << 10)], &mut sockets)? {
                break;
            }
        }
    }
    Ok(sockets)
}

fn dump_request(family: AddressFamily) -> [u8; HEADER_BYTES + REQUEST_BYTES] {
    let mut request = [0; HEADER_BYTES + REQUEST_BYTES];
    let length = u32::try_from(request.len()).unwrap_or(0);
    request[0..4].copy_from_slice(&length.to_ne_bytes());
    request[4..6].copy_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    request[6..8].copy_from_slice(&DUMP_REQUEST.to_ne_bytes());
    request[HEADER_BYTES] = u8::try_from(family.as_raw()).unwrap_or(0);
    request[HEADER_BYTES + 1] = IPPROTO_TCP;
    let states = 1_u32 << TCP_LISTEN;
    request[HEADER_BYTES + 4..HEADER_BYTES + 8].copy_from_slice(&states.to_ne_bytes());
    request
}

/// Reads messages of a dump. Returns whether it is complete.
fn read_dump(mut bytes: &[u8], sockets: &mut Vec<ListeningSocket>) -> io::Result<bool> {
    while let Some((header, _)) = bytes.split_first_chunk::<HEADER_BYTES>() {
        let [a, b, c, d, e, f, ..] = *header;
        let length = u32::from_ne_bytes([a, b, c, d]) as usize;
        let message = bytes
            .get(HEADER_BYTES..length)
            .ok_or(io::ErrorKind::InvalidData)?;
        match u16::from_ne_bytes([e, f]) {
            NLMSG_DONE => return Ok(true),
            NLMSG_ERROR => {
                let errno = message
                    .first_chunk()
                    .map_or(0, |it| i32::from_ne_bytes(*it));
                return Err(io::Error::from_raw_os_error(-errno));
            }
            SOCK_DIAG_BY_FAMILY => sockets.extend(read_message(message)),
            _ => {}
        }
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(false)
}

/// Reads one `inet_diag_msg`.
fn read_message(message: &[u8]) -> Option<ListeningSocket> {
    let message: &[u8; MESSAGE_BYTES] = message.first_chunk()?;
    let [family, state, ..] = *message;
    let address: [u8; 16] = message[8..24].try_into().ok()?;
    let [a, b, c, d, ..] = address;
    let address = match AddressFamily::from_raw(u16::from(family)) {
        AddressFamily::INET => IpAddr::from([a, b, c, d]),
        AddressFamily::INET6 => IpAddr::from(address),
        _ => return None,
    };
    let inode = message[68..72].try_into().ok()?;
    (state == TCP_LISTEN).then_some(ListeningSocket {
        port: u16::from_be_bytes([message[4], message[5]]),
        address,
        inode: u64::from(u32::from_ne_bytes(inode)),
    })
}

fn sockets_of_proc(process: &str) -> io::Result<Vec<ListeningSocket>> {
    let mut sockets = Vec::new();
    for (name, is_required) in [("tcp", true), ("tcp6", false)] {
        if socket_count(process, name) == Some(0) {
            continue;
        }
        let file = match File::open(format!("/proc/{process}/net/{name}")) {
            // The host has no IPv6.
            Err(error) if !is_required && error.kind() == io::ErrorKind::NotFound => continue,
            file => file?,
        };
        // The first line is a heading.
        for line in BufReader::new(file.take(MAX_PROC_BYTES)).lines().skip(1) {
            sockets.extend(read_line(&line?));
        }
    }
    Ok(sockets)
}

/// Returns how many sockets a namespace has in one of these tables. The kernel counts them, while
/// it walks the hash table of the whole host to list them. `None`: it does not say.
fn socket_count(process: &str, table: &str) -> Option<u64> {
    let (file, label) = match table {
        "tcp" => ("sockstat", "TCP:"),
        _ => ("sockstat6", "TCP6:"),
    };
    let text = std::fs::read_to_string(format!("/proc/{process}/net/{file}")).ok()?;
    read_count(&text, label)
}

/// Reads the sockets in use from a line such as `TCP: inuse 4 orphan 0`.
fn read_count(text: &str, label: &str) -> Option<u64> {
    let mut fields = text
        .lines()
        .find_map(|line| line.strip_prefix(label))?
        .split_ascii_whitespace();
    (fields.next() == Some("inuse")).then_some(())?;
    fields.next()?.parse().ok()
}

/// Reads a line of `/proc/net/tcp`. `None`: the socket does not listen.
fn read_line(line: &str) -> Option<ListeningSocket> {
    let mut fields = line.split_ascii_whitespace().skip(1);
    let (address, port) = fields.next()?.split_once(':')?;
    let state = u8::from_str_radix(fields.nth(1)?, 16).ok()?;
    if state != TCP_LISTEN {
        return None;
    }
    // Each group is a word of memory in this machine's byte order.
    let words: Option<Vec<[u8; 4]>> = address
        .as_bytes()
        .chunks(8)
        .map(|group| {
            let text = str::from_utf8(group).ok().filter(|text| text.len() == 8)?;
            u32::from_str_radix(text, 16).ok().map(u32::to_ne_bytes)
        })
        .collect();
    let address = match words?[..] {
        [word] => Ipv4Addr::from(word).into(),
        [a, b, c, d] => {
            let bytes: [u8; 16] = [a, b, c, d].concat().try_into().ok()?;
            Ipv6Addr::from(bytes).into()
        }
        _ => return None,
    };
    Some(ListeningSocket {
        port: u16::from_str_radix(port, 16).ok()?,
        address,
        inode: fields.nth(5)?.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn diagnostics_and_proc_list_the_same_sockets() {
        let v4 = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let v6 = TcpListener::bind((Ipv6Addr::UNSPECIFIED, 0)).unwrap();
        for listed in [
            sockets_of_diagnostics().unwrap(),
            sockets_of_proc("self").unwrap(),
        ] {
            for listener in [&v4, &v6] {
                let address = listener.local_addr().unwrap();
                let found = |socket: &&ListeningSocket| {
                    (socket.address, socket.port) == (address.ip(), address.port())
                };
                let socket = listed.iter().find(found).expect("the socket is listed");
                let fd = std::os::fd::AsRawFd::as_raw_fd(listener);
                let link = std::fs::read_link(format!("/proc/self/fd/{fd}")).unwrap();
                assert_eq!(link.to_str().unwrap(), format!("socket:[{}]", socket.inode));
            }
        }
    }

    #[test]
    fn counters_of_sockets_are_read() {
        let text = "sockets: used 64\nTCP: inuse 11 orphan 0 tw 3\nTCP6: inuse 0\n";
        assert_eq!(read_count(text, "TCP:"), Some(11));
        assert_eq!(read_count(text, "TCP6:"), Some(0));
        assert_eq!(read_count("TCP: used 1", "TCP:"), None);
        assert_eq!(read_count("", "TCP:"), None);
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        assert!(socket_count("self", "tcp").is_none_or(|count| count > 0));
        drop(listener);
    }

    #[test]
    fn lines_of_proc_are_read() {
        let v4 = "   0: 0100007F:0BB8 00000000:0000 0A 00000000:00000000 00:00000000 00000000  \
                  1000        0 4711 1 0000000000000000 100 0 0 10 0";
        let expected = ListeningSocket {
            port: 3000,
            address: Ipv4Addr::LOCALHOST.into(),
            inode: 4711,
        };
        assert_eq!(read_line(v4), Some(expected));
        let v6 = "   1: 00000000000000000000000001000000:0050 00000000000000000000000000000000:0000 \
                  0A 00000000:00000000 00:00000000 00000000 0 0 12 1 0 100 0 0 10 0";
        let expected = ListeningSocket {
            port: 80,
            address: Ipv6Addr::LOCALHOST.into(),
            inode: 12,
        };
        assert_eq!(read_line(v6), Some(expected));
        assert_eq!(read_line(&v4.replace(" 0A ", " 01 ")), None);
        for broken in [
            "",
            "0:",
            "0: x",
            "0: 0100007F:0BB8 0:0 0A",
            "0: 01:0BB8 0:0 0A 0 0 0 0 0 1",
        ] {
            assert_eq!(read_line(broken), None, "{broken}");
        }
    }

    #[test]
    fn truncated_dump_is_an_error() {
        let mut sockets = Vec::new();
        let request = dump_request(AddressFamily::INET);
        assert!(read_dump(&request[..20], &mut sockets).is_err());
        assert!(!read_dump(&[], &mut sockets).unwrap());
        assert_eq!(sockets, []);
    }
}
