//! Processes that belong to the server: started, found again and listed by any of its clients.

use std::sync::Arc;

use exec_env::{
    backend::{StartError, StartedProcess},
    command::Command,
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
    /// Starts a process that belongs to the server: it outlives its handle, this client and its
    /// session. Its id must be free on the whole server. Dropping the future before it is answered
    /// ends what was started, unless the connection broke.
    pub async fn start_detached(&self, command: Command) -> Result<StartedProcess, StartError> {
        let backend = RemoteBackend::new(self.clone());
        backend.start_process(command, ProcessOwner::Server).await
    }

    /// Takes up a process that belongs to the server: what is retained of its output after `after` is
    /// replayed, then it is followed. What is not retained any more is missing from the numbers, and so
    /// is what a handle is not read fast enough for: nobody holds up such a process.
    ///
    /// It is taken up again whenever the connection is another one, also in another session. When the
    /// handle and its event streams are dropped, it is let go of, and runs on. Dropping the future does
    /// the same.
    ///
    /// # Errors
    /// [`ExecServerError::UnknownProcess`] if there is none by this id,
    /// [`ExecServerError::NoSuchEvent`] if it has not come to `after`,
    /// [`ExecServerError::IdInUse`] while there is another handle of this client for it.
    pub async fn attach(
        &self,
        process_id: ProcessId,
        after: Option<OutputSeq>,
    ) -> Result<Arc<dyn ExecProcess>, ExecServerError> {
        self.check(AttachProcess::NAME)?;
        // A list that is too long for an answer keeps nobody from attaching.
        let summary = match self.processes().await {
            Ok(list) => list.into_iter().find(|one| one.process_id == process_id),
            Err(ExecServerError::Remote(_) | ExecServerError::Malformed { .. }) => None,
            Err(error) => return Err(error),
        };
        self.attach_found(process_id, after, summary, None).await
    }

    /// Takes up a process that [`all_processes`](Self::all_processes) listed, as
    /// [`attach`](Self::attach) does. One that belongs to another session belongs to the server from
    /// then on, and outlives that session.
    ///
    /// # Errors
    /// As [`attach`](Self::attach); also if the id names another process by now.
    pub async fn take_over(
        &self,
        process: &ProcessSummary,
        after: Option<OutputSeq>,
    ) -> Result<Arc<dyn ExecProcess>, ExecServerError> {
        self.check(AttachProcess::NAME)?;
        let started = Some(process.started_at_ms);
        let summary = Some(process.clone());
        self.attach_found(process.process_id.clone(), after, summary, started)
            .await
    }

    async fn attach_found(
        &self,
        process_id: ProcessId,
        after: Option<OutputSeq>,
        summary: Option<ProcessSummary>,
        started_at_ms: Option<u64>,
    ) -> Result<Arc<dyn ExecProcess>, ExecServerError> {
        let after = after.unwrap_or_default();
        let begin = match &summary {
            // The exit is behind what the caller has seen.
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
        // Made before it is attached: if this future is dropped, so is the handle, and lets go of it.
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

    /// Lists the processes of this session and those that belong to the server, running or retained.
    pub async fn processes(&self) -> Result<Vec<ProcessSummary>, ExecServerError> {
        self.check(ListProcesses::NAME)?;
        let list = self.call(ListProcesses::default()).await?;
        Ok(list.processes)
    }

    /// Lists the processes of other sessions, too: those that this client may attach to.
    pub async fn all_processes(&self) -> Result<Vec<ProcessSummary>, ExecServerError> {
        self.check(ListProcesses::NAME)?;
        let list = self.call(ListProcesses { all: true }).await?;
        Ok(list.processes)
    }
}
