//! Retention: finished processes that stay readable, bounded in number and memory, and output that
//! is held until the client acknowledges it.

use std::{
    collections::VecDeque,
    convert::Infallible,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use exec_env::process::{ExecProcess, OutputHold};
use exec_wire::{id::OutputSeq, limits};
use tokio::sync::oneshot;

use super::session_process::SessionProcess;

/// Finished processes of one table, oldest first.
#[derive(Debug, Default)]
pub(super) struct RetainedProcesses {
    entries: VecDeque<RetainedEntry>,
    bytes: usize,
}

#[derive(Debug)]
struct RetainedEntry {
    process: Arc<SessionProcess>,
    bytes: usize,
    /// Dropping it resolves the receiver that [`RetainedProcesses::push`] returned.
    _dropped_on_eviction: oneshot::Sender<Infallible>,
}

impl RetainedProcesses {
    /// Adds a process. Returns a receiver that resolves when it is removed.
    pub(super) fn push(&mut self, process: Arc<SessionProcess>) -> oneshot::Receiver<Infallible> {
        let bytes = process.finished_bytes();
        self.bytes += bytes;
        let (evicted, evicted_rx) = oneshot::channel();
        self.entries.push_back(RetainedEntry {
            process,
            bytes,
            _dropped_on_eviction: evicted,
        });
        evicted_rx
    }

    /// Returns whether a process is retained.
    pub(super) fn contains(&self, process: &Arc<SessionProcess>) -> bool {
        let mut entries = self.entries.iter();
        entries.any(|entry| Arc::ptr_eq(&entry.process, process))
    }

    /// Removes a process. Returns `false` if it is not retained.
    pub(super) fn remove(&mut self, process: &Arc<SessionProcess>) -> bool {
        let same = |entry: &RetainedEntry| Arc::ptr_eq(&entry.process, process);
        let index = self.entries.iter().position(same);
        let Some(entry) = index.and_then(|index| self.entries.remove(index)) else {
            return false;
        };
        self.bytes -= entry.bytes;
        true
    }

    /// Recomputes the memory of processes after they released output.
    pub(super) fn recount(&mut self, which: impl Fn(&Arc<SessionProcess>) -> bool) {
        for entry in &mut self.entries {
            if which(&entry.process) {
                let bytes = entry.process.finished_bytes();
                self.bytes = self.bytes - entry.bytes + bytes;
                entry.bytes = bytes;
            }
        }
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns the process to evict if the number or memory exceeds its limit: the oldest that is
    /// fully acknowledged, otherwise the oldest. The newest is exempt from the memory limit.
    pub(super) fn next_eviction(&self) -> Option<&Arc<SessionProcess>> {
        let others = self.entries.len().checked_sub(1)?;
        let too_many = self.entries.len() > limits::FINISHED_PROCESSES;
        let too_large = self.bytes > limits::FINISHED_OUTPUT_BYTES && others > 0;
        if !too_many && !too_large {
            return None;
        }
        let mut entries = self.entries.iter().take(others);
        let acknowledged = entries.find(|entry| !entry.process.has_unacked());
        let entry = acknowledged.or(self.entries.front())?;
        Some(&entry.process)
    }
}

/// How much output the server holds for a client.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) enum RetentionMode {
    /// The retained range of the output log.
    #[default]
    RetainedOnly,
    /// Additionally all output that the client has not acknowledged.
    UntilAcknowledged,
}

/// Holds output until the client acknowledges it. Held output pauses the process when it reaches
/// the limit.
#[derive(Debug, Default)]
pub(crate) struct UnackedOutput(Mutex<State>);

#[derive(Debug, Default)]
enum State {
    /// No output is held.
    #[default]
    Nothing,
    /// Unacknowledged output is held.
    Unacknowledged(Box<dyn OutputHold>),
    /// All output was acknowledged up to the close. A client that resumes does not acknowledge
    /// again.
    Complete,
}

impl UnackedOutput {
    /// Holds existing and future output. Does nothing if it is already held.
    pub(super) fn hold(&self, process: &dyn ExecProcess) {
        let mut state = self.lock();
        if let State::Nothing = *state {
            *state = State::Unacknowledged(process.hold(OutputSeq(0)));
        }
    }

    /// Releases held output, which resumes a process that was paused by it.
    pub(super) fn release(&self) {
        let mut state = self.lock();
        if let State::Unacknowledged(_) = *state {
            *state = State::Nothing;
        }
    }

    /// Moves the ack cursor. Returns whether everything is acknowledged now.
    pub(super) fn acknowledge(&self, process: &dyn ExecProcess, seq: OutputSeq) -> bool {
        let mut state = self.lock();
        let State::Unacknowledged(hold) = &*state else {
            return false;
        };
        hold.acknowledge(seq);
        let status = process.status();
        let complete = status.closed && seq.0 >= status.next_seq.0.saturating_sub(1);
        if complete {
            *state = State::Complete;
        }
        complete
    }

    pub(super) fn is_held(&self) -> bool {
        matches!(*self.lock(), State::Unacknowledged(_))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
