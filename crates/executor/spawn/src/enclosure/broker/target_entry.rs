//! Where something is to be made: a directory that is held, and a name in it.

use std::ffi::{CStr, c_int};

use super::{
    caller::Caller,
    descriptor::{Descriptor, Facts, facts_at},
    guard_table::Guards,
    notification::Answer,
    path_buffer::Path,
};
use crate::raw::{self, Errno};

/// An entry of a directory, existing or not.
#[derive(Debug)]
pub(super) struct Place<'a> {
    /// The directory.
    pub(super) directory: Descriptor,
    /// The name in it, perhaps with a slash at its end. Never `.` or `..`.
    pub(super) name: &'a CStr,
    facts: Facts,
}

/// What a relative path is relative to.
#[derive(Debug)]
pub(super) enum Start {
    /// A descriptor of the caller's, or `AT_FDCWD`.
    Theirs(c_int),
    /// The directory that a link was found in.
    Ours(Descriptor),
}

impl Start {
    /// Holds what a path is relative to, if it is relative.
    pub(super) fn hold(self, caller: &Caller<'_>, path: &Path) -> Option<Self> {
        match self {
            Self::Theirs(fd) if !path.is_absolute() => caller.directory(fd).map(Self::Ours),
            Self::Theirs(_) | Self::Ours(_) => Some(self),
        }
    }

    /// Whether there is something at the end of a path, links being followed. By way of
    /// `/proc/self` it may be something else than to the caller.
    pub(super) fn leads_somewhere(&self, path: &Path) -> bool {
        let base = match self {
            Self::Theirs(_) => libc::AT_FDCWD,
            Self::Ours(directory) => directory.number(),
        };
        facts_at(base, path.text(), 0).is_ok()
    }
}

impl<'a> Place<'a> {
    /// Finds where a path leads, but for its last name.
    ///
    /// `None`: nowhere; or by way of `/proc/self` and its like, which mean something else here. The
    /// kernel will tell the caller.
    pub(super) fn find(
        caller: &Caller<'_>,
        start: Start,
        path: &'a mut Path,
        resolve: u64,
    ) -> Option<Self> {
        // With these two, an absolute path does not start at the root either.
        let stays_below = resolve & (libc::RESOLVE_BENEATH | libc::RESOLVE_IN_ROOT) != 0;
        let starts_at_root = path.is_absolute() && !stays_below;
        let parts = path.split()?;
        let base = match start {
            _ if starts_at_root => None,
            Start::Theirs(fd) => Some(caller.directory(fd)?),
            Start::Ours(directory) => Some(directory),
        };
        let directory = match (parts.parent, base) {
            (None, Some(base)) => base,
            (None, None) => return None,
            (Some(parent), base) => {
                let base = base.as_ref().map_or(libc::AT_FDCWD, Descriptor::number);
                let resolve = resolve | libc::RESOLVE_NO_MAGICLINKS;
                Descriptor::open_place(base, parent, libc::O_DIRECTORY, resolve).ok()?
            }
        };
        let facts = directory.facts().ok()?;
        if facts.identity.may_be_of_procfs() && directory.is_of_procfs().ok()? {
            return None;
        }
        Some(Self {
            directory,
            name: parts.name,
            facts,
        })
    }

    /// Whether the path ended with a slash.
    pub(super) fn has_slash(&self) -> bool {
        self.name.to_bytes().ends_with(b"/")
    }

    /// Whether it must not be made.
    pub(super) fn is_forbidden(&self, guards: &Guards) -> bool {
        guards.forbid(self.facts.identity, self.plain_name())
    }

    fn plain_name(&self) -> &[u8] {
        let name = self.name.to_bytes();
        name.strip_suffix(b"/").unwrap_or(name)
    }

    /// Whether its name is guarded in any directory.
    pub(super) fn may_be_forbidden_elsewhere(&self, guards: &Guards) -> bool {
        guards.know(self.plain_name())
    }

    /// The answer to making it new, if it must not be made. What is there already can be met as it
    /// is everywhere: tools make directories in order to learn that they exist.
    pub(super) fn refusal(&self, guards: &Guards) -> Option<Answer> {
        if !self.is_forbidden(guards) {
            return None;
        }
        Some(match self.entry() {
            Ok(_) => Answer::Continue,
            Err(_) => Answer::Fail(libc::EROFS),
        })
    }

    /// Tells about what is there.
    pub(super) fn entry(&self) -> Result<Facts, Errno> {
        facts_at(
            self.directory.number(),
            self.name,
            libc::AT_SYMLINK_NOFOLLOW,
        )
    }

    /// Whether the kernel would follow a link that is there. In a directory that everybody writes
    /// to, it must be the user's own or of the directory's owner (`fs.protected_symlinks`, which is
    /// on nearly everywhere and taken to be on here).
    pub(super) fn may_follow(&self, link: &Facts) -> bool {
        let shared = libc::S_ISVTX | libc::S_IWOTH;
        self.facts.mode & shared != shared
            || link.owner == self.facts.owner
            || Some(link.owner) == own_user()
    }
}

/// The account whose permissions the broker has.
fn own_user() -> Option<u32> {
    let user = raw::numbers(libc::SYS_geteuid, [0; 6]).ok()?;
    u32::try_from(user).ok()
}
