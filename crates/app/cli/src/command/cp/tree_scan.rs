//! Scans a source: a file, or a tree directory by directory.
//!
//! Creates directories as it finds them and queues files at once, so copying starts before the
//! whole tree is known. With followed links, it skips links back to an ancestor or to the target,
//! and directories that links reach too often.

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    rc::Rc,
};

use exec_env::filesystem::FileError;
use exec_wire::{
    fs::{CreateDirectory, FileMetadata},
    path_uri::PathUri,
};
use futures_util::{StreamExt, future::join3, stream};
use tokio::sync::mpsc;

use crate::command::{
    cp::{
        CopyProgress,
        copier::{CopyOptions, KeepTimes},
        endpoint::{CopyEndpoint, CopyPair, resolved_path},
        file_metadata::{DeferredMetadata, FileModes, LinkMode},
        staged_tree::{StagedTree, TargetState, part_of, tree_parts},
    },
    failure::{CommandFailure, FailureKind},
    files::{
        DirectoryListing, ListedEntry, ListedEntryKind, canonicalize, child_path,
        retry_disconnected,
    },
};

/// Maximum depth: that of `fs/walk`.
const MAX_DEPTH: usize = exec_wire::limits::MAX_WALK_DEPTH;
/// How often links may lead to one directory: crossing links can name it endlessly.
const MAX_REPEATS: u32 = 16;
/// Concurrent metadata requests.
const CONCURRENT_LOOKUPS: usize = 32;

/// File to copy.
#[derive(Clone, Debug)]
pub(super) struct CopyJob {
    /// Source path.
    pub(super) source: PathUri,
    /// Target path.
    pub(super) target: PathUri,
    /// Metadata of the source.
    pub(super) found: FileMetadata,
    /// What exists at the target.
    pub(super) target_state: TargetState,
    /// The staged tree that the file belongs to, if any.
    pub(super) tree: Option<Rc<StagedTree>>,
}

/// Scans sources for files to copy.
#[derive(Debug)]
pub(super) struct TreeScan<'a> {
    from: &'a CopyEndpoint,
    to: &'a CopyEndpoint,
    options: CopyOptions,
    progress: &'a CopyProgress,
    modes: FileModes<'a>,
    /// Resolved target directories that are also below a source.
    excluded: Vec<PathUri>,
    /// How often links led to each directory.
    repeats: RefCell<BTreeMap<PathUri, u32>>,
    trees: RefCell<Vec<Rc<StagedTree>>>,
    deferred: &'a DeferredMetadata,
}

/// Directory to list.
struct ScanLevel {
    source: PathUri,
    target: PathUri,
    target_state: TargetState,
    tree: Option<Rc<StagedTree>>,
    /// Resolved ancestors.
    above: Vec<PathUri>,
    /// Whether a link led here or to an ancestor.
    is_linked: bool,
}

impl<'a> TreeScan<'a> {
    pub(super) fn new(
        from: &'a CopyEndpoint,
        to: &'a CopyEndpoint,
        options: CopyOptions,
        deferred: &'a DeferredMetadata,
        progress: &'a CopyProgress,
    ) -> Self {
        Self {
            from,
            to,
            options,
            deferred,
            progress,
            modes: FileModes::new(to),
            excluded: Vec::new(),
            repeats: RefCell::default(),
            trees: RefCell::default(),
        }
    }

    /// Excludes the target directories from the scan.
    pub(super) async fn excluding(mut self, pairs: &[CopyPair]) -> Result<Self, CommandFailure> {
        if !self.from.is_same_machine(self.to) {
            return Ok(self);
        }
        for pair in pairs.iter().filter(|pair| pair.found.is_directory) {
            let parts = tree_parts(&pair.target, &self.from.display(&pair.source));
            let part = parts.map(|parts| parts.part);
            for path in part.iter().chain([&pair.target]) {
                let resolved = resolved_path(&*self.to.files, path).await?;
                self.excluded.extend(resolved);
            }
        }
        Ok(self)
    }

    /// Scans a source. Reports unreadable entries and continues; returns an error only if nothing
    /// can continue.
    pub(super) async fn run(
        &self,
        pair: CopyPair,
        jobs: &mpsc::Sender<CopyJob>,
    ) -> Result<(), CommandFailure> {
        if !pair.found.is_directory {
            let job = CopyJob {
                source: pair.source,
                target: pair.target,
                found: pair.found,
                target_state: pair.target_state,
                tree: None,
            };
            return self.queue_job(job, jobs).await;
        }
        let mut levels = vec![self.root(pair).await?];
        while let Some(level) = levels.pop() {
            match self.list(&level, jobs).await {
                Ok(children) => levels.extend(children),
                Err(failure) if failure.kind == FailureKind::Lost => return Err(failure),
                Err(failure) => self.progress.fail(match &level.tree {
                    Some(tree) => tree.name_target(failure),
                    None => failure,
                }),
            }
        }
        Ok(())
    }

    /// Renames staged trees after everything is copied.
    pub(super) async fn finish(&self) -> Result<(), CommandFailure> {
        let record_failure = |outcome: Result<(), CommandFailure>| match outcome {
            Err(failure) if failure.kind == FailureKind::Lost => Err(failure),
            Err(failure) => {
                self.progress.fail(failure);
                Ok(())
            }
            Ok(()) => Ok(()),
        };
        let (created, failures) = self.deferred.make_links(self.to).await;
        for _ in 0..created {
            self.progress.file(0);
        }
        for failure in failures {
            record_failure(Err(self
                .trees()
                .iter()
                .fold(failure, |failure, tree| tree.name_target(failure))))?;
        }
        record_failure(self.deferred.set_times(self.to).await)?;
        record_failure(self.modes.apply_deferred().await)?;
        for tree in self.trees() {
            record_failure(tree.finish(self.to).await)?;
        }
        Ok(())
    }

    /// Returns the staged trees.
    pub(super) fn trees(&self) -> Vec<Rc<StagedTree>> {
        self.trees.borrow().clone()
    }

    async fn root(&self, pair: CopyPair) -> Result<ScanLevel, CommandFailure> {
        let mut root = ScanLevel {
            source: pair.source,
            target: pair.target,
            target_state: pair.target_state,
            tree: None,
            above: Vec::new(),
            is_linked: false,
        };
        if pair.target_state == TargetState::Existing {
            return Ok(root);
        }
        let source = self.from.display(&root.source);
        let (tree, target_state) =
            StagedTree::begin(self.to, &root.target, &source, self.options.resume).await?;
        let tree = Rc::new(tree);
        self.trees.borrow_mut().push(Rc::clone(&tree));
        root.target = tree.part.clone();
        root.target_state = target_state;
        root.tree = Some(tree);
        Ok(root)
    }

    /// Creates one directory, queues its files, and returns its subdirectories.
    async fn list(
        &self,
        level: &ScanLevel,
        jobs: &mpsc::Sender<CopyJob>,
    ) -> Result<Vec<ScanLevel>, CommandFailure> {
        let (resolved_path, found, source) = join3(
            canonicalize(&*self.from.files, &level.source),
            self.from.entries(&level.source),
            self.from.metadata(&level.source),
        )
        .await;
        let (resolved_path, found, source) = (resolved_path?, found?, source?);
        let mode = source.as_ref().and_then(|source| source.mode);
        let is_linked = level.is_linked || is_link_target(&resolved_path, level);
        if is_linked && self.options.links == LinkMode::Keep {
            return Err(self.unreadable_link(&level.source));
        }
        if let Some(why) = self.skip_reason(&resolved_path, level, is_linked) {
            let displayed = self.from.display(&level.source);
            self.progress.skip(&format!("`{displayed}` {why}"));
            return Ok(Vec::new());
        }
        self.check(level, &found)?;
        let target_state = self.create_directory(level, mode).await?;
        if let Some(tree) = level.tree.as_ref().filter(|_| level.above.is_empty()) {
            tree.has_root.set(true);
        }
        if let (KeepTimes::Yes, Some(source)) = (self.options.times, source) {
            self.deferred.add_time(&level.target, source.modified_at_ms);
        }
        self.progress.directory();
        let mut above = level.above.clone();
        above.push(resolved_path);
        let mut directories = Vec::new();
        let mut files = Vec::new();
        let mut names = BTreeMap::new();
        for entry in found.entries {
            let Some(target) = child_path(&level.target, &entry.name) else {
                self.skip(&entry, "its name is not valid at the target");
                continue;
            };
            if let (LinkMode::Keep, Some(leads_to)) = (self.options.links, &entry.link_target) {
                self.deferred.add_link(target, leads_to.clone());
                names.insert(entry.name, entry.kind);
                continue;
            }
            match entry.kind {
                ListedEntryKind::File => files.push((entry.path, target)),
                ListedEntryKind::Directory if above.len() >= MAX_DEPTH => {
                    self.skip(&entry, "it is nested too deeply");
                    continue;
                }
                ListedEntryKind::Directory => directories.push(ScanLevel {
                    source: entry.path,
                    target,
                    target_state,
                    tree: level.tree.clone(),
                    above: above.clone(),
                    is_linked,
                }),
                ListedEntryKind::Other => {
                    self.skip(&entry, "it is neither a file nor a directory");
                    continue;
                }
                ListedEntryKind::DanglingLink => {
                    let displayed = self.from.display(&entry.path);
                    self.progress
                        .skip(&format!("link `{displayed}` is dangling"));
                    continue;
                }
            }
            names.insert(entry.name, entry.kind);
        }
        // The last one is processed first.
        directories.reverse();
        let mut lookups = stream::iter(files)
            .map(|(source, target)| async {
                let found = self.from.metadata(&source).await;
                (source, target, found)
            })
            .buffered(CONCURRENT_LOOKUPS);
        let mut ready = Vec::new();
        while let Some((source, target, found)) = lookups.next().await {
            // Removed meanwhile: nothing to copy.
            let Some(found) = found? else {
                continue;
            };
            if found.is_symlink && self.options.links == LinkMode::Keep {
                self.progress.fail(self.unreadable_link(&source));
                continue;
            }
            let job = CopyJob {
                source,
                target,
                found,
                target_state,
                tree: level.tree.clone(),
            };
            match target_state {
                TargetState::Resumed => ready.push(job),
                // The receiver is gone only if the copy is cancelled.
                TargetState::New | TargetState::Existing => drop(self.queue_job(job, jobs).await),
            }
        }
        if target_state == TargetState::Resumed {
            self.clear(level, &names, &ready).await?;
        }
        for job in ready {
            drop(self.queue_job(job, jobs).await);
        }
        Ok(directories)
    }

    /// Returns why a directory is skipped.
    fn skip_reason(
        &self,
        resolved_path: &PathUri,
        level: &ScanLevel,
        is_linked: bool,
    ) -> Option<&'static str> {
        if level
            .above
            .iter()
            .any(|above| resolved_path.contains(above))
        {
            return Some("leads back to an ancestor");
        }
        if self.excluded.contains(resolved_path) {
            return Some("is the target of the copy");
        }
        if !is_linked {
            return None;
        }
        let mut repeats = self.repeats.borrow_mut();
        let times = repeats.entry(resolved_path.clone()).or_default();
        *times += 1;
        (*times > MAX_REPEATS).then_some("is skipped: links lead to it repeatedly")
    }

    /// Creates the directory if it is missing.
    async fn create_directory(
        &self,
        level: &ScanLevel,
        mode: Option<u32>,
    ) -> Result<TargetState, CommandFailure> {
        if level.target_state != TargetState::New {
            let found = self.to.metadata(&level.target).await?;
            // A name that was a link in an earlier run may be a directory now: nothing is written
            // through the old link.
            let is_link =
                found.as_ref().is_some_and(|found| found.is_symlink) && !level.above.is_empty();
            match (level.target_state, found) {
                (TargetState::Existing, Some(_))
                    if is_link && self.from.has_unreliable_listing(self.to) =>
                {
                    let displayed = self.to.display(&level.target);
                    let what = format!("`{displayed}` is a link; a directory does not replace it");
                    return Err(CommandFailure::failed(what).next("remove it first"));
                }
                (TargetState::Existing, Some(found)) if found.is_directory => {
                    return Ok(TargetState::Existing);
                }
                (TargetState::Resumed, Some(_)) if is_link => {
                    self.to.remove_tree(&level.target).await?;
                }
                (TargetState::Existing | TargetState::Resumed | TargetState::New, _) => {}
            }
        }
        let create = CreateDirectory {
            path: level.target.clone(),
            // An existing directory is accepted, also on a retry.
            recursive: Some(true),
            follow_symlinks: None,
            sandbox: None,
        };
        let created = retry_disconnected(|| self.to.files.create_directory(create.clone())).await;
        created?;
        let target_state = match level.target_state {
            TargetState::Existing | TargetState::New => TargetState::New,
            TargetState::Resumed => TargetState::Resumed,
        };
        let restricted = self
            .modes
            .restrict_directory(&level.target, mode, target_state);
        restricted.await?;
        Ok(target_state)
    }

    /// Removes remains of an earlier run that the source no longer has.
    async fn clear(
        &self,
        level: &ScanLevel,
        names: &BTreeMap<Vec<u8>, ListedEntryKind>,
        jobs: &[CopyJob],
    ) -> Result<(), FileError> {
        let parts = jobs.iter().filter_map(|job| {
            let source = self.from.display(&job.source);
            let part = part_of(&job.target, &source, (&job.found).into())?;
            part.file_name()
        });
        let parts: BTreeSet<_> = parts.collect();
        for entry in self.to.entries(&level.target).await?.entries {
            let is_part = entry.kind == ListedEntryKind::File && parts.contains(&entry.name);
            let is_expected = is_part || names.get(&entry.name) == Some(&entry.kind);
            if !is_expected {
                self.to.remove_tree(&entry.path).await?;
            }
        }
        Ok(())
    }

    /// Reports entries that could not be listed. A directory that is not listed completely is an
    /// error.
    fn check(&self, level: &ScanLevel, found: &DirectoryListing) -> Result<(), CommandFailure> {
        for error in &found.errors {
            let failure = CommandFailure::failed(&error.message);
            self.progress.fail(failure);
        }
        if !found.truncated {
            return Ok(());
        }
        let displayed = self.from.display(&level.source);
        let what = format!("directory `{displayed}` has too many entries to be listed");
        let failure = CommandFailure::failed(what);
        Err(match (&self.from.env, level.source.to_native()) {
            (Some(env), Ok(path)) => failure.next(format!(
                "`exec-server run -E {} -- tar -C {} -cf - . | tar -xf -` copies it here",
                env.name,
                path.display()
            )),
            _ => failure.next("copy it with `tar`"),
        })
    }

    /// Explains that a link is not copied: a stock server follows links without their targets.
    fn unreadable_link(&self, path: &PathUri) -> CommandFailure {
        let displayed = self.from.display(path);
        let what = format!("cannot copy link `{displayed}`: its server does not report targets");
        CommandFailure::failed(what).next("`cp -L` copies the link targets instead")
    }

    fn skip(&self, entry: &ListedEntry, why: &str) {
        let displayed = self.from.display(&entry.path);
        self.progress
            .skip(&format!("`{displayed}` is skipped: {why}"));
    }

    /// Queues a file, and waits while the queue is full.
    async fn queue_job(
        &self,
        job: CopyJob,
        jobs: &mpsc::Sender<CopyJob>,
    ) -> Result<(), CommandFailure> {
        self.progress.expect(job.found.size);
        let cancelled = |_| CommandFailure::failed("the copy was cancelled");
        jobs.send(job).await.map_err(cancelled)
    }
}

/// Returns whether a link led to this directory.
fn is_link_target(resolved_path: &PathUri, level: &ScanLevel) -> bool {
    let Some(above) = level.above.last() else {
        return false;
    };
    let name = level.source.file_name();
    name.and_then(|name| child_path(above, &name)).as_ref() != Some(resolved_path)
}
