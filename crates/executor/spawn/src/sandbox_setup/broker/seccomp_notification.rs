//! Seccomp notifications: calls of sandboxed threads that wait for a reply, and the process context
//! of their callers: memory, directories, umask.
//!
//! The context of a caller is looked up by the id of a thread that may have exited meanwhile. So
//! nothing may be done with it before [`Caller::confirm`].

use std::ffi::c_int;

use super::{
    guard_table::GuardTable,
    target_entry::{MAX_PATH, PathBuffer, ShortPath},
};
use crate::raw::{self, Errno, OwnedDescriptor};

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
    let args = [raw::int_arg(listener), request, argument];
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

/// The thread that made a call.
#[derive(Debug)]
pub(super) struct Caller<'a> {
    notification: &'a SeccompNotification,
    thread: i32,
    /// A procfs that shows the thread.
    processes: c_int,
}

impl<'a> Caller<'a> {
    /// Returns the caller that waits for a reply.
    pub(super) fn of(notification: &'a SeccompNotification, guards: &GuardTable) -> Option<Self> {
        let (thread, processes) = (notification.thread()?, guards.processes());
        Some(Self {
            notification,
            thread,
            processes,
        })
    }

    /// Returns a procfs that shows the caller.
    pub(super) const fn processes(&self) -> c_int {
        self.processes
    }

    /// Copies a path. `None`: it cannot be read, or is too long.
    pub(super) fn read_path(&self, address: u64, path: &mut PathBuffer) -> Option<()> {
        let mut address = usize::try_from(address).ok()?;
        let mut remaining = path.buffer().as_mut_slice();
        // Page by page, because the page after the end of the path may not be mapped.
        while !remaining.is_empty() {
            let length = (SMALLEST_PAGE - address % SMALLEST_PAGE).min(remaining.len());
            let (part, rest) = remaining.split_at_mut_checked(length)?;
            self.read(address, part)?;
            if part.contains(&0) {
                return Some(());
            }
            address = address.checked_add(length)?;
            remaining = rest;
        }
        None
    }

    /// Fills `buffer` from the caller's memory.
    pub(super) fn read(&self, address: usize, buffer: &mut [u8]) -> Option<()> {
        let local = [buffer.as_mut_ptr() as usize, buffer.len()];
        let remote = [address, buffer.len()];
        let args = [
            raw::int_arg(self.thread),
            local.as_ptr() as usize,
            1,
            remote.as_ptr() as usize,
            1,
            0,
        ];
        let length = raw::syscall(libc::SYS_process_vm_readv, args).ok()?;
        (length == buffer.len()).then_some(())
    }

    /// Duplicates a descriptor of the caller.
    pub(super) fn duplicate(&self, fd: c_int) -> Option<OwnedDescriptor> {
        let process = self.open_process()?;
        let args = [raw::int_arg(process.number()), raw::int_arg(fd), 0];
        let fd = raw::syscall(libc::SYS_pidfd_getfd, args);
        fd.map(OwnedDescriptor::from_call).ok()
    }

    /// Opens the directory that the caller's relative paths start from.
    pub(super) fn directory(&self, fd: c_int) -> Option<OwnedDescriptor> {
        if fd == libc::AT_FDCWD {
            let path = ShortPath::new(format_args!("{}/cwd", self.thread));
            OwnedDescriptor::open_path(self.processes, path.text(), libc::O_DIRECTORY, 0).ok()
        } else {
            self.open(fd, libc::O_DIRECTORY)
        }
    }

    /// Opens the file that a descriptor of the caller refers to.
    pub(super) fn file(&self, fd: c_int) -> Option<OwnedDescriptor> {
        self.open(fd, 0)
    }

    /// Adopts the caller's umask, so that the kernel applies it as for the caller. The kernel
    /// ignores it where a default ACL exists.
    pub(super) fn adopt_umask(&self) -> Option<()> {
        let mask = u32::from_str_radix(self.status(b"\nUmask:\t", &mut [0; STATUS])?, 8).ok()?;
        raw::syscall(libc::SYS_umask, [mask as usize]).ok()?;
        Some(())
    }

    /// Confirms that everything read so far belonged to the caller. `None`: the caller has exited.
    pub(super) fn confirm(&self) -> Option<()> {
        self.notification.is_waiting().then_some(())
    }

    /// Opens a pidfd of the thread. Kernels before 6.9 open its process, which normally has the
    /// same descriptors.
    fn open_process(&self) -> Option<OwnedDescriptor> {
        let open = |number, flags| {
            let args = [raw::int_arg(number), raw::int_arg(flags)];
            raw::syscall(libc::SYS_pidfd_open, args).map(OwnedDescriptor::from_call)
        };
        match open(self.thread, THREAD) {
            Err(libc::EINVAL) => {
                let number = self.status(b"\nTgid:\t", &mut [0; STATUS])?.parse().ok()?;
                open(number, 0).ok()
            }
            opened => opened.ok(),
        }
    }

    /// Reads one of the first lines of the thread's `status` file.
    fn status<'b>(&self, label: &[u8], buffer: &'b mut [u8; STATUS]) -> Option<&'b str> {
        let path = ShortPath::new(format_args!("{}/status", self.thread));
        let status = raw::open_read_at(self.processes, path.text(), 0).ok()?;
        let length = raw::read(status.number(), buffer).ok()?;
        find_line(buffer.get(..length)?, label)
    }

    fn open(&self, fd: c_int, flags: c_int) -> Option<OwnedDescriptor> {
        if fd < 0 {
            return None;
        }
        let path = ShortPath::new(format_args!("{}/fd/{fd}", self.thread));
        OwnedDescriptor::open_path(self.processes, path.text(), flags, 0).ok()
    }
}

fn find_line<'a>(status: &'a [u8], label: &[u8]) -> Option<&'a str> {
    let start = status
        .windows(label.len())
        .position(|part| part == label)?
        .checked_add(label.len())?;
    let mut lines = status.get(start..)?.split(|byte| *byte == b'\n');
    std::str::from_utf8(lines.next()?).ok()
}

/// Bytes of a status that are read. The wanted lines are among the first four, after a name of at
/// most 64 bytes.
const STATUS: usize = 256;

/// `PIDFD_THREAD`.
const THREAD: c_int = libc::O_EXCL;

/// No page is smaller, so memory within one such page is either mapped or not.
const SMALLEST_PAGE: usize = MAX_PATH;

#[cfg(test)]
mod tests {
    use super::find_line;

    #[test]
    fn status_lines_are_found_by_label() {
        let status = b"Name:\ta b\\nUmask:\t0777\nUmask:\t0027\nState:\tS (sleeping)\nTgid:\t7\n";
        assert_eq!(find_line(status, b"\nUmask:\t"), Some("0027"));
        assert_eq!(find_line(status, b"\nTgid:\t"), Some("7"));
        assert_eq!(find_line(b"Name:\ta\nState:\tS\n", b"\nUmask:\t"), None);
    }
}
