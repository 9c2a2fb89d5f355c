//! One process, taken out of its table to be looked at.

use std::{sync::Arc, time::Duration};

use exec_wire::id::OutputSeq;

use super::{
    entries::{Ended, ProcessNumber},
    shared::ProcessTable,
};
use crate::process::{Collect, Collected, ExecProcess, ProcessError};

/// A process of a table that nobody else looks at meanwhile.
#[derive(Debug)]
pub struct Session {
    table: ProcessTable,
    number: ProcessNumber,
    process: Arc<dyn ExecProcess>,
    last: OutputSeq,
}

/// A window of output of a process that a table keeps.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Windowed {
    /// What was gathered.
    pub collected: Collected,
    /// The end of the process, if it came and was not told before.
    pub ended: Option<Ended>,
}

impl Session {
    pub(super) fn new(
        table: ProcessTable,
        number: ProcessNumber,
        process: Arc<dyn ExecProcess>,
        last: OutputSeq,
    ) -> Self {
        Self {
            table,
            number,
            process,
            last,
        }
    }

    /// Gathers what comes behind the last window. A process whose close was shown, or that nothing
    /// more can be learned of, is removed from the table. Dropping the future loses nothing: the
    /// next window begins where this one did.
    pub async fn collect(
        &mut self,
        window: Duration,
        max_bytes: usize,
    ) -> Result<Windowed, ProcessError> {
        let collect = Collect {
            after: self.last,
            window,
            max_bytes,
        };
        let collected = self.process.collect(collect).await;
        let mut state = self.table.lock();
        let by_number = &mut state.entries.by_number;
        let collected = match collected {
            Ok(collected) => collected,
            Err(error) => {
                by_number.remove(&self.number);
                return Err(error);
            }
        };
        self.last = collected.last;
        let mut ended = None;
        if let Some(entry) = by_number.get_mut(&self.number) {
            entry.last = collected.last;
            if !collected.running {
                ended = entry.tell_end(self.number);
            }
        }
        if collected.closed {
            by_number.remove(&self.number);
        }
        Ok(Windowed { collected, ended })
    }

    /// Removes the process from the table.
    pub fn forget(self) {
        self.table.lock().entries.by_number.remove(&self.number);
    }

    /// Returns the process, to write to it or to end it.
    pub fn process(&self) -> &Arc<dyn ExecProcess> {
        &self.process
    }

    /// Returns its number.
    pub fn number(&self) -> ProcessNumber {
        self.number
    }

    /// Returns the last number that a window has shown.
    pub fn last(&self) -> OutputSeq {
        self.last
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let mut state = self.table.lock();
        if let Some(entry) = state.entries.by_number.get_mut(&self.number) {
            entry.busy = false;
        }
        state.entries.touch(self.number);
    }
}
