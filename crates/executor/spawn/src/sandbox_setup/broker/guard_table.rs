//! The table of guarded names, and when a name matches one.

use std::ffi::{CStr, c_char, c_int};

use super::target_entry::FileIdentity;
use crate::raw::{Errno, OwnedDescriptor};

/// Most guarded directories.
const MAX_DIRECTORIES: usize = 64;

/// Most guarded names in all directories together.
const MAX_NAMES: usize = 256;

/// Names that cannot be created, by directory. Has a fixed size because it lives on a stack.
#[derive(Debug)]
pub(crate) struct GuardTable {
    /// A procfs that shows the callers.
    processes: c_int,
    directories: [FileIdentity; MAX_DIRECTORIES],
    directory_count: usize,
    /// Borrowed from the job, which outlives the broker.
    names: [*const c_char; MAX_NAMES],
    /// Index of the directory of each name.
    owners: [u8; MAX_NAMES],
    name_count: usize,
}

impl GuardTable {
    /// An empty table. A constant, so that no temporary copy is built on the stack.
    const EMPTY: Self = Self {
        processes: -1,
        directories: [FileIdentity::NONE; MAX_DIRECTORIES],
        directory_count: 0,
        names: [std::ptr::null(); MAX_NAMES],
        owners: [0; MAX_NAMES],
        name_count: 0,
    };

    /// Creates an empty table. `processes` is a procfs that shows callers under the pids that
    /// notifications use. It need not be mounted in any view.
    pub(crate) const fn new(processes: c_int) -> Self {
        Self {
            processes,
            ..Self::EMPTY
        }
    }

    /// Returns the procfs in which callers are looked up.
    pub(super) const fn processes(&self) -> c_int {
        self.processes
    }

    /// Guards one name in one directory of the view. The caller may close `directory` afterwards.
    /// `name` ends with a zero byte and must not change while the table is used.
    ///
    /// # Errors
    /// `ENOSPC`: the table is full. `EINVAL`: this cannot be a file name. Otherwise the kernel's
    /// error for the descriptor.
    pub(crate) fn add(&mut self, directory: c_int, name: *const c_char) -> Result<(), Errno> {
        // SAFETY: names belong to a job, which outlives its broker.
        let text = unsafe { CStr::from_ptr(name) }.to_bytes();
        if text.is_empty() || text.len() > 255 || text.contains(&b'/') || is_dots(text) {
            return Err(libc::EINVAL);
        }
        let owner = self.directory(directory)?;
        let index = self.name_count;
        *self.names.get_mut(index).ok_or(libc::ENOSPC)? = name;
        *self.owners.get_mut(index).ok_or(libc::ENOSPC)? = owner;
        self.name_count = index + 1;
        Ok(())
    }

    /// Returns whether `name` is guarded in a directory.
    pub(super) fn forbids(&self, directory: FileIdentity, name: &[u8]) -> bool {
        let known = self.directories.iter().take(self.directory_count);
        let Some(index) = known.copied().position(|known| known == directory) else {
            return false;
        };
        self.names()
            .any(|(guarded, owner)| owner == index && may_be_same(name, guarded))
    }

    /// Returns whether `name` is guarded in any directory.
    pub(super) fn guards_anywhere(&self, name: &[u8]) -> bool {
        self.names().any(|(guarded, _)| may_be_same(name, guarded))
    }

    /// Returns every name with the index of its directory.
    fn names(&self) -> impl Iterator<Item = (&[u8], usize)> {
        let names = self.names.iter().zip(&self.owners).take(self.name_count);
        names.map(|(guarded, owner)| {
            // SAFETY: names belong to a job, which outlives its broker.
            let guarded = unsafe { CStr::from_ptr(*guarded) };
            (guarded.to_bytes(), usize::from(*owner))
        })
    }

    /// Finds or adds a directory.
    fn directory(&mut self, directory: c_int) -> Result<u8, Errno> {
        // While it is open, its inode number is not reused, and file systems with dynamic inode
        // numbers (overlays of several layers) keep the one they assigned.
        let opened = OwnedDescriptor::duplicate(directory)?;
        let identity = opened.facts()?.identity;
        let known = self.directories.iter().take(self.directory_count);
        let index = match known.copied().position(|known| known == identity) {
            Some(index) => index,
            None => {
                let index = self.directory_count;
                *self.directories.get_mut(index).ok_or(libc::ENOSPC)? = identity;
                self.directory_count = index + 1;
                // Open until the process exits.
                let _ = opened.into_raw();
                index
            }
        };
        u8::try_from(index).map_err(|_| libc::ENOSPC)
    }
}

/// Returns whether some file system might treat `name` as `guarded`.
///
/// The comparison always ignores case. Whether a directory folds case (ext4 and f2fs can, per
/// directory) is not worth a system call per file, and commands do not need a name that differs
/// from a guarded one only by case. Such directories also fold some non-ASCII letters to ASCII, and
/// ignore invisible characters; other file systems drop trailing dots and spaces. Composed and
/// decomposed forms of a letter count as different: guarded names are ASCII in practice.
pub(super) fn may_be_same(name: &[u8], guarded: &[u8]) -> bool {
    if name == guarded {
        return true;
    }
    match (std::str::from_utf8(name), std::str::from_utf8(guarded)) {
        (Ok(name), Ok(guarded)) => folded(name).eq(folded(guarded)),
        // No file system folds non-ASCII bytes that are not UTF-8.
        _ => name.eq_ignore_ascii_case(guarded),
    }
}

/// Returns whether the name refers to the directory itself or its parent.
pub(super) fn is_dots(name: &[u8]) -> bool {
    matches!(name, b"." | b"..")
}

fn folded(name: &str) -> impl Iterator<Item = char> {
    name.trim_end_matches(['.', ' '])
        .chars()
        .filter(|letter| !is_ignored(*letter))
        // Lower, upper, lower: some letters become equal in one of the cases only.
        .flat_map(char::to_lowercase)
        .flat_map(char::to_uppercase)
        .flat_map(char::to_lowercase)
}

/// Unicode's `Default_Ignorable_Code_Point`.
const fn is_ignored(letter: char) -> bool {
    matches!(
        letter,
        '\u{ad}'
            | '\u{34f}'
            | '\u{61c}'
            | '\u{115f}'..='\u{1160}'
            | '\u{17b4}'..='\u{17b5}'
            | '\u{180b}'..='\u{180f}'
            | '\u{200b}'..='\u{200f}'
            | '\u{202a}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}'
            | '\u{3164}'
            | '\u{fe00}'..='\u{fe0f}'
            | '\u{feff}'
            | '\u{ffa0}'
            | '\u{fff0}'..='\u{fff8}'
            | '\u{1bca0}'..='\u{1bca3}'
            | '\u{1d173}'..='\u{1d17a}'
            | '\u{e0000}'..='\u{e0fff}'
    )
}

#[cfg(test)]
mod tests {
    use super::may_be_same;

    #[test]
    fn names_that_a_file_system_may_fold_match() {
        for name in [
            ".git",
            ".GIT",
            ".gIt",
            ".g\u{200c}it",
            "\u{feff}.git",
            ".git. .",
        ] {
            assert!(may_be_same(name.as_bytes(), b".git"), "{name:?}");
        }
        assert!(may_be_same(".agent\u{17f}".as_bytes(), b".agents"));
        assert!(may_be_same("\u{212a}eep".as_bytes(), b"keep"));
        assert!(may_be_same("gla\u{df}".as_bytes(), b"GLASS"));
        assert!(may_be_same(b"\xff.git", b"\xff.GIT"));
    }

    #[test]
    fn other_names_do_not_match() {
        for name in [
            ".gitignore",
            "git",
            ".gi",
            ".git2",
            "..git",
            "\u{65e5}\u{672c}",
            ".",
        ] {
            assert!(!may_be_same(name.as_bytes(), b".git"), "{name:?}");
        }
        assert!(!may_be_same(b".git\xff", b".git"));
    }
}
