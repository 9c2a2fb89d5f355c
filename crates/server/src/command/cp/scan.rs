//! What there is to copy: a file, or a tree, directory by directory.
//!
//! Directories are made as they are found, and files are handed on at once: copying begins before the
//! tree is known. Links are looked through, and one that leads back up is left out.

use exec_env::filesystem::FileError;
use exec_wire::{
    fs::{Canonicalize, CreateDirectory, FileMetadata},
    path_uri::PathUri,
};
use futures_util::{StreamExt, future::join, stream};
use tokio::sync::mpsc;

use super::{meter::Meter, side::Side, target::Pair};
use crate::command::{
    failure::{Failure, FailureKind},
    files::{Entries, Entry, EntryKind, below, file_failure, look, persist},
};

/// Deepest tree: as far as `fs/walk` goes.
const MAX_DEPTH: usize = exec_wire::limits::MAX_WALK_DEPTH;
/// Files that are looked at together.
const LOOKS: usize = 32;

/// A file that is to be copied.
#[derive(Clone, Debug)]
pub(super) struct Job {
    /// Where it is.
    pub(super) source: PathUri,
    /// What it becomes.
    pub(super) target: PathUri,
    /// What is known of it.
    pub(super) found: FileMetadata,
}

/// Looks for what is to be copied.
#[derive(Debug)]
pub(super) struct Scan<'a> {
    /// Where it is.
    pub(super) from: &'a Side,
    /// Where it goes.
    pub(super) to: &'a Side,
    /// What is told.
    pub(super) meter: &'a Meter,
    /// Where files are handed on to; it holds back the scan when they are not copied so fast.
    pub(super) jobs: mpsc::Sender<Job>,
}

/// A directory that is still to be listed.
struct Level {
    source: PathUri,
    target: PathUri,
    /// The real directories above it.
    above: Vec<PathUri>,
}

impl Scan<'_> {
    /// Finds everything of a source. What cannot be read is told, and the rest goes on; fails only if
    /// nothing can go on.
    pub(super) async fn run(&self, pair: Pair) -> Result<(), Failure> {
        if !pair.found.is_directory {
            return self.hand_on(pair.source, pair.target, pair.found).await;
        }
        let mut levels = vec![Level {
            source: pair.source,
            target: pair.target,
            above: Vec::new(),
        }];
        while let Some(level) = levels.pop() {
            match self.list(&level).await {
                Ok(below) => levels.extend(below),
                Err(error @ FileError::Disconnected(_)) => return Err(file_failure(&error)),
                Err(error) => self.meter.fail(file_failure(&error)),
            }
        }
        Ok(())
    }

    /// Makes one directory, hands on its files, and returns the directories in it.
    async fn list(&self, level: &Level) -> Result<Vec<Level>, FileError> {
        let create = CreateDirectory {
            path: level.target.clone(),
            // One that is there is taken, also after a cut.
            recursive: Some(true),
            follow_symlinks: None,
            sandbox: None,
        };
        let canonicalize = Canonicalize {
            path: level.source.clone(),
            sandbox: None,
        };
        let (real, found) = join(
            persist(|| self.from.files.canonicalize(canonicalize.clone())),
            self.from.entries(&level.source),
        )
        .await;
        let (real, found) = (real?, found?);
        if level.above.contains(&real) {
            let shown = self.from.shows(&level.source);
            self.meter
                .skip(&format!("`{shown}` leads back to a directory above it"));
            return Ok(Vec::new());
        }
        if let Err(failure) = self.check(level, &found) {
            self.meter.fail(failure);
            return Ok(Vec::new());
        }
        persist(|| self.to.files.create_directory(create.clone())).await?;
        self.meter.directory();
        let mut above = level.above.clone();
        above.push(real);
        let mut directories = Vec::new();
        let mut files = Vec::new();
        for entry in found.entries {
            let Some(target) = below(&level.target, &entry.name) else {
                self.skip(&entry, "its name cannot be written there");
                continue;
            };
            match entry.kind {
                EntryKind::File => files.push((entry.path, target)),
                EntryKind::Directory if above.len() >= MAX_DEPTH => {
                    self.skip(&entry, "it lies too deep");
                }
                EntryKind::Directory => directories.push(Level {
                    source: entry.path,
                    target,
                    above: above.clone(),
                }),
                EntryKind::Other => self.skip(&entry, "it is neither a file nor a directory"),
                EntryKind::Nowhere => {
                    let shown = self.from.shows(&entry.path);
                    self.meter.skip(&format!("link `{shown}` leads nowhere"));
                }
            }
        }
        // The last one is taken first.
        directories.reverse();
        let mut looked = stream::iter(files)
            .map(|(source, target)| async {
                let found = look(&*self.from.files, &source).await;
                (source, target, found)
            })
            .buffered(LOOKS);
        while let Some((source, target, found)) = looked.next().await {
            // One that is gone meanwhile is not there to be copied.
            let Some(found) = found? else { continue };
            // Whoever copies is gone only if everything is given up.
            drop(self.hand_on(source, target, found).await);
        }
        Ok(directories)
    }

    /// Says what of a directory is not seen. One that is not seen whole is not copied.
    fn check(&self, level: &Level, found: &Entries) -> Result<(), Failure> {
        for error in &found.errors {
            let failure = Failure::new(FailureKind::Failed, &error.message);
            self.meter.fail(failure);
        }
        if !found.truncated {
            return Ok(());
        }
        let shown = self.from.shows(&level.source);
        let what = format!("directory `{shown}` has too many entries to be listed");
        let failure = Failure::new(FailureKind::Failed, what);
        Err(match (&self.from.place, level.source.to_native()) {
            (Some(place), Ok(path)) => failure.next(format!(
                "`exec-server run -E {} -- tar -C {} -cf - . | tar -xf -` brings it here",
                place.name,
                path.display()
            )),
            _ => failure.next("copy it with `tar`"),
        })
    }

    fn skip(&self, entry: &Entry, why: &str) {
        let shown = self.from.shows(&entry.path);
        self.meter.skip(&format!("`{shown}` is left out: {why}"));
    }

    async fn hand_on(
        &self,
        source: PathUri,
        target: PathUri,
        found: FileMetadata,
    ) -> Result<(), Failure> {
        self.meter.expect(found.size);
        let job = Job {
            source,
            target,
            found,
        };
        let gone = |_| Failure::new(FailureKind::Failed, "copying was given up");
        self.jobs.send(job).await.map_err(gone)
    }
}
