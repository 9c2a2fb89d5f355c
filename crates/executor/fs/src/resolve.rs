//! Resolves paths with or without symbolic links.
//!
//! Without links, a link in the middle of a path is `ENOTDIR`, and a link at its end is `ELOOP`.
//! The kernel resolves such a path (`openat2`, Linux 5.6); where that is unavailable, it is
//! resolved here. Directories on the path are opened with `O_PATH`, never for reading.

use std::{
    ffi::{OsStr, OsString},
    path::{Component, Path},
};

use rustix::{
    fd::{AsFd, BorrowedFd, OwnedFd},
    fs::{CWD, Mode, OFlags, ResolveFlags, mkdirat, openat, openat2},
    io::{self, Errno, retry_on_intr},
    path::Arg,
};

/// How symbolic links in a path are treated.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum LinkPolicy {
    /// Links are followed.
    Follow,
    /// No component may be a link.
    Refuse,
}

impl LinkPolicy {
    /// Returns the policy for a request's `followSymlinks`.
    pub(crate) fn from_request(follow: Option<bool>) -> Self {
        match follow {
            None | Some(true) => Self::Follow,
            Some(false) => Self::Refuse,
        }
    }
}

/// A name in an open directory. The name itself may be a link under either policy.
#[derive(Debug)]
pub(crate) struct EntryLocation {
    directory: OwnedFd,
    name: OsString,
}

impl EntryLocation {
    /// Opens the parent of `path`. The root becomes the name `.` in itself.
    pub(crate) fn open_parent(path: &Path, links: LinkPolicy) -> io::Result<Self> {
        let (above, name) = match (path.parent(), path.file_name()) {
            (Some(above), Some(name)) => (above, name),
            _ => (path, OsStr::new(".")),
        };
        directory(above, links).map(|directory| Self::new(directory, name))
    }

    /// Creates the location of a name in a directory.
    pub(crate) fn new(directory: OwnedFd, name: &OsStr) -> Self {
        Self {
            directory,
            name: name.to_owned(),
        }
    }

    /// Returns the directory and the name.
    pub(crate) fn into_parts(self) -> (OwnedFd, OsString) {
        (self.directory, self.name)
    }

    /// Returns the directory, which is opened with `O_PATH`.
    pub(crate) fn directory(&self) -> BorrowedFd<'_> {
        self.directory.as_fd()
    }

    /// Returns the name.
    pub(crate) fn name(&self) -> &OsStr {
        &self.name
    }
}

/// Opens a path.
pub(crate) fn open(
    path: &Path,
    links: LinkPolicy,
    flags: OFlags,
    mode: Mode,
) -> io::Result<OwnedFd> {
    match links {
        LinkPolicy::Follow => open_at(CWD, path, flags, mode),
        LinkPolicy::Refuse => {
            let location = EntryLocation::open_parent(path, links)?;
            let flags = flags | OFlags::NOFOLLOW;
            open_at(location.directory(), location.name(), flags, mode)
        }
    }
}

/// Opens a name in a directory.
pub(crate) fn open_at(
    directory: impl AsFd,
    name: impl Arg + Copy,
    flags: OFlags,
    mode: Mode,
) -> io::Result<OwnedFd> {
    // Opening on a network file system can be interrupted.
    retry_on_intr(|| openat(&directory, name, flags | OFlags::CLOEXEC, mode))
}

/// Opens a subdirectory with `O_PATH`. Fails for a link.
pub(crate) fn directory_at(directory: impl AsFd, name: impl Arg + Copy) -> io::Result<OwnedFd> {
    open_at(
        directory,
        name,
        BASE_FLAGS | OFlags::NOFOLLOW,
        Mode::empty(),
    )
}

/// Opens a directory with `O_PATH`.
pub(crate) fn directory(path: &Path, links: LinkPolicy) -> io::Result<OwnedFd> {
    match links {
        LinkPolicy::Follow => open_at(CWD, path, BASE_FLAGS, Mode::empty()),
        LinkPolicy::Refuse => match by_kernel(path) {
            // A seccomp filter that does not know the call fails with either error.
            Err(Errno::NOSYS | Errno::PERM) => {
                open_by_component(path, links, MissingDirectory::Fail)
            }
            opened => opened,
        },
    }
}

/// Opens a directory with `O_PATH`, creating it and its ancestors if missing.
pub(crate) fn open_or_create_directory(path: &Path, links: LinkPolicy) -> io::Result<OwnedFd> {
    match directory(path, links) {
        Err(Errno::NOENT) => open_by_component(path, links, MissingDirectory::Make),
        opened => opened,
    }
}

fn by_kernel(path: &Path) -> io::Result<OwnedFd> {
    let flags = BASE_FLAGS | OFlags::CLOEXEC;
    let resolve = ResolveFlags::NO_SYMLINKS;
    match retry_on_intr(|| openat2(CWD, path, flags, Mode::empty(), resolve)) {
        Err(Errno::LOOP) => Err(Errno::NOTDIR),
        opened => opened,
    }
}

/// What to do if a directory does not exist.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum MissingDirectory {
    Fail,
    Make,
}

fn open_by_component(
    path: &Path,
    links: LinkPolicy,
    missing: MissingDirectory,
) -> io::Result<OwnedFd> {
    let flags = match links {
        LinkPolicy::Follow => BASE_FLAGS,
        LinkPolicy::Refuse => BASE_FLAGS | OFlags::NOFOLLOW,
    };
    let mut directory = open_at(CWD, "/", flags, Mode::empty())?;
    for component in path.components() {
        let Component::Normal(name) = component else {
            continue;
        };
        directory = match open_at(&directory, name, flags, Mode::empty()) {
            Err(Errno::NOENT) if missing == MissingDirectory::Make => {
                create_directory_at(&directory, name, flags, NEW_DIRECTORY_MODE)?
            }
            opened => opened?,
        };
    }
    Ok(directory)
}

/// Creates a directory, and opens it with `flags`.
pub(crate) fn create_directory_at(
    above: impl AsFd,
    name: impl Arg + Copy,
    flags: OFlags,
    mode: Mode,
) -> io::Result<OwnedFd> {
    let made = mkdirat(&above, name, mode);
    match (made, open_at(&above, name, flags, Mode::empty())) {
        // The name exists but not its target: a dangling link.
        (Err(Errno::EXIST), Err(Errno::NOENT)) => Err(Errno::EXIST),
        // It was created here, or concurrently by another process.
        (Ok(()) | Err(Errno::EXIST), opened) => opened,
        (Err(error), _) => Err(error),
    }
}

/// Flags to open a directory as a base only, which needs no permission on it.
pub(crate) const BASE_FLAGS: OFlags = OFlags::PATH.union(OFlags::DIRECTORY);
/// Permission bits of a new directory, before the umask.
pub(crate) const NEW_DIRECTORY_MODE: Mode = Mode::from_raw_mode(0o777);

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::{directory::InodeId, test_dir::TestDir};

    /// Both implementations of opening a directory without links.
    const IMPLEMENTATIONS: [fn(&Path) -> io::Result<OwnedFd>; 2] = [by_kernel, |path| {
        open_by_component(path, LinkPolicy::Refuse, MissingDirectory::Fail)
    }];

    #[test]
    fn both_implementations_resolve_to_the_same_directory() {
        let scratch = TestDir::new();
        let path = fs::canonicalize(scratch.directory("a/b/c")).unwrap();
        for path in [path.as_path(), Path::new("/"), Path::new("/proc")] {
            let expected = InodeId::of(directory(path, LinkPolicy::Follow).unwrap()).unwrap();
            for open_without_links in IMPLEMENTATIONS {
                assert_eq!(
                    InodeId::of(open_without_links(path).unwrap()),
                    Ok(expected),
                    "{path:?}"
                );
            }
        }
    }

    #[test]
    fn both_implementations_reject_links_and_files() {
        let scratch = TestDir::new();
        let root = fs::canonicalize(scratch.root()).unwrap();
        scratch.directory("real/below");
        scratch.file("file", "");
        scratch.link("link", "real");
        scratch.link("dangling", "nowhere");
        for open_without_links in IMPLEMENTATIONS {
            for name in ["link", "link/below", "file", "file/below", "dangling"] {
                let refused = open_without_links(&root.join(name)).map(drop);
                assert_eq!(refused, Err(Errno::NOTDIR), "{name}");
            }
            for name in ["none", "real/none", "none/below"] {
                let missing = open_without_links(&root.join(name)).map(drop);
                assert_eq!(missing, Err(Errno::NOENT), "{name}");
            }
            assert_eq!(
                open_without_links(Path::new("/proc/self/task")).map(drop),
                Err(Errno::NOTDIR)
            );
        }
    }

    #[test]
    fn only_missing_directories_are_created() {
        let scratch = TestDir::new();
        let root = fs::canonicalize(scratch.root()).unwrap();
        scratch.directory("real");
        scratch.link("link", "real");
        scratch.link("dangling", "nowhere");
        for links in [LinkPolicy::Follow, LinkPolicy::Refuse] {
            let path = root.join("real/a/b");
            let made = InodeId::of(open_or_create_directory(&path, links).unwrap());
            assert_eq!(
                made,
                InodeId::of(open_or_create_directory(&path, links).unwrap())
            );
            fs::remove_dir_all(root.join("real/a")).unwrap();
        }
        open_or_create_directory(&root.join("link/a/b"), LinkPolicy::Follow).unwrap();
        assert!(root.join("real/a/b").is_dir());
        let refused = |name, links| open_or_create_directory(&root.join(name), links).map(drop);
        assert_eq!(refused("link/c", LinkPolicy::Refuse), Err(Errno::NOTDIR));
        assert_eq!(refused("dangling", LinkPolicy::Follow), Err(Errno::EXIST));
        assert_eq!(refused("dangling/c", LinkPolicy::Follow), Err(Errno::EXIST));
        assert_eq!(
            refused("dangling/c", LinkPolicy::Refuse),
            Err(Errno::NOTDIR)
        );
    }

    #[test]
    fn root_resolves_to_dot_in_itself() {
        for links in [LinkPolicy::Follow, LinkPolicy::Refuse] {
            let location = EntryLocation::open_parent(Path::new("/"), links).unwrap();
            assert_eq!(location.name(), ".");
            let location = EntryLocation::open_parent(Path::new("/proc"), links).unwrap();
            assert_eq!(location.name(), "proc");
        }
    }
}
