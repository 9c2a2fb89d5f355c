//! The process context of a caller: its memory, its directories, its umask.
//!
//! All of it is looked up by the id of a thread that may have exited meanwhile. So nothing may be
//! done with it before [`Caller::confirm`].

use std::ffi::c_int;

use super::{
    descriptor::OwnedDescriptor,
    guard_table::GuardTable,
    notification::SeccompNotification,
    target_entry::{MAX_PATH, PathBuffer, ShortPath},
};
use crate::raw;

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
        let mut room = path.buffer().as_mut_slice();
        // Page by page, because the page after the end of the path may not be mapped.
        while !room.is_empty() {
            let length = (SMALLEST_PAGE - address % SMALLEST_PAGE).min(room.len());
            let (part, rest) = room.split_at_mut_checked(length)?;
            self.read(address, part)?;
            if part.contains(&0) {
                return Some(());
            }
            address = address.checked_add(length)?;
            room = rest;
        }
        None
    }

    /// Fills `room` from the caller's memory.
    pub(super) fn read(&self, address: usize, room: &mut [u8]) -> Option<()> {
        let here = [room.as_mut_ptr() as usize, room.len()];
        let there = [address, room.len()];
        let args = [
            raw::int_arg(self.thread),
            here.as_ptr() as usize,
            1,
            there.as_ptr() as usize,
            1,
            0,
        ];
        let length = raw::syscall(libc::SYS_process_vm_readv, args).ok()?;
        (length == room.len()).then_some(())
    }

    /// Duplicates a descriptor of the caller.
    pub(super) fn duplicate(&self, fd: c_int) -> Option<OwnedDescriptor> {
        let process = self.open_process()?;
        let args = [raw::int_arg(process.number()), raw::int_arg(fd), 0, 0, 0, 0];
        let fd = raw::syscall(libc::SYS_pidfd_getfd, args).ok()?;
        Some(OwnedDescriptor::from_call(raw::to_i32(fd)))
    }

    /// Opens the directory that the caller's relative paths start from.
    pub(super) fn directory(&self, fd: c_int) -> Option<OwnedDescriptor> {
        if fd == libc::AT_FDCWD {
            let path = ShortPath::new(format_args!("{}/cwd", self.thread));
            OwnedDescriptor::open_place(self.processes, path.text(), libc::O_DIRECTORY, 0).ok()
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
        raw::syscall(libc::SYS_umask, [mask as usize, 0, 0, 0, 0, 0]).ok()?;
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
            let args = [raw::int_arg(number), raw::int_arg(flags), 0, 0, 0, 0];
            raw::syscall(libc::SYS_pidfd_open, args)
                .map(|fd| OwnedDescriptor::from_call(raw::to_i32(fd)))
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
    fn status<'b>(&self, label: &[u8], room: &'b mut [u8; STATUS]) -> Option<&'b str> {
        let path = ShortPath::new(format_args!("{}/status", self.thread));
        let status = raw::open_read_at(self.processes, path.text(), 0).ok()?;
        let status = OwnedDescriptor::from_call(status);
        let length = raw::read(status.number(), room).ok()?;
        find_line(room.get(..length)?, label)
    }

    fn open(&self, fd: c_int, flags: c_int) -> Option<OwnedDescriptor> {
        if fd < 0 {
            return None;
        }
        let path = ShortPath::new(format_args!("{}/fd/{fd}", self.thread));
        OwnedDescriptor::open_place(self.processes, path.text(), flags, 0).ok()
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
