//! What a call means to its caller: its memory, its directories, its umask.
//!
//! All of it is found by the number of a thread that could have ended meanwhile. So nothing is done
//! with it before [`Caller::confirm`].

use std::ffi::c_int;

use super::{
    descriptor::OwnedDescriptor,
    guard_table::GuardTable,
    notification::SeccompNotification,
    target_entry::{MAX_PATH, PathBuffer, ShortPath},
};
use crate::raw;

/// The caller of a call.
#[derive(Debug)]
pub(super) struct Caller<'a> {
    notice: &'a SeccompNotification,
    thread: i32,
    /// The view of processes in which it is.
    processes: c_int,
}

impl<'a> Caller<'a> {
    /// The caller that waits for an answer.
    pub(super) fn of(notice: &'a SeccompNotification, guards: &GuardTable) -> Option<Self> {
        let (thread, processes) = (notice.thread()?, guards.processes());
        Some(Self {
            notice,
            thread,
            processes,
        })
    }

    /// The view of processes in which it is.
    pub(super) const fn processes(&self) -> c_int {
        self.processes
    }

    /// Copies a path. `None`: there is none, or it is too long.
    pub(super) fn read_path(&self, address: u64, path: &mut PathBuffer) -> Option<()> {
        let mut address = usize::try_from(address).ok()?;
        let mut room = path.buffer().as_mut_slice();
        // Page by page: the one after the end of the path may not be there.
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

    /// Copies exactly as much as there is room for.
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

    /// Duplicates a descriptor of the caller's.
    pub(super) fn duplicate(&self, fd: c_int) -> Option<OwnedDescriptor> {
        let process = self.open_process()?;
        let args = [raw::int_arg(process.number()), raw::int_arg(fd), 0, 0, 0, 0];
        let fd = raw::syscall(libc::SYS_pidfd_getfd, args).ok()?;
        Some(OwnedDescriptor::from_call(raw::to_i32(fd)))
    }

    /// Opens what the caller's relative paths are relative to.
    pub(super) fn directory(&self, fd: c_int) -> Option<OwnedDescriptor> {
        if fd == libc::AT_FDCWD {
            let path = ShortPath::new(format_args!("{}/cwd", self.thread));
            OwnedDescriptor::open_place(self.processes, path.text(), libc::O_DIRECTORY, 0).ok()
        } else {
            self.open(fd, libc::O_DIRECTORY)
        }
    }

    /// Opens what a descriptor of the caller refers to.
    pub(super) fn file(&self, fd: c_int) -> Option<OwnedDescriptor> {
        self.open(fd, 0)
    }

    /// Takes over the caller's umask. The kernel applies it: with a default list of access, it does
    /// not.
    pub(super) fn adopt_umask(&self) -> Option<()> {
        let mask = u32::from_str_radix(self.status(b"\nUmask:\t", &mut [0; STATUS])?, 8).ok()?;
        raw::syscall(libc::SYS_umask, [mask as usize, 0, 0, 0, 0, 0]).ok()?;
        Some(())
    }

    /// Makes sure that all of this was of the caller. `None`: it is gone.
    pub(super) fn confirm(&self) -> Option<()> {
        self.notice.is_waiting().then_some(())
    }

    /// Opens the thread; or, on kernels before 6.9, its process, which has the same descriptors
    /// unless it took care that it has not.
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

    /// Reads one of the first lines of what the kernel says of the thread.
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

/// As much of a status as is read: what is looked for is in its first four lines, after a name of
/// at most 64 bytes.
const STATUS: usize = 256;

/// `PIDFD_THREAD`.
const THREAD: c_int = libc::O_EXCL;

/// No page is smaller, so that what lies within one of this size is there as a whole or not at all.
const SMALLEST_PAGE: usize = MAX_PATH;

#[cfg(test)]
mod tests {
    use super::find_line;

    #[test]
    fn lines_are_found_by_their_labels() {
        let status = b"Name:\ta b\\nUmask:\t0777\nUmask:\t0027\nState:\tS (sleeping)\nTgid:\t7\n";
        assert_eq!(find_line(status, b"\nUmask:\t"), Some("0027"));
        assert_eq!(find_line(status, b"\nTgid:\t"), Some("7"));
        assert_eq!(find_line(b"Name:\ta\nState:\tS\n", b"\nUmask:\t"), None);
    }
}
