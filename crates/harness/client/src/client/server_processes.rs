//! Server-owned processes, which any client of the server can start, attach to and list.

use std::sync::Arc;

use exec_env::{
    command::Command,
    environment::{StartError, StartedProcess},
    process::ExecProcess,
};
use exec_wire::{
    error::ErrorCode,
    id::{OutputSeq, ProcessId},
    method::Method,
    process::{AttachProcess, ListProcesses, ProcessSummary},
};

use super::ExecServerClient;
use crate::{
    backend::{RemoteBackend, now_ms},
    error::ExecServerError,
    events::{AttachmentOrigin, ProcessEvents, ProcessOwner, ReplayRange},
    process::{RemoteProcess, TerminalPresence},
};

impl ExecServerClient {
    /// Starts a server-owned process, which outlives its handle, this client and its session. Its
    /// id must be unique on the server. Dropping the future before the response terminates the
    /// process, unless the connection broke.
    pub async fn start_detached(&self, command: Command) -> Result<StartedProcess, StartError> {
        let backend = RemoteBackend::new(self.clone());
        backend.start_process(command, ProcessOwner::Server).await
    }

    /// Attaches to a server-owned process: replays its retained output after `after`, then follows
    /// it. Output beyond the retained range is skipped in the sequence, and so is output that a
    /// slow reader misses: such a process is never paused.
    ///
    /// The client attaches again after every reconnect and in every new session. Dropping the
    /// handle and its event streams, or the future, detaches from the process, which keeps running.
    ///
    /// # Errors
    /// [`ExecServerError::UnknownProcess`] if the process does not exist,
    /// [`ExecServerError::NoSuchEvent`] if it has not reached `after`,
    /// [`ExecServerError::IdInUse`] while this client has another handle for it.
    pub async fn attach(
        &self,
        process_id: ProcessId,
        after: Option<OutputSeq>,
    ) -> Result<Arc<dyn ExecProcess>, ExecServerError> {
        self.check(AttachProcess::NAME)?;
        // A list that is too long for a response must not prevent attaching.
        let summary = match self.processes().await {
            Ok(list) => list.into_iter().find(|one| one.process_id == process_id),
            Err(ExecServerError::Remote(_) | ExecServerError::Malformed { .. }) => None,
            Err(error) => return Err(error),
        };
        self.attach_summary(process_id, after, summary, None).await
    }

    /// Attaches to a process from [`all_processes`](Self::all_processes), like
    /// [`attach`](Self::attach). A process of another session becomes server-owned and outlives
    /// that session.
    ///
    /// # Errors
    /// As [`attach`](Self::attach); also if the id now names another process.
    pub async fn attach_listed(
        &self,
        process: &ProcessSummary,
        after: Option<OutputSeq>,
    ) -> Result<Arc<dyn ExecProcess>, ExecServerError> {
        self.check(AttachProcess::NAME)?;
        let started = Some(process.started_at_ms);
        let summary = Some(process.clone());
        self.attach_summary(process.process_id.clone(), after, summary, started)
            .await
    }

    async fn attach_summary(
        &self,
        process_id: ProcessId,
        after: Option<OutputSeq>,
        summary: Option<ProcessSummary>,
        started_at_ms: Option<u64>,
    ) -> Result<Arc<dyn ExecProcess>, ExecServerError> {
        let after = after.unwrap_or_default();
        let begin = match &summary {
            // The exit is after the events that the caller has seen.
            Some(summary) if summary.running => after,
            Some(_) | None => OutputSeq(0),
        };
        let origin = AttachmentOrigin::Attached(ReplayRange { after, begin });
        let shared = Arc::clone(self.shared());
        let events =
            ProcessEvents::new_attached(process_id.clone(), shared, None, now_ms(), origin);
        let events = Arc::new(events);
        let terminal = match &summary {
            None => TerminalPresence::Unknown,
            Some(summary) => {
                events.handle_start_time(summary.started_at_ms, summary.os_pid);
                TerminalPresence::of(summary.tty)
            }
        };
        // Create the handle before attaching: dropping this future drops the handle, which
        // detaches.
        let process = RemoteProcess::attached(self.clone(), &events, terminal);
        let params = AttachProcess {
            process_id: process_id.clone(),
            after_seq: Some(begin),
            started_at_ms,
        };
        match self.attach_process(params, events).await {
            Ok(attached) if after >= attached.next_seq => Err(ExecServerError::NoSuchEvent {
                process: process_id,
                after,
                last: OutputSeq(attached.next_seq.0.saturating_sub(1)),
            }),
            Ok(_) => Ok(Arc::new(process)),
            Err(ExecServerError::Remote(error))
                if error.code == ErrorCode::INVALID_REQUEST && summary.is_none() =>
            {
                Err(ExecServerError::UnknownProcess(process_id))
            }
            Err(error) => Err(error),
        }
    }

    /// Lists the processes of this session and the server-owned ones, running or retained.
    pub async fn processes(&self) -> Result<Vec<ProcessSummary>, ExecServerError> {
        self.check(ListProcesses::NAME)?;
        let list = self.call(ListProcesses::default()).await?;
        Ok(list.processes)
    }

    /// Lists the processes of all sessions that this client may attach to.
    pub async fn all_processes(&self) -> Result<Vec<ProcessSummary>, ExecServerError> {
        self.check(ListProcesses::NAME)?;
        let list = self.call(ListProcesses { all: true }).await?;
        Ok(list.processes)
    }
}
