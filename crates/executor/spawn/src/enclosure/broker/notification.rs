//! Seccomp notifications: calls of sandboxed threads that wait for a reply.

use std::ffi::c_int;

use super::descriptor::OwnedDescriptor;
use crate::raw::{self, Errno};

/// A call that waits for its reply.
#[derive(Debug)]
pub(super) struct SeccompNotification {
    listener: c_int,
    call: libc::seccomp_notif,
}

/// The reply to a call.
#[derive(Debug)]
pub(super) enum BrokerReply {
    /// The kernel makes the call as the caller, which creates nothing.
    Continue,
    /// The call succeeds.
    Done,
    /// The call fails.
    Fail(Errno),
    /// The call returns a descriptor.
    Return {
        /// The descriptor to copy into the caller.
        descriptor: OwnedDescriptor,
        /// Whether the copy has close-on-exec set.
        close_on_exec: bool,
    },
}

/// Makes the kernel run a caller at once, on the same CPU, when it gets its reply. Call this once
/// per listener.
pub(crate) fn prepare(listener: c_int) {
    // Unknown before Linux 6.6; callers then only wake up later.
    let _ = control(listener, SET_FLAGS, SYNC_WAKE_UP);
}

impl SeccompNotification {
    /// Receives the next notification. `None`: its caller has exited.
    pub(super) fn receive(listener: c_int) -> Result<Option<Self>, Errno> {
        // The kernel requires a zeroed structure.
        let mut call = libc::seccomp_notif {
            id: 0,
            pid: 0,
            flags: 0,
            data: libc::seccomp_data {
                nr: 0,
                arch: 0,
                instruction_pointer: 0,
                args: [0; 6],
            },
        };
        match control(listener, RECEIVE, &raw mut call as usize) {
            Ok(_) => Ok(Some(Self { listener, call })),
            Err(libc::ENOENT) => Ok(None),
            Err(errno) => Err(errno),
        }
    }

    /// Returns the id of the waiting thread. `None`: it has no id in this pid namespace.
    pub(super) fn thread(&self) -> Option<i32> {
        i32::try_from(self.call.pid).ok().filter(|pid| *pid > 0)
    }

    /// Returns the number of the call. `None`: another architecture with other numbers.
    pub(super) fn number(&self) -> Option<i64> {
        (self.call.data.arch == ARCHITECTURE).then_some(i64::from(self.call.data.nr))
    }

    /// Returns the arguments of the call.
    pub(super) const fn arguments(&self) -> [u64; 6] {
        self.call.data.args
    }

    /// Returns whether the caller still waits. If so, everything read by its thread id so far was
    /// its own.
    pub(super) fn is_waiting(&self) -> bool {
        let id = self.call.id;
        control(self.listener, IS_VALID, &raw const id as usize).is_ok()
    }

    /// Replies to the caller. A caller that has exited is not an error.
    pub(super) fn answer(self, answer: BrokerReply) -> Result<(), Errno> {
        match answer {
            BrokerReply::Continue => self.send(0, CONTINUE),
            BrokerReply::Done => self.send(0, 0),
            BrokerReply::Fail(errno) => self.send(-errno, 0),
            BrokerReply::Return {
                descriptor,
                close_on_exec,
            } => match self.send_descriptor(&descriptor, close_on_exec) {
                Ok(_) | Err(libc::ENOENT) => Ok(()),
                // The caller's descriptor table is full.
                Err(errno) => self.send(-errno, 0),
            },
        }
    }

    fn send(&self, error: c_int, flags: u32) -> Result<(), Errno> {
        let response = libc::seccomp_notif_resp {
            id: self.call.id,
            val: 0,
            error,
            flags,
        };
        match control(self.listener, SEND, &raw const response as usize) {
            Ok(_) | Err(libc::ENOENT) => Ok(()),
            Err(errno) => Err(errno),
        }
    }

    /// Installs a descriptor in the caller and replies with its number, atomically.
    fn send_descriptor(&self, fd: &OwnedDescriptor, close_on_exec: bool) -> Result<usize, Errno> {
        let addition = libc::seccomp_notif_addfd {
            id: self.call.id,
            flags: AND_SEND,
            srcfd: fd.number().unsigned_abs(),
            newfd: 0,
            newfd_flags: if close_on_exec {
                libc::O_CLOEXEC.unsigned_abs()
            } else {
                0
            },
        };
        control(self.listener, ADD_DESCRIPTOR, &raw const addition as usize)
    }
}

fn control(listener: c_int, request: usize, argument: usize) -> Result<usize, Errno> {
    let args = [raw::int_arg(listener), request, argument, 0, 0, 0];
    raw::syscall(libc::SYS_ioctl, args)
}

// Requests of a seccomp listener. The types in libc differ between C libraries.
const RECEIVE: usize = 0xc050_2100;
const SEND: usize = 0xc018_2101;
const IS_VALID: usize = 0x4008_2102;
const ADD_DESCRIPTOR: usize = 0x4018_2103;
const SET_FLAGS: usize = 0x4008_2104;

const CONTINUE: u32 = 1;
const AND_SEND: u32 = 2;
const SYNC_WAKE_UP: usize = 1;

#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: u32 = 0xc000_00b7;
