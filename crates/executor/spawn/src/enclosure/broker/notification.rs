//! Notifications of seccomp: calls of enclosed threads that wait for an answer.

use std::ffi::c_int;

use super::descriptor::OwnedDescriptor;
use crate::raw::{self, Errno};

/// One call that waits for its answer.
#[derive(Debug)]
pub(super) struct SeccompNotification {
    listener: c_int,
    call: libc::seccomp_notif,
}

/// What becomes of a call.
#[derive(Debug)]
pub(super) enum BrokerReply {
    /// The kernel does it, as the caller's: it makes nothing.
    Continue,
    /// It was done.
    Done,
    /// It fails.
    Fail(Errno),
    /// It returns a descriptor.
    Return {
        /// Whose copy the caller gets.
        descriptor: OwnedDescriptor,
        /// Whether the copy is closed on exec.
        close_on_exec: bool,
    },
}

/// Has callers run at once when they are answered, on the same processor. To be called once per
/// listener.
pub(crate) fn prepare(listener: c_int) {
    // Kernels before 6.6 do not know it; they only wake up more slowly.
    let _ = control(listener, SET_FLAGS, SYNC_WAKE_UP);
}

impl SeccompNotification {
    /// Receives the next one. `None`: its caller is gone already.
    pub(super) fn receive(listener: c_int) -> Result<Option<Self>, Errno> {
        // The kernel insists on zeroes.
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

    /// The thread that waits, by its number here. `None`: it has none here.
    pub(super) fn thread(&self) -> Option<i32> {
        i32::try_from(self.call.pid).ok().filter(|pid| *pid > 0)
    }

    /// The number of the call. `None`: it is of another architecture, whose numbers differ.
    pub(super) fn number(&self) -> Option<i64> {
        (self.call.data.arch == ARCHITECTURE).then_some(i64::from(self.call.data.nr))
    }

    /// The arguments of the call.
    pub(super) const fn arguments(&self) -> [u64; 6] {
        self.call.data.args
    }

    /// Whether its caller still waits: if so, all that was read by the thread's number was its own.
    pub(super) fn is_waiting(&self) -> bool {
        let id = self.call.id;
        control(self.listener, IS_VALID, &raw const id as usize).is_ok()
    }

    /// Lets the caller go on. That it is gone is no error.
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
                // The caller has no room for it.
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

    /// Installs a descriptor and answers with its number, in one.
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

// Requests of a listener. libc's have different types with different C libraries.
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
