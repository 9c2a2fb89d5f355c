//! Server-owned processes: attaching to them on this connection and the next.
//!
//! A connection follows such a process from `process/attach` to `process/release`. Invariant: a
//! process is attached at most once at a time, and not before a pending release of the same id is
//! answered. Until then, events with that id are stale and ignored. The client attaches again on
//! another connection, and when followers have caught up, after the last event that it has. It
//! first looks up the id on the server, because the id may name another process by now.

use std::sync::Arc;

use bytes::Bytes;
use exec_env::{environment::DisconnectReason, process::ProcessError};
use exec_wire::{
    id::{OutputSeq, ProcessId},
    limits,
    method::Method,
    process::{
        AttachProcess, AttachResult, ListProcesses, ProcessList, ProcessSummary, ReleaseProcess,
        StartResult,
    },
};
use serde::Serialize;

use super::{
    call::{AttachWaiter, Call, CallResult, RawResponse, ResponseSink},
    connection::ClientConnection,
    recovery::read_failure,
};
use crate::{
    error::ExecServerError,
    events::{EventsError, FlowControl, ProcessEvents},
};

impl ClientConnection {
    /// Defers a call for a process that is being released or looked up. Returns the call if it need
    /// not wait.
    pub(super) fn defer(&mut self, call: Call) -> Option<Call> {
        let must_wait = if let ResponseSink::Start(_, process)
        | ResponseSink::Attach(_, process, _) = &call.sink
        {
            self.releasing.contains(process.id())
        } else {
            let target = call.target.as_ref();
            target.is_some_and(|process| self.is_looked_up(process))
        };
        if !must_wait {
            return Some(call);
        }
        let max_calls = limits::MAX_REQUESTS_IN_FLIGHT;
        if self.deferred_calls.len() >= max_calls {
            call.sink.fail(ExecServerError::TooManyCalls(max_calls));
        } else {
            self.deferred_calls.push(call);
        }
        None
    }

    /// Returns whether a lookup of this process is pending.
    fn is_looked_up(&self, process: &Arc<ProcessEvents>) -> bool {
        let mut looked_up = self.looking_up.iter();
        looked_up.any(|one| Arc::ptr_eq(one, process))
    }

    /// Attaches to a process after the last received event.
    fn attach(&mut self, pending: AttachWaiter, process: &Arc<ProcessEvents>) {
        let after = process.handle_attach();
        let params = AttachProcess {
            process_id: process.id().clone(),
            after_seq: Some(after),
            started_at_ms: None,
        };
        let sink = ResponseSink::Attach(pending, Arc::clone(process), after);
        self.send_request(params, sink);
    }

    /// Stops receiving events of a process, which keeps running.
    fn release(&mut self, id: &ProcessId) {
        if self.releasing.insert(id.clone()) {
            let process_id = id.clone();
            self.send_request(
                ReleaseProcess {
                    process_id,
                    forget: false,
                },
                ResponseSink::Release(id.clone()),
            );
        }
    }

    /// Detaches from a server-owned process that has failed or has no handles. The process keeps
    /// running.
    pub(super) fn detach(&mut self, process: &Arc<ProcessEvents>) {
        if !self.processes.contains(process) {
            return;
        }
        if !process.is_closed() {
            self.release(process.id());
        }
        self.processes.remove(process);
        let reason = "the last handle of the process was dropped".to_owned();
        process.fail(ProcessError::Disconnected(DisconnectReason::Transport(
            reason,
        )));
    }

    /// Handles the drop of the last handle of a server-owned process.
    pub(super) fn handle_detached(&mut self, process: &Arc<ProcessEvents>) {
        // Before the start is answered, it is not known whether the process exists.
        if !process.is_starting() {
            self.detach(process);
        }
    }

    /// Applies flow control: releases a process with lagging followers, and attaches again when
    /// they have caught up.
    pub(super) fn apply_flow_control(&mut self, process: &Arc<ProcessEvents>) {
        if self.releasing.contains(process.id()) || !self.processes.contains(process) {
            return;
        }
        match process.next_flow_control() {
            Some(FlowControl::Pause) => self.release(process.id()),
            // The pause may have been long, so look the process up first.
            Some(FlowControl::Resume) => {
                self.look_up(vec![(AttachWaiter::None, Arc::clone(process))])
            }
            None => {}
        }
    }

    /// Handles the response to a release. Events with this id are valid again.
    pub(super) fn handle_release_response(&mut self, id: &ProcessId) {
        self.releasing.remove(id);
        if let Some(process) = self.processes.find(id) {
            self.apply_flow_control(&process);
        }
        self.run_deferred_calls();
    }

    fn run_deferred_calls(&mut self) {
        for call in std::mem::take(&mut self.deferred_calls) {
            self.handle_call(call);
        }
    }

    /// Resumes a server-owned process on another connection. Returns it if it must be looked up.
    pub(super) fn resume_attached(
        &mut self,
        process: &Arc<ProcessEvents>,
        pending: AttachWaiter,
    ) -> Option<(AttachWaiter, Arc<ProcessEvents>)> {
        if process.is_released() || process.is_failed() {
            // The process is not attached on this connection, so it need not be released.
            self.processes.remove(process);
            self.fail_interrupted(pending);
            return None;
        }
        if process.is_closed() {
            // All events arrived, although the response did not.
            match pending {
                AttachWaiter::None => {}
                AttachWaiter::Attach(_) => pending.settle(Ok(self.attach_response(process))),
                AttachWaiter::Start(_) => pending.settle(Ok(self.start_response(process.id()))),
            }
            return None;
        }
        Some((pending, Arc::clone(process)))
    }

    /// Looks up these processes on the server by id.
    pub(super) fn look_up(&mut self, processes: Vec<(AttachWaiter, Arc<ProcessEvents>)>) {
        if processes.is_empty() {
            return;
        }
        for (_, process) in &processes {
            process.handle_look_up();
            self.looking_up.push(Arc::clone(process));
        }
        self.send_request(ListProcesses::default(), ResponseSink::LookUp(processes));
    }

    pub(super) fn handle_process_list(
        &mut self,
        processes: Vec<(AttachWaiter, Arc<ProcessEvents>)>,
        list: &CallResult,
    ) {
        let list = list
            .as_ref()
            .ok()
            .and_then(|list| serde_json::from_slice::<ProcessList>(&list.result).ok());
        for (pending, process) in processes {
            self.looking_up.retain(|one| !Arc::ptr_eq(one, &process));
            if !self.processes.contains(&process) {
                self.fail_interrupted(pending);
                continue;
            }
            let Some(list) = &list else {
                // Attaching is possible without the lookup, but an interrupted start cannot be
                // confirmed.
                match pending {
                    AttachWaiter::Start(_) => self.fail_waiter(&process, pending),
                    AttachWaiter::Attach(_) | AttachWaiter::None => self.attach(pending, &process),
                }
                continue;
            };
            let by_id = |summary: &&ProcessSummary| summary.process_id == *process.id();
            match list.processes.iter().find(by_id) {
                Some(summary) if process.is_same_process(summary) => {
                    process.handle_start_time(summary.started_at_ms, summary.os_pid);
                    self.attach(pending, &process);
                }
                Some(_) if matches!(pending, AttachWaiter::None) => {
                    self.fail_process(&process, &EventsError::Replaced);
                }
                None if matches!(pending, AttachWaiter::None) => {
                    let text = format!("unknown process id {}", process.id());
                    self.fail_process(&process, &EventsError::Unknown(text));
                }
                Some(_) | None => self.fail_waiter(&process, pending),
            }
        }
        self.run_deferred_calls();
    }

    /// Fails the waiter of a process that cannot be attached, or was not started.
    fn fail_waiter(&mut self, process: &Arc<ProcessEvents>, pending: AttachWaiter) {
        self.processes.remove(process);
        let error = match &pending {
            AttachWaiter::Attach(_) => ExecServerError::UnknownProcess(process.id().clone()),
            AttachWaiter::Start(_) | AttachWaiter::None => self.not_started(),
        };
        pending.fail(error);
    }

    /// Handles the response to an attach that requested the events after `after`.
    pub(super) fn handle_attach_response(
        &mut self,
        pending: AttachWaiter,
        process: &Arc<ProcessEvents>,
        after: OutputSeq,
        result: CallResult,
    ) {
        if !self.processes.contains(process) {
            return self.fail_interrupted(pending);
        }
        let response = match result {
            Ok(response) => response,
            Err(error) => return self.handle_attach_error(pending, process, error),
        };
        let attached = match serde_json::from_slice::<AttachResult>(&response.result) {
            Ok(attached) => attached,
            Err(error) => {
                let text = format!("result of `process/attach`: {error}");
                self.fail_process(process, &EventsError::Malformed(text));
                // The caller decodes the response, too, and reports the error.
                return pending.settle(Ok(response));
            }
        };
        if after >= attached.next_seq {
            return self.handle_shorter_log(pending, process, after, attached.next_seq);
        }
        match pending {
            AttachWaiter::None => {}
            AttachWaiter::Attach(reply) => {
                self.handed_out_process = true;
                // If the caller is gone, dropping the handle detaches.
                drop(reply.send(Ok(response)));
            }
            AttachWaiter::Start(reply) => {
                self.handed_out_process = true;
                process.handle_start_response();
                let response = self.start_response(process.id());
                if reply.send(Ok(response)).is_err() {
                    // The process is probably the one that was started, but not certainly: leave it
                    // running.
                    self.detach(process);
                }
            }
        }
    }

    /// Handles a process with fewer events than received before, which must be another process.
    fn handle_shorter_log(
        &mut self,
        pending: AttachWaiter,
        process: &Arc<ProcessEvents>,
        after: OutputSeq,
        next: OutputSeq,
    ) {
        self.fail_process(process, &EventsError::Replaced);
        pending.fail(ExecServerError::NoSuchEvent {
            process: process.id().clone(),
            after,
            last: OutputSeq(next.0.saturating_sub(1)),
        });
    }

    fn handle_attach_error(
        &mut self,
        pending: AttachWaiter,
        process: &Arc<ProcessEvents>,
        error: ExecServerError,
    ) {
        match pending {
            AttachWaiter::None => {
                let failure = read_failure(error);
                self.fail_process(process, &failure);
            }
            AttachWaiter::Attach(_) => {
                self.processes.remove(process);
                pending.fail(error);
            }
            AttachWaiter::Start(_) => self.fail_waiter(process, pending),
        }
    }

    /// Creates the response to a start that succeeded.
    pub(super) fn start_response(&self, id: &ProcessId) -> RawResponse {
        let started = StartResult {
            process_id: id.clone(),
            sandbox_type: None,
        };
        self.make_response(&started)
    }

    fn attach_response(&self, process: &ProcessEvents) -> RawResponse {
        let status = process.status();
        self.make_response(&AttachResult {
            next_seq: status.next_seq,
            running: status.exit.is_none(),
        })
    }

    fn make_response(&self, result: &impl Serialize) -> RawResponse {
        RawResponse {
            result: Bytes::from(serde_json::to_vec(result).unwrap_or_default()),
            data: None,
            release_guard: None,
            connection: self.number,
        }
    }

    /// Fails a waiter because the connection broke.
    fn fail_interrupted(&self, pending: AttachWaiter) {
        let error = match &pending {
            AttachWaiter::Start(_) => self.not_started(),
            AttachWaiter::Attach(_) | AttachWaiter::None => ExecServerError::Interrupted {
                method: AttachProcess::NAME.as_str(),
                reason: self.last_cause.clone(),
            },
        };
        pending.fail(error);
    }
}
