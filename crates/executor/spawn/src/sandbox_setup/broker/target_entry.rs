//! The target of a call: an open directory and a name in it. Also the fixed-size buffers that hold
//! its path.

use std::{
    ffi::{CStr, c_int},
    fmt,
    mem::MaybeUninit,
};

use super::{
    guard_table::{GuardTable, is_dots},
    seccomp_notification::{BrokerReply, Caller},
};
use crate::raw::{self, Errno, OwnedDescriptor};

/// A directory entry, existing or not.
#[derive(Debug)]
pub(super) struct TargetEntry<'a> {
    /// The directory.
    pub(super) directory: OwnedDescriptor,
    /// The name in it, possibly with a trailing slash. Never `.` or `..`.
    pub(super) name: &'a CStr,
    facts: FileFacts,
}

/// The directory that a relative path starts from.
#[derive(Debug)]
pub(super) enum PathBase {
    /// A descriptor of the caller, or `AT_FDCWD`.
    CallerFd(c_int),
    /// A directory that the broker has opened.
    Opened(OwnedDescriptor),
}

impl PathBase {
    /// Opens the base directory if the path is relative.
    pub(super) fn open_base(self, caller: &Caller<'_>, path: &PathBuffer) -> Option<Self> {
        match self {
            Self::CallerFd(fd) if !path.is_absolute() => caller.directory(fd).map(Self::Opened),
            Self::CallerFd(_) | Self::Opened(_) => Some(self),
        }
    }

    /// Returns whether the path exists, following links. A path through `/proc/self` may resolve
    /// differently for the caller.
    pub(super) fn resolves(&self, path: &PathBuffer) -> bool {
        let base = match self {
            Self::CallerFd(_) => libc::AT_FDCWD,
            Self::Opened(directory) => directory.number(),
        };
        stat_at(base, path.text(), 0).is_ok()
    }
}

impl<'a> TargetEntry<'a> {
    /// Resolves a path except for its last name.
    ///
    /// `None`: it does not resolve, or leads through `/proc/self` and the like, which differ
    /// between broker and caller. The kernel then returns the caller's error.
    pub(super) fn find(
        caller: &Caller<'_>,
        start: PathBase,
        path: &'a mut PathBuffer,
        resolve: u64,
    ) -> Option<Self> {
        // With these two flags, an absolute path does not start at the root either.
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
                OwnedDescriptor::open_path(base, parent, libc::O_DIRECTORY, resolve).ok()?
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

    /// Returns whether the path ended with a slash.
    pub(super) fn has_slash(&self) -> bool {
        self.name.to_bytes().ends_with(b"/")
    }

    /// Returns whether the entry must not be created.
    pub(super) fn is_forbidden(&self, guards: &GuardTable) -> bool {
        guards.forbids(self.facts.identity, self.plain_name())
    }

    fn plain_name(&self) -> &[u8] {
        let name = self.name.to_bytes();
        name.strip_suffix(b"/").unwrap_or(name)
    }

    /// Returns whether its name is guarded in any directory.
    pub(super) fn may_be_forbidden_elsewhere(&self, guards: &GuardTable) -> bool {
        guards.guards_anywhere(self.plain_name())
    }

    /// Returns the reply if the entry must not be created. An existing entry gets the kernel's
    /// usual error, because tools create directories to learn that they exist.
    pub(super) fn refusal(&self, guards: &GuardTable) -> Option<BrokerReply> {
        if !self.is_forbidden(guards) {
            return None;
        }
        Some(match self.entry() {
            Ok(_) => BrokerReply::Continue,
            Err(_) => BrokerReply::Fail(libc::EROFS),
        })
    }

    /// Returns the metadata of the existing entry.
    pub(super) fn entry(&self) -> Result<FileFacts, Errno> {
        stat_at(
            self.directory.number(),
            self.name,
            libc::AT_SYMLINK_NOFOLLOW,
        )
    }

    /// Returns whether the kernel would follow an existing link. In a world-writable sticky
    /// directory, the link must belong to the user or to the directory's owner
    /// (`fs.protected_symlinks`, which is enabled nearly everywhere and assumed here).
    pub(super) fn may_follow(&self, link: &FileFacts) -> bool {
        let shared = libc::S_ISVTX | libc::S_IWOTH;
        self.facts.mode & shared != shared
            || link.owner == self.facts.owner
            || Some(link.owner) == own_user()
    }
}

/// Returns the user id that the broker runs as.
fn own_user() -> Option<u32> {
    let user = raw::syscall(libc::SYS_geteuid, []).ok()?;
    u32::try_from(user).ok()
}

/// The kernel's limit for a path, including the terminating zero.
pub(super) const MAX_PATH: usize = 4096;

/// A path copied from a caller or a link.
#[derive(Debug)]
pub(super) struct PathBuffer {
    /// The path, a zero, and arbitrary bytes.
    bytes: [u8; MAX_PATH],
}

/// A path split before its last name.
#[derive(Debug)]
pub(super) struct PathParts<'a> {
    /// The directory. `None`: the base of the path.
    pub(super) parent: Option<&'a CStr>,
    /// The last name. Keeps one trailing slash if the path had any, because calls treat it
    /// differently.
    pub(super) name: &'a CStr,
}

impl PathBuffer {
    /// An empty path. A constant, so that no temporary copy is built on the stack.
    pub(super) const EMPTY: Self = Self {
        bytes: [0; MAX_PATH],
    };

    /// Returns the buffer. Its contents must end with a zero.
    pub(super) const fn buffer(&mut self) -> &mut [u8; MAX_PATH] {
        &mut self.bytes
    }

    /// Returns the path.
    pub(super) fn text(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.bytes).unwrap_or_default()
    }

    /// Returns whether the path is absolute.
    pub(super) fn is_absolute(&self) -> bool {
        self.bytes.first() == Some(&b'/')
    }

    /// Replaces the path by the target of a symbolic link. `None`: not a link, or the target is too
    /// long.
    pub(super) fn read_link(&mut self, directory: c_int, name: &CStr) -> Option<()> {
        let max_length = MAX_PATH - 1;
        let args = [
            raw::int_arg(directory),
            name.as_ptr() as usize,
            self.bytes.as_mut_ptr() as usize,
            max_length,
        ];
        let length = raw::syscall(libc::SYS_readlinkat, args).ok()?;
        if length >= max_length {
            return None;
        }
        *self.bytes.get_mut(length)? = 0;
        Some(())
    }

    /// Splits the path. `None`: it has no last name that could be created.
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

/// A short path that the broker formats itself, such as `7/cwd`.
#[derive(Debug)]
pub(super) struct ShortPath {
    bytes: [u8; 64],
    length: usize,
}

impl ShortPath {
    /// Formats a path. Longer text is cut off; the broker formats no path that long.
    pub(super) fn new(text: fmt::Arguments<'_>) -> Self {
        let mut short = Self {
            bytes: [0; 64],
            length: 0,
        };
        let _ = fmt::write(&mut short, text);
        short
    }

    /// Returns the path.
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
        let tail = self.bytes.get_mut(self.length..end).ok_or(fmt::Error)?;
        tail.copy_from_slice(text.as_bytes());
        self.length = end;
        Ok(())
    }
}

/// Metadata of a file that the broker needs.
#[derive(Clone, Copy, Debug)]
pub(super) struct FileFacts {
    /// Which file it is.
    pub(super) identity: FileIdentity,
    /// File type and permissions.
    pub(super) mode: u32,
    /// User id of the owner.
    pub(super) owner: u32,
}

/// Identifies a file by device and inode.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct FileIdentity {
    device: (u32, u32),
    inode: u64,
}

impl FileIdentity {
    /// An identity that no file has.
    pub(super) const NONE: Self = Self {
        device: (0, 0),
        inode: 0,
    };

    /// Returns whether the file may be on a procfs, which has no device.
    pub(super) const fn may_be_on_procfs(&self) -> bool {
        self.device.0 == 0
    }
}

impl OwnedDescriptor {
    /// Returns the metadata of the open file.
    pub(super) fn facts(&self) -> Result<FileFacts, Errno> {
        stat_at(self.number(), c"", libc::AT_EMPTY_PATH)
    }

    /// Returns whether the file is on a procfs.
    pub(super) fn is_on_procfs(&self) -> Result<bool, Errno> {
        let mut record = MaybeUninit::<libc::statfs>::zeroed();
        let args = [raw::int_arg(self.number()), record.as_mut_ptr() as usize];
        raw::syscall(libc::SYS_fstatfs, args)?;
        // SAFETY: the record consists of integers and was zero-initialised.
        let record = unsafe { record.assume_init() };
        Ok(record.f_type == libc::PROC_SUPER_MAGIC)
    }
}

/// Returns the metadata of the file at a path.
fn stat_at(base: c_int, path: &CStr, flags: c_int) -> Result<FileFacts, Errno> {
    let mut record = MaybeUninit::<libc::statx>::zeroed();
    let flags = flags | libc::AT_STATX_DONT_SYNC;
    let mask = libc::STATX_TYPE | libc::STATX_MODE | libc::STATX_UID | libc::STATX_INO;
    let args = [
        raw::int_arg(base),
        path.as_ptr() as usize,
        raw::int_arg(flags),
        mask as usize,
        record.as_mut_ptr() as usize,
    ];
    raw::syscall(libc::SYS_statx, args)?;
    // SAFETY: the record consists of integers and was zero-initialised.
    let record = unsafe { record.assume_init() };
    Ok(FileFacts {
        identity: FileIdentity {
            device: (record.stx_dev_major, record.stx_dev_minor),
            inode: record.stx_ino,
        },
        mode: u32::from(record.stx_mode),
        owner: record.stx_uid,
    })
}

#[cfg(test)]
mod tests {
    use super::PathBuffer;

    /// Splits `text`.
    fn split(text: &str) -> Option<(Option<String>, String)> {
        let mut path = PathBuffer::EMPTY;
        path.buffer()[..text.len()].copy_from_slice(text.as_bytes());
        let parts = path.split()?;
        let text = |part: &std::ffi::CStr| part.to_str().unwrap().to_owned();
        Some((parts.parent.map(text), text(parts.name)))
    }

    #[test]
    fn path_is_split_before_its_last_name() {
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
    fn path_without_a_last_name_is_not_split() {
        for path in ["", "/", "//", ".", "..", "a/.", "a/..", "a/../", "./"] {
            assert_eq!(split(path), None, "{path}");
        }
    }
}
