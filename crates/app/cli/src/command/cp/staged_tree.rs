//! Staging of a new tree: it is copied next to its target and renamed when complete.
//!
//! The same command therefore finds and resumes an interrupted copy, and an incomplete tree never
//! has the target's name. A tree copied into an existing directory is merged file by file instead.
//!
//! The journal records which files of a staged tree are complete, because servers do not keep
//! times. Invariant: a file is recorded after it has its name; losing entries only means copying
//! those files again.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeSet,
};

use bytes::Bytes;
use exec_env::filesystem::FileError;
use exec_wire::{
    fs::{OpenMode, RenamePath},
    path_uri::PathUri,
};

use crate::command::{
    cp::{
        copier::{ResumeMode, name_target},
        endpoint::CopyEndpoint,
    },
    failure::{CommandFailure, FailureKind},
    files::{FileFingerprint, child_path, open_file, read_file},
};

/// What existed at the target before the copy.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum TargetState {
    /// Nothing, or only inspected files.
    New,
    /// The remains of an earlier run.
    Resumed,
    /// Files of the user: inspected before anything is replaced.
    Existing,
}

/// Tree that is staged next to its target.
#[derive(Debug)]
pub(super) struct StagedTree {
    /// Staging path.
    pub(super) part: PathUri,
    /// Target path.
    target: PathUri,
    /// Journal of completed files.
    pub(super) journal: CopyJournal,
    /// Whether the source's root could be read: otherwise there is nothing to rename.
    pub(super) has_root: Cell<bool>,
}

impl StagedTree {
    /// Finds the remains of an earlier run, or starts anew. `source` is the name shown to users.
    pub(super) async fn begin(
        to: &CopyEndpoint,
        target: &PathUri,
        source: &str,
        resume: ResumeMode,
    ) -> Result<(Self, TargetState), CommandFailure> {
        let Some(StagedPaths { part, journal }) = tree_parts(target, source) else {
            let what = format!("`{}` is not a valid directory name", to.display(target));
            return Err(CommandFailure::usage(what));
        };
        if resume == ResumeMode::Nothing {
            for remains in [&part, &journal] {
                to.remove_tree(remains).await?;
            }
        }
        let is_begun = to.metadata(&part).await?.is_some();
        let (journal, target_state) = match is_begun {
            true => {
                let journal = CopyJournal::read(to, journal).await?;
                (journal, TargetState::Resumed)
            }
            false => {
                // A journal without its tree is useless.
                to.remove_tree(&journal).await?;
                (CopyJournal::new(to, journal), TargetState::New)
            }
        };
        let tree = Self {
            part,
            target: target.clone(),
            journal,
            has_root: Cell::new(false),
        };
        Ok((tree, target_state))
    }

    /// Replaces the staging path in a message with the target path.
    pub(super) fn name_target(&self, failure: CommandFailure) -> CommandFailure {
        name_target(failure, &self.part, &self.target)
    }

    /// Renames the tree to its target. Idempotent.
    pub(super) async fn finish(&self, to: &CopyEndpoint) -> Result<(), CommandFailure> {
        if !self.has_root.get() {
            return Ok(());
        }
        let rename = RenamePath {
            source_path: self.part.clone(),
            destination_path: self.target.clone(),
            overwrite: false,
            sandbox: None,
        };
        let renamed = to.rename(rename, |found| found.is_directory).await;
        renamed.map_err(|error| {
            let failure = CommandFailure::from(error);
            match failure.kind == FailureKind::Lost {
                true => failure,
                false => failure.next(format!(
                    "the complete copy is at `{}`",
                    to.display(&self.part)
                )),
            }
        })?;
        self.journal.remove().await;
        Ok(())
    }
}

/// Keys per journal write: a killed run repeats at most this many files.
const BATCH_KEYS: usize = 256;
/// Maximum keys of a journal; files beyond it are copied again.
const MAX_KEYS: u64 = 8 << 20;
const KEY_BYTES: usize = size_of::<u64>();

/// Journal of a staged tree.
#[derive(Debug)]
pub(super) struct CopyJournal {
    endpoint: CopyEndpoint,
    path: PathUri,
    recorded: BTreeSet<u64>,
    pending: RefCell<Vec<u8>>,
    /// Offset of the next write.
    end: Cell<u64>,
}

/// Identifies a file of the tree and the state of its source.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct JournalKey(u64);

impl JournalKey {
    pub(super) fn of(target: &PathUri, source: FileFingerprint) -> Self {
        let mut hash = FnvHash::default();
        hash.add(target.as_str().as_bytes());
        hash.add_identity(source);
        Self(hash.0)
    }
}

impl CopyJournal {
    /// Creates an empty journal.
    pub(super) fn new(endpoint: &CopyEndpoint, path: PathUri) -> Self {
        Self {
            endpoint: endpoint.clone(),
            path,
            recorded: BTreeSet::new(),
            pending: RefCell::default(),
            end: Cell::new(0),
        }
    }

    /// Reads the journal of an earlier run. An unreadable one counts as empty.
    pub(super) async fn read(endpoint: &CopyEndpoint, path: PathUri) -> Result<Self, FileError> {
        let content = match read_file(&*endpoint.files, &path).await {
            Ok(content) => content,
            Err(error @ FileError::Disconnected(_)) => return Err(error),
            Err(_) => Bytes::new(),
        };
        let mut journal = Self::new(endpoint, path);
        let (numbers, _torn) = content.as_chunks::<KEY_BYTES>();
        journal.recorded = numbers.iter().copied().map(u64::from_be_bytes).collect();
        // The next write overwrites a torn key.
        journal.end = Cell::new((numbers.len() * KEY_BYTES) as u64);
        Ok(journal)
    }

    /// Returns whether an earlier run copied this file.
    pub(super) fn contains_key(&self, JournalKey(key): JournalKey) -> bool {
        self.recorded.contains(&key)
    }

    /// Records a completed file.
    pub(super) async fn record(&self, JournalKey(key): JournalKey) {
        let is_full = {
            let mut pending = self.pending.borrow_mut();
            pending.extend_from_slice(&key.to_be_bytes());
            pending.len() >= BATCH_KEYS * KEY_BYTES
        };
        if is_full {
            self.write().await;
        }
    }

    /// Writes pending keys. A failure only means more work for the next run.
    pub(super) async fn write(&self) {
        let data = Bytes::from(self.pending.take());
        let offset = self.end.get();
        if data.is_empty() || offset >= MAX_KEYS * KEY_BYTES as u64 {
            return;
        }
        self.end.set(offset + data.len() as u64);
        let opened = open_file(&*self.endpoint.files, &self.path, OpenMode::Update).await;
        if let Ok(file) = opened {
            drop(file.write_block(offset, data).await);
        }
    }

    /// Removes the journal after everything is copied.
    pub(super) async fn remove(&self) {
        drop(self.endpoint.remove_file(&self.path).await);
    }
}

/// Bytes of the target's name kept in the partial file's name: most systems allow 255.
const NAME_BYTES: usize = 200;

/// Returns the path of the partial file next to its target. It depends on target, source and the
/// state of the source, so the next run finds it and a changed source gets another one.
pub(super) fn part_of(target: &PathUri, source: &str, state: FileFingerprint) -> Option<PathUri> {
    let mut hash = FnvHash::default();
    hash.add(&target.file_name()?);
    hash.add(source.as_bytes());
    hash.add_identity(state);
    beside(target, &hash, "part")
}

/// Staging path of a tree, and its journal.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct StagedPaths {
    /// Staging path.
    pub(super) part: PathUri,
    /// Journal path.
    pub(super) journal: PathUri,
}

/// Returns the staging paths next to a target. They depend on target and source but not on the
/// source's state: trees change all the time, and the journal tracks the state of each file.
pub(super) fn tree_parts(target: &PathUri, source: &str) -> Option<StagedPaths> {
    let mut hash = FnvHash::default();
    hash.add(&target.file_name()?);
    hash.add(source.as_bytes());
    Some(StagedPaths {
        part: beside(target, &hash, "part")?,
        journal: beside(target, &hash, "copied")?,
    })
}

fn beside(target: &PathUri, hash: &FnvHash, end: &str) -> Option<PathUri> {
    let (directory, name) = (target.parent()?, target.file_name()?);
    let mut part = vec![b'.'];
    part.extend_from_slice(truncated_name(&name));
    part.extend_from_slice(format!(".{:016x}.{end}", hash.0).as_bytes());
    child_path(&directory, &part)
}

/// Truncates a name, at a character boundary if it is text.
fn truncated_name(name: &[u8]) -> &[u8] {
    if name.len() <= NAME_BYTES {
        return name;
    }
    let starts_character = |byte: u8| byte & 0b1100_0000 != 0b1000_0000;
    let end = (0..=NAME_BYTES)
        .rev()
        .find(|&end| starts_character(name[end]));
    &name[..end.unwrap_or(NAME_BYTES)]
}

/// FNV-1a, which is stable across builds.
#[derive(Clone, Debug)]
pub(super) struct FnvHash(u64);

impl Default for FnvHash {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl FnvHash {
    pub(super) fn add(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }

    pub(super) fn add_identity(&mut self, source: FileFingerprint) {
        self.add(&source.size.to_be_bytes());
        self.add(&source.modified_at_ms.to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: FileFingerprint = FileFingerprint {
        size: 5,
        modified_at_ms: 7,
    };

    fn key(of: usize) -> JournalKey {
        let path = PathUri::parse(&format!("file:///t/{of}")).unwrap();
        JournalKey::of(&path, SOURCE)
    }

    #[tokio::test]
    async fn recorded_keys_survive_and_a_torn_key_is_overwritten() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("journal");
        let path = PathUri::from_native(&file).unwrap();
        let endpoint = CopyEndpoint::local();
        let journal = CopyJournal::read(&endpoint, path.clone()).await.unwrap();
        assert!(!journal.contains_key(key(0)));
        for of in 0..BATCH_KEYS + 1 {
            journal.record(key(of)).await;
        }
        // Unwritten keys are unknown to the next run.
        let reread = CopyJournal::read(&endpoint, path.clone()).await.unwrap();
        assert!(reread.contains_key(key(BATCH_KEYS - 1)) && !reread.contains_key(key(BATCH_KEYS)));
        journal.write().await;
        let mut content = std::fs::read(&file).unwrap();
        content.extend_from_slice(b"torn");
        std::fs::write(&file, content).unwrap();
        let next = CopyJournal::read(&endpoint, path.clone()).await.unwrap();
        assert!(next.contains_key(key(BATCH_KEYS)));
        next.record(key(1000)).await;
        next.write().await;
        let last = CopyJournal::read(&endpoint, path).await.unwrap();
        assert!((0..=BATCH_KEYS).all(|of| last.contains_key(key(of))));
        assert!(last.contains_key(key(1000)));
        last.remove().await;
        assert!(!file.exists());
    }

    #[test]
    fn changed_source_has_another_key() {
        let path = PathUri::parse("file:///t/0").unwrap();
        let later = FileFingerprint {
            modified_at_ms: 8,
            ..SOURCE
        };
        assert_ne!(JournalKey::of(&path, later), key(0));
    }

    const PART_SOURCE: FileFingerprint = FileFingerprint {
        size: 5,
        modified_at_ms: 7,
    };

    fn part(target: &str, source: FileFingerprint) -> String {
        let part = part_of(&PathUri::parse(target).unwrap(), "/a b", source).unwrap();
        part.as_str().to_owned()
    }

    #[test]
    fn partial_file_is_hidden_next_to_its_target_and_depends_on_the_source() {
        let first = part("file:///srv/a%20b", PART_SOURCE);
        assert!(first.starts_with("file:///srv/.a%20b."), "{first}");
        assert!(first.ends_with(".part"), "{first}");
        assert_eq!(first, part("file:///srv/a%20b", PART_SOURCE));
        let longer = FileFingerprint { size: 6, ..SOURCE };
        let later = FileFingerprint {
            modified_at_ms: 8,
            ..SOURCE
        };
        for other in [longer, later] {
            assert_ne!(first, part("file:///srv/a%20b", other));
        }
        let target = PathUri::parse("file:///srv/a%20b").unwrap();
        let elsewhere = part_of(&target, "/other/a b", PART_SOURCE).unwrap();
        assert_ne!(first, elsewhere.as_str());
    }

    #[test]
    fn long_name_is_truncated_at_a_character_boundary_and_stays_unique() {
        let long = |end: char| format!("file:///{}{end}", "ä".repeat(126));
        let (one, other) = (long('x'), long('y'));
        let name = |target: &str| {
            let part = part_of(&PathUri::parse(target).unwrap(), "/a", PART_SOURCE).unwrap();
            part.file_name().unwrap()
        };
        assert!(name(&one).len() <= 255);
        assert!(String::from_utf8(name(&one)).is_ok());
        assert_ne!(name(&one), name(&other));
    }

    #[test]
    fn root_has_no_partial_file() {
        let root = PathUri::parse("file:///").unwrap();
        assert_eq!(part_of(&root, "/a", PART_SOURCE), None);
    }
}
