//! What a process tells.

use std::pin::Pin;

use exec_core::log::{Event, Exit, OutputChunk};
use exec_wire::id::OutputSeq;
use futures_util::Stream;

use super::error::ProcessError;

/// The events of one process.
pub type EventStream = Pin<Box<dyn Stream<Item = ExecProcessEvent> + Send>>;

/// What a process tells.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum ExecProcessEvent {
    /// It wrote something.
    Output(OutputChunk),
    /// It was reaped.
    Exited(OutputSeq, Exit),
    /// Its output ended; nothing follows.
    Closed(OutputSeq),
    /// Nothing more can be learned of it; nothing follows.
    Failed(ProcessError),
}

impl ExecProcessEvent {
    /// Returns its number. A failure has none: it did not happen to the process.
    pub fn seq(&self) -> Option<OutputSeq> {
        match self {
            Self::Output(chunk) => Some(chunk.seq),
            Self::Exited(seq, _) | Self::Closed(seq) => Some(*seq),
            Self::Failed(_) => None,
        }
    }
}

impl From<Event> for ExecProcessEvent {
    fn from(event: Event) -> Self {
        match event {
            Event::Output(chunk) => Self::Output(chunk),
            Event::Exited(seq, exit) => Self::Exited(seq, exit),
            Event::Closed(seq) => Self::Closed(seq),
        }
    }
}
