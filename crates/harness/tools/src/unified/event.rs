//! What a harness is told while commands run.

use std::{fmt, time::Duration};

use bytes::Bytes;
use exec_core::log::Exit;
use exec_env::process::{ProcessError, ProcessNumber};
use exec_wire::{path_uri::PathUri, process::OutputStream};

use super::call::CallId;

/// Takes events, in their order for each process. Called on the runtime: it must not block.
pub trait EventSink: fmt::Debug + Send + Sync {
    /// Takes one.
    fn handle_event(&self, event: ExecEvent);
}

/// Forgets every event.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoEvents;

impl EventSink for NoEvents {
    fn handle_event(&self, _event: ExecEvent) {}
}

/// Something that happened to a command. The call is the one that started it.
#[derive(Clone, Debug)]
pub enum ExecEvent {
    /// It was started.
    ExecCommandBegin {
        /// The call.
        call_id: CallId,
        /// Its number.
        number: ProcessNumber,
        /// What runs.
        argv: Vec<String>,
        /// Where.
        cwd: PathUri,
    },
    /// It wrote something.
    ExecCommandOutputDelta {
        /// The call.
        call_id: CallId,
        /// Where to.
        stream: OutputStream,
        /// What.
        chunk: Bytes,
    },
    /// Something is about to be written to it, or it is looked at. Never behind its end.
    TerminalInteraction {
        /// The call that started it.
        call_id: CallId,
        /// Its number.
        number: ProcessNumber,
        /// What is written.
        stdin: String,
    },
    /// It is over.
    ExecCommandEnd {
        /// The call.
        call_id: CallId,
        /// Its number.
        number: ProcessNumber,
        /// How it ended, or why nothing more is known of it.
        outcome: Result<Exit, ProcessError>,
        /// The beginning and the end of all that it wrote.
        aggregated_output: String,
        /// Since its start.
        duration: Duration,
    },
}
