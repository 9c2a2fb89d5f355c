//! The database file: opening, identification, and access to its tables.

use std::{
    fs::{DirBuilder, File, OpenOptions},
    io,
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
};

use redb::{
    Database, DatabaseError, ReadOnlyTable, ReadableDatabase, ReadableTable, ReadableTableMetadata,
    StorageError, Table, TableDefinition,
};

use super::writer::OWNED;
use crate::store::{EnvironmentId, EnvironmentRecord, OwnedEnvironment, SigningKey, StoreError};

/// File name in the data directory.
const FILE: &str = "hub.redb";
/// Key and value that identify the file and its layout.
const FORMAT: (&str, &[u8]) = ("format", b"exec-hub/2");
const KEY: &str = "signing-key";
/// Registrations are small and read one at a time; the default cache would be a gigabyte.
const CACHE_BYTES: usize = 16 << 20;

/// Why the store did not open. The file is unchanged.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreOpenError {
    /// Host: the directory or file cannot be created or opened.
    #[error("failed to open the hub's store {path}")]
    Io {
        /// The file.
        path: PathBuf,
        /// The I/O error.
        source: io::Error,
    },
    /// Caller: another hub uses this directory.
    #[error("hub store {path} is in use by another process")]
    InUse {
        /// The file.
        path: PathBuf,
    },
    /// Caller: the file has another format or version, or is damaged. Use another data directory,
    /// or remove the file; removing it loses all ownership.
    #[error("{path} is not a usable hub store: {why}")]
    NotOurs {
        /// The file.
        path: PathBuf,
        /// The problem.
        why: String,
    },
    /// Host: no randomness for the signing key.
    #[error("no randomness available for the signing key")]
    Randomness,
}

/// Opens the store in `directory`, creating both if missing.
pub(super) fn open(directory: &Path) -> Result<(Database, SigningKey), StoreOpenError> {
    let path = directory.join(FILE);
    let file = file(directory, &path).map_err(|source| StoreOpenError::Io {
        path: path.clone(),
        source,
    })?;
    // redb trusts its pages: some kinds of damage make it panic.
    let loaded = catch_unwind(AssertUnwindSafe(|| load(file, &path)));
    loaded.unwrap_or_else(|_| {
        let why = "file is damaged".to_owned();
        Err(StoreOpenError::NotOurs { path, why })
    })
}

fn load(file: File, path: &Path) -> Result<(Database, SigningKey), StoreOpenError> {
    let fresh = file.metadata().is_ok_and(|metadata| metadata.len() == 0);
    let mut database = redb::Builder::new()
        .set_cache_size(CACHE_BYTES)
        .create_file(file)
        .map_err(|error| refused(path, error))?;
    // Verify everything now: otherwise damage would show up when an executor needs the page.
    let is_whole = database.check_integrity();
    if !is_whole.map_err(|error| refused(path, error))? {
        tracing::warn!(path = %path.display(), "hub store was damaged and has been repaired");
    }
    let key = identify(&database, fresh).map_err(|problem| match problem {
        OpenProblem::Randomness => StoreOpenError::Randomness,
        OpenProblem::NotOurs(why) => StoreOpenError::NotOurs {
            path: path.to_owned(),
            why,
        },
    })?;
    Ok((database, key))
}

/// Opens the file with mode 0600, because it contains the signing key.
fn file(directory: &Path, path: &Path) -> io::Result<File> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(directory)?;
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(path)
}

fn refused(path: &Path, error: DatabaseError) -> StoreOpenError {
    let (path, why) = (path.to_owned(), error.to_string());
    if let DatabaseError::DatabaseAlreadyOpen = error {
        return StoreOpenError::InUse { path };
    }
    // redb reports a file in another format as invalid data.
    if let DatabaseError::Storage(StorageError::Io(source)) = error
        && source.kind() != io::ErrorKind::InvalidData
    {
        return StoreOpenError::Io { path, source };
    }
    StoreOpenError::NotOurs { path, why }
}

pub(super) enum OpenProblem {
    NotOurs(String),
    Randomness,
}

impl<E: std::error::Error> From<E> for OpenProblem {
    fn from(error: E) -> Self {
        Self::NotOurs(error.to_string())
    }
}

/// Checks the format of the file, or initializes a new one.
pub(super) fn identify(database: &Database, fresh: bool) -> Result<SigningKey, OpenProblem> {
    let writing = database.begin_write()?;
    let key = {
        let mut meta = writing.open_table(META)?;
        // Tables must exist for readers, which cannot create them.
        drop(writing.open_table(ENVIRONMENTS)?);
        drop(writing.open_table(OWNED)?);
        let format = meta.get(FORMAT.0)?.map(|value| value.value().to_vec());
        match format {
            Some(format) if format == FORMAT.1 => {
                let stored = meta.get(KEY)?;
                stored
                    .and_then(|value| SigningKey::from_bytes(value.value()))
                    .ok_or(StoreError::Damaged {
                        what: "the signing key".to_owned(),
                    })?
            }
            None if fresh => {
                let key = SigningKey::generate().map_err(|_| OpenProblem::Randomness)?;
                meta.insert(FORMAT.0, FORMAT.1)?;
                meta.insert(KEY, key.as_bytes().as_slice())?;
                key
            }
            Some(format) => {
                let format = String::from_utf8_lossy(&format).into_owned();
                return Err(OpenProblem::NotOurs(format!("unknown format {format:?}")));
            }
            None => {
                return Err(OpenProblem::NotOurs(
                    "file was created by another program".to_owned(),
                ));
            }
        }
    };
    writing.commit()?;
    Ok(key)
}

/// Metadata of the file.
pub(super) const META: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("meta");
/// Maps environment ids to [`EnvironmentRecord`] as JSON.
pub(super) const ENVIRONMENTS: TableDefinition<'_, &str, &[u8]> =
    TableDefinition::new("environments");

/// The table of environments within a write transaction.
pub(super) type EnvironmentTable<'txn> = Table<'txn, &'static str, &'static [u8]>;

pub(super) fn get(
    table: &impl ReadableTable<&'static str, &'static [u8]>,
    environment: &EnvironmentId,
) -> Result<Option<EnvironmentRecord>, StoreError> {
    let found = table
        .get(environment.as_str())
        .map_err(StoreError::unavailable)?;
    found
        .map(|value| decode(environment.as_str(), value.value()))
        .transpose()
}

pub(super) fn put(
    table: &mut EnvironmentTable<'_>,
    environment: &EnvironmentId,
    record: &EnvironmentRecord,
) -> Result<(), StoreError> {
    let json = serde_json::to_vec(record).map_err(StoreError::unavailable)?;
    let previous = table.insert(environment.as_str(), json.as_slice());
    previous.map(drop).map_err(StoreError::unavailable)
}

pub(super) fn count(table: &EnvironmentTable<'_>) -> Result<u64, StoreError> {
    table.len().map_err(StoreError::unavailable)
}

/// Reads one environment outside of a write transaction.
pub(super) fn read(
    database: &Database,
    environment: &EnvironmentId,
) -> Result<Option<EnvironmentRecord>, StoreError> {
    get(&environments(database)?, environment)
}

fn environments(
    database: &Database,
) -> Result<ReadOnlyTable<&'static str, &'static [u8]>, StoreError> {
    let reading = database.begin_read().map_err(StoreError::unavailable)?;
    let table = reading.open_table(ENVIRONMENTS);
    table.map_err(StoreError::unavailable)
}

/// Reads up to `limit` environments after `after`, in order.
pub(super) fn page(
    database: &Database,
    after: Option<&EnvironmentId>,
    limit: usize,
) -> Result<Vec<OwnedEnvironment>, StoreError> {
    use std::ops::Bound::{Excluded, Unbounded};
    let table = environments(database)?;
    let from = after.map_or(Unbounded, |after| Excluded(after.as_str()));
    let rows = table
        .range::<&str>((from, Unbounded))
        .map_err(StoreError::unavailable)?;
    rows.take(limit)
        .map(|row| {
            let (id, value) = row.map_err(StoreError::unavailable)?;
            let record = decode(id.value(), value.value())?;
            let environment = id.value().parse().map_err(|_| damaged(id.value()))?;
            Ok(OwnedEnvironment {
                environment,
                owner: record.owner,
                current: record.current,
            })
        })
        .collect()
}

fn decode(environment: &str, json: &[u8]) -> Result<EnvironmentRecord, StoreError> {
    serde_json::from_slice(json).map_err(|_| damaged(environment))
}

fn damaged(environment: &str) -> StoreError {
    StoreError::Damaged {
        what: format!("environment `{environment}`"),
    }
}
