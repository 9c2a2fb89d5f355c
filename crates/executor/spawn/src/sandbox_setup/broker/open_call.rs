//! Handles calls that create a file by opening it.

use std::ffi::c_int;

use super::{
    PathBuffers,
    guard_table::GuardTable,
    seccomp_notification::{BrokerReply, Caller},
    target_entry::{PathBase, TargetEntry},
};
use crate::raw::{self, Errno, OpenHow, OwnedDescriptor};

/// A call that opens a file and creates it if it does not exist.
#[derive(Debug)]
pub(super) struct OpenCall {
    /// Directory that the path is relative to.
    pub(super) directory: c_int,
    /// Address of the path.
    pub(super) path: u64,
    /// Flags of `open`.
    pub(super) flags: c_int,
    /// Permissions of a new file.
    pub(super) mode: usize,
    /// How links and mounts in the path are resolved.
    pub(super) resolve: u64,
}

impl OpenCall {
    /// Reads the arguments of `openat2`. `None`: let the kernel handle it.
    pub(super) fn read(
        caller: &Caller<'_>,
        directory: c_int,
        path: u64,
        how: u64,
        size: u64,
    ) -> Option<Self> {
        // A larger structure has fields of a newer kernel, which are unknown here.
        if size != size_of::<OpenHow>() as u64 {
            return None;
        }
        let mut bytes = [0; size_of::<OpenHow>()];
        caller.read(usize::try_from(how).ok()?, &mut bytes)?;
        let mut words = bytes.chunks_exact(size_of::<u64>());
        let mut word = || words.next()?.try_into().ok().map(u64::from_ne_bytes);
        let how = OpenHow {
            flags: word()?,
            mode: word()?,
            resolve: word()?,
        };
        // Unlike `open`, `openat2` fails on unknown bits.
        if how.flags & !KNOWN_FLAGS != 0 || how.mode & !0o7777 != 0 || how.resolve & !RESOLVE != 0 {
            return None;
        }
        Some(Self {
            directory,
            path,
            flags: c_int::try_from(how.flags).ok()?,
            mode: usize::try_from(how.mode).ok()?,
            resolve: how.resolve,
        })
    }

    /// Creates the file if it does not exist. `None`: let the kernel handle it, as for every
    /// existing file.
    pub(super) fn answer(
        self,
        caller: &Caller<'_>,
        guards: &GuardTable,
        buffers: &mut PathBuffers,
    ) -> Option<BrokerReply> {
        // These create no named file, or are errors.
        let other = libc::O_PATH | libc::O_DIRECTORY | libc::O_TMPFILE;
        if self.flags & libc::O_CREAT == 0 || self.flags & other != 0 {
            return None;
        }
        let (mut here, mut there) = (&mut buffers.first, &mut buffers.second);
        caller.read_path(self.path, here)?;
        let mut start = PathBase::CallerFd(self.directory);
        if self.flags & libc::O_EXCL == 0 && self.resolve == 0 {
            // Fast path: most files that shells open exist.
            start = start.open_base(caller, here)?;
            if start.resolves(here) {
                return None;
            }
        }
        caller.adopt_umask()?;
        // Opening a dangling link creates its target.
        for _ in 0..=MAX_LINKS {
            let target = TargetEntry::find(caller, start, here, self.resolve)?;
            caller.confirm()?;
            if target.has_slash() {
                return None;
            }
            if let Some(refusal) = target.refusal(guards) {
                return Some(refusal);
            }
            match self.make(&target)? {
                Ok(descriptor) => {
                    return Some(BrokerReply::Return {
                        descriptor,
                        close_on_exec: self.flags & libc::O_CLOEXEC != 0,
                    });
                }
                Err(libc::EEXIST) if self.flags & libc::O_EXCL == 0 => {}
                Err(errno) => return Some(BrokerReply::Fail(errno)),
            }
            there.read_link(target.directory.number(), target.name)?;
            start = PathBase::Opened(target.directory);
            (here, there) = (there, here);
        }
        None
    }

    /// Creates the file. `EEXIST`: there is a link to follow, or, with `O_EXCL`, any file. `None`:
    /// another kind of file exists.
    fn make(&self, target: &TargetEntry<'_>) -> Option<Result<OwnedDescriptor, Errno>> {
        // Never follows a link and never blocks, because only a new file is opened. An existing
        // file is inspected afterwards, and may be gone by then.
        for _ in 0..MAX_TRIES {
            let created = self.make_new(target);
            if created.as_ref().err() != Some(&libc::EEXIST) || self.flags & libc::O_EXCL != 0 {
                return Some(created);
            }
            match target.entry() {
                Ok(entry) if entry.mode & libc::S_IFMT == libc::S_IFLNK => {
                    let follow = self.follows_links() && target.may_follow(&entry);
                    return follow.then_some(created);
                }
                Err(libc::ENOENT) => {}
                Ok(_) | Err(_) => return None,
            }
        }
        None
    }

    fn make_new(&self, target: &TargetEntry<'_>) -> Result<OwnedDescriptor, Errno> {
        let args = [
            raw::int_arg(target.directory.number()),
            target.name.as_ptr() as usize,
            raw::int_arg(self.flags | libc::O_CREAT | libc::O_EXCL | libc::O_CLOEXEC),
            self.mode,
        ];
        raw::syscall(libc::SYS_openat, args).map(OwnedDescriptor::from_call)
    }

    fn follows_links(&self) -> bool {
        // With a caller-defined root, the link's target would have to stay below it, which only the
        // kernel can check.
        let bound = libc::RESOLVE_BENEATH | libc::RESOLVE_IN_ROOT | libc::RESOLVE_NO_SYMLINKS;
        self.flags & libc::O_NOFOLLOW == 0 && self.resolve & bound == 0
    }
}

/// Most links that the kernel follows.
const MAX_LINKS: usize = 40;

/// How often a file may appear and disappear while it is inspected.
const MAX_TRIES: usize = 16;

/// Flags that `openat2` accepts.
const KNOWN_FLAGS: u64 = (libc::O_ACCMODE
    | libc::O_APPEND
    | libc::O_ASYNC
    | libc::O_CLOEXEC
    | libc::O_CREAT
    | libc::O_DIRECT
    | libc::O_DSYNC
    | libc::O_EXCL
    | LARGE_FILE
    | libc::O_NOATIME
    | libc::O_NOCTTY
    | libc::O_NOFOLLOW
    | libc::O_NONBLOCK
    | libc::O_SYNC
    | libc::O_TRUNC)
    .unsigned_abs() as u64;

/// The kernel's `O_LARGEFILE`; C libraries of 64-bit systems define it as zero.
#[cfg(target_arch = "x86_64")]
const LARGE_FILE: c_int = 0o100_000;
#[cfg(target_arch = "aarch64")]
const LARGE_FILE: c_int = 0o400_000;

/// Resolve flags that can be passed on.
const RESOLVE: u64 = libc::RESOLVE_BENEATH
    | libc::RESOLVE_IN_ROOT
    | libc::RESOLVE_NO_MAGICLINKS
    | libc::RESOLVE_NO_SYMLINKS
    | libc::RESOLVE_NO_XDEV;
