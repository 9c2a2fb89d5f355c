//! Directories as a tree is descended: opened below a root, and listed in one go.
//!
//! Invariant: below a root that refuses links no link is followed, however the tree changes in the
//! meantime. Nothing stays open but the root and what the caller holds.
//! Not here: the order in which directories are visited (`walk`, `tree`).

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
    directory_stack::InodeId,
    regular_file::TO_READ,
    resolve::{LinkPolicy, directory_at, open_at},
    workers::Stop,
};

/// A directory under which others are opened.
#[derive(Debug)]
pub(crate) struct DescentRoot {
    directory: OwnedFd,
    links: LinkPolicy,
}

impl DescentRoot {
    /// Opens a directory. It need not be readable, and links may lead to it; but with
    /// [`Links::Refuse`] it is no link itself, and none is followed below it.
    pub(crate) fn open(path: &Path, links: LinkPolicy) -> Result<Self> {
        let directory = match links {
            LinkPolicy::Follow => open_at(CWD, path, SEARCHED, Mode::empty()),
            LinkPolicy::Refuse => directory_at(CWD, path),
        };
        directory.map(|directory| Self { directory, links })
    }

    /// Opens the directory at `below` to list it. The path has no `.` and `..`; empty, it is the
    /// root.
    pub(crate) fn directory(&self, below: &[u8]) -> Result<OwnedFd> {
        match self.links {
            _ if below.is_empty() => open_at(&self.directory, c".", LISTED, Mode::empty()),
            LinkPolicy::Follow => open_at(&self.directory, below, LISTED, Mode::empty()),
            LinkPolicy::Refuse => open_below(self.directory.as_fd(), below, LISTED),
        }
    }

    /// Tells which file is at `below`, behind all links.
    pub(crate) fn identity(&self, below: &[u8]) -> Result<InodeId> {
        let found = statat(&self.directory, below, AtFlags::empty())?;
        Ok(InodeId::from(&found))
    }

    /// Opens the regular file at `below` to read it, as [`open_file`] does.
    pub(crate) fn file(&self, below: &[u8]) -> Result<File> {
        open_file(self.directory.as_fd(), below)
    }
}

/// Opens a regular file below a directory to read it. No link is followed, and what is no regular
/// file is not waited for.
pub(crate) fn open_file(directory: BorrowedFd<'_>, below: &[u8]) -> Result<File> {
    let file = open_below(directory, below, TO_READ)?;
    if !FileType::from_raw_mode(fstat(&file)?.st_mode).is_file() {
        return Err(Errno::INVAL);
    }
    Ok(File::from(file))
}

/// Opens a path in which no name is a link.
fn open_below(directory: BorrowedFd<'_>, below: &[u8], flags: OFlags) -> Result<OwnedFd> {
    let resolve = ResolveFlags::NO_SYMLINKS;
    let flags = flags | OFlags::CLOEXEC;
    match retry_on_intr(|| openat2(directory, below, flags, Mode::empty(), resolve)) {
        // A filter that does not know the call refuses it with either.
        Err(Errno::NOSYS | Errno::PERM) => open_by_name(directory, below, flags),
        opened => opened,
    }
}

/// Does what the kernel does in [`open_below`], one name after the other.
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

/// How a directory is opened only to get at what is below it: it needs no permission on it.
const SEARCHED: OFlags = OFlags::PATH.union(OFlags::DIRECTORY);
/// How a directory is opened to be listed.
const LISTED: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY);

/// The names in a directory, sorted bytewise. Links that lead nowhere are left out.
#[derive(Debug, Default)]
pub(crate) struct DirectoryNames {
    /// All names, one after the other: a directory costs few allocations.
    text: Vec<u8>,
    spans: Vec<NameSpan>,
}

impl DirectoryNames {
    /// Reads a directory, of which only the first `keep` names are wanted. `buffer` is room that
    /// is used again. If it is asked to stop, some names may be missing.
    ///
    /// # Errors
    /// Fails if the directory cannot be listed.
    pub(crate) fn read(
        directory: BorrowedFd<'_>,
        keep: usize,
        buffer: &mut Vec<u8>,
        stop: &Stop,
    ) -> Result<Self> {
        buffer.clear();
        buffer.reserve(BUFFER_BYTES);
        // Without the right to search it, the names are all there is to learn.
        let search = statat(directory, c".", AtFlags::empty()).map(drop);
        let mut names = Self::default();
        let mut entries = RawDir::new(directory, buffer.spare_capacity_mut());
        while let Some(entry) = entries.next() {
            let entry = entry?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            if stop.is_asked() {
                break;
            }
            if let Some(kind) = kind_of(directory, name, entry.file_type(), search) {
                names.push(name.to_bytes(), kind);
            }
            if names.spans.len() > keep.saturating_mul(2).max(PRUNE_FROM) {
                names.sort_and_keep(keep);
            }
        }
        names.sort_and_keep(keep);
        Ok(names)
    }

    /// Returns how many there are.
    pub(crate) fn len(&self) -> usize {
        self.spans.len()
    }

    /// Forgets the names from the one at `index` on.
    pub(crate) fn truncate(&mut self, index: usize) {
        self.spans.truncate(index);
    }

    /// Iterates over the names and what they name.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&OsStr, NameKind)> {
        let entry = |span: &NameSpan| (OsStr::from_bytes(self.bytes(span)), span.kind);
        self.spans.iter().map(entry)
    }

    /// Returns the name at an index; an empty one if there is none.
    pub(crate) fn name(&self, index: usize) -> &[u8] {
        self.spans.get(index).map_or(&[], |span| self.bytes(span))
    }

    /// Tells whether there is such a name.
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

    fn sort_and_keep(&mut self, keep: usize) {
        let text = &self.text;
        let name = |span: &NameSpan| text.get(span.start..span.end).unwrap_or_default();
        self.spans.sort_unstable_by(|a, b| name(a).cmp(name(b)));
        if self.spans.len() <= keep {
            return;
        }
        let mut kept = Self::default();
        for span in self.spans.iter().take(keep) {
            kept.push(self.bytes(span), span.kind);
        }
        *self = kept;
    }

    fn bytes(&self, span: &NameSpan) -> &[u8] {
        self.text.get(span.start..span.end).unwrap_or_default()
    }
}

/// What a name names.
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
    /// It cannot be told, because of this.
    Unreadable(Errno),
}

#[derive(Clone, Copy, Debug)]
struct NameSpan {
    start: usize,
    end: usize,
    kind: NameKind,
}

/// Tells what a name names, or `None` if it names nothing.
fn kind_of(
    directory: BorrowedFd<'_>,
    name: &CStr,
    file_type: FileType,
    search: Result<()>,
) -> Option<NameKind> {
    let file_type = if file_type == FileType::Unknown {
        // Some file systems do not say.
        match statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(found) => FileType::from_raw_mode(found.st_mode),
            Err(Errno::NOENT) => return None,
            Err(errno) => return Some(NameKind::Unreadable(errno)),
        }
    } else {
        file_type
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
    Some(match search {
        Err(errno) => NameKind::Unreadable(errno),
        Ok(()) if file_type.is_dir() => NameKind::Directory,
        Ok(()) if file_type.is_file() => NameKind::File,
        Ok(()) => NameKind::Other,
    })
}

/// Room for names that the kernel fills at once.
const BUFFER_BYTES: usize = 64 << 10;
/// Names that are gathered before it is worth forgetting those that are not wanted.
const PRUNE_FROM: usize = 4096;
