//! Output that is held until the client acknowledges it.

use std::sync::{Mutex, MutexGuard, PoisonError};

use exec_env::process::{ExecProcess, OutputHold};
use exec_wire::id::OutputSeq;

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
