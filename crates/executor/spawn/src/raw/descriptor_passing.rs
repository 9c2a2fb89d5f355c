//! Passes descriptors over unix sockets.

use std::{ffi::c_int, ptr};

use super::{Errno, int_arg, syscall, to_i32};

/// Most descriptors in one message.
const MAX_PASSED: usize = 64;
/// Header of a control message: length, level and type.
const HEAD_BYTES: usize = 16;

/// A control message in the kernel's layout.
#[repr(C, align(8))]
struct ControlMessage {
    length: usize,
    level: c_int,
    kind: c_int,
    descriptors: [c_int; MAX_PASSED],
}

/// Creates a pair of connected SEQPACKET sockets with close-on-exec set.
pub(crate) fn socket_pair() -> Result<[c_int; 2], Errno> {
    let mut pair = [-1; 2];
    let kind = int_arg(libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC);
    let place = pair.as_mut_ptr() as usize;
    syscall(
        libc::SYS_socketpair,
        [int_arg(libc::AF_UNIX), kind, 0, place, 0, 0],
    )?;
    Ok(pair)
}

/// Sends one byte with descriptors attached.
pub(crate) fn send_descriptors(socket: c_int, descriptors: &[c_int]) -> Result<(), Errno> {
    let mut control = ControlMessage {
        length: HEAD_BYTES + size_of_val(descriptors),
        level: libc::SOL_SOCKET,
        kind: libc::SCM_RIGHTS,
        descriptors: [-1; MAX_PASSED],
    };
    let places = control.descriptors.get_mut(..descriptors.len());
    places.ok_or(libc::E2BIG)?.copy_from_slice(descriptors);
    let length = control.length;
    transfer_message(
        libc::SYS_sendmsg,
        socket,
        &mut control,
        length,
        libc::MSG_NOSIGNAL,
    )
    .map(|_| ())
}

/// Waits for one byte with one descriptor, which gets close-on-exec set. Fails if the peer closes
/// without sending one.
pub(crate) fn receive_descriptor(socket: c_int) -> Result<c_int, Errno> {
    let mut control = ControlMessage {
        length: 0,
        level: 0,
        kind: 0,
        descriptors: [-1; MAX_PASSED],
    };
    let flags = libc::MSG_CMSG_CLOEXEC;
    let bytes = size_of::<ControlMessage>();
    transfer_message(libc::SYS_recvmsg, socket, &mut control, bytes, flags)?;
    let [first, ..] = control.descriptors;
    let whole =
        control.length == HEAD_BYTES + size_of::<c_int>() && control.kind == libc::SCM_RIGHTS;
    if whole { Ok(first) } else { Err(libc::EPROTO) }
}

fn transfer_message(
    call: i64,
    socket: c_int,
    control: &mut ControlMessage,
    control_bytes: usize,
    flags: c_int,
) -> Result<i32, Errno> {
    let mut byte = 0_u8;
    let mut data = libc::iovec {
        iov_base: (&raw mut byte).cast(),
        iov_len: 1,
    };
    // The kernel's `msghdr`: name, data, control message, flags.
    let mut head = [
        ptr::null::<u8>() as usize,
        0,
        &raw mut data as usize,
        1,
        ptr::from_mut(control) as usize,
        control_bytes,
        0,
    ];
    let args = [
        int_arg(socket),
        head.as_mut_ptr() as usize,
        int_arg(flags),
        0,
        0,
        0,
    ];
    loop {
        match syscall(call, args) {
            Err(libc::EINTR) => {}
            done => return done.map(to_i32),
        }
    }
}
