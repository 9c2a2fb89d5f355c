//! The files of a tree without ignored ones, in path order.
//!
//! Leaves out what ripgrep leaves out: files matched by an ignore file, hidden files unless
//! whitelisted with `!`, and links. Two differences: `.gitignore` also applies outside a
//! repository, and only ignore files in the tree and its ancestors count, not the user's git
//! configuration.
//!
//! Invariant: of ignore files, only regular ones of bounded size are read, and never through a
//! link, so an untrusted repository can neither block the server nor exhaust its memory. Elsewhere:
//! the users of the tree (`search`, `find`).

#[cfg(test)]
mod tests;

use std::{cmp::Ordering, ffi::OsStr, io::Read, os::unix::ffi::OsStrExt, path::Path, sync::Arc};

use exec_env::filesystem::FileError;
use exec_wire::{fs::EntryKind, limits};
use ignore::{
    Match,
    gitignore::{Gitignore, GitignoreBuilder},
};
use rustix::{
    fd::{AsFd, BorrowedFd},
    fs::{AtFlags, CWD, statat},
    io::{self, Errno},
};

use crate::{
    cancel_flag::CancelFlag,
    descent::{DescentRoot, DirectoryNames, NameKind, open_file},
    host_path::host_error,
    resolve::{LinkPolicy, directory_at},
};

/// A single traversal of a tree.
///
/// It examines at most [`limits::MAX_SEARCH_ENTRIES`] names. Beyond that it enters no further
/// directory, so that the result depends on the tree only.
#[derive(Debug)]
pub(crate) struct FilteredTree<'a> {
    root: Arc<DescentRoot>,
    /// Path of the current directory, without links and without a trailing slash.
    path: Vec<u8>,
    /// Length of the root's path.
    root_bytes: usize,
    rules: IgnoreRules,
    frames: Vec<TreeFrame>,
    remaining_names: usize,
    is_truncated: bool,
    buffer: Vec<u8>,
    stop: &'a CancelFlag,
}

/// A file or directory of a tree.
#[derive(Debug, Eq, PartialEq)]
pub(crate) struct TreeEntry {
    /// Path relative to the root.
    pub(crate) below: Vec<u8>,
    pub(crate) kind: EntryKind,
}

impl<'a> FilteredTree<'a> {
    /// Starts at a directory. The path may contain links; below it none is followed.
    ///
    /// # Errors
    /// Fails if the directory cannot be listed.
    pub(crate) fn open(root: &Path, stop: &'a CancelFlag) -> Result<Self, FileError> {
        Self::open_with(root, limits::MAX_SEARCH_ENTRIES, stop)
    }

    /// As [`open`](Self::open), but examines at most `max_names` names.
    fn open_with(root: &Path, max_names: usize, stop: &'a CancelFlag) -> Result<Self, FileError> {
        let list_error = |error: std::io::Error| host_error("list", root, error);
        // Ignore files are looked up in the ancestors of the real path.
        let path = root.canonicalize().map_err(list_error)?;
        let opened = DescentRoot::open(&path, LinkPolicy::Refuse)
            .map_err(|errno| list_error(errno.into()))?;
        let rules = IgnoreRules::above(&path);
        let mut path = path.into_os_string().into_encoded_bytes();
        if path == b"/" {
            path.clear();
        }
        let mut tree = Self {
            root: Arc::new(opened),
            root_bytes: path.len(),
            path,
            rules,
            frames: Vec::new(),
            remaining_names: max_names,
            is_truncated: false,
            buffer: Vec::new(),
            stop,
        };
        tree.enter().map_err(|errno| list_error(errno.into()))?;
        Ok(tree)
    }

    /// Returns whether the tree has more entries than were examined.
    pub(crate) fn is_truncated(&self) -> bool {
        self.is_truncated
    }

    /// Returns the root, to open entries.
    pub(crate) fn root(&self) -> Arc<DescentRoot> {
        Arc::clone(&self.root)
    }

    /// Reads the directory at `path`.
    fn enter(&mut self) -> io::Result<()> {
        let below = self.path.get(self.root_bytes + 1..).unwrap_or_default();
        let directory = self.root.directory(below)?;
        let limit = self.remaining_names + 1;
        let mut names =
            DirectoryNames::read(directory.as_fd(), limit, &mut self.buffer, self.stop)?;
        if names.len() == limit {
            names.truncate(self.remaining_names);
            self.is_truncated = true;
        }
        self.remaining_names -= names.len();
        let has_rules = self.rules.enter(directory.as_fd(), self.path.len(), &names);
        let steps = self.steps(&names);
        self.frames.push(TreeFrame {
            names,
            steps,
            next: 0,
            path_bytes: self.path.len(),
            has_rules,
        });
        Ok(())
    }

    /// Returns the steps of a directory, in order.
    fn steps(&mut self, names: &DirectoryNames) -> Vec<TreeStep> {
        let mut steps = Vec::with_capacity(names.len());
        for (index, (name, kind)) in names.iter().enumerate() {
            let kind = match kind {
                NameKind::File => EntryKind::File,
                NameKind::Directory => EntryKind::Directory,
                NameKind::DirectoryLink | NameKind::Other | NameKind::Unreadable(_) => continue,
            };
            if self.is_excluded(name.as_bytes(), kind) {
                continue;
            }
            steps.push(TreeStep::List(index, kind));
            if kind == EntryKind::Directory {
                steps.push(TreeStep::Enter(index));
            }
        }
        steps.sort_by(|a, b| a.order(b, names));
        steps
    }

    fn is_excluded(&mut self, name: &[u8], kind: EntryKind) -> bool {
        let directory_bytes = self.path.len();
        self.path.push(b'/');
        self.path.extend_from_slice(name);
        let verdict = self.rules.match_path(&self.path, kind);
        self.path.truncate(directory_bytes);
        match verdict {
            IgnoreVerdict::Ignored => true,
            IgnoreVerdict::Whitelisted => false,
            IgnoreVerdict::Unmatched => name.starts_with(b"."),
        }
    }
}

impl Iterator for FilteredTree<'_> {
    type Item = TreeEntry;

    /// Returns the next file or directory. `None` after a cancellation.
    fn next(&mut self) -> Option<TreeEntry> {
        loop {
            let frame = self.frames.last_mut()?;
            self.path.truncate(frame.path_bytes);
            if self.stop.is_cancelled() {
                return None;
            }
            let Some(step) = frame.steps.get(frame.next) else {
                if frame.has_rules {
                    self.rules.leave();
                }
                self.frames.pop();
                continue;
            };
            frame.next += 1;
            self.path.push(b'/');
            self.path.extend_from_slice(step.name(&frame.names));
            match *step {
                TreeStep::List(_, kind) => {
                    let below = self.path.get(self.root_bytes + 1..).unwrap_or_default();
                    let below = below.to_vec();
                    return Some(TreeEntry { below, kind });
                }
                TreeStep::Enter(_) if self.remaining_names == 0 => self.is_truncated = true,
                // A directory that cannot be listed, or is gone, has nothing to find. A
                // directory beyond the path limit may have.
                TreeStep::Enter(_) => {
                    self.is_truncated |= self.enter() == Err(Errno::NAMETOOLONG);
                }
            }
        }
    }
}

/// A directory in progress.
#[derive(Debug)]
struct TreeFrame {
    names: DirectoryNames,
    steps: Vec<TreeStep>,
    next: usize,
    path_bytes: usize,
    has_rules: bool,
}

/// A step for the name at an index.
#[derive(Clone, Copy, Debug)]
enum TreeStep {
    /// Yield the entry.
    List(usize, EntryKind),
    /// Traverse the directory.
    Enter(usize),
}

impl TreeStep {
    fn name<'a>(&self, names: &'a DirectoryNames) -> &'a [u8] {
        match *self {
            Self::List(index, _) | Self::Enter(index) => names.name(index),
        }
    }

    /// Compares by full path. Paths below `a` start with `a/`, and so follow `a.rs`.
    fn order(&self, other: &Self, names: &DirectoryNames) -> Ordering {
        let (mine, theirs) = (self.name(names), other.name(names));
        let shared = mine.len().min(theirs.len());
        let next = |step: &Self, name: &[u8]| match step {
            Self::List(..) => name.get(shared).copied(),
            Self::Enter(_) => name.get(shared).copied().or(Some(b'/')),
        };
        let prefixes = mine[..shared].cmp(&theirs[..shared]);
        prefixes.then_with(|| next(self, mine).cmp(&next(other, theirs)))
    }
}

/// The ignore files of a directory and its ancestors.
#[derive(Debug, Default)]
struct IgnoreRules {
    directories: Vec<DirectoryRules>,
}

/// The result of matching a path against the rules.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum IgnoreVerdict {
    /// The path is ignored.
    Ignored,
    /// A `!` pattern whitelists the path, even if it is hidden.
    Whitelisted,
    /// No rule matches.
    Unmatched,
}

impl IgnoreRules {
    /// Reads the ignore files of the ancestors of `root`, a path without links.
    fn above(root: &Path) -> Self {
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
            let mut directory_rules = DirectoryRules {
                path_bytes,
                is_repository: statat(&directory, c".git", AtFlags::empty()).is_ok(),
                files: Vec::new(),
            };
            directory_rules.read(directory.as_fd(), |_| true);
            rules.directories.push(directory_rules);
        }
        rules
    }

    /// Reads the ignore files of a subdirectory; `path_bytes` is the length of its path. Returns
    /// whether a matching [`leave`](Self::leave) is needed.
    fn enter(
        &mut self,
        directory: BorrowedFd<'_>,
        path_bytes: usize,
        names: &DirectoryNames,
    ) -> bool {
        let mut directory_rules = DirectoryRules {
            path_bytes,
            is_repository: names.contains(b".git"),
            files: Vec::new(),
        };
        directory_rules.read(directory, |name| names.contains(name));
        let has_rules = directory_rules.is_repository || !directory_rules.files.is_empty();
        if has_rules {
            self.directories.push(directory_rules);
        }
        has_rules
    }

    /// Drops the rules of the directory that was entered last.
    fn leave(&mut self) {
        self.directories.pop();
    }

    /// Matches a path in the directory that was entered last.
    ///
    /// `.rgignore` takes precedence over `.ignore`, `.gitignore` and the repository's exclude file.
    /// For each kind, the nearest file with a matching rule decides. Git rules above a repository
    /// do not apply in it.
    fn match_path(&self, path: &[u8], kind: EntryKind) -> IgnoreVerdict {
        let is_directory = kind == EntryKind::Directory;
        for source in IGNORE_SOURCES {
            for directory in self.directories.iter().rev() {
                let below = path.get(directory.path_bytes + 1..).unwrap_or_default();
                let below = OsStr::from_bytes(below);
                for (_, file) in directory.files.iter().filter(|file| file.0 == source) {
                    match file.matched(below, is_directory) {
                        Match::None => {}
                        Match::Ignore(_) => return IgnoreVerdict::Ignored,
                        Match::Whitelist(_) => return IgnoreVerdict::Whitelisted,
                    }
                }
                if directory.is_repository && source.is_git_specific() {
                    break;
                }
            }
        }
        IgnoreVerdict::Unmatched
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
    /// Reads the existing ignore files; `may_exist` rules out missing ones.
    fn read(&mut self, directory: BorrowedFd<'_>, may_exist: impl Fn(&[u8]) -> bool) {
        for source in IGNORE_SOURCES {
            let is_possible = match source == IgnoreSource::Exclude {
                true => self.is_repository,
                false => may_exist(source.path()),
            };
            if is_possible
                && let Some(file) = parse_ignore_file(directory, source.path())
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

    fn is_git_specific(self) -> bool {
        match self {
            Self::Ripgrep | Self::Any => false,
            Self::Git | Self::Exclude => true,
        }
    }
}

/// Parses an ignore file. Skips invalid lines, and files that are not regular.
fn parse_ignore_file(directory: BorrowedFd<'_>, path: &[u8]) -> Option<Gitignore> {
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
