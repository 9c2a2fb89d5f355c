//! The process that creates a socket in the network namespace of a command: enters the namespace,
//! passes the socket to the server, and exits.
//!
//! Shares the spawner's memory; nothing here allocates, locks or returns. In a user namespace it
//! has every capability, so that a sandboxed command, which has none, can neither trace nor inspect
//! it.

use std::{
    ffi::{c_int, c_void},
    os::fd::{AsRawFd, OwnedFd},
    ptr,
};

use super::job::JobRegion;
use crate::{
    network_namespace::{CREATE_STEP, JOIN_STEP, SOCKET_FAILURE_BYTES, SOCKET_REQUEST_BYTES},
    raw::{self, Errno},
};

/// Input of a helper, stored above its stack.
#[derive(Debug)]
pub(super) struct SocketJob {
    reply: c_int,
    network: c_int,
    /// User namespace that owns the network namespace. Negative: unknown.
    owner: c_int,
    family: c_int,
}

/// Starts a helper on the stack of `region`, with the descriptors and the body of a request.
///
/// The region must be kept until the helper was reaped.
pub(super) fn start(region: &JobRegion, body: &[u8], fds: &[OwnedFd]) -> Option<i32> {
    let body: [u8; SOCKET_REQUEST_BYTES] = body.try_into().ok()?;
    let (reply, network, owner) = match fds {
        [reply, network] => (reply, network, None),
        [reply, network, owner] => (reply, network, Some(owner)),
        _ => return None,
    };
    let job = SocketJob {
        reply: reply.as_raw_fd(),
        network: network.as_raw_fd(),
        owner: owner.map_or(-1, AsRawFd::as_raw_fd),
        family: c_int::from_le_bytes(body),
    };
    let argument = region.write_above_stack(job).cast();
    // SAFETY: the stack belongs to the region, which the caller keeps until the helper was reaped.
    // `enter` neither allocates nor locks nor returns.
    unsafe { raw::clone_vm(enter, region.stack_top(), 0, argument, ptr::null()) }.ok()
}

extern "C" fn enter(argument: *mut c_void) -> c_int {
    // SAFETY: the spawner keeps the job until this process was reaped, and nothing writes to it.
    let job = unsafe { &*argument.cast::<SocketJob>() };
    // Fails if the server has given up.
    let _ = match open_socket(job) {
        Ok(socket) => raw::send_descriptors(job.reply, &[socket]),
        Err((step, errno)) => {
            let ([a, b, c, d], [e, f, g, h]) = (step.to_le_bytes(), errno.to_le_bytes());
            let reply: [u8; SOCKET_FAILURE_BYTES] = [a, b, c, d, e, f, g, h];
            raw::send(job.reply, &reply).map(|_| ())
        }
    };
    raw::exit(0)
}

fn open_socket(job: &SocketJob) -> Result<c_int, (u32, Errno)> {
    join(job).map_err(|errno| (JOIN_STEP, errno))?;
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    let args = [
        raw::int_arg(job.family),
        raw::int_arg(kind),
        raw::int_arg(libc::IPPROTO_TCP),
    ];
    raw::syscall(libc::SYS_socket, args)
        .map(raw::to_i32)
        .map_err(|errno| (CREATE_STEP, errno))
}

/// Enters the network namespace: directly with privileges, otherwise through the user namespace
/// that owns it, in which the creator of that namespace has every capability.
fn join(job: &SocketJob) -> Result<(), Errno> {
    match raw::join_namespace(job.network, libc::CLONE_NEWNET) {
        Err(libc::EPERM) if job.owner >= 0 => {
            raw::join_namespace(job.owner, libc::CLONE_NEWUSER)?;
            raw::join_namespace(job.network, libc::CLONE_NEWNET)
        }
        result => result,
    }
}
