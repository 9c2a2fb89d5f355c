//! The life of a process, as others see it: one span from its start to its end, and two lines in a log.

use std::path::Path;

use exec_core::log::Exit;
use exec_wire::{id::SessionId, process::ExitCause};
use tracing::{Span, field::Empty};

use super::process::Process;
use crate::{
    meters::{Endings, Meters},
    observed::{ContinueTrace, Origin, shown},
};

/// A process that runs. Of its arguments nothing is shown: they may hold secrets.
#[derive(Debug)]
pub(crate) struct Life(Span);

impl Life {
    /// Begins with a process that was started. Its span belongs to that of the request, which ends long
    /// before it and is not to be kept open by it.
    pub(crate) fn begin(
        process: &Process,
        owner: &SessionId,
        continue_trace: ContinueTrace,
    ) -> Self {
        let span = tracing::info_span!(
            target: "exec_service::process", parent: None, "process",
            process_id = Empty,
            session = owner.shown(),
            process.pid = Empty,
            process.executable.name = Empty,
            process.exit.code = Empty,
            otel.status_code = Empty,
            cause = Empty,
            sandbox_denied = Empty,
        );
        if !span.is_disabled() {
            continue_trace(&span, Origin::Span(&Span::current()));
            let (program, id) = (program(process), process.handle.id());
            span.record("process_id", shown(id.as_str()));
            span.record("process.pid", process.handle.status().os_pid);
            span.record("process.executable.name", program);
            tracing::info!(
                target: "exec_service::process",
                process_id = shown(id.as_str()), process.executable.name = program,
                tty = process.tty, detached = process.is_detached(), "process started"
            );
        }
        Self(span)
    }

    /// Ends as the process did. One whose end is not known is lost.
    pub(super) fn end(self, exit: Option<Exit>, meters: &Meters) {
        let Self(span) = self;
        let cause = exit.as_ref().map_or(ExitCause::Lost, |exit| exit.cause);
        meters.processes_ended.count(cause);
        let denied = exit.as_ref().is_some_and(|exit| exit.sandbox_denied);
        if denied {
            meters.sandbox_denials.increment();
        }
        if span.is_disabled() {
            return;
        }
        let (cause, code) = (Endings::name(cause), exit.map(|exit| exit.code));
        span.record("cause", cause);
        span.record("sandbox_denied", denied);
        span.record("process.exit.code", code);
        if code != Some(0) {
            span.record("otel.status_code", "ERROR");
        }
        tracing::info!(
            target: "exec_service::process", parent: &span, exit_code = code, "process ended"
        );
    }
}

/// The name of the program, without where it is.
fn program(process: &Process) -> &str {
    let program = process.argv.first().map_or("", String::as_str);
    let name = Path::new(program).file_name();
    shown(name.and_then(|name| name.to_str()).unwrap_or_default())
}
