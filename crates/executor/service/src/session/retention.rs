//! Finished processes, which stay readable for a while. Their number is bounded, and what their output
//! and their arguments take.

use std::{
    collections::VecDeque,
    convert::Infallible,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use exec_env::process::{ExecProcess, Hold};
use exec_wire::{id::OutputSeq, limits};
use tokio::sync::oneshot;

use super::session_process::SessionProcess;

/// Processes of a table whose output has ended, oldest first.
#[derive(Debug, Default)]
pub(super) struct RetainedProcesses {
    entries: VecDeque<RetainedEntry>,
    bytes: usize,
}

#[derive(Debug)]
struct RetainedEntry {
    process: Arc<SessionProcess>,
    bytes: usize,
    /// Tells by its end that the process is not here any more.
    _dropped_on_eviction: oneshot::Sender<Infallible>,
}

impl RetainedProcesses {
    /// Takes in a process. Returns what resolves when it is not here any more.
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

    /// Tells whether a process is here.
    pub(super) fn contains(&self, process: &Arc<SessionProcess>) -> bool {
        let mut entries = self.entries.iter();
        entries.any(|entry| Arc::ptr_eq(&entry.process, process))
    }

    /// Takes out a process. Returns `false` if it is not here.
    pub(super) fn remove(&mut self, process: &Arc<SessionProcess>) -> bool {
        let same = |entry: &RetainedEntry| Arc::ptr_eq(&entry.process, process);
        let index = self.entries.iter().position(same);
        let Some(entry) = index.and_then(|index| self.entries.remove(index)) else {
            return false;
        };
        self.bytes -= entry.bytes;
        true
    }

    /// Counts again what processes take of which less is kept than before.
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

    /// Returns a process that is to be forgotten, if there are too many or they take too much: the
    /// oldest of which everything was acknowledged, or else the oldest. The one that finished last
    /// may take what it takes.
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

/// What the client of a session counts on.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) enum RetentionMode {
    /// What the retention leaves.
    #[default]
    RetainedOnly,
    /// Beside that, everything that it has not acknowledged.
    UntilAcknowledged,
}

/// Keeps what the client of one process has not acknowledged, while there is a client that does.
#[derive(Debug, Default)]
pub(crate) struct UnackedOutput(Mutex<State>);

#[derive(Debug, Default)]
enum State {
    /// Nothing is kept.
    #[default]
    Nothing,
    /// What was not acknowledged is.
    Unacknowledged(Box<dyn Hold>),
    /// Everything was acknowledged, to the close: a client that comes back does not say so again.
    Over,
}

impl UnackedOutput {
    /// Keeps what is there and what comes. What is kept already stays so.
    pub(super) fn hold(&self, process: &dyn ExecProcess) {
        let mut state = self.lock();
        if let State::Nothing = *state {
            *state = State::Unacknowledged(process.hold(OutputSeq(0)));
        }
    }

    /// Keeps nothing any more. The process goes on, if that is what paused it.
    pub(super) fn release(&self) {
        let mut state = self.lock();
        if let State::Unacknowledged(_) = *state {
            *state = State::Nothing;
        }
    }

    /// Lets go of events. Tells whether that was the last of them, and nothing is kept any more.
    pub(super) fn acknowledge(&self, process: &dyn ExecProcess, seq: OutputSeq) -> bool {
        let mut state = self.lock();
        let State::Unacknowledged(hold) = &*state else {
            return false;
        };
        hold.acknowledge(seq);
        let status = process.status();
        let over = status.closed && seq.0 >= status.next_seq.0.saturating_sub(1);
        if over {
            *state = State::Over;
        }
        over
    }

    pub(super) fn is_held(&self) -> bool {
        matches!(*self.lock(), State::Unacknowledged(_))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
