//! What is kept of a process beyond its retention: events that its client has not acknowledged.

use std::sync::{Mutex, MutexGuard, PoisonError};

use exec_env::process::{ExecProcess, Hold};
use exec_wire::id::OutputSeq;

/// What the client of a session counts on.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) enum Keeping {
    /// What the retention leaves.
    #[default]
    Retained,
    /// Beside that, everything that it has not acknowledged.
    Unacknowledged,
}

/// Keeps what the client of one process has not acknowledged, while there is a client that does.
#[derive(Debug, Default)]
pub(crate) struct Kept(Mutex<State>);

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

impl Kept {
    /// Keeps what is there and what comes. What is kept already stays so.
    pub(super) fn begin(&self, process: &dyn ExecProcess) {
        let mut state = self.lock();
        if let State::Nothing = *state {
            *state = State::Unacknowledged(process.hold(OutputSeq(0)));
        }
    }

    /// Keeps nothing any more. The process goes on, if that is what paused it.
    pub(super) fn end(&self) {
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

    pub(super) fn is_any(&self) -> bool {
        matches!(*self.lock(), State::Unacknowledged(_))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
