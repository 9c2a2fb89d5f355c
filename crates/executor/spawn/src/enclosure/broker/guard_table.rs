//! The table of guarded names.

use std::ffi::{CStr, c_char, c_int};

use super::descriptor::{FileIdentity, OwnedDescriptor};
use crate::raw::Errno;

/// Most guarded directories.
const MAX_DIRECTORIES: usize = 64;

/// Most names, of all directories together.
const MAX_NAMES: usize = 256;

/// Names that cannot be made, by directory. Of a fixed size: it lives on a stack.
#[derive(Debug)]
pub(crate) struct GuardTable {
    /// A view of processes in which the callers are.
    processes: c_int,
    directories: [FileIdentity; MAX_DIRECTORIES],
    directory_count: usize,
    /// Borrowed from the job, which outlives the broker.
    names: [*const c_char; MAX_NAMES],
    /// The directory of each name.
    owners: [u8; MAX_NAMES],
    name_count: usize,
}

impl GuardTable {
    /// An empty table. A constant needs no room for itself besides where it goes.
    const EMPTY: Self = Self {
        processes: -1,
        directories: [FileIdentity::NONE; MAX_DIRECTORIES],
        directory_count: 0,
        names: [std::ptr::null(); MAX_NAMES],
        owners: [0; MAX_NAMES],
        name_count: 0,
    };

    /// Makes an empty table. `processes` is a directory: a view of processes in which the callers have
    /// the numbers that they have here. It need not be in anybody's view of files.
    pub(crate) const fn new(processes: c_int) -> Self {
        Self {
            processes,
            ..Self::EMPTY
        }
    }

    /// Where callers are looked up.
    pub(super) const fn processes(&self) -> c_int {
        self.processes
    }

    /// Guards one name in one directory of the view. The caller may close `directory` afterwards.
    /// `name` ends with a zero byte, and stays as it is for as long as the table is used.
    ///
    /// # Errors
    /// `ENOSPC`: the table is full. `EINVAL`: this cannot be the name of a file. Otherwise what the
    /// kernel says of the descriptor.
    pub(crate) fn add(&mut self, directory: c_int, name: *const c_char) -> Result<(), Errno> {
        // SAFETY: names are those of a job, which lives longer than its broker.
        let text = unsafe { CStr::from_ptr(name) }.to_bytes();
        if text.is_empty() || text.len() > 255 || text.contains(&b'/') || is_dots(text) {
            return Err(libc::EINVAL);
        }
        let owner = self.directory(directory)?;
        let place = self.name_count;
        *self.names.get_mut(place).ok_or(libc::ENOSPC)? = name;
        *self.owners.get_mut(place).ok_or(libc::ENOSPC)? = owner;
        self.name_count = place + 1;
        Ok(())
    }

    /// Whether `name` must not be made in a directory.
    pub(super) fn forbids(&self, directory: FileIdentity, name: &[u8]) -> bool {
        let known = self.directories.iter().take(self.directory_count);
        let Some(index) = known.copied().position(|known| known == directory) else {
            return false;
        };
        self.names()
            .any(|(guarded, owner)| owner == index && may_be_same(name, guarded))
    }

    /// Whether `name` must not be made in some directory.
    pub(super) fn guards_anywhere(&self, name: &[u8]) -> bool {
        self.names().any(|(guarded, _)| may_be_same(name, guarded))
    }

    /// Every name, with its directory.
    fn names(&self) -> impl Iterator<Item = (&[u8], usize)> {
        let names = self.names.iter().zip(&self.owners).take(self.name_count);
        names.map(|(guarded, owner)| {
            // SAFETY: names are those of a job, which lives longer than its broker.
            let guarded = unsafe { CStr::from_ptr(*guarded) };
            (guarded.to_bytes(), usize::from(*owner))
        })
    }

    /// Finds or adds a directory.
    fn directory(&mut self, directory: c_int) -> Result<u8, Errno> {
        // While it is held, its number is not given to another file; and file systems that make
        // numbers up as they go (overlays of several) keep the one they gave.
        let held = OwnedDescriptor::duplicate(directory)?;
        let identity = held.facts()?.identity;
        let known = self.directories.iter().take(self.directory_count);
        let index = match known.copied().position(|known| known == identity) {
            Some(index) => index,
            None => {
                let index = self.directory_count;
                *self.directories.get_mut(index).ok_or(libc::ENOSPC)? = identity;
                self.directory_count = index + 1;
                held.leave_open();
                index
            }
        };
        u8::try_from(index).map_err(|_| libc::ENOSPC)
    }
}

/// Whether some file system might take `name` for `guarded`.
///
/// Always asked without regard to case: whether a directory folds names (ext4 and f2fs can, per
/// directory) is not worth a system call per file, and a name that differs from a guarded one by
/// case only is not missed. Such directories also fold letters beyond ASCII to ASCII ones, and skip
/// characters that are not seen; others drop dots and spaces at the end. Composed and decomposed
/// forms of a letter are not taken for the same: guarded names are ASCII in practice.
pub(super) fn may_be_same(name: &[u8], guarded: &[u8]) -> bool {
    if name == guarded {
        return true;
    }
    match (std::str::from_utf8(name), std::str::from_utf8(guarded)) {
        (Ok(name), Ok(guarded)) => folded(name).eq(folded(guarded)),
        // What is not text is not folded beyond ASCII by anybody.
        _ => name.eq_ignore_ascii_case(guarded),
    }
}

/// Whether it names no entry of its own: the directory itself, or the one above.
pub(super) fn is_dots(name: &[u8]) -> bool {
    matches!(name, b"." | b"..")
}

fn folded(name: &str) -> impl Iterator<Item = char> {
    name.trim_end_matches(['.', ' '])
        .chars()
        .filter(|letter| !is_ignored(*letter))
        // Up and down again: some letters meet others in one of the cases only.
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
    fn names_that_a_file_system_may_fold_are_the_same() {
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
    fn other_names_are_not_the_same() {
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
