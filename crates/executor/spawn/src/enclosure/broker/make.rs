//! Calls that make one new entry: directories, files, pipes, sockets, symbolic links.

use std::ffi::c_int;

use super::{
    answer::Room,
    caller::Caller,
    guards::Guards,
    notice::Answer,
    place::{Place, Start},
};
use crate::raw::{self, Errno};

/// A call that makes one entry. `None` in its answer: the kernel has the say.
#[derive(Debug)]
pub(super) struct Making {
    /// What the path is relative to.
    pub(super) directory: c_int,
    /// The address of the path.
    pub(super) path: u64,
    /// What to make.
    pub(super) what: What,
}

/// What to make.
#[derive(Debug)]
pub(super) enum What {
    /// A directory.
    Directory {
        /// Permissions.
        mode: usize,
    },
    /// A file, a pipe or a socket.
    Node {
        /// Type and permissions.
        mode: usize,
    },
    /// A symbolic link.
    Link {
        /// The address of what it points to.
        target: u64,
    },
}

impl Making {
    /// Makes it.
    pub(super) fn answer(
        self,
        caller: &Caller<'_>,
        guards: &Guards,
        room: &mut Room,
    ) -> Option<Answer> {
        match self.what {
            What::Directory { .. } => caller.adopt_umask()?,
            // Devices are not the broker's to make, and those that hide files below are devices too.
            What::Node { mode } if !is_plain(mode) => return None,
            What::Node { .. } => caller.adopt_umask()?,
            What::Link { target } => caller.read_path(target, &mut room.second)?,
        }
        caller.read_path(self.path, &mut room.first)?;
        let place = Place::find(caller, Start::Theirs(self.directory), &mut room.first, 0)?;
        caller.confirm()?;
        if let Some(refusal) = place.refusal(guards) {
            return Some(refusal);
        }
        let directory = raw::int(place.directory.number());
        let name = place.name.as_ptr() as usize;
        Some(Answer::of(match self.what {
            What::Directory { mode } => {
                raw::numbers(libc::SYS_mkdirat, [directory, name, mode, 0, 0, 0])
            }
            What::Node { mode } => {
                raw::numbers(libc::SYS_mknodat, [directory, name, mode, 0, 0, 0])
            }
            What::Link { .. } => {
                let target = room.second.text().as_ptr() as usize;
                raw::numbers(libc::SYS_symlinkat, [target, directory, name, 0, 0, 0])
            }
        }))
    }
}

impl Answer {
    /// The answer that the kernel gave to the broker.
    pub(super) fn of(result: Result<usize, Errno>) -> Self {
        match result {
            Ok(_) => Self::Done,
            Err(errno) => Self::Fail(errno),
        }
    }
}

fn is_plain(mode: usize) -> bool {
    let plain = [0, libc::S_IFREG, libc::S_IFIFO, libc::S_IFSOCK];
    let kind = mode & libc::S_IFMT as usize;
    plain.iter().any(|plain| kind == *plain as usize)
}
