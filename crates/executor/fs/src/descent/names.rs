//! What a directory holds, sorted.

use std::{
    ffi::{CStr, OsStr},
    os::unix::ffi::OsStrExt,
};

use rustix::{
    fd::BorrowedFd,
    fs::{AtFlags, FileType, RawDir, statat},
    io::{Errno, Result},
};

use crate::stop::Stop;

/// The names in a directory, sorted bytewise. Links that lead nowhere are left out.
#[derive(Debug, Default)]
pub(crate) struct Names {
    /// All names, one after the other: a directory costs few allocations.
    text: Vec<u8>,
    spans: Vec<Span>,
}

impl Names {
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
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&OsStr, Kind)> {
        let entry = |span: &Span| (OsStr::from_bytes(self.bytes(span)), span.kind);
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

    fn push(&mut self, name: &[u8], kind: Kind) {
        let start = self.text.len();
        self.text.extend_from_slice(name);
        let end = self.text.len();
        self.spans.push(Span { start, end, kind });
    }

    fn sort_and_keep(&mut self, keep: usize) {
        let text = &self.text;
        let name = |span: &Span| text.get(span.start..span.end).unwrap_or_default();
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

    fn bytes(&self, span: &Span) -> &[u8] {
        self.text.get(span.start..span.end).unwrap_or_default()
    }
}

/// What a name names.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Kind {
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
struct Span {
    start: usize,
    end: usize,
    kind: Kind,
}

/// Tells what a name names, or `None` if it names nothing.
fn kind_of(
    directory: BorrowedFd<'_>,
    name: &CStr,
    file_type: FileType,
    search: Result<()>,
) -> Option<Kind> {
    let file_type = if file_type == FileType::Unknown {
        // Some file systems do not say.
        match statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(found) => FileType::from_raw_mode(found.st_mode),
            Err(Errno::NOENT) => return None,
            Err(errno) => return Some(Kind::Unreadable(errno)),
        }
    } else {
        file_type
    };
    if file_type.is_symlink() {
        let target = statat(directory, name, AtFlags::empty()).ok()?;
        let is_directory = FileType::from_raw_mode(target.st_mode).is_dir();
        return Some(if is_directory {
            Kind::DirectoryLink
        } else {
            Kind::Other
        });
    }
    Some(match search {
        Err(errno) => Kind::Unreadable(errno),
        Ok(()) if file_type.is_dir() => Kind::Directory,
        Ok(()) if file_type.is_file() => Kind::File,
        Ok(()) => Kind::Other,
    })
}

/// Room for names that the kernel fills at once.
const BUFFER_BYTES: usize = 64 << 10;
/// Names that are gathered before it is worth forgetting those that are not wanted.
const PRUNE_FROM: usize = 4096;
