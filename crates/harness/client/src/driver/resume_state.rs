//! What outlives a connection, and how it is taken up on the next one.
//!
//! Every process is read after the last number that came of it: the server repeats nothing by itself,
//! and sends what happens from the resume on. A start that was not answered is decided by the same
//! read. Then the calls that may be made again are, in their order and before any other.
//!
//! A read that is cut off again is made smaller: on connections that do not last, something comes through.

use std::sync::Arc;

use exec_env::{disconnect::Disconnect, process::ProcessError};
use exec_wire::{error::ErrorCode, id::SessionId, method::Method, process::StartProcess};
use tokio::{sync::oneshot, time::Instant};

use super::{
    backpressure::FlowControlMode,
    call::{AttachWaiter, Call, CallResult, ConnectionNumber, ResponseSink},
    connection::ClientConnection,
    session_processes::{FinalAck, SessionProcesses},
};
use crate::{
    client_shared::ClientShared,
    error::ExecServerError,
    events::{EventsError, ProcessEvents, ProcessOwner},
    handshake::OpenedSession,
};

/// What outlives a connection.
#[derive(Debug)]
pub(super) struct ResumeState {
    pub(super) session: SessionId,
    /// Why the connection was given up.
    pub(super) cause: String,
    /// Since when there is none, or none that came to anything.
    pub(super) since: Instant,
    pub(super) processes: SessionProcesses,
    /// Starts that were not answered, and processes that were to be attached.
    pub(super) pending: Vec<(AttachWaiter, Arc<ProcessEvents>)>,
    /// Calls that are made again.
    pub(super) retries: Vec<Call>,
    /// Calls that were not made.
    pub(super) unsent: Vec<Call>,
}

impl ResumeState {
    /// The session is lost.
    pub(super) fn fail(mut self, gone: &Disconnect) {
        self.processes
            .fail(&ProcessError::Disconnected(gone.clone()));
        for (pending, _) in self.pending {
            pending.fail(gone.clone().into());
        }
        for call in self.retries.into_iter().chain(self.unsent) {
            call.sink.fail(gone.clone().into());
        }
    }

    /// Fails what belongs to the session, and returns what does not.
    pub(super) fn fail_session(mut self, gone: &Disconnect) -> Self {
        let attached = self.processes.take_server_owned();
        let of_server =
            |(_, process): &mut (_, Arc<ProcessEvents>)| process.owner() == ProcessOwner::Server;
        let pending = self.pending.extract_if(.., of_server).collect();
        let of_server = |call: &mut Call| call.target.is_some();
        let retries = self.retries.extract_if(.., of_server).collect();
        let unsent = self.unsent.extract_if(.., of_server).collect();
        let server_state = Self {
            session: self.session.clone(),
            cause: self.cause.clone(),
            since: self.since,
            processes: attached,
            pending,
            retries,
            unsent,
        };
        self.fail(gone);
        server_state
    }
}

impl ClientConnection {
    /// Takes up a session. What came before the answer to `initialize` is handled when it is driven.
    pub(super) fn resume(
        opened: OpenedSession,
        number: ConnectionNumber,
        shared: &Arc<ClientShared>,
        resume_state: ResumeState,
    ) -> Self {
        let mut connection = Self::new(opened, number, shared);
        connection.processes = resume_state.processes;
        // Processes know by themselves that they were let go of, and nothing else is left to close.
        drop(shared.take_releases());
        connection.last_cause = resume_state.cause;
        connection.resend_final_acks();
        let mut all_pending = resume_state.pending;
        let mut unconfirmed = Vec::new();
        let mut processes = connection.processes.all();
        if let Some(offset) = number.0.checked_rem(processes.len() as u64) {
            // Each is the first one at times: on connections that do not last, no other is answered.
            processes.rotate_left(usize::try_from(offset).unwrap_or_default());
        }
        for process in processes {
            let pending = all_pending
                .iter()
                .position(|(_, pending)| Arc::ptr_eq(pending, &process));
            let pending =
                pending.map_or(AttachWaiter::None, |index| all_pending.swap_remove(index).0);
            match process.owner() {
                ProcessOwner::Session => connection.resume_process(&process, pending),
                ProcessOwner::Server => {
                    unconfirmed.extend(connection.resume_attached(&process, pending));
                }
            }
        }
        connection.look_up(unconfirmed);
        for call in resume_state.retries {
            match &call.target {
                None => connection.send(call),
                Some(_) => connection.handle_call(call),
            }
        }
        for call in resume_state.unsent {
            connection.handle_call(call);
        }
        if connection.unanswered > 0 {
            connection.stalled_since = Some(resume_state.since);
        }
        connection
    }

    /// Acknowledges again what may not have arrived.
    fn resend_final_acks(&mut self) {
        for FinalAck { id, seq, .. } in self.processes.finished.take_unconfirmed() {
            let taken = self.processes.find(&id);
            // The id may be that of another process, whose events were not taken.
            let lives = taken.is_some_and(|process| !process.is_closed());
            if self.flow_control == FlowControlMode::PerProcess && !lives {
                self.send_final_ack(&id, seq);
            }
        }
    }

    fn resume_process(&mut self, process: &Arc<ProcessEvents>, pending: AttachWaiter) {
        let start = match pending {
            AttachWaiter::Start(reply) => Some(reply),
            // What is attached belongs to the server.
            AttachWaiter::None | AttachWaiter::Attach(_) => None,
        };
        if start.is_some() && self.processes.finished.contains(process.id()) {
            // What the server knows by this id may be the process of before.
            let gone = Disconnect::Transport(self.last_cause.clone());
            process.fail(ProcessError::Disconnected(gone));
        }
        if process.is_failed() {
            if let Some(reply) = start {
                drop(reply.send(Err(self.not_started())));
            }
            // It was to be ended, which the server may not have heard.
            return self.terminate_failed(process);
        }
        if process.is_released() {
            self.terminate(process);
        }
        let sink = match start {
            Some(reply) => ResponseSink::ProbeStart(reply, Arc::clone(process)),
            None if process.is_closed() => return self.remove_if_done(process),
            None => ResponseSink::FillGap(Arc::clone(process)),
        };
        let missing = process.handle_resume();
        self.read_output(process, missing, sink);
    }

    /// Decides about a start by whether the server knows the process.
    pub(super) fn handle_start_probe(
        &mut self,
        reply: oneshot::Sender<CallResult>,
        process: &Arc<ProcessEvents>,
        page: CallResult,
    ) {
        match page {
            Ok(page) => {
                let answered = self.start_response(process.id());
                self.handed_out_process = true;
                if reply.send(Ok(answered)).is_err() {
                    self.terminate(process);
                }
                self.handle_page(process, Ok(page));
            }
            Err(_) => {
                // It may be on its way to be started: ending what is not known does no harm.
                self.terminate(process);
                self.processes.finish(process);
                drop(reply.send(Err(self.not_started())));
            }
        }
    }

    pub(super) fn not_started(&self) -> ExecServerError {
        ExecServerError::Interrupted {
            method: StartProcess::NAME.as_str(),
            reason: self.last_cause.clone(),
        }
    }

    /// Takes what a process's events were asked for with.
    pub(super) fn handle_page(&mut self, process: &Arc<ProcessEvents>, page: CallResult) {
        let recorded = match page {
            Ok(page) => serde_json::from_slice(&page.result)
                .map_err(|error| {
                    EventsError::Malformed(format!("result of `process/read`: {error}"))
                })
                .and_then(|page| process.handle_page(page)),
            Err(error) => Err(read_failure(error)),
        };
        self.apply_recorded(process, recorded);
    }
}

/// What it means for a process that its events are not to be had.
pub(super) fn read_failure(error: ExecServerError) -> EventsError {
    if let ExecServerError::Remote(error) = &error
        && error.code == ErrorCode::INVALID_REQUEST
    {
        return EventsError::Unknown(error.message.clone());
    }
    EventsError::ReadFailed(error.to_string())
}
