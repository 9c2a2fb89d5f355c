//! Whether anything was mounted or unmounted.

use std::{
    fs::File,
    os::fd::{AsFd, BorrowedFd},
};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Counts the changes of this process's mounts, as far as they were noticed.
///
/// One call for all paths: a mount over a name does not touch the directory that the name is in, so
/// each name that was looked for would have to be looked at again to see it.
#[derive(Debug, Default)]
pub(super) struct Mounts {
    table: Option<File>,
    count: u64,
}

impl Mounts {
    /// Returns a number that is another one if a mount has changed since the last call. `None`: it
    /// cannot be told.
    pub(super) fn count(&mut self) -> Option<u64> {
        let table = match &mut self.table {
            Some(table) => table,
            // The kernel tells of changes since it was opened.
            none => none.insert(File::open("/proc/self/mountinfo").ok()?),
        };
        if has_changed(table.as_fd())? {
            self.count += 1;
        }
        Some(self.count)
    }

    /// Does as if a mount had changed.
    #[cfg(test)]
    pub(super) fn change(&mut self) {
        self.count += 1;
    }
}

/// The kernel says so once for each file that was opened.
fn has_changed(table: BorrowedFd<'_>) -> Option<bool> {
    let mut fds = [PollFd::from_borrowed_fd(table, PollFlags::PRI)];
    let at_once = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    Some(poll(&mut fds, Some(&at_once)).ok()? > 0)
}
