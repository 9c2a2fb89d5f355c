//! Where something is to be made: a directory that is held, and a name in it.

use std::{
    ffi::{CStr, c_int},
    fmt,
};

use super::{
    caller::Caller,
    descriptor::{FileFacts, OwnedDescriptor, stat_at},
    guard_table::{GuardTable, is_dots},
    notification::BrokerReply,
};
use crate::raw::{self, Errno};

/// An entry of a directory, existing or not.
#[derive(Debug)]
pub(super) struct TargetEntry<'a> {
    /// The directory.
    pub(super) directory: OwnedDescriptor,
    /// The name in it, perhaps with a slash at its end. Never `.` or `..`.
    pub(super) name: &'a CStr,
    facts: FileFacts,
}

/// What a relative path is relative to.
#[derive(Debug)]
pub(super) enum PathBase {
    /// A descriptor of the caller's, or `AT_FDCWD`.
    CallerFd(c_int),
    /// The directory that a link was found in.
    Opened(OwnedDescriptor),
}

impl PathBase {
    /// Holds what a path is relative to, if it is relative.
    pub(super) fn open_base(self, caller: &Caller<'_>, path: &PathBuffer) -> Option<Self> {
        match self {
            Self::CallerFd(fd) if !path.is_absolute() => caller.directory(fd).map(Self::Opened),
            Self::CallerFd(_) | Self::Opened(_) => Some(self),
        }
    }

    /// Whether there is something at the end of a path, links being followed. By way of
    /// `/proc/self` it may be something else than to the caller.
    pub(super) fn resolves(&self, path: &PathBuffer) -> bool {
        let base = match self {
            Self::CallerFd(_) => libc::AT_FDCWD,
            Self::Opened(directory) => directory.number(),
        };
        stat_at(base, path.text(), 0).is_ok()
    }
}

impl<'a> TargetEntry<'a> {
    /// Finds where a path leads, but for its last name.
    ///
    /// `None`: nowhere; or by way of `/proc/self` and its like, which mean something else here. The
    /// kernel will tell the caller.
    pub(super) fn find(
        caller: &Caller<'_>,
        start: PathBase,
        path: &'a mut PathBuffer,
        resolve: u64,
    ) -> Option<Self> {
        // With these two, an absolute path does not start at the root either.
        let stays_below = resolve & (libc::RESOLVE_BENEATH | libc::RESOLVE_IN_ROOT) != 0;
        let starts_at_root = path.is_absolute() && !stays_below;
        let parts = path.split()?;
        let base = match start {
            _ if starts_at_root => None,
            PathBase::CallerFd(fd) => Some(caller.directory(fd)?),
            PathBase::Opened(directory) => Some(directory),
        };
        let directory = match (parts.parent, base) {
            (None, Some(base)) => base,
            (None, None) => return None,
            (Some(parent), base) => {
                let base = base
                    .as_ref()
                    .map_or(libc::AT_FDCWD, OwnedDescriptor::number);
                let resolve = resolve | libc::RESOLVE_NO_MAGICLINKS;
                OwnedDescriptor::open_place(base, parent, libc::O_DIRECTORY, resolve).ok()?
            }
        };
        let facts = directory.facts().ok()?;
        if facts.identity.may_be_on_procfs() && directory.is_on_procfs().ok()? {
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
    pub(super) fn is_forbidden(&self, guards: &GuardTable) -> bool {
        guards.forbids(self.facts.identity, self.plain_name())
    }

    fn plain_name(&self) -> &[u8] {
        let name = self.name.to_bytes();
        name.strip_suffix(b"/").unwrap_or(name)
    }

    /// Whether its name is guarded in any directory.
    pub(super) fn may_be_forbidden_elsewhere(&self, guards: &GuardTable) -> bool {
        guards.guards_anywhere(self.plain_name())
    }

    /// The answer to making it new, if it must not be made. What is there already can be met as it
    /// is everywhere: tools make directories in order to learn that they exist.
    pub(super) fn refusal(&self, guards: &GuardTable) -> Option<BrokerReply> {
        if !self.is_forbidden(guards) {
            return None;
        }
        Some(match self.entry() {
            Ok(_) => BrokerReply::Continue,
            Err(_) => BrokerReply::Fail(libc::EROFS),
        })
    }

    /// Tells about what is there.
    pub(super) fn entry(&self) -> Result<FileFacts, Errno> {
        stat_at(
            self.directory.number(),
            self.name,
            libc::AT_SYMLINK_NOFOLLOW,
        )
    }

    /// Whether the kernel would follow a link that is there. In a directory that everybody writes
    /// to, it must be the user's own or of the directory's owner (`fs.protected_symlinks`, which is
    /// on nearly everywhere and taken to be on here).
    pub(super) fn may_follow(&self, link: &FileFacts) -> bool {
        let shared = libc::S_ISVTX | libc::S_IWOTH;
        self.facts.mode & shared != shared
            || link.owner == self.facts.owner
            || Some(link.owner) == own_user()
    }
}

/// The account whose permissions the broker has.
fn own_user() -> Option<u32> {
    let user = raw::syscall(libc::SYS_geteuid, [0; 6]).ok()?;
    u32::try_from(user).ok()
}

/// The kernel's bound of a path, with the zero at its end.
pub(super) const MAX_PATH: usize = 4096;

/// A path that was copied from somewhere.
#[derive(Debug)]
pub(super) struct PathBuffer {
    /// A path, a zero, and anything.
    bytes: [u8; MAX_PATH],
}

/// The two parts of a path.
#[derive(Debug)]
pub(super) struct PathParts<'a> {
    /// The directory. `None`: the one that the path is relative to.
    pub(super) parent: Option<&'a CStr>,
    /// The entry in it. Ends with one slash if the path ended with any: calls differ in what they
    /// make of that.
    pub(super) name: &'a CStr,
}

impl PathBuffer {
    /// An empty one. A constant needs no room for itself besides where it goes.
    pub(super) const EMPTY: Self = Self {
        bytes: [0; MAX_PATH],
    };

    /// Where the bytes go. What is put there ends with a zero.
    pub(super) const fn buffer(&mut self) -> &mut [u8; MAX_PATH] {
        &mut self.bytes
    }

    /// The path.
    pub(super) fn text(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.bytes).unwrap_or_default()
    }

    /// Whether it starts at the root.
    pub(super) fn is_absolute(&self) -> bool {
        self.bytes.first() == Some(&b'/')
    }

    /// Replaces the path by that of a symbolic link. `None`: there is none, or it is too long.
    pub(super) fn read_link(&mut self, directory: c_int, name: &CStr) -> Option<()> {
        let room = MAX_PATH - 1;
        let args = [
            raw::int_arg(directory),
            name.as_ptr() as usize,
            self.bytes.as_mut_ptr() as usize,
            room,
            0,
            0,
        ];
        let length = raw::syscall(libc::SYS_readlinkat, args).ok()?;
        if length >= room {
            return None;
        }
        *self.bytes.get_mut(length)? = 0;
        Some(())
    }

    /// Takes the path apart. `None`: there is no name in it that could be made.
    pub(super) fn split(&mut self) -> Option<PathParts<'_>> {
        let length = self.text().to_bytes().len();
        let path = self.bytes.get(..length)?;
        let end = path.iter().rposition(|byte| *byte != b'/')? + 1;
        let start = path.get(..end)?.iter().rposition(|byte| *byte == b'/');
        let start = start.map_or(0, |slash| slash + 1);
        if is_dots(path.get(start..end)?) {
            return None;
        }
        if end < length {
            *self.bytes.get_mut(end + 1)? = 0;
        }
        if start == 0 {
            let name = CStr::from_bytes_until_nul(&self.bytes).ok()?;
            return Some(PathParts { parent: None, name });
        }
        *self.bytes.get_mut(start - 1)? = 0;
        let parent = if start == 1 {
            c"/"
        } else {
            CStr::from_bytes_until_nul(&self.bytes).ok()?
        };
        let name = CStr::from_bytes_until_nul(self.bytes.get(start..)?).ok()?;
        Some(PathParts {
            parent: Some(parent),
            name,
        })
    }
}

/// A short path that the broker writes itself, such as `7/cwd`.
#[derive(Debug)]
pub(super) struct ShortPath {
    bytes: [u8; 64],
    length: usize,
}

impl ShortPath {
    /// Writes one. What has no room is cut off; nothing that the broker writes is that long.
    pub(super) fn new(text: fmt::Arguments<'_>) -> Self {
        let mut short = Self {
            bytes: [0; 64],
            length: 0,
        };
        let _ = fmt::write(&mut short, text);
        short
    }

    /// The path.
    pub(super) fn text(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.bytes).unwrap_or_default()
    }
}

impl fmt::Write for ShortPath {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let end = self.length + text.len();
        // The last byte stays zero.
        if end >= self.bytes.len() {
            return Err(fmt::Error);
        }
        let place = self.bytes.get_mut(self.length..end).ok_or(fmt::Error)?;
        place.copy_from_slice(text.as_bytes());
        self.length = end;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::PathBuffer;

    /// The parts of `text`.
    fn split(text: &str) -> Option<(Option<String>, String)> {
        let mut path = PathBuffer::EMPTY;
        path.buffer()[..text.len()].copy_from_slice(text.as_bytes());
        let parts = path.split()?;
        let text = |part: &std::ffi::CStr| part.to_str().unwrap().to_owned();
        Some((parts.parent.map(text), text(parts.name)))
    }

    #[test]
    fn a_path_is_split_before_its_last_name() {
        let cases = [
            ("a", None, "a"),
            ("/a", Some("/"), "a"),
            ("//a", Some("/"), "a"),
            ("a/b", Some("a"), "b"),
            ("a//b//", Some("a/"), "b/"),
            ("a/", None, "a/"),
            ("/a/../.git/", Some("/a/.."), ".git/"),
            ("...", None, "..."),
        ];
        for (path, parent, name) in cases {
            let expected = Some((parent.map(str::to_owned), name.to_owned()));
            assert_eq!(split(path), expected, "{path}");
        }
    }

    #[test]
    fn a_path_without_a_name_is_not_split() {
        for path in ["", "/", "//", ".", "..", "a/.", "a/..", "a/../", "./"] {
            assert_eq!(split(path), None, "{path}");
        }
    }
}
