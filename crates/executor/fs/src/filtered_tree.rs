//! The files of a tree that somebody works on: without what ignore files name, in order of path.
//!
//! What is left out is what ripgrep leaves out: whatever an ignore file names, hidden files unless
//! one names them with `!`, and links. Two things differ: `.gitignore` counts outside a repository,
//! too, and nothing outside the tree and the directories above it has a say; the user's own git
//! configuration does not.
//! Not here: what is done with the files (`search`, `find`).

mod ignore_rules;
#[cfg(test)]
mod tests;

use std::{cmp::Ordering, os::unix::ffi::OsStrExt, path::Path, sync::Arc};

use exec_env::filesystem::FileError;
use exec_wire::{fs::EntryKind, limits};
use rustix::{
    fd::AsFd,
    io::{self, Errno},
};

use self::ignore_rules::{Rules, Verdict};
use crate::{
    descent::{Kind, Names, Root},
    host_path::failed,
    resolve::Links,
    workers::Stop,
};

/// A tree that is gone through once.
///
/// It looks at no more than [`limits::MAX_SEARCH_ENTRIES`] names. Beyond them it enters no further
/// directory, so that what it yields depends on nothing but the tree.
#[derive(Debug)]
pub(crate) struct Tree<'a> {
    root: Arc<Root>,
    /// The directory that is gone through, without links and without a trailing slash.
    path: Vec<u8>,
    /// How much of it is the root's.
    root_bytes: usize,
    rules: Rules,
    frames: Vec<Frame>,
    left: usize,
    is_truncated: bool,
    buffer: Vec<u8>,
    stop: &'a Stop,
}

/// A file or directory of a tree.
#[derive(Debug, Eq, PartialEq)]
pub(crate) struct Found {
    /// Its path below the root.
    pub(crate) below: Vec<u8>,
    pub(crate) kind: EntryKind,
}

impl<'a> Tree<'a> {
    /// Begins at a directory. Links may lead to it; below it none is followed.
    ///
    /// # Errors
    /// Fails if the directory cannot be listed.
    pub(crate) fn open(root: &Path, stop: &'a Stop) -> Result<Self, FileError> {
        Self::open_with(root, limits::MAX_SEARCH_ENTRIES, stop)
    }

    /// Does what [`open`](Self::open) does, and looks at `most` names.
    pub(super) fn open_with(root: &Path, most: usize, stop: &'a Stop) -> Result<Self, FileError> {
        let cannot = |error: std::io::Error| failed("list", root, error);
        // The directories above it are those above its real place.
        let path = root.canonicalize().map_err(cannot)?;
        let opened = Root::open(&path, Links::Refuse).map_err(|errno| cannot(errno.into()))?;
        let rules = Rules::above(&path);
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
            left: most,
            is_truncated: false,
            buffer: Vec::new(),
            stop,
        };
        tree.enter().map_err(|errno| cannot(errno.into()))?;
        Ok(tree)
    }

    /// Tells whether there is more than was looked at.
    pub(crate) fn is_truncated(&self) -> bool {
        self.is_truncated
    }

    /// Returns the root, to open what is found.
    pub(crate) fn root(&self) -> Arc<Root> {
        Arc::clone(&self.root)
    }

    /// Reads the directory at `path`.
    fn enter(&mut self) -> io::Result<()> {
        let below = self.path.get(self.root_bytes + 1..).unwrap_or_default();
        let directory = self.root.directory(below)?;
        let keep = self.left + 1;
        let mut names = Names::read(directory.as_fd(), keep, &mut self.buffer, self.stop)?;
        if names.len() == keep {
            names.truncate(self.left);
            self.is_truncated = true;
        }
        self.left -= names.len();
        let has_rules = self.rules.enter(directory.as_fd(), self.path.len(), &names);
        let steps = self.steps(&names);
        self.frames.push(Frame {
            names,
            steps,
            next: 0,
            path_bytes: self.path.len(),
            has_rules,
        });
        Ok(())
    }

    /// Returns what is to be done in a directory, in order.
    fn steps(&mut self, names: &Names) -> Vec<Step> {
        let mut steps = Vec::with_capacity(names.len());
        for (index, (name, kind)) in names.iter().enumerate() {
            let kind = match kind {
                Kind::File => EntryKind::File,
                Kind::Directory => EntryKind::Directory,
                Kind::DirectoryLink | Kind::Other | Kind::Unreadable(_) => continue,
            };
            if self.is_left_out(name.as_bytes(), kind) {
                continue;
            }
            steps.push(Step::List(index, kind));
            if kind == EntryKind::Directory {
                steps.push(Step::Enter(index));
            }
        }
        steps.sort_by(|a, b| a.order(b, names));
        steps
    }

    fn is_left_out(&mut self, name: &[u8], kind: EntryKind) -> bool {
        let directory_bytes = self.path.len();
        self.path.push(b'/');
        self.path.extend_from_slice(name);
        let verdict = self.rules.verdict(&self.path, kind);
        self.path.truncate(directory_bytes);
        match verdict {
            Verdict::Ignored => true,
            Verdict::Wanted => false,
            Verdict::Silent => name.starts_with(b"."),
        }
    }
}

impl Iterator for Tree<'_> {
    type Item = Found;

    /// Returns the next file or directory. If asked to stop, there is none.
    fn next(&mut self) -> Option<Found> {
        loop {
            let frame = self.frames.last_mut()?;
            self.path.truncate(frame.path_bytes);
            if self.stop.is_asked() {
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
                Step::List(_, kind) => {
                    let below = self.path.get(self.root_bytes + 1..).unwrap_or_default();
                    let below = below.to_vec();
                    return Some(Found { below, kind });
                }
                Step::Enter(_) if self.left == 0 => self.is_truncated = true,
                // What cannot be listed, or is gone, holds nothing to find. What lies too deep to be
                // named does.
                Step::Enter(_) => {
                    self.is_truncated |= self.enter() == Err(Errno::NAMETOOLONG);
                }
            }
        }
    }
}

/// A directory that is being gone through.
#[derive(Debug)]
struct Frame {
    names: Names,
    steps: Vec<Step>,
    next: usize,
    path_bytes: usize,
    has_rules: bool,
}

/// What is to be done about the name at an index.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// Yields it.
    List(usize, EntryKind),
    /// Goes through the directory.
    Enter(usize),
}

impl Step {
    fn name<'a>(&self, names: &'a Names) -> &'a [u8] {
        match *self {
            Self::List(index, _) | Self::Enter(index) => names.name(index),
        }
    }

    /// Compares by the paths to come. Those below `a` begin with `a/`, and so follow `a.rs`.
    fn order(&self, other: &Self, names: &Names) -> Ordering {
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
