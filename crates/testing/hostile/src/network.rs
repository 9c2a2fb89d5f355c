//! Probes of sockets that reach beyond this host or into the kernel.

use std::{
    io::{self, Read, Write},
    net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    time::Duration,
};

use crate::{
    probe::{Probe, ProbeArgs, ProbeFailure, ok},
    syscall::{call, owned},
};

pub(crate) const PROBES: &[(&str, Probe)] = &[
    ("bind", |args| {
        Ok(ok(TcpListener::bind((
            Ipv4Addr::LOCALHOST,
            args.number(0)?,
        ))?))
    }),
    ("connect", |args| {
        Ok(ok(TcpStream::connect_timeout(
            &address(args)?,
            Duration::from_secs(5),
        )?))
    }),
    ("lo-self", |_| Ok(ok(loopback_round_trip()?))),
    // Connects with `sendto` (TCP Fast Open).
    ("fast-open", |args| {
        let SocketAddr::V4(to) = address(args)? else {
            return Err(ProbeFailure::Usage);
        };
        let socket = socket(libc::AF_INET, libc::SOCK_STREAM, 0)?;
        let mut name = Vec::from(2_u16.to_ne_bytes());
        name.extend(to.port().to_be_bytes());
        name.extend(to.ip().octets());
        name.extend([0; 8]);
        let data = &b"probe"[..];
        Ok(ok(call!(
            libc::SYS_sendto,
            &socket,
            data,
            data.len(),
            libc::MSG_FASTOPEN,
            &name[..],
            name.len()
        )?))
    }),
    ("socket-alg", |_| {
        Ok(ok(socket(libc::AF_ALG, libc::SOCK_SEQPACKET, 0)?))
    }),
    ("socket-inet", |_| {
        Ok(ok(socket(libc::AF_INET, libc::SOCK_STREAM, 0)?))
    }),
    ("socket-inet6", |_| {
        Ok(ok(socket(libc::AF_INET6, libc::SOCK_STREAM, 0)?))
    }),
    ("socket-netlink", |_| {
        Ok(ok(socket(libc::AF_NETLINK, libc::SOCK_RAW, 0)?))
    }),
    ("socket-packet", |_| {
        Ok(ok(socket(libc::AF_PACKET, libc::SOCK_RAW, 0)?))
    }),
    ("socket-raw", |_| {
        Ok(ok(socket(
            libc::AF_INET,
            libc::SOCK_RAW,
            libc::IPPROTO_ICMP,
        )?))
    }),
    ("socket-unix", |_| {
        Ok(ok(socket(libc::AF_UNIX, libc::SOCK_STREAM, 0)?))
    }),
    ("socket-vsock", |_| {
        Ok(ok(socket(libc::AF_VSOCK, libc::SOCK_STREAM, 0)?))
    }),
    ("socketpair-inet", |_| {
        let mut pair = [0; 8];
        let result = call!(
            libc::SYS_socketpair,
            libc::AF_INET,
            libc::SOCK_STREAM,
            0,
            &mut pair[..]
        );
        Ok(ok(result?))
    }),
    ("udp", |args| {
        let to = address(args)?;
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
        Ok(ok(socket.send_to(b"probe", to)?))
    }),
];

/// Creates a socket.
pub(crate) fn socket(family: i32, kind: i32, protocol: i32) -> io::Result<std::os::fd::OwnedFd> {
    let kind = kind | libc::SOCK_CLOEXEC;
    owned(call!(libc::SYS_socket, family, kind, protocol))
}

/// Parses `HOST PORT` as numbers.
fn address(args: &ProbeArgs<'_>) -> Result<SocketAddr, ProbeFailure> {
    let host: IpAddr = args.number(0)?;
    Ok(SocketAddr::new(host, args.number(1)?))
}

/// Sends a byte to itself over loopback.
fn loopback_round_trip() -> io::Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let mut local = TcpStream::connect_timeout(&listener.local_addr()?, Duration::from_secs(5))?;
    local.write_all(b"x")?;
    listener.accept()?.0.read_exact(&mut [0])
}
