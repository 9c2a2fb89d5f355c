//! Events of a process as notifications, in the dialect that started it.

use exec_core::log::Exit;
use exec_env::process::ExecProcessEvent as Event;
use exec_wire::{
    command::CommandExited,
    id::{OutputSeq, ProcessId},
    method::notification,
    outgoing::Outgoing,
    process::{Exited, ProcessClosed},
};

/// How a process reports.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Dialect {
    /// `process/*`.
    Process,
    /// `command/exec*`, the first one.
    Command,
}

/// Returns the notification of an event, if the dialect has one.
pub(crate) fn notification(id: &ProcessId, dialect: Dialect, event: Event) -> Option<Outgoing> {
    match (dialect, event) {
        (Dialect::Process, Event::Output(chunk)) => {
            Some(Outgoing::output(id, chunk.seq, chunk.stream, chunk.data))
        }
        (Dialect::Process, Event::Exited(seq, exit)) => Some(exited(id, seq, exit)),
        (Dialect::Process, Event::Closed(seq)) => {
            let closed = ProcessClosed {
                process_id: id.clone(),
                seq,
            };
            Some(Outgoing::notification(
                notification::PROCESS_CLOSED,
                &closed,
            ))
        }
        (Dialect::Command, Event::Output(chunk)) => {
            Some(Outgoing::command_output(id, chunk.stream, chunk.data))
        }
        (Dialect::Command, Event::Exited(_, exit)) => {
            let exited = CommandExited {
                process_id: id.clone(),
                exit_code: exit.code,
            };
            Some(Outgoing::notification(
                notification::COMMAND_EXITED,
                &exited,
            ))
        }
        // A process that failed elsewhere has no number to tell it by; its next read says so.
        (Dialect::Command, Event::Closed(_)) | (_, Event::Failed(_)) => None,
    }
}

fn exited(id: &ProcessId, seq: OutputSeq, exit: Exit) -> Outgoing {
    let exited = Exited {
        process_id: id.clone(),
        seq,
        exit_code: exit.code,
        sandbox_denied: Some(exit.sandbox_denied),
        signal: exit.signal.map(str::to_owned),
        cause: Some(exit.cause),
        usage: exit.usage,
    };
    Outgoing::notification(notification::PROCESS_EXITED, &exited)
}
