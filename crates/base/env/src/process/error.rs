//! Why something could not be done to a process.

use exec_wire::{error::RpcError, id::ProcessId};

use crate::disconnect::Disconnect;

/// Why something could not be done to a process.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ProcessError {
    /// Caller: it was terminated; nothing can be written.
    #[error("failed to write to process stdin")]
    Terminated,
    /// Caller: too many writes wait for the child to read.
    #[error("too many writes wait for the process to read its stdin")]
    StdinFull,
    /// Caller: it has no terminal.
    #[error("process {0} has no terminal")]
    NoTerminal(ProcessId),
    /// Caller: a size without rows or columns.
    #[error("terminal size must have at least one row and one column")]
    EmptySize,
    /// Peer: the remote end refused.
    #[error(transparent)]
    Remote(#[from] RpcError),
    /// Transport: the remote end is gone.
    #[error(transparent)]
    Disconnected(#[from] Disconnect),
}

impl ProcessError {
    /// Tells that a stream of events ended although the process was not over.
    pub fn ended_before_the_close() -> Self {
        let broken = "events of a process ended before its close".to_owned();
        Self::Disconnected(Disconnect::Protocol(broken))
    }
}
