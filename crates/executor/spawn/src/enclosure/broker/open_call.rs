//! Calls that make a file by opening it.

use std::ffi::c_int;

use super::{
    PathBuffers,
    caller::Caller,
    descriptor::{OpenHow, OwnedDescriptor},
    guard_table::GuardTable,
    notification::BrokerReply,
    target_entry::{PathBase, TargetEntry},
};
use crate::raw::{self, Errno};

/// A call that opens a file and makes it if there is none.
#[derive(Debug)]
pub(super) struct OpenCall {
    /// What the path is relative to.
    pub(super) directory: c_int,
    /// The address of the path.
    pub(super) path: u64,
    /// Flags.
    pub(super) flags: c_int,
    /// Permissions of a new file.
    pub(super) mode: usize,
    /// How links and mounts on the way are treated.
    pub(super) resolve: u64,
}

impl OpenCall {
    /// Reads the arguments of `openat2`. `None`: the kernel has the say.
    pub(super) fn read(
        caller: &Caller<'_>,
        directory: c_int,
        path: u64,
        how: u64,
        size: u64,
    ) -> Option<Self> {
        // Larger ones are of a future whose fields are not known here.
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
        // Unlike `open`, it fails if there is a bit that means nothing.
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

    /// Makes the file if there is none. `None`: the kernel has the say, as for every file that is
    /// there already.
    pub(super) fn answer(
        self,
        caller: &Caller<'_>,
        guards: &GuardTable,
        buffers: &mut PathBuffers,
    ) -> Option<BrokerReply> {
        // Without a name, without making anything, or an error.
        let other = libc::O_PATH | libc::O_DIRECTORY | libc::O_TMPFILE;
        if self.flags & libc::O_CREAT == 0 || self.flags & other != 0 {
            return None;
        }
        let (mut here, mut there) = (&mut buffers.first, &mut buffers.second);
        caller.read_path(self.path, here)?;
        let mut start = PathBase::CallerFd(self.directory);
        if self.flags & libc::O_EXCL == 0 && self.resolve == 0 {
            // Most of what shells open is there: this is the short way.
            start = start.open_base(caller, here)?;
            if start.resolves(here) {
                return None;
            }
        }
        caller.adopt_umask()?;
        // A link that leads nowhere yet is made good by making what it leads to.
        for _ in 0..=MAX_LINKS {
            let place = TargetEntry::find(caller, start, here, self.resolve)?;
            caller.confirm()?;
            if place.has_slash() {
                return None;
            }
            if let Some(refusal) = place.refusal(guards) {
                return Some(refusal);
            }
            match self.make(&place)? {
                Ok(descriptor) => {
                    return Some(BrokerReply::Return {
                        descriptor,
                        close_on_exec: self.flags & libc::O_CLOEXEC != 0,
                    });
                }
                Err(libc::EEXIST) if self.flags & libc::O_EXCL == 0 => {}
                Err(errno) => return Some(BrokerReply::Fail(errno)),
            }
            there.read_link(place.directory.number(), place.name)?;
            start = PathBase::Opened(place.directory);
            (here, there) = (there, here);
        }
        None
    }

    /// Makes the file. `EEXIST`: there is a link to be followed; or anything, if the caller insists
    /// on a new file. `None`: there is something else.
    fn make(&self, place: &TargetEntry<'_>) -> Option<Result<OwnedDescriptor, Errno>> {
        // Never through a link, and never waiting for anybody: only a new file is opened. What is
        // there is looked at afterwards, and may be gone by then.
        for _ in 0..MAX_TRIES {
            let made = self.make_new(place);
            if made.as_ref().err() != Some(&libc::EEXIST) || self.flags & libc::O_EXCL != 0 {
                return Some(made);
            }
            match place.entry() {
                Ok(entry) if entry.mode & libc::S_IFMT == libc::S_IFLNK => {
                    let follow = self.follows_links() && place.may_follow(&entry);
                    return follow.then_some(made);
                }
                Err(libc::ENOENT) => {}
                Ok(_) | Err(_) => return None,
            }
        }
        None
    }

    fn make_new(&self, place: &TargetEntry<'_>) -> Result<OwnedDescriptor, Errno> {
        let args = [
            raw::int_arg(place.directory.number()),
            place.name.as_ptr() as usize,
            raw::int_arg(self.flags | libc::O_CREAT | libc::O_EXCL | libc::O_CLOEXEC),
            self.mode,
            0,
            0,
        ];
        raw::syscall(libc::SYS_openat, args).map(|fd| OwnedDescriptor::from_call(raw::to_i32(fd)))
    }

    fn follows_links(&self) -> bool {
        // Below a root of the caller's choice, a link would have to stay there as well: only the
        // kernel can tell.
        let bound = libc::RESOLVE_BENEATH | libc::RESOLVE_IN_ROOT | libc::RESOLVE_NO_SYMLINKS;
        self.flags & libc::O_NOFOLLOW == 0 && self.resolve & bound == 0
    }
}

/// As many as the kernel follows.
const MAX_LINKS: usize = 40;

/// How often a file may come and go while it is looked at.
const MAX_TRIES: usize = 16;

/// Flags that `openat2` knows.
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

/// The kernel's `O_LARGEFILE`: C libraries of 64-bit systems say that it is zero.
#[cfg(target_arch = "x86_64")]
const LARGE_FILE: c_int = 0o100_000;
#[cfg(target_arch = "aarch64")]
const LARGE_FILE: c_int = 0o400_000;

/// Ways of resolving that can be passed on.
const RESOLVE: u64 = libc::RESOLVE_BENEATH
    | libc::RESOLVE_IN_ROOT
    | libc::RESOLVE_NO_MAGICLINKS
    | libc::RESOLVE_NO_SYMLINKS
    | libc::RESOLVE_NO_XDEV;
