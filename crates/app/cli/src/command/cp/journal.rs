//! Which files of a tree are copied: what the next run need not copy again.
//!
//! Times are not kept on a server, and so nothing there tells a file that is copied from an older one
//! of the same size. A journal does: a number for each file that has its name, made of its path and the
//! state of its source.
//! Invariant: a number is written after its file has its name. What is lost of a journal is copied again.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeSet,
};

use bytes::Bytes;
use exec_env::filesystem::{FileError, Open};
use exec_wire::{
    fs::{OpenMode, ReadFile, Remove},
    path_uri::PathUri,
};

use super::{part::Hash, side::Side};
use crate::command::files::{Identity, persist};

/// Numbers that are gathered before they are written: what a killed run may have to do again.
const GATHERED: usize = 256;
/// Most numbers of one journal; files beyond it are copied again.
const MAX_NUMBERS: u64 = 8 << 20;
const NUMBER_BYTES: usize = size_of::<u64>();

/// The journal of a tree that is being copied.
#[derive(Debug)]
pub(super) struct Journal {
    side: Side,
    path: PathUri,
    known: BTreeSet<u64>,
    gathered: RefCell<Vec<u8>>,
    /// Where the next numbers go.
    end: Cell<u64>,
}

/// Stands for a file of a tree, and the state of its source.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Number(u64);

impl Number {
    pub(super) fn of(target: &PathUri, source: Identity) -> Self {
        let mut hash = Hash::default();
        hash.add(target.as_str().as_bytes());
        hash.add_identity(source);
        Self(hash.value())
    }
}

impl Journal {
    /// Begins an empty one.
    pub(super) fn new(side: &Side, path: PathUri) -> Self {
        Self {
            side: side.clone(),
            path,
            known: BTreeSet::new(),
            gathered: RefCell::default(),
            end: Cell::new(0),
        }
    }

    /// Reads the one that an earlier run left. One that cannot be read is an empty one.
    pub(super) async fn read(side: &Side, path: PathUri) -> Result<Self, FileError> {
        let read = ReadFile {
            path: path.clone(),
            follow_symlinks: None,
            sandbox: None,
        };
        let content = match persist(|| side.files.read_file(read.clone())).await {
            Ok(content) => content,
            Err(error @ FileError::Disconnected(_)) => return Err(error),
            Err(_) => Bytes::new(),
        };
        let mut journal = Self::new(side, path);
        let (numbers, _torn) = content.as_chunks::<NUMBER_BYTES>();
        journal.known = numbers.iter().copied().map(u64::from_be_bytes).collect();
        // Whatever is written over a torn number makes it whole.
        journal.end = Cell::new((numbers.len() * NUMBER_BYTES) as u64);
        Ok(journal)
    }

    /// Tells whether an earlier run has copied this.
    pub(super) fn knows(&self, Number(number): Number) -> bool {
        self.known.contains(&number)
    }

    /// Notes that this is copied.
    pub(super) async fn note(&self, Number(number): Number) {
        let is_full = {
            let mut gathered = self.gathered.borrow_mut();
            gathered.extend_from_slice(&number.to_be_bytes());
            gathered.len() >= GATHERED * NUMBER_BYTES
        };
        if is_full {
            self.write().await;
        }
    }

    /// Writes what was gathered. If that fails, the next run has more to do, and nothing else.
    pub(super) async fn write(&self) {
        let data = Bytes::from(self.gathered.take());
        let offset = self.end.get();
        if data.is_empty() || offset >= MAX_NUMBERS * NUMBER_BYTES as u64 {
            return;
        }
        self.end.set(offset + data.len() as u64);
        let open = Open {
            path: self.path.clone(),
            mode: OpenMode::Update,
            sandbox: None,
        };
        if let Ok(file) = persist(|| self.side.files.open(open.clone())).await {
            drop(file.write_block(offset, data).await);
        }
    }

    /// Removes it: everything is copied.
    pub(super) async fn remove(&self) {
        let remove = Remove {
            path: self.path.clone(),
            recursive: Some(false),
            force: Some(true),
            follow_symlinks: None,
            sandbox: None,
        };
        drop(persist(|| self.side.files.remove(remove.clone())).await);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: Identity = Identity {
        size: 5,
        modified_at_ms: 7,
    };

    fn number(of: usize) -> Number {
        let path = PathUri::parse(&format!("file:///t/{of}")).unwrap();
        Number::of(&path, SOURCE)
    }

    #[tokio::test]
    async fn what_was_noted_is_known_to_the_next_run_and_a_torn_end_is_written_over() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("journal");
        let path = PathUri::from_native(&file).unwrap();
        let side = Side::here();
        let journal = Journal::read(&side, path.clone()).await.unwrap();
        assert!(!journal.knows(number(0)));
        for of in 0..GATHERED + 1 {
            journal.note(number(of)).await;
        }
        // What was not written is not known.
        let begun = Journal::read(&side, path.clone()).await.unwrap();
        assert!(begun.knows(number(GATHERED - 1)) && !begun.knows(number(GATHERED)));
        journal.write().await;
        let mut content = std::fs::read(&file).unwrap();
        content.extend_from_slice(b"torn");
        std::fs::write(&file, content).unwrap();
        let next = Journal::read(&side, path.clone()).await.unwrap();
        assert!(next.knows(number(GATHERED)));
        next.note(number(1000)).await;
        next.write().await;
        let last = Journal::read(&side, path).await.unwrap();
        assert!((0..=GATHERED).all(|of| last.knows(number(of))));
        assert!(last.knows(number(1000)));
        last.remove().await;
        assert!(!file.exists());
    }

    #[test]
    fn another_state_of_the_source_has_another_number() {
        let path = PathUri::parse("file:///t/0").unwrap();
        let later = Identity {
            modified_at_ms: 8,
            ..SOURCE
        };
        assert_ne!(Number::of(&path, later), number(0));
    }
}
