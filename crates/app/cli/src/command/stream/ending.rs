//! What a talk comes to: a status, or what went wrong.

use std::{io, process::ExitCode};

use exec_core::log::Exit;
use exec_env::{disconnect::Disconnect, process::ProcessError};
use exec_wire::{id::ProcessId, process::ExitCause};

use super::{
    output::complain,
    talk::{End, Owner},
};
use crate::command::{
    failure::{Failure, FailureKind},
    place::Place,
    terminal::Standard,
};

/// What a shell ends with when SIGPIPE killed its command.
const BROKEN_PIPE: u8 = 128 + 13;

impl End {
    /// Returns the status to end with.
    pub(crate) fn status(
        self,
        owner: Owner,
        id: &ProcessId,
        place: &Place,
    ) -> Result<ExitCode, Failure> {
        let attach = || place.line("attach", &[id.as_str()]);
        match self {
            Self::Exited(exit) => exit_status(&exit),
            Self::TimedOut => Err(timed_out()),
            Self::Signalled(number) => Ok(ExitCode::from(byte(128 + number))),
            Self::Detached => {
                complain(&format!("left `{id}`; `{}` returns", attach()));
                Ok(ExitCode::SUCCESS)
            }
            Self::Closed => Ok(ExitCode::SUCCESS),
            Self::Unwritten(error) => unwritten(&error),
            Self::Lost(error) => Err(lost(&error, owner, &attach())),
        }
    }
}

/// Returns the status of a process that ended: its own, if nothing else ended it.
pub(crate) fn exit_status(exit: &Exit) -> Result<ExitCode, Failure> {
    if exit.sandbox_denied && Standard::Error.is_terminal() {
        complain(
            "the sandbox seems to have refused something: it protects .git (see --allow-git), other \
             directories (--writable DIR) and the network (--network)",
        );
    }
    match exit.cause {
        ExitCause::WallLimit => return Err(timed_out()),
        ExitCause::MemoryLimit => complain("the command was ended: it held too much memory"),
        ExitCause::ProcessLimit => complain("the command was ended: it had too many processes"),
        ExitCause::IdleLimit => complain("the command was ended: it was idle for too long"),
        ExitCause::Lost => complain("the server lost the command, and its status"),
        ExitCause::Exit | ExitCause::Signal | ExitCause::Terminated | ExitCause::Unknown | _ => {}
    }
    Ok(ExitCode::from(byte(exit.code)))
}

/// Returns the status for output that could not be written: none that is a failure if nobody reads it.
pub(crate) fn unwritten(error: &io::Error) -> Result<ExitCode, Failure> {
    if error.kind() == io::ErrorKind::BrokenPipe {
        return Ok(ExitCode::from(BROKEN_PIPE));
    }
    let what = format!("cannot write the output: {error}");
    Err(Failure::new(FailureKind::Failed, what))
}

/// What became of a command whose time was up.
pub(crate) fn timed_out() -> Failure {
    Failure::new(
        FailureKind::TimedOut,
        "the command did not end in time, and was ended",
    )
    .next("--timeout gives it longer")
}

fn lost(error: &ProcessError, owner: Owner, attach: &str) -> Failure {
    let lost = Failure::new(FailureKind::Lost, error);
    match (owner, error) {
        (Owner::Us, ProcessError::Disconnected(Disconnect::Session(_))) => {
            lost.next("the command ended with its session; --detach makes one that outlives it")
        }
        (Owner::Us, ProcessError::Disconnected(_)) => lost.next(format_args!(
            "the server ends the command with its session; until then `{attach}` takes it over"
        )),
        (Owner::Server, ProcessError::Disconnected(_)) => lost.next(format_args!(
            "the process goes on as long as the server does; `{attach}` returns to it"
        )),
        (Owner::Us | Owner::Server, _) => Failure::new(FailureKind::Failed, error),
    }
}

/// The part of a status that the system passes on.
pub(crate) fn byte(code: i32) -> u8 {
    let [low, ..] = code.to_le_bytes();
    low
}
