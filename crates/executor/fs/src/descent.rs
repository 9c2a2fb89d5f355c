//! Opens and lists directories below a root.
//!
//! Invariant: with `Refuse`, no link below the root is followed, however the tree changes
//! meanwhile. Only the root stays open. Elsewhere: the order in which directories are visited
//! (`walk`, `filtered_tree`).

#[cfg(test)]
mod tests;

use std::{
    ffi::{CStr, OsStr},
    fs::File,
    os::unix::ffi::OsStrExt,
    path::Path,
};

use rustix::{
    fd::{AsFd, BorrowedFd, OwnedFd},
    fs::{AtFlags, CWD, FileType, Mode, OFlags, RawDir, ResolveFlags, fstat, openat2, statat},
    io::{Errno, Result, retry_on_intr},
};

use crate::{
    cancel_flag::CancelFlag,
    directory::{self, InodeId},
    regular_file::READ_FLAGS,
    resolve::{self, LinkPolicy, directory_at, open_at},
};

/// A root directory, below which others are opened.
#[derive(Debug)]
pub(crate) struct DescentRoot {
    directory: OwnedFd,
    links: LinkPolicy,
}

impl DescentRoot {
    /// Opens a root directory. It need not be readable. With `Refuse`, it must not be a link
    /// itself, and no link below it is followed.
    pub(crate) fn open(path: &Path, links: LinkPolicy) -> Result<Self> {
        let directory = match links {
            LinkPolicy::Follow => resolve::directory(path, links),
            LinkPolicy::Refuse => directory_at(CWD, path),
        };
        directory.map(|directory| Self { directory, links })
    }

    /// Opens the directory at `below` for listing. The path contains no `.` or `..`; an empty path
    /// is the root.
    pub(crate) fn directory(&self, below: &[u8]) -> Result<OwnedFd> {
        match self.links {
            _ if below.is_empty() => open_at(&self.directory, c".", LIST_FLAGS, Mode::empty()),
            LinkPolicy::Follow => open_at(&self.directory, below, LIST_FLAGS, Mode::empty()),
            LinkPolicy::Refuse => open_below(self.directory.as_fd(), below, LIST_FLAGS),
        }
    }

    /// Returns the identity of the file at `below`, following all links.
    pub(crate) fn identity(&self, below: &[u8]) -> Result<InodeId> {
        let found = statat(&self.directory, below, AtFlags::empty())?;
        Ok(InodeId::from(&found))
    }

    /// Opens the regular file at `below` for reading, like [`open_file`].
    pub(crate) fn file(&self, below: &[u8]) -> Result<File> {
        open_file(self.directory.as_fd(), below)
    }
}

/// Opens a regular file below a directory for reading. Follows no link, and never blocks on a
/// special file.
pub(crate) fn open_file(directory: BorrowedFd<'_>, below: &[u8]) -> Result<File> {
    let file = open_below(directory, below, READ_FLAGS)?;
    if !FileType::from_raw_mode(fstat(&file)?.st_mode).is_file() {
        return Err(Errno::INVAL);
    }
    Ok(File::from(file))
}

/// Opens a path without following any link.
fn open_below(directory: BorrowedFd<'_>, below: &[u8], flags: OFlags) -> Result<OwnedFd> {
    let resolve = ResolveFlags::NO_SYMLINKS;
    let flags = flags | OFlags::CLOEXEC;
    match retry_on_intr(|| openat2(directory, below, flags, Mode::empty(), resolve)) {
        // A seccomp filter that does not know the call fails with either error.
        Err(Errno::NOSYS | Errno::PERM) => open_by_name(directory, below, flags),
        opened => opened,
    }
}

/// Does what the kernel does in [`open_below`], one component after the other.
pub(super) fn open_by_name(
    directory: BorrowedFd<'_>,
    below: &[u8],
    flags: OFlags,
) -> Result<OwnedFd> {
    let mut above: Option<OwnedFd> = None;
    let mut names = below.split(|&byte| byte == b'/').peekable();
    while let Some(name) = names.next() {
        let at = above.as_ref().map_or(directory, AsFd::as_fd);
        if names.peek().is_none() {
            return open_at(at, name, flags | OFlags::NOFOLLOW, Mode::empty());
        }
        above = Some(directory_at(at, name)?);
    }
    Err(Errno::NOENT)
}

/// Flags to open a directory for listing.
const LIST_FLAGS: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY);

/// The names in a directory, sorted bytewise, without dangling links.
#[derive(Debug, Default)]
pub(crate) struct DirectoryNames {
    /// All names, concatenated, so that a directory needs few allocations.
    text: Vec<u8>,
    spans: Vec<NameSpan>,
}

impl DirectoryNames {
    /// Reads a directory, keeping only the first `max_names` names. `buffer` is reused between
    /// calls. After a cancellation some names may be missing.
    ///
    /// # Errors
    /// Fails if the directory cannot be listed.
    pub(crate) fn read(
        directory: BorrowedFd<'_>,
        max_names: usize,
        buffer: &mut Vec<u8>,
        stop: &CancelFlag,
    ) -> Result<Self> {
        buffer.clear();
        buffer.reserve(BUFFER_BYTES);
        // Without search permission only the names can be read.
        let search_permission = statat(directory, c".", AtFlags::empty()).map(drop);
        let mut names = Self::default();
        let mut entries = RawDir::new(directory, buffer.spare_capacity_mut());
        while let Some(entry) = entries.next() {
            let entry = entry?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            if stop.is_cancelled() {
                break;
            }
            if let Some(kind) = name_kind(directory, name, entry.file_type(), search_permission) {
                names.push(name.to_bytes(), kind);
            }
            if names.spans.len() > max_names.saturating_mul(2).max(PRUNE_FROM) {
                names.sort_and_truncate(max_names);
            }
        }
        names.sort_and_truncate(max_names);
        Ok(names)
    }

    /// Returns the number of names.
    pub(crate) fn len(&self) -> usize {
        self.spans.len()
    }

    /// Drops the names from `index` on.
    pub(crate) fn truncate(&mut self, index: usize) {
        self.spans.truncate(index);
    }

    /// Iterates over the names and their kinds.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&OsStr, NameKind)> {
        let entry = |span: &NameSpan| (OsStr::from_bytes(self.bytes(span)), span.kind);
        self.spans.iter().map(entry)
    }

    /// Returns the name at an index, or an empty name.
    pub(crate) fn name(&self, index: usize) -> &[u8] {
        self.spans.get(index).map_or(&[], |span| self.bytes(span))
    }

    /// Returns whether a name exists.
    pub(crate) fn contains(&self, name: &[u8]) -> bool {
        let found = self
            .spans
            .binary_search_by(|span| self.bytes(span).cmp(name));
        found.is_ok()
    }

    fn push(&mut self, name: &[u8], kind: NameKind) {
        let start = self.text.len();
        self.text.extend_from_slice(name);
        let end = self.text.len();
        self.spans.push(NameSpan { start, end, kind });
    }

    fn sort_and_truncate(&mut self, max_names: usize) {
        let text = &self.text;
        let name = |span: &NameSpan| text.get(span.start..span.end).unwrap_or_default();
        self.spans.sort_unstable_by(|a, b| name(a).cmp(name(b)));
        if self.spans.len() <= max_names {
            return;
        }
        let mut first_names = Self::default();
        for span in self.spans.iter().take(max_names) {
            first_names.push(self.bytes(span), span.kind);
        }
        *self = first_names;
    }

    fn bytes(&self, span: &NameSpan) -> &[u8] {
        self.text.get(span.start..span.end).unwrap_or_default()
    }
}

/// The kind of file that a name refers to.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum NameKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A link to a directory.
    DirectoryLink,
    /// A link to something else, a pipe, a socket or a device.
    Other,
    /// Unknown, because of this error.
    Unreadable(Errno),
}

#[derive(Clone, Copy, Debug)]
struct NameSpan {
    start: usize,
    end: usize,
    kind: NameKind,
}

/// Returns the kind of a name. `None`: it does not exist, or is a dangling link.
fn name_kind(
    directory: BorrowedFd<'_>,
    name: &CStr,
    file_type: FileType,
    search_permission: Result<()>,
) -> Option<NameKind> {
    let file_type = match directory::kind(directory, name, file_type) {
        Ok(file_type) => file_type,
        Err(Errno::NOENT) => return None,
        Err(errno) => return Some(NameKind::Unreadable(errno)),
    };
    if file_type.is_symlink() {
        let target = statat(directory, name, AtFlags::empty()).ok()?;
        let is_directory = FileType::from_raw_mode(target.st_mode).is_dir();
        return Some(if is_directory {
            NameKind::DirectoryLink
        } else {
            NameKind::Other
        });
    }
    Some(match search_permission {
        Err(errno) => NameKind::Unreadable(errno),
        Ok(()) if file_type.is_dir() => NameKind::Directory,
        Ok(()) if file_type.is_file() => NameKind::File,
        Ok(()) => NameKind::Other,
    })
}

/// Size of the buffer that the kernel fills with names.
const BUFFER_BYTES: usize = 64 << 10;
/// Names to collect before dropping those beyond the limit.
const PRUNE_FROM: usize = 4096;
