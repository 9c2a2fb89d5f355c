//! What ignore files say, from the root of the file system down to one directory.
//!
//! Invariant: only regular files of a bounded size are read, and no link is followed to one. A
//! repository that somebody else wrote can neither block nor fill us by its ignore files.

use std::{ffi::OsStr, io::Read, os::unix::ffi::OsStrExt, path::Path};

use exec_wire::fs::EntryKind;
use ignore::{
    Match,
    gitignore::{Gitignore, GitignoreBuilder},
};
use rustix::{
    fd::{AsFd, BorrowedFd},
    fs::{AtFlags, CWD, statat},
};

use crate::{
    descent::{DirectoryNames, open_file},
    resolve::directory_at,
};

/// The ignore files of a directory and of those above it.
#[derive(Debug, Default)]
pub(super) struct IgnoreRules {
    directories: Vec<DirectoryRules>,
}

/// What the rules say about a path.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum IgnoreVerdict {
    /// It is to be left out.
    Ignored,
    /// A `!` says that it is not, even if it is hidden.
    Wanted,
    /// Nothing.
    Silent,
}

impl IgnoreRules {
    /// Reads the ignore files of the directories above `root`, which is a path without links.
    pub(super) fn above(root: &Path) -> Self {
        let mut rules = Self::default();
        let mut above: Vec<&Path> = root.ancestors().skip(1).collect();
        above.reverse();
        for path in above {
            // Whoever may not look there is not bound by it.
            let Ok(directory) = directory_at(CWD, path) else {
                continue;
            };
            let path_bytes = match path.as_os_str().as_bytes() {
                b"/" => 0,
                path => path.len(),
            };
            let mut found = DirectoryRules {
                path_bytes,
                is_repository: statat(&directory, c".git", AtFlags::empty()).is_ok(),
                files: Vec::new(),
            };
            found.read(directory.as_fd(), |_| true);
            rules.directories.push(found);
        }
        rules
    }

    /// Reads the ignore files of a directory below those that were entered, of which `path_bytes`
    /// is the length. Returns whether there is something to [`leave`](Self::leave).
    pub(super) fn enter(
        &mut self,
        directory: BorrowedFd<'_>,
        path_bytes: usize,
        names: &DirectoryNames,
    ) -> bool {
        let mut found = DirectoryRules {
            path_bytes,
            is_repository: names.contains(b".git"),
            files: Vec::new(),
        };
        found.read(directory, |name| names.contains(name));
        let has_rules = found.is_repository || !found.files.is_empty();
        if has_rules {
            self.directories.push(found);
        }
        has_rules
    }

    /// Forgets the directory that was entered last.
    pub(super) fn leave(&mut self) {
        self.directories.pop();
    }

    /// Tells what becomes of a path in the directory that was entered last.
    ///
    /// `.rgignore` is asked first, then `.ignore`, `.gitignore` and what the repository excludes;
    /// of each kind, the nearest file that knows the path decides. What lies above a repository
    /// does not speak for git in it.
    pub(super) fn verdict(&self, path: &[u8], kind: EntryKind) -> IgnoreVerdict {
        let is_directory = kind == EntryKind::Directory;
        for source in IGNORE_SOURCES {
            for directory in self.directories.iter().rev() {
                let below = path.get(directory.path_bytes + 1..).unwrap_or_default();
                let below = OsStr::from_bytes(below);
                for (_, file) in directory.files.iter().filter(|file| file.0 == source) {
                    match file.matched(below, is_directory) {
                        Match::None => {}
                        Match::Ignore(_) => return IgnoreVerdict::Ignored,
                        Match::Whitelist(_) => return IgnoreVerdict::Wanted,
                    }
                }
                if directory.is_repository && source.is_of_git() {
                    break;
                }
            }
        }
        IgnoreVerdict::Silent
    }
}

/// The ignore files of one directory.
#[derive(Debug)]
struct DirectoryRules {
    /// Length of the directory's path, without a trailing slash.
    path_bytes: usize,
    is_repository: bool,
    files: Vec<(IgnoreSource, Gitignore)>,
}

impl DirectoryRules {
    /// Reads the ignore files that are there, of those that there may be.
    fn read(&mut self, directory: BorrowedFd<'_>, may_be: impl Fn(&[u8]) -> bool) {
        for source in IGNORE_SOURCES {
            let is_possible = match source {
                IgnoreSource::Exclude => self.is_repository,
                IgnoreSource::Ripgrep | IgnoreSource::Any | IgnoreSource::Git => {
                    may_be(source.path())
                }
            };
            if is_possible
                && let Some(file) = parsed(directory, source.path())
                && !file.is_empty()
            {
                self.files.push((source, file));
            }
        }
    }
}

/// Where a rule stands. Earlier ones win.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum IgnoreSource {
    Ripgrep,
    Any,
    Git,
    Exclude,
}

impl IgnoreSource {
    fn path(self) -> &'static [u8] {
        match self {
            Self::Ripgrep => b".rgignore",
            Self::Any => b".ignore",
            Self::Git => b".gitignore",
            Self::Exclude => b".git/info/exclude",
        }
    }

    fn is_of_git(self) -> bool {
        match self {
            Self::Ripgrep | Self::Any => false,
            Self::Git | Self::Exclude => true,
        }
    }
}

/// Reads an ignore file. Lines that are broken say nothing, nor do those of a file that is none.
fn parsed(directory: BorrowedFd<'_>, path: &[u8]) -> Option<Gitignore> {
    let file = open_file(directory, path).ok()?;
    let mut bytes = Vec::new();
    file.take(MAX_FILE_BYTES).read_to_end(&mut bytes).ok()?;
    let text = String::from_utf8_lossy(&bytes);
    let mut builder = GitignoreBuilder::new("");
    for line in text.trim_start_matches('\u{feff}').lines() {
        // A broken line is left out, and nobody is told.
        drop(builder.add_line(None, line));
    }
    builder.build().ok()
}

/// All sources, in order.
const IGNORE_SOURCES: [IgnoreSource; 4] = [
    IgnoreSource::Ripgrep,
    IgnoreSource::Any,
    IgnoreSource::Git,
    IgnoreSource::Exclude,
];
/// How much of an ignore file is read. Rules are compiled, which costs far more than their text.
const MAX_FILE_BYTES: u64 = 128 << 10;
