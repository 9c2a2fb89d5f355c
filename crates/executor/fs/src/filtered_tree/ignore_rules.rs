//! Ignore rules that apply to a directory, from the file system's root downwards.
//!
//! Invariant: only regular files of bounded size are read, and never through a link, so ignore
//! files in an untrusted repository can neither block the server nor exhaust its memory.

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

/// The ignore files of a directory and its ancestors.
#[derive(Debug, Default)]
pub(super) struct IgnoreRules {
    directories: Vec<DirectoryRules>,
}

/// The result of matching a path against the rules.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum IgnoreVerdict {
    /// The path is ignored.
    Ignored,
    /// A `!` pattern whitelists the path, even if it is hidden.
    Wanted,
    /// No rule matches.
    Silent,
}

impl IgnoreRules {
    /// Reads the ignore files of the ancestors of `root`, a path without links.
    pub(super) fn above(root: &Path) -> Self {
        let mut rules = Self::default();
        let mut above: Vec<&Path> = root.ancestors().skip(1).collect();
        above.reverse();
        for path in above {
            // Ignore files that cannot be accessed do not apply.
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

    /// Reads the ignore files of a subdirectory; `path_bytes` is the length of its path. Returns
    /// whether a matching [`leave`](Self::leave) is needed.
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

    /// Drops the rules of the directory that was entered last.
    pub(super) fn leave(&mut self) {
        self.directories.pop();
    }

    /// Matches a path in the directory that was entered last.
    ///
    /// `.rgignore` takes precedence over `.ignore`, `.gitignore` and the repository's exclude file.
    /// For each kind, the nearest file with a matching rule decides. Git rules above a repository
    /// do not apply in it.
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
    /// Reads the existing ignore files; `may_be` rules out missing ones.
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

/// The kind of an ignore file. Earlier ones take precedence.
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

/// Parses an ignore file. Skips invalid lines, and files that are not regular.
fn parsed(directory: BorrowedFd<'_>, path: &[u8]) -> Option<Gitignore> {
    let file = open_file(directory, path).ok()?;
    let mut bytes = Vec::new();
    file.take(MAX_FILE_BYTES).read_to_end(&mut bytes).ok()?;
    let text = String::from_utf8_lossy(&bytes);
    let mut builder = GitignoreBuilder::new("");
    for line in text.trim_start_matches('\u{feff}').lines() {
        // Invalid lines are skipped silently.
        drop(builder.add_line(None, line));
    }
    builder.build().ok()
}

/// All kinds, in order of precedence.
const IGNORE_SOURCES: [IgnoreSource; 4] = [
    IgnoreSource::Ripgrep,
    IgnoreSource::Any,
    IgnoreSource::Git,
    IgnoreSource::Exclude,
];
/// Most bytes read of an ignore file. Compiled rules need far more memory than their text.
const MAX_FILE_BYTES: u64 = 128 << 10;
