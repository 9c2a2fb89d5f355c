//! Handles calls that create one directory entry: directories, files, pipes, sockets, links, and
//! renames.

use std::ffi::{CStr, c_int};

use super::{
    PathBuffers,
    guard_table::GuardTable,
    seccomp_notification::{BrokerReply, Caller},
    target_entry::{PathBase, PathBuffer, ShortPath, TargetEntry},
};
use crate::raw::{self, Errno, OwnedDescriptor};

/// A call that creates one entry.
#[derive(Debug)]
pub(super) struct CreateCall {
    /// Directory that the path is relative to.
    pub(super) directory: c_int,
    /// Address of the path.
    pub(super) path: u64,
    /// What to create.
    pub(super) what: EntryKind,
}

/// The kind of entry to create.
#[derive(Debug)]
pub(super) enum EntryKind {
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
        /// Address of the link's target.
        target: u64,
    },
}

impl CreateCall {
    /// Creates the entry. `None`: let the kernel handle it.
    pub(super) fn answer(
        self,
        caller: &Caller<'_>,
        guards: &GuardTable,
        buffers: &mut PathBuffers,
    ) -> Option<BrokerReply> {
        match self.what {
            EntryKind::Directory { .. } => caller.adopt_umask()?,
            // The broker creates no devices. Overlay whiteouts are devices, too.
            EntryKind::Node { mode } if !is_plain(mode) => return None,
            EntryKind::Node { .. } => caller.adopt_umask()?,
            EntryKind::Link { target } => caller.read_path(target, &mut buffers.second)?,
        }
        caller.read_path(self.path, &mut buffers.first)?;
        let target = TargetEntry::find(
            caller,
            PathBase::CallerFd(self.directory),
            &mut buffers.first,
            0,
        )?;
        caller.confirm()?;
        if let Some(refusal) = target.refusal(guards) {
            return Some(refusal);
        }
        let directory = raw::int_arg(target.directory.number());
        let name = target.name.as_ptr() as usize;
        Some(BrokerReply::of(match self.what {
            EntryKind::Directory { mode } => {
                raw::syscall(libc::SYS_mkdirat, [directory, name, mode])
            }
            EntryKind::Node { mode } => raw::syscall(libc::SYS_mknodat, [directory, name, mode]),
            EntryKind::Link { .. } => {
                let target = buffers.second.text().as_ptr() as usize;
                raw::syscall(libc::SYS_symlinkat, [target, directory, name])
            }
        }))
    }
}

impl BrokerReply {
    /// Converts the result of the broker's own call.
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

/// A call with two paths.
#[derive(Debug)]
pub(super) struct TwoPathCall {
    /// Directory that the old path is relative to.
    old_directory: c_int,
    /// Address of the old path.
    old_path: u64,
    /// Directory that the new path is relative to.
    new_directory: c_int,
    /// Address of the new path.
    new_path: u64,
    /// Flags.
    flags: c_int,
}

impl TwoPathCall {
    /// Creates a call from arguments in the order of `linkat` and `renameat2`.
    pub(super) const fn of(
        old_directory: c_int,
        old_path: u64,
        new_directory: c_int,
        new_path: u64,
        flags: c_int,
    ) -> Self {
        Self {
            old_directory,
            old_path,
            new_directory,
            new_path,
            flags,
        }
    }

    /// Creates a hard link. `None`: let the kernel handle it.
    pub(super) fn link(
        self,
        caller: &Caller<'_>,
        guards: &GuardTable,
        buffers: &mut PathBuffers,
    ) -> Option<BrokerReply> {
        if self.flags & !(libc::AT_SYMLINK_FOLLOW | libc::AT_EMPTY_PATH) != 0 {
            return None;
        }
        caller.read_path(self.old_path, &mut buffers.first)?;
        caller.read_path(self.new_path, &mut buffers.second)?;
        let opened = self.descriptor(caller, buffers.first.text());
        let old = match opened {
            Some(opened) => LinkSource::ByDescriptor(opened?),
            None => self.find_old(caller, &mut buffers.first)?,
        };
        let start = PathBase::CallerFd(self.new_directory);
        let new = TargetEntry::find(caller, start, &mut buffers.second, 0)?;
        caller.confirm()?;
        if let Some(refusal) = new.refusal(guards) {
            return Some(refusal);
        }
        // A descriptor is linked through its entry in /proc, which needs no privileges.
        let entry;
        let (directory, name, flags) = match &old {
            LinkSource::ByName(target) => (target.directory.number(), target.name, 0),
            LinkSource::ByDescriptor(opened) => {
                entry = ShortPath::new(format_args!("self/fd/{}", opened.number()));
                (caller.processes(), entry.text(), libc::AT_SYMLINK_FOLLOW)
            }
        };
        let args = [
            raw::int_arg(directory),
            name.as_ptr() as usize,
            raw::int_arg(new.directory.number()),
            new.name.as_ptr() as usize,
            raw::int_arg(flags),
        ];
        Some(BrokerReply::of(raw::syscall(libc::SYS_linkat, args)))
    }

    /// Renames a file. `None`: let the kernel handle it.
    pub(super) fn rename(
        self,
        caller: &Caller<'_>,
        guards: &GuardTable,
        buffers: &mut PathBuffers,
    ) -> Option<BrokerReply> {
        caller.read_path(self.old_path, &mut buffers.first)?;
        caller.read_path(self.new_path, &mut buffers.second)?;
        let start = PathBase::CallerFd(self.old_directory);
        let old = TargetEntry::find(caller, start, &mut buffers.first, 0)?;
        let start = PathBase::CallerFd(self.new_directory);
        let new = TargetEntry::find(caller, start, &mut buffers.second, 0)?;
        caller.confirm()?;
        // A guarded name that another process created must not be moved away either.
        if new.is_forbidden(guards) || old.is_forbidden(guards) {
            return Some(BrokerReply::Fail(libc::EROFS));
        }
        let args = [
            raw::int_arg(old.directory.number()),
            old.name.as_ptr() as usize,
            raw::int_arg(new.directory.number()),
            new.name.as_ptr() as usize,
            raw::int_arg(self.flags),
        ];
        Some(BrokerReply::of(raw::syscall(libc::SYS_renameat2, args)))
    }

    /// Opens the descriptor that the old path stands for, which is how an unnamed file gets a name.
    /// `None`: it is an ordinary path. `Some(None)`: the descriptor does not exist.
    fn descriptor(&self, caller: &Caller<'_>, path: &CStr) -> Option<Option<OwnedDescriptor>> {
        let path = path.to_bytes();
        if path.is_empty() && self.flags & libc::AT_EMPTY_PATH != 0 {
            return Some(caller.file(self.old_directory));
        }
        if self.flags & libc::AT_SYMLINK_FOLLOW == 0 {
            return None;
        }
        let mut prefixes = OWN_DESCRIPTORS.iter();
        let number = prefixes.find_map(|prefix| path.strip_prefix(*prefix))?;
        let number = std::str::from_utf8(number).ok()?.parse().ok()?;
        Some(caller.file(number))
    }

    /// Finds the file that the old path names.
    fn find_old<'a>(
        &self,
        caller: &Caller<'_>,
        path: &'a mut PathBuffer,
    ) -> Option<LinkSource<'a>> {
        let target = TargetEntry::find(caller, PathBase::CallerFd(self.old_directory), path, 0)?;
        if target.has_slash() {
            // Only directories match, and they cannot be hard-linked.
            return None;
        }
        if self.flags & libc::AT_SYMLINK_FOLLOW == 0 {
            return Some(LinkSource::ByName(target));
        }
        // Not through the link itself: `/proc/self` would resolve to the broker.
        let opened = OwnedDescriptor::open_path(
            target.directory.number(),
            target.name,
            0,
            libc::RESOLVE_NO_MAGICLINKS,
        );
        opened.ok().map(LinkSource::ByDescriptor)
    }
}

/// The file that gets a second name.
#[derive(Debug)]
enum LinkSource<'a> {
    /// By its first name; a symbolic link is not followed.
    ByName(TargetEntry<'a>),
    /// By descriptor.
    ByDescriptor(OwnedDescriptor),
}

/// Directories where a process finds its own descriptors.
const OWN_DESCRIPTORS: [&[u8]; 3] = [b"/proc/self/fd/", b"/proc/thread-self/fd/", b"/dev/fd/"];
