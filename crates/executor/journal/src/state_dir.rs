//! The state directory of a server.
//!
//! Invariant: one process at a time writes in it: the one that holds its lock.

#[cfg(test)]
mod tests;

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, AtomicUsize, Ordering},
};

use exec_wire::id::SessionId;
use rustix::{
    fs::{AtFlags, FlockOperation, flock, mkdirat, unlinkat},
    io::Errno,
};

use crate::{
    journal_error::JournalError,
    journal_head::JournalHead,
    journal_reader::JournalReader,
    limits::{JournalLimits, MAX_RECORDS},
    private_file::{DIRECTORY_MODE, OpenMode, PrivateFile, open_directory},
    process_journal::ProcessJournal,
    record_cleanup::{self, CleanupOutcome, HostTime, RecordCleanup, StateUsage},
    record_id::RecordId,
    recovered_process::RecoveredProcess,
    session_record::SessionRecord,
    state_layout::{StateDirError, StateLayout, io_error},
};

const LOCK_FILE: &str = "lock";
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// State directory, locked by this process until dropped.
#[derive(Debug)]
pub struct StateDir {
    layout: StateLayout,
    lock: PrivateFile,
    limits: JournalLimits,
    boot_id: String,
    /// Counter of the next record.
    next_record: AtomicU64,
    records: AtomicUsize,
}

impl StateDir {
    /// Opens a directory and locks it. A missing one is created with mode 0700.
    pub fn open(path: &Path, limits: JournalLimits) -> Result<Self, StateDirError> {
        let (path, root) = StateLayout::open_root(path)?;
        let lock = PrivateFile::open(&root, LOCK_FILE, OpenMode::Create)
            .map_err(io_error("open the lock", &path))?;
        Self::lock_and_open(path, root, lock, limits)
    }

    /// Takes over the lock of another process, which must not write in the directory any more.
    pub fn from_parts(
        path: &Path,
        lock: OwnedFd,
        limits: JournalLimits,
    ) -> Result<Self, StateDirError> {
        let (path, root) = StateLayout::open_root(path)?;
        let lock = PrivateFile::from_fd(lock);
        let failed = |error| io_error("read the lock", &path)(error);
        let own = PrivateFile::open(&root, LOCK_FILE, OpenMode::Read).map_err(failed)?;
        let (own, found) = (own.stat().map_err(failed)?, lock.stat().map_err(failed)?);
        if (own.st_dev, own.st_ino) != (found.st_dev, found.st_ino) {
            return Err(StateDirError::ForeignLock(path));
        }
        Self::lock_and_open(path, root, lock, limits)
    }

    /// Opens a directory that another process may use, for reading.
    pub fn open_read_only(path: &Path) -> Result<StateLayout, StateDirError> {
        StateLayout::open(path)
    }

    fn lock_and_open(
        path: PathBuf,
        root: OwnedFd,
        lock: PrivateFile,
        limits: JournalLimits,
    ) -> Result<Self, StateDirError> {
        // The lock belongs to the open file description: one that was handed over is held already.
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Err(StateDirError::Locked(path)),
            Err(errno) => return Err(io_error("lock it", &path)(errno.into())),
        }
        let layout = StateLayout::prepare(path, &root)?;
        let names = layout.record_names();
        let names = names.map_err(io_error("list the records", &layout.path))?;
        record_cleanup::finish_removals(&layout, &names);
        let ids = names
            .iter()
            .filter_map(|name| name.parse::<RecordId>().ok());
        let next_record = ids
            .clone()
            .map(RecordId::count)
            .max()
            .map_or(0, |count| count + 1);
        let boot_id = std::fs::read_to_string(BOOT_ID).unwrap_or_default();
        Ok(Self {
            lock,
            limits,
            boot_id: boot_id.trim().to_owned(),
            next_record: AtomicU64::new(next_record),
            records: AtomicUsize::new(ids.count()),
            layout,
        })
    }

    /// Returns the path.
    pub fn path(&self) -> &Path {
        &self.layout.path
    }

    /// Returns the id of this boot of the host, for [`JournalHead::boot_id`].
    pub fn boot_id(&self) -> &str {
        &self.boot_id
    }

    /// Returns the lock. A process that inherits a duplicate may continue with
    /// [`Self::from_parts`].
    pub fn lock_file(&self) -> BorrowedFd<'_> {
        self.lock.as_fd()
    }

    /// Returns the path of the keeper's socket.
    pub fn keeper_socket(&self) -> PathBuf {
        self.layout.keeper_socket()
    }

    /// Creates the journal of a new process.
    pub fn create(&self, head: &JournalHead) -> Result<ProcessJournal, JournalError> {
        let place = self
            .records
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |records| {
                (records < MAX_RECORDS).then_some(records + 1)
            });
        place.map_err(|_| JournalError::TooManyRecords(MAX_RECORDS))?;
        let created = self.create_record(head);
        if created.is_err() {
            self.records.fetch_sub(1, Ordering::Relaxed);
        }
        created
    }

    /// Returns the records, ordered by creation.
    pub fn records(&self) -> io::Result<Vec<RecordId>> {
        self.layout.records()
    }

    /// Opens a record for writing, repairs it, and makes chunks of output that was not committed.
    /// The position of its input stays unknown.
    pub fn reopen(&self, id: RecordId) -> Result<(ProcessJournal, RecoveredProcess), JournalError> {
        ProcessJournal::recover(id, self.layout.record(id)?, self.limits, None)
    }

    /// Opens a record for writing with the open file description of its input.
    pub fn reopen_with_input(
        &self,
        id: RecordId,
        input: OwnedFd,
    ) -> Result<(ProcessJournal, RecoveredProcess), JournalError> {
        ProcessJournal::recover(id, self.layout.record(id)?, self.limits, Some(input))
    }

    /// Opens a record for reading, with or without a writer.
    pub fn reader(&self, id: RecordId) -> Result<(JournalReader, RecoveredProcess), JournalError> {
        self.layout.reader(id)
    }

    /// Removes a record.
    pub fn remove(&self, id: RecordId) -> io::Result<()> {
        let existed = self.layout.record(id).is_ok();
        record_cleanup::remove(&self.layout, id)?;
        if existed {
            self.count_removed(1);
        }
        Ok(())
    }

    /// Removes ended records that are too old, and then the oldest ended ones until the rest is
    /// within the limits. `is_live` protects a record.
    pub fn enforce_limits(&self, is_live: impl Fn(RecordId) -> bool) -> CleanupOutcome {
        self.enforce_limits_at(&HostTime::now(&self.boot_id), is_live)
    }

    fn enforce_limits_at(
        &self,
        now: &HostTime,
        is_live: impl Fn(RecordId) -> bool,
    ) -> CleanupOutcome {
        let (layout, limits) = (&self.layout, &self.limits);
        let outcome = RecordCleanup {
            layout,
            limits,
            now,
        }
        .run(is_live);
        self.count_removed(outcome.expired.len() + outcome.evicted.len());
        outcome
    }

    /// Adds up the sizes of all records.
    pub fn usage(&self) -> io::Result<StateUsage> {
        self.layout.usage()
    }

    /// Saves a durable session. An existing one is replaced in one step.
    pub fn save_session(&self, session: &SessionRecord) -> Result<(), JournalError> {
        session.save(&self.layout.sessions)
    }

    /// Returns the durable sessions, ordered by id. Damaged files are skipped.
    pub fn sessions(&self) -> Result<Vec<SessionRecord>, JournalError> {
        self.layout.sessions()
    }

    /// Removes a durable session if it exists.
    pub fn remove_session(&self, id: &SessionId) -> Result<(), JournalError> {
        SessionRecord::remove(&self.layout.sessions, id)
    }

    fn create_record(&self, head: &JournalHead) -> Result<ProcessJournal, JournalError> {
        let action = JournalError::io("create the directory of a record");
        let count = self.next_record.fetch_add(1, Ordering::Relaxed);
        let id = RecordId::generate(count).map_err(&action)?;
        let (processes, name) = (&self.layout.processes, id.to_string());
        mkdirat(processes, &name, DIRECTORY_MODE).map_err(|errno| action(errno.into()))?;
        let created = open_directory(processes, &name)
            .map_err(&action)
            .and_then(|directory| ProcessJournal::create(id, head, directory, self.limits));
        if created.is_err() && record_cleanup::remove(&self.layout, id).is_err() {
            // The directory is empty if it could not even be opened.
            unlinkat(processes, &name, AtFlags::REMOVEDIR).ok();
        }
        created
    }

    fn count_removed(&self, count: usize) {
        let subtract = |records: usize| Some(records.saturating_sub(count));
        self.records
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, subtract)
            .ok();
    }
}
