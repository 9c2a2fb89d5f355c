//! Probes of IPC on this host: unix sockets by path and abstract name, shared memory, message
//! queues.

use std::{
    ffi::{CString, OsStr},
    io::{self, Read, Write},
    os::{
        fd::OwnedFd,
        unix::{
            ffi::OsStrExt,
            net::{UnixDatagram, UnixListener, UnixStream},
        },
    },
};

use crate::{
    network::socket,
    probe::{Probe, ProbeArgs, ProbeFailure, ProbeResult, ok},
    syscall::{call, owned},
};

pub(crate) const PROBES: &[(&str, Probe)] = &[
    ("abstract-connect", |args| {
        Ok(ok(connect(libc::SOCK_STREAM, &abstract_name(args)?)?))
    }),
    ("abstract-seqpacket-connect", |args| {
        Ok(ok(connect(libc::SOCK_SEQPACKET, &abstract_name(args)?)?))
    }),
    ("abstract-dgram-send", |args| {
        Ok(ok(send_to(&abstract_name(args)?)?))
    }),
    ("abstract-pair-send", |args| {
        Ok(ok(pair_send(&abstract_name(args)?)?))
    }),
    ("abstract-pair-connect", |args| {
        pair_connect(&abstract_name(args)?)
    }),
    ("send-on-socketpair", |_| {
        let (mut local, mut remote) = UnixStream::pair()?;
        local.write_all(b"x")?;
        Ok(ok(remote.read_exact(&mut [0])?))
    }),
    ("socketpair", |_| Ok(ok(UnixStream::pair()?))),
    ("socketpair-dgram", |_| {
        let (local, remote) = UnixDatagram::pair()?;
        local.send(b"x")?;
        Ok(ok(remote.recv(&mut [0])?))
    }),
    ("unix-bind", |args| {
        Ok(ok(UnixListener::bind(args.path(0)?)?))
    }),
    ("unix-connect", |args| {
        Ok(ok(connect(libc::SOCK_STREAM, &path_name(args)?)?))
    }),
    ("unix-dgram-connect", |args| {
        Ok(ok(connect(libc::SOCK_DGRAM, &path_name(args)?)?))
    }),
    ("unix-dgram-send", |args| {
        Ok(ok(send_to(&path_name(args)?)?))
    }),
    ("unix-pair-connect", |args| pair_connect(&path_name(args)?)),
    // One end of a socket pair can reach another socket without `socket` or `connect`.
    ("unix-pair-send", |args| {
        Ok(ok(pair_send(&path_name(args)?)?))
    }),
    ("unix-pair-send-many", |args| {
        Ok(ok(pair_send_many(&path_name(args)?)?))
    }),
    // Prints the id of a shared memory segment, which stays until it is removed.
    ("shm-make", |_| {
        let id = call!(libc::SYS_shmget, libc::IPC_PRIVATE, 4096, 0o600)?;
        Ok(format!("ok {id}"))
    }),
    // Reads the status of a segment, which needs read permission.
    ("shm-stat", |args| {
        let mut buffer = [0; 256];
        let id: i32 = args.number(0)?;
        Ok(ok(call!(
            libc::SYS_shmctl,
            id,
            libc::IPC_STAT,
            &mut buffer[..]
        )?))
    }),
    ("shm-remove", |args| {
        let id: i32 = args.number(0)?;
        Ok(ok(call!(libc::SYS_shmctl, id, libc::IPC_RMID, 0)?))
    }),
    ("queue-make", |args| {
        let flags = libc::O_CREAT | libc::O_EXCL | libc::O_RDWR | libc::O_CLOEXEC;
        queue(args, flags)
    }),
    ("queue-open", |args| {
        queue(args, libc::O_RDWR | libc::O_CLOEXEC)
    }),
    ("queue-remove", |args| {
        let name = args.text(0)?;
        Ok(ok(call!(libc::SYS_mq_unlink, name.as_c_str())?))
    }),
];

/// Builds a `struct sockaddr_un` with a path.
fn path_name(args: &ProbeArgs<'_>) -> Result<Vec<u8>, ProbeFailure> {
    let mut path = Vec::from(args.word(0)?.as_bytes());
    path.push(0);
    name(&path)
}

/// Builds a `struct sockaddr_un` with an abstract name.
fn abstract_name(args: &ProbeArgs<'_>) -> Result<Vec<u8>, ProbeFailure> {
    let mut path = vec![0];
    path.extend(OsStr::as_bytes(args.word(0)?));
    name(&path)
}

fn name(path: &[u8]) -> Result<Vec<u8>, ProbeFailure> {
    if path.len() > 108 {
        return Err(ProbeFailure::Usage);
    }
    let family = u16::try_from(libc::AF_UNIX).map_err(|_| ProbeFailure::Usage)?;
    Ok([&family.to_ne_bytes(), path].concat())
}

fn connect(kind: i32, name: &[u8]) -> io::Result<OwnedFd> {
    let socket = socket(libc::AF_UNIX, kind, 0)?;
    call!(libc::SYS_connect, &socket, name, name.len())?;
    Ok(socket)
}

fn send_to(name: &[u8]) -> io::Result<i64> {
    let socket = socket(libc::AF_UNIX, libc::SOCK_DGRAM, 0)?;
    let data = &b"probe"[..];
    call!(
        libc::SYS_sendto,
        &socket,
        data,
        data.len(),
        0,
        name,
        name.len()
    )
}

/// Connects one end of a socket pair to another socket.
fn pair_connect(name: &[u8]) -> ProbeResult {
    let end = OwnedFd::from(UnixDatagram::pair()?.0);
    Ok(ok(call!(libc::SYS_connect, &end, name, name.len())?))
}

/// Sends from one end of a socket pair to another socket.
fn pair_send(name: &[u8]) -> io::Result<i64> {
    let (local, _remote) = UnixDatagram::pair()?;
    let local = OwnedFd::from(local);
    let data = *b"probe";
    let range = range(&data);
    let header = header(name, &range);
    call!(libc::SYS_sendmsg, &local, &header[..], 0)
}

/// Does the same with `sendmmsg`.
fn pair_send_many(name: &[u8]) -> io::Result<i64> {
    let (local, _remote) = UnixDatagram::pair()?;
    let local = OwnedFd::from(local);
    let data = *b"probe";
    let range = range(&data);
    // A `struct mmsghdr` has one more word for the length.
    let mut message = header(name, &range);
    message.extend([0; 8]);
    call!(libc::SYS_sendmmsg, &local, &mut message[..], 1, 0)
}

/// Builds a `struct iovec`.
fn range(data: &[u8]) -> Vec<u8> {
    [data.as_ptr().expose_provenance(), data.len()]
        .map(usize::to_ne_bytes)
        .concat()
}

/// Builds a `struct msghdr` with an address and one byte range.
fn header(name: &[u8], range: &[u8]) -> Vec<u8> {
    let address = |bytes: &[u8]| bytes.as_ptr().expose_provenance();
    [address(name), name.len(), address(range), 1, 0, 0, 0]
        .map(usize::to_ne_bytes)
        .concat()
}

/// Opens a message queue; the kernel's names have no slash.
fn queue(args: &ProbeArgs<'_>, flags: i32) -> ProbeResult {
    let name: CString = args.text(0)?;
    if name.as_bytes().contains(&b'/') {
        return Err(ProbeFailure::Usage);
    }
    Ok(ok(owned(call!(
        libc::SYS_mq_open,
        name.as_c_str(),
        flags,
        0o600,
        0
    ))?))
}
