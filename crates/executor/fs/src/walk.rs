//! `fs/walk`: lists a tree breadth first.
//!
//! Behaves like the stock server, including its limits. Changes during a walk are tolerated:
//! entries that disappear are skipped, and a directory that becomes a link is not entered.
//!
//! Several directories are read in parallel before they are listed, because most of the time is
//! spent in the kernel.

#[cfg(test)]
mod tests;

use std::{
    collections::{HashSet, VecDeque},
    ffi::OsStr,
    io,
    ops::ControlFlow,
    os::unix::ffi::OsStrExt,
    panic::resume_unwind,
    sync::atomic::{AtomicUsize, Ordering},
    thread,
};

use exec_env::filesystem::FileError;
use exec_wire::{
    fs::{EntryKind, WalkEntry, WalkError, WalkOptions, WalkResult, WalkTree},
    limits,
    path_uri::PathUri,
};
use rustix::{
    fd::AsFd,
    fs::{FileType, stat},
    io::Errno,
};

use crate::{
    cancel_flag::{self, CancelFlag},
    descent::{DescentRoot, DirectoryNames, NameKind},
    directory::InodeId,
    host_path::{host_error, native_path},
    resolve::LinkPolicy,
};

/// Lists a tree breadth first, sorted by name in each directory.
///
/// The root is not listed. The result is empty if the root is not a directory, or is a link that
/// must not be followed. A directory that cannot be read, including the root, is reported as an
/// error of the result.
///
/// # Errors
/// Fails if a limit is zero or above its maximum, if the root does not exist, or after a
/// cancellation.
pub fn walk(walk: &WalkTree, stop: &CancelFlag) -> Result<WalkResult, FileError> {
    check_limits(&walk.options)?;
    let path = native_path(&walk.path)?;
    let links = if walk.options.follow_directory_symlinks {
        LinkPolicy::Follow
    } else {
        LinkPolicy::Refuse
    };
    // A dangling link is not a root, even if links are not followed.
    let metadata = stat(&path).map_err(|errno| host_error("walk", &path, errno))?;
    if !FileType::from_raw_mode(metadata.st_mode).is_dir() {
        return Ok(WalkResult::default());
    }
    let root = match DescentRoot::open(&path, links) {
        Ok(root) => root,
        Err(Errno::NOTDIR | Errno::LOOP) => return Ok(WalkResult::default()),
        Err(errno) => return Err(host_error("walk", &path, errno)),
    };
    let mut walker = TreeWalker::new(walk.options, root);
    walker.entered.insert(InodeId::from(&metadata));
    walker.queue.push_back(PendingDirectory {
        below: Vec::new(),
        uri: walk.path.clone(),
        depth: 0,
        identity: (links == LinkPolicy::Follow).then(|| InodeId::from(&metadata)),
    });
    walker.run(stop)
}

fn check_limits(options: &WalkOptions) -> Result<(), FileError> {
    let text = if options.max_directories == 0 || options.max_entries == 0 {
        "filesystem walk limits must be greater than zero".to_owned()
    } else if options.max_depth > limits::MAX_WALK_DEPTH
        || options.max_directories > limits::MAX_WALK_DIRECTORIES
        || options.max_entries > limits::MAX_WALK_ENTRIES
    {
        format!(
            "filesystem walk limits exceed maximums: depth={}, directories={}, entries={}",
            limits::MAX_WALK_DEPTH,
            limits::MAX_WALK_DIRECTORIES,
            limits::MAX_WALK_ENTRIES
        )
    } else {
        return Ok(());
    };
    Err(FileError::Invalid(text))
}

/// A walk in progress.
#[derive(Debug)]
pub(super) struct TreeWalker {
    options: WalkOptions,
    root: DescentRoot,
    pub(super) queue: VecDeque<PendingDirectory>,
    /// Directories that were queued, if links are followed.
    entered: HashSet<InodeId>,
    directories: usize,
    examined: usize,
    answer: WalkAnswer,
}

/// A directory to read.
#[derive(Debug)]
pub(super) struct PendingDirectory {
    /// Path relative to the root.
    pub(super) below: Vec<u8>,
    pub(super) uri: PathUri,
    pub(super) depth: usize,
    /// The directory that was found there, if links are followed.
    pub(super) identity: Option<InodeId>,
}

impl TreeWalker {
    pub(super) fn new(options: WalkOptions, root: DescentRoot) -> Self {
        Self {
            options,
            root,
            queue: VecDeque::new(),
            entered: HashSet::new(),
            // The root counts, but is not queued like the others.
            directories: 1,
            examined: 0,
            answer: WalkAnswer::default(),
        }
    }

    pub(super) fn run(mut self, stop: &CancelFlag) -> Result<WalkResult, FileError> {
        while !self.queue.is_empty() {
            let count = self.queue.len().min(READ_AHEAD);
            let directories: Vec<PendingDirectory> = self.queue.drain(..count).collect();
            // One more than allowed, to detect truncation.
            let max_names = self.options.max_entries - self.examined + 1;
            let read = read_directories(&self.root, &directories, max_names, stop);
            stop.check()?;
            for (directory, names) in directories.iter().zip(read) {
                if self.enter(directory, names).is_break() {
                    return Ok(self.answer.result);
                }
            }
        }
        Ok(self.answer.result)
    }

    /// Lists one directory. Breaks if the walk ends here.
    fn enter(
        &mut self,
        directory: &PendingDirectory,
        names: rustix::io::Result<DirectoryNames>,
    ) -> ControlFlow<()> {
        match names {
            _ if directory.uri.is_opaque() => self.answer.error(&directory.uri, NO_CHILDREN),
            Ok(names) => self.list(directory, &names),
            // It is gone, or no longer a directory.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => ControlFlow::Continue(()),
            Err(errno) => self.answer.host_error(&directory.uri, errno),
        }
    }

    fn list(&mut self, directory: &PendingDirectory, names: &DirectoryNames) -> ControlFlow<()> {
        for (name, kind) in names.iter() {
            if self.examined == self.options.max_entries {
                self.answer.result.truncated = true;
                return ControlFlow::Break(());
            }
            self.examined += 1;
            let is_directory = match kind {
                NameKind::DirectoryLink if !self.follows_links() => continue,
                NameKind::Other => continue,
                NameKind::Directory | NameKind::DirectoryLink => true,
                NameKind::File | NameKind::Unreadable(_) => false,
            };
            let Some(uri) = directory.uri.child(name) else {
                return self.answer.error(&directory.uri, NO_CHILDREN);
            };
            if let NameKind::Unreadable(errno) = kind {
                self.answer.host_error(&uri, errno)?;
            } else if is_directory {
                self.answer.entry(uri.clone(), EntryKind::Directory)?;
                self.queue(directory, name, uri)?;
            } else {
                self.answer.entry(uri, EntryKind::File)?;
            }
        }
        ControlFlow::Continue(())
    }

    /// Queues a listed directory, unless an option excludes it.
    fn queue(&mut self, parent: &PendingDirectory, name: &OsStr, uri: PathUri) -> ControlFlow<()> {
        let is_pruned = self.options.prune_hidden_directories && name.as_bytes().starts_with(b".");
        if is_pruned || parent.depth == self.options.max_depth {
            return ControlFlow::Continue(());
        }
        let mut below = Vec::with_capacity(parent.below.len() + 1 + name.len());
        below.extend_from_slice(&parent.below);
        if !below.is_empty() {
            below.push(b'/');
        }
        below.extend_from_slice(name.as_bytes());
        let identity = match self.identity(&below) {
            Ok(Some(identity)) if self.entered.contains(&identity) => {
                return ControlFlow::Continue(());
            }
            Ok(identity) => identity,
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return ControlFlow::Continue(()),
            Err(errno) => return self.answer.host_error(&uri, errno),
        };
        if self.directories == self.options.max_directories {
            self.answer.result.truncated = true;
            return ControlFlow::Continue(());
        }
        self.directories += 1;
        self.entered.extend(identity);
        self.queue.push_back(PendingDirectory {
            below,
            uri,
            depth: parent.depth + 1,
            identity,
        });
        ControlFlow::Continue(())
    }

    fn identity(&self, below: &[u8]) -> rustix::io::Result<Option<InodeId>> {
        if !self.follows_links() {
            return Ok(None);
        }
        self.root.identity(below).map(Some)
    }

    fn follows_links(&self) -> bool {
        self.options.follow_directory_symlinks
    }
}

/// The result, up to its size limit. An entry that does not fit ends the walk.
#[derive(Debug, Default)]
struct WalkAnswer {
    result: WalkResult,
    bytes: usize,
}

impl WalkAnswer {
    fn entry(&mut self, path: PathUri, kind: EntryKind) -> ControlFlow<()> {
        self.count(path.as_str().len())?;
        self.result.entries.push(WalkEntry { path, kind });
        ControlFlow::Continue(())
    }

    fn host_error(&mut self, path: &PathUri, errno: Errno) -> ControlFlow<()> {
        self.error(path, &io::Error::from(errno).to_string())
    }

    fn error(&mut self, path: &PathUri, message: &str) -> ControlFlow<()> {
        self.count(path.as_str().len() + message.len())?;
        self.result.errors.push(WalkError {
            path: path.clone(),
            message: message.to_owned(),
        });
        ControlFlow::Continue(())
    }

    fn count(&mut self, text_bytes: usize) -> ControlFlow<()> {
        let bytes = self.bytes + text_bytes + limits::WALK_ITEM_BYTES;
        if bytes > limits::MAX_WALK_BYTES {
            self.result.truncated = true;
            return ControlFlow::Break(());
        }
        self.bytes = bytes;
        ControlFlow::Continue(())
    }
}

/// Why nothing below an opaque URI is listed.
const NO_CHILDREN: &str = "entries of an opaque path URI have no URI";

/// Most directories that are read at once.
pub(super) const READ_AHEAD: usize = 64;

/// Reads directories, and returns them in order. The last ones may be missing if the earlier ones
/// have at least `max_names` names.
fn read_directories(
    root: &DescentRoot,
    directories: &[PendingDirectory],
    max_names: usize,
    stop: &CancelFlag,
) -> Vec<rustix::io::Result<DirectoryNames>> {
    let batch = DirectoryReadBatch {
        root,
        directories,
        max_names,
        next: AtomicUsize::new(0),
        found: AtomicUsize::new(0),
        stop,
    };
    if directories.len() < MIN_PARALLEL_DIRECTORIES {
        return batch
            .read_remaining()
            .into_iter()
            .map(|(_, names)| names)
            .collect();
    }
    let mut read = thread::scope(|scope| {
        let helpers: Vec<_> = (1..cancel_flag::thread_count())
            .filter_map(|_| {
                // If a thread cannot be started, the others do its work.
                let helper = thread::Builder::new().spawn_scoped(scope, || batch.read_remaining());
                helper.ok()
            })
            .collect();
        let mut read = batch.read_remaining();
        for helper in helpers {
            match helper.join() {
                Ok(more) => read.extend(more),
                Err(panic) => resume_unwind(panic),
            }
        }
        read
    });
    read.sort_unstable_by_key(|(index, _)| *index);
    read.into_iter().map(|(_, names)| names).collect()
}

struct DirectoryReadBatch<'a> {
    root: &'a DescentRoot,
    directories: &'a [PendingDirectory],
    max_names: usize,
    next: AtomicUsize,
    found: AtomicUsize,
    stop: &'a CancelFlag,
}

impl DirectoryReadBatch<'_> {
    /// Reads directories that no other thread reads.
    fn read_remaining(&self) -> Vec<(usize, rustix::io::Result<DirectoryNames>)> {
        let mut buffer = Vec::new();
        let mut read = Vec::new();
        while self.found.load(Ordering::Relaxed) < self.max_names {
            let index = self.next.fetch_add(1, Ordering::Relaxed);
            let Some(directory) = self.directories.get(index) else {
                break;
            };
            let names = self.names(directory, &mut buffer);
            let found = names.as_ref().map_or(0, DirectoryNames::len);
            self.found.fetch_add(found, Ordering::Relaxed);
            read.push((index, names));
        }
        read
    }

    fn names(
        &self,
        directory: &PendingDirectory,
        buffer: &mut Vec<u8>,
    ) -> rustix::io::Result<DirectoryNames> {
        let opened = self.root.directory(&directory.below)?;
        // Another directory than the one queued, and possibly one that was entered before.
        if let Some(identity) = directory.identity
            && InodeId::of(&opened)? != identity
        {
            return Err(Errno::NOENT);
        }
        DirectoryNames::read(opened.as_fd(), self.max_names, buffer, self.stop)
    }
}

/// With fewer directories, reading is faster than starting a thread.
const MIN_PARALLEL_DIRECTORIES: usize = 16;
