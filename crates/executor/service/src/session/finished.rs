//! Finished processes, which stay readable for a while. Their number is bounded, and what their output
//! and their arguments take.

use std::{collections::VecDeque, convert::Infallible, sync::Arc};

use exec_wire::limits;
use tokio::sync::oneshot;

use super::process::Process;

/// Processes of a table whose output has ended, oldest first.
#[derive(Debug, Default)]
pub(super) struct Finished {
    entries: VecDeque<Entry>,
    bytes: usize,
}

#[derive(Debug)]
struct Entry {
    process: Arc<Process>,
    bytes: usize,
    /// Tells by its end that the process is not here any more.
    _here: oneshot::Sender<Infallible>,
}

impl Finished {
    /// Takes in a process. Returns what resolves when it is not here any more.
    pub(super) fn push(&mut self, process: Arc<Process>) -> oneshot::Receiver<Infallible> {
        let bytes = process.finished_bytes();
        self.bytes += bytes;
        let (here, gone) = oneshot::channel();
        self.entries.push_back(Entry {
            process,
            bytes,
            _here: here,
        });
        gone
    }

    /// Tells whether a process is here.
    pub(super) fn contains(&self, process: &Arc<Process>) -> bool {
        let mut entries = self.entries.iter();
        entries.any(|entry| Arc::ptr_eq(&entry.process, process))
    }

    /// Takes out a process. Returns `false` if it is not here.
    pub(super) fn remove(&mut self, process: &Arc<Process>) -> bool {
        let same = |entry: &Entry| Arc::ptr_eq(&entry.process, process);
        let index = self.entries.iter().position(same);
        let Some(entry) = index.and_then(|index| self.entries.remove(index)) else {
            return false;
        };
        self.bytes -= entry.bytes;
        true
    }

    /// Counts again what processes take of which less is kept than before.
    pub(super) fn recount(&mut self, which: impl Fn(&Arc<Process>) -> bool) {
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
    pub(super) fn excess(&self) -> Option<&Arc<Process>> {
        let others = self.entries.len().checked_sub(1)?;
        let too_many = self.entries.len() > limits::FINISHED_PROCESSES;
        let too_large = self.bytes > limits::FINISHED_OUTPUT_BYTES && others > 0;
        if !too_many && !too_large {
            return None;
        }
        let mut entries = self.entries.iter().take(others);
        let acknowledged = entries.find(|entry| !entry.process.is_kept());
        let entry = acknowledged.or(self.entries.front())?;
        Some(&entry.process)
    }
}
