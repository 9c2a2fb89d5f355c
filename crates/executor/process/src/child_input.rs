//! Stdin of a child: queued in memory, or recorded in a journal if the process is durable.

use std::{os::fd::OwnedFd, sync::Arc};

use bytes::Bytes;
use exec_wire::id::WriteId;
use tokio::io::unix::AsyncFd;

use crate::{
    journaled_stdin::JournaledStdin,
    stdin_queue::{EnqueueOutcome, StdinQueue},
};

/// Stdin of a child.
#[derive(Debug)]
pub(crate) enum ChildInput {
    /// Queued in memory.
    Queued(StdinQueue),
    /// Recorded in the journal before it is accepted.
    Journaled(JournaledStdin),
}

impl ChildInput {
    /// Enqueues bytes, unless a write with this id was accepted before.
    pub(crate) fn write(&mut self, id: Option<WriteId>, data: Bytes) -> EnqueueOutcome {
        match self {
            Self::Queued(queue) => queue.write(id, data),
            Self::Journaled(stdin) => stdin.write(id, data),
        }
    }

    /// Enqueues the end of input.
    pub(crate) fn close(&mut self, id: Option<WriteId>) -> EnqueueOutcome {
        match self {
            Self::Queued(queue) => queue.close(id),
            Self::Journaled(stdin) => stdin.close(id),
        }
    }

    /// Returns whether anything was enqueued since the last call.
    pub(crate) fn take_activity(&mut self) -> bool {
        match self {
            Self::Queued(queue) => queue.take_activity(),
            Self::Journaled(stdin) => stdin.take_activity(),
        }
    }

    /// Returns the descriptor to wait on for writability, if input is queued.
    pub(crate) fn blocked(&self) -> Option<Arc<AsyncFd<OwnedFd>>> {
        match self {
            Self::Queued(queue) => queue.blocked(),
            Self::Journaled(stdin) => stdin.blocked(),
        }
    }

    /// Writes as much as the child accepts now.
    pub(crate) fn flush(&mut self) {
        match self {
            Self::Queued(queue) => drop(queue.flush()),
            Self::Journaled(stdin) => stdin.flush(),
        }
    }

    /// Discards all queued input and closes the descriptor, because the reader is gone.
    pub(crate) fn discard_input(&mut self) {
        match self {
            Self::Queued(queue) => queue.discard_input(),
            Self::Journaled(stdin) => stdin.discard_input(),
        }
    }
}
