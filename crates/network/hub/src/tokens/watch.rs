//! The tokens of a running hub: they follow the file.

use std::{
    fs, io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError, RwLock},
    time::Duration,
};

use super::{
    Entry, ReadError,
    file::{self, Table},
};

/// How often the file is looked at: a revoked token is refused within a second.
const LOOK: Duration = Duration::from_millis(400);

/// The tokens that count now. Cheap to clone: all clones see the same.
#[derive(Clone, Debug)]
pub struct Tokens(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    path: PathBuf,
    table: RwLock<Arc<Table>>,
    seen: Mutex<Seen>,
}

#[derive(Debug)]
struct Seen {
    stamp: Option<Stamp>,
    health: Health,
}

/// Whether the tokens in use are those of the file.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum Health {
    /// They are.
    Current,
    /// There is no file. Nobody gets in by a token.
    Missing,
    /// The file is broken, and this is how; the tokens it had before still count.
    Stale(String),
}

impl Tokens {
    /// Reads the file. One that is not there yet has no tokens: it may come later. Blocks.
    ///
    /// # Errors
    /// When it is there and cannot be used.
    pub fn open(path: &Path) -> Result<Self, ReadError> {
        let stamp = stamp(path);
        let (table, health) = match file::read(path) {
            Ok(entries) => (Table::new(entries), Health::Current),
            Err(ReadError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                (Table::default(), Health::Missing)
            }
            Err(error) => return Err(error),
        };
        Ok(Self(Arc::new(Shared {
            path: path.to_owned(),
            table: RwLock::new(Arc::new(table)),
            seen: Mutex::new(Seen { stamp, health }),
        })))
    }

    /// Follows the file for as long as the future lives.
    pub async fn follow(&self) {
        let mut look = tokio::time::interval(LOOK);
        look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            look.tick().await;
            let tokens = self.clone();
            // A look that panicked has changed nothing; the next one may do better.
            drop(tokio::task::spawn_blocking(move || tokens.look()).await);
        }
    }

    /// Looks whether the file has changed, and takes over what it holds now. Blocks.
    ///
    /// A file that is gone is believed when it is gone twice in a row: an editor that moves a new
    /// one into its place leaves a moment without.
    pub fn look(&self) {
        let stamp = stamp(&self.0.path);
        let mut seen = self.0.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if stamp == seen.stamp {
            if stamp.is_none() && seen.health != Health::Missing {
                self.put(Table::default());
                seen.health = Health::Missing;
                tracing::warn!(path = %self.0.path.display(), "the token file is gone: no token counts");
            }
            return;
        }
        seen.stamp = stamp;
        if stamp.is_none() {
            return;
        }
        match file::read(&self.0.path) {
            Ok(entries) => {
                let table = Table::new(entries);
                tracing::info!(tokens = table.len(), "the token file was read again");
                self.put(table);
                seen.health = Health::Current;
            }
            // Gone between two looks: the next one sees to it.
            Err(ReadError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                seen.stamp = None;
            }
            Err(error) => {
                tracing::warn!(%error, "the token file is broken: the tokens it had before count");
                seen.health = Health::Stale(error.to_string());
            }
        }
    }

    /// Whether the tokens in use are those of the file.
    pub fn health(&self) -> Health {
        let seen = self.0.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.health.clone()
    }

    /// Finds a token, expired or not.
    pub(super) fn find(&self, token: &str) -> Option<Arc<Entry>> {
        let table = self.0.table.read().unwrap_or_else(PoisonError::into_inner);
        table.find(token).cloned()
    }

    fn put(&self, table: Table) {
        let mut current = self.0.table.write().unwrap_or_else(PoisonError::into_inner);
        *current = Arc::new(table);
    }
}

/// Tells one state of a file from another.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct Stamp {
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

/// `None`: it is not there, or cannot be looked at.
fn stamp(path: &Path) -> Option<Stamp> {
    let metadata = fs::metadata(path).ok()?;
    Some(Stamp {
        inode: metadata.ino(),
        size: metadata.size(),
        modified: (metadata.mtime(), metadata.mtime_nsec()),
        changed: (metadata.ctime(), metadata.ctime_nsec()),
    })
}
