//! Processes of a session: one record for each process, with its state.
//!
//! Several records may have the same id. At most one of them is the *current* one, which the id
//! names: it starts, runs, or has finished and was not displaced by a start.

use std::{
    collections::BTreeMap,
    ops::{RangeBounds, RangeInclusive},
    sync::{Arc, Weak},
};

use exec_wire::{id::ProcessId, limits};
use tokio::sync::Notify;

use super::{
    AdmitError,
    session_process::{ProcessLookup, SessionProcess},
};
use crate::connection_files::AbortOnDrop;

/// All processes of one session, or of the server.
#[derive(Debug, Default)]
pub(super) struct ProcessRecords {
    records: BTreeMap<RecordKey, ProcessRecord>,
    next_number: u64,
}

/// A process id and a number that is never reused.
pub(super) type RecordKey = (ProcessId, u64);

/// State of a process.
#[derive(Debug)]
pub(super) enum ProcessRecord {
    /// The process is starting. Notifying cancels the start.
    Starting(Arc<Notify>),
    /// The process runs, or its output has not closed.
    Running(Arc<SessionProcess>),
    /// The process has finished and stays readable until it is evicted.
    Finished(RetainedProcess),
    /// The process was evicted while descendants of its exited root are alive.
    Orphaned(Arc<SessionProcess>),
    /// The server took the process over. The session's client still receives its events.
    HandedOver(Weak<SessionProcess>),
}

/// A finished process.
#[derive(Debug)]
pub(super) struct RetainedProcess {
    process: Arc<SessionProcess>,
    /// Position in the order in which processes finished.
    finish_number: u64,
    /// Memory that the process occupies.
    bytes: usize,
    /// A new start reuses the id. It evicts this process, or restores it if it fails.
    displaced: bool,
    /// Task that evicts the process after the retention time.
    _expiry: AbortOnDrop,
}

impl ProcessRecord {
    /// Returns the process unless it is starting or the server took it over.
    fn process(&self) -> Option<&Arc<SessionProcess>> {
        match self {
            Self::Running(process) | Self::Orphaned(process) => Some(process),
            Self::Finished(retained) => Some(&retained.process),
            Self::Starting(_) | Self::HandedOver(_) => None,
        }
    }

    /// Returns whether the id names this process.
    fn is_current(&self) -> bool {
        match self {
            Self::Starting(_) | Self::Running(_) => true,
            Self::Finished(retained) => !retained.displaced,
            Self::Orphaned(_) | Self::HandedOver(_) => false,
        }
    }
}

impl ProcessRecords {
    /// Reserves an id for a start. A finished detached process with this id is displaced.
    pub(super) fn reserve(
        &mut self,
        id: &ProcessId,
        cancel: Arc<Notify>,
        max_live: usize,
    ) -> Result<RecordKey, AdmitError> {
        match self.current(id) {
            None => {}
            Some(ProcessRecord::Finished(retained)) if retained.process.is_detached() => {}
            Some(_) => return Err(AdmitError::Exists(id.clone())),
        }
        self.check_limit(id, max_live)?;
        for retained in self.retained(all_of(id)) {
            retained.displaced = true;
        }
        Ok(self.insert(id, ProcessRecord::Starting(cancel)))
    }

    /// Enters a process of another session. Its id must be free.
    pub(super) fn adopt(
        &mut self,
        process: &Arc<SessionProcess>,
        max_live: usize,
    ) -> Result<(), AdmitError> {
        let id = process.handle.id();
        if self.current(id).is_some() {
            return Err(AdmitError::Exists(id.clone()));
        }
        self.check_limit(id, max_live)?;
        self.insert(id, ProcessRecord::Running(Arc::clone(process)));
        Ok(())
    }

    /// Checks that one more process with this id may live. Finished processes that are displaced
    /// count if descendants are alive, so that their eviction cannot exceed the limit.
    fn check_limit(&mut self, id: &ProcessId, max_live: usize) -> Result<(), AdmitError> {
        let mut live = 0;
        self.records.retain(|(other, _), record| {
            let (retain, is_live) = match record {
                ProcessRecord::Starting(_) | ProcessRecord::Running(_) => (true, true),
                ProcessRecord::Finished(retained) => {
                    let displaced = retained.displaced || other == id;
                    (true, displaced && retained.process.has_live_tree())
                }
                ProcessRecord::Orphaned(process) => {
                    let alive = process.has_live_tree();
                    (alive, alive)
                }
                ProcessRecord::HandedOver(process) => (process.strong_count() > 0, false),
            };
            live += usize::from(is_live);
            retain
        });
        match live >= max_live {
            true => Err(AdmitError::TooMany(max_live)),
            false => Ok(()),
        }
    }

    fn insert(&mut self, id: &ProcessId, record: ProcessRecord) -> RecordKey {
        let key = (id.clone(), self.number());
        self.records.insert(key.clone(), record);
        key
    }

    fn number(&mut self) -> u64 {
        self.next_number += 1;
        self.next_number
    }

    /// Ends a reservation with a started process and evicts the process that it displaces, which
    /// the caller drops after its lock. Returns `None` if the reservation is gone.
    pub(super) fn start(
        &mut self,
        key: &RecordKey,
        process: &Arc<SessionProcess>,
    ) -> Option<Vec<Arc<SessionProcess>>> {
        *self.records.get_mut(key)? = ProcessRecord::Running(Arc::clone(process));
        let displaced = self.retained(all_of(&key.0));
        let displaced: Vec<_> = displaced.map(|old| Arc::clone(&old.process)).collect();
        for process in &displaced {
            self.evict(process);
        }
        Some(displaced)
    }

    /// Ends a reservation, unless a process has started with it, and restores the process that it
    /// displaced.
    pub(super) fn cancel(&mut self, key: &RecordKey) {
        if let Some(ProcessRecord::Starting(_)) = self.records.get(key) {
            self.records.remove(key);
            for retained in self.retained(all_of(&key.0)) {
                retained.displaced = false;
            }
        }
    }

    /// Retains a running process that has finished, and evicts others beyond the limits, which the
    /// caller drops after its lock. Returns `None` if the process does not run here.
    pub(super) fn finish(
        &mut self,
        process: &Arc<SessionProcess>,
        expiry: impl FnOnce() -> AbortOnDrop,
    ) -> Option<Vec<Arc<SessionProcess>>> {
        let (key, finish_number) = (self.key(process)?, self.number());
        let record @ ProcessRecord::Running(_) = self.records.get_mut(&key)? else {
            return None;
        };
        *record = ProcessRecord::Finished(RetainedProcess {
            process: Arc::clone(process),
            finish_number,
            bytes: process.finished_bytes(),
            displaced: false,
            _expiry: expiry(),
        });
        Some(self.evict_excess(process))
    }

    /// Evicts finished processes while their number or memory exceeds its limit: the oldest that
    /// are fully acknowledged first, then the oldest. The newest stays.
    fn evict_excess(&mut self, newest: &Arc<SessionProcess>) -> Vec<Arc<SessionProcess>> {
        let (mut count, mut bytes) = (0, 0);
        for retained in self.retained(..) {
            (count, bytes) = (count + 1, bytes + retained.bytes);
        }
        let exceeds = |count: usize, bytes: usize| {
            count > limits::FINISHED_PROCESSES
                || (bytes > limits::FINISHED_OUTPUT_BYTES && count > 1)
        };
        if !exceeds(count, bytes) {
            return Vec::new();
        }
        let others = self.retained(..).map(|retained| {
            let order = (retained.process.has_unacked(), retained.finish_number);
            (order, retained.bytes, Arc::clone(&retained.process))
        });
        let mut others: Vec<_> = others
            .filter(|(.., process)| !Arc::ptr_eq(process, newest))
            .collect();
        others.sort_unstable_by_key(|(order, ..)| *order);
        let mut evicted = Vec::new();
        for (_, freed, process) in others {
            if !exceeds(count, bytes) {
                break;
            }
            (count, bytes) = (count - 1, bytes - freed);
            self.evict(&process);
            evicted.push(process);
        }
        evicted
    }

    /// Evicts a finished process. Returns `false` if it has not finished.
    pub(super) fn evict(&mut self, process: &Arc<SessionProcess>) -> bool {
        let Some(key) = self.key(process) else {
            return false;
        };
        let Some(ProcessRecord::Finished(_)) = self.records.get(&key) else {
            return false;
        };
        process.release_unacked();
        if process.has_live_tree() {
            let orphaned = ProcessRecord::Orphaned(Arc::clone(process));
            self.records.insert(key, orphaned);
        } else {
            self.records.remove(&key);
        }
        true
    }

    /// Removes a process.
    pub(super) fn remove(&mut self, process: &Arc<SessionProcess>) {
        if let Some(key) = self.key(process) {
            self.records.remove(&key);
        }
    }

    /// Marks a current process as taken over by the server. Returns its previous state, or `None`
    /// if it is not current.
    pub(super) fn hand_over(&mut self, process: &Arc<SessionProcess>) -> Option<ProcessRecord> {
        let key = self.key(process)?;
        let record = self.records.get_mut(&key)?;
        let handed_over = ProcessRecord::HandedOver(Arc::downgrade(process));
        record
            .is_current()
            .then(|| std::mem::replace(record, handed_over))
    }

    /// Recomputes the memory of finished processes after they released output.
    pub(super) fn recount(&mut self, keys: impl RangeBounds<RecordKey>) {
        for retained in self.retained(keys) {
            retained.bytes = retained.process.finished_bytes();
        }
    }

    /// Removes all records and cancels starts.
    pub(super) fn drain(&mut self) -> BTreeMap<RecordKey, ProcessRecord> {
        let records = std::mem::take(&mut self.records);
        for record in records.values() {
            if let ProcessRecord::Starting(cancel) = record {
                cancel.notify_one();
            }
        }
        records
    }

    /// Looks up the process that the id names.
    pub(super) fn find(&self, id: &ProcessId) -> ProcessLookup {
        match self.current(id) {
            Some(ProcessRecord::Starting(cancel)) => ProcessLookup::Starting(Arc::clone(cancel)),
            record => match record.and_then(ProcessRecord::process) {
                Some(process) => ProcessLookup::Started(Arc::clone(process)),
                None => ProcessLookup::Unknown,
            },
        }
    }

    fn current(&self, id: &ProcessId) -> Option<&ProcessRecord> {
        let mut records = self.records.range(all_of(id)).map(|(_, record)| record);
        records.find(|record| record.is_current())
    }

    /// Returns the current processes that have started.
    pub(super) fn started(&self) -> impl Iterator<Item = &Arc<SessionProcess>> {
        let current = self.records.values().filter(|record| record.is_current());
        current.filter_map(ProcessRecord::process)
    }

    /// Returns the processes that the server took over.
    pub(super) fn handed_over(&self) -> impl Iterator<Item = Arc<SessionProcess>> {
        self.records.values().filter_map(|record| {
            if let ProcessRecord::HandedOver(process) = record {
                process.upgrade()
            } else {
                None
            }
        })
    }

    /// Returns whether no process or descendant is alive or starting.
    pub(super) fn have_ended(&self) -> bool {
        self.records.values().all(|record| match record {
            ProcessRecord::Starting(_) => false,
            ProcessRecord::HandedOver(_) => true,
            ProcessRecord::Running(process)
            | ProcessRecord::Finished(RetainedProcess { process, .. })
            | ProcessRecord::Orphaned(process) => {
                let status = process.handle.status();
                status.exit.is_some() && !status.tree_alive
            }
        })
    }

    /// Returns the key of a process.
    fn key(&self, process: &Arc<SessionProcess>) -> Option<RecordKey> {
        let mut records = self.records.range(all_of(process.handle.id()));
        let found = records.find(|(_, record)| {
            let other = record.process();
            other.is_some_and(|other| Arc::ptr_eq(other, process))
        });
        found.map(|(key, _)| key.clone())
    }

    /// Returns the finished processes in a range of keys.
    fn retained(
        &mut self,
        keys: impl RangeBounds<RecordKey>,
    ) -> impl Iterator<Item = &mut RetainedProcess> {
        self.records.range_mut(keys).filter_map(|(_, record)| {
            if let ProcessRecord::Finished(retained) = record {
                Some(retained)
            } else {
                None
            }
        })
    }
}

/// Returns the keys of all records with an id.
pub(super) fn all_of(id: &ProcessId) -> RangeInclusive<RecordKey> {
    (id.clone(), 0)..=(id.clone(), u64::MAX)
}
