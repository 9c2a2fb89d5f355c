//! Reads several directories in parallel before they are listed, because most of the time is spent
//! in the kernel.

use std::{
    panic::resume_unwind,
    sync::atomic::{AtomicUsize, Ordering},
    thread,
};

use rustix::{
    fd::AsFd,
    io::{Errno, Result},
};

use super::PendingDirectory;
use crate::{
    descent::{DescentRoot, DirectoryNames},
    directory_stack::InodeId,
    workers::{self, Stop},
};

/// Most directories that are read at once.
pub(super) const READ_AHEAD: usize = 64;

/// Reads directories, and returns them in order. The last ones may be missing if the earlier ones
/// have at least `keep` names.
pub(super) fn read(
    root: &DescentRoot,
    directories: &[PendingDirectory],
    keep: usize,
    stop: &Stop,
) -> Vec<Result<DirectoryNames>> {
    let batch = ReadBatch {
        root,
        directories,
        keep,
        next: AtomicUsize::new(0),
        found: AtomicUsize::new(0),
        stop,
    };
    if directories.len() < MIN_PARALLEL_DIRECTORIES {
        return batch.work().into_iter().map(|(_, names)| names).collect();
    }
    let mut read = thread::scope(|scope| {
        let helpers: Vec<_> = (1..workers::thread_count())
            .filter_map(|_| {
                // If a thread cannot be started, the others do its work.
                let helper = thread::Builder::new().spawn_scoped(scope, || batch.work());
                helper.ok()
            })
            .collect();
        let mut read = batch.work();
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

struct ReadBatch<'a> {
    root: &'a DescentRoot,
    directories: &'a [PendingDirectory],
    keep: usize,
    next: AtomicUsize,
    found: AtomicUsize,
    stop: &'a Stop,
}

impl ReadBatch<'_> {
    /// Reads directories that no other thread reads.
    fn work(&self) -> Vec<(usize, Result<DirectoryNames>)> {
        let mut buffer = Vec::new();
        let mut read = Vec::new();
        while self.found.load(Ordering::Relaxed) < self.keep {
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

    fn names(&self, directory: &PendingDirectory, buffer: &mut Vec<u8>) -> Result<DirectoryNames> {
        let opened = self.root.directory(&directory.below)?;
        // Another directory than the one queued, and possibly one that was entered before.
        if let Some(identity) = directory.identity
            && InodeId::of(&opened)? != identity
        {
            return Err(Errno::NOENT);
        }
        DirectoryNames::read(opened.as_fd(), self.keep, buffer, self.stop)
    }
}

/// With fewer directories, reading is faster than starting a thread.
const MIN_PARALLEL_DIRECTORIES: usize = 16;
