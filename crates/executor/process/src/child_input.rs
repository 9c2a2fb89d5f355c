//! Stdin of a child: queued in memory, or recorded in a journal if the process is durable.

use std::{fmt::Debug, os::fd::OwnedFd, sync::Arc};

use bytes::Bytes;
use exec_wire::id::WriteId;
use tokio::io::unix::AsyncFd;

use crate::stdin_queue::EnqueueOutcome;

/// Stdin of a child.
pub(crate) trait ChildInput: Debug + Send {
    /// Enqueues bytes, unless a write with this id was accepted before.
    fn write(&mut self, id: Option<WriteId>, data: Bytes) -> EnqueueOutcome;

    /// Enqueues the end of input.
    fn close(&mut self, id: Option<WriteId>) -> EnqueueOutcome;

    /// Returns whether anything was enqueued since the last call.
    fn take_activity(&mut self) -> bool;

    /// Returns the descriptor to wait on for writability, if input is queued.
    fn blocked(&self) -> Option<Arc<AsyncFd<OwnedFd>>>;

    /// Writes as much as the child accepts now.
    fn flush(&mut self);

    /// Discards all queued input and closes the descriptor, because the reader is gone.
    fn discard_input(&mut self);
}
