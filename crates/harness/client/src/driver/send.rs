//! Sends messages to the server: calls, acknowledgements and releases.

use std::sync::Arc;

use exec_env::process::ProcessError;
use exec_wire::{
    error::RpcError,
    fs::{CloseFile, StopWatch, WatchMissing},
    http::CancelHttpRequest,
    id::{OutputSeq, ProcessId},
    limits,
    message::RequestId,
    method::{Method, notification},
    outgoing_message::OutgoingMessage,
    process::{AcknowledgeProcess, ReadProcess, TerminateMode, TerminateProcess},
};

use super::{
    call::{Call, OpenedResource, ResponseSink, RetryPolicy},
    connection::{ClientConnection, FlowControlMode, SentCall},
    session_processes::FinalAck,
};
use crate::{
    client_shared::DeferredRelease,
    error::ExecServerError,
    events::{OutputGap, ProcessEvents, ProcessOwner},
};

/// Id of requests that need no response.
const FIRE_AND_FORGET_ID: &str = "release";

impl ClientConnection {
    /// Validates a call and sends it.
    pub(super) fn handle_call(&mut self, call: Call) {
        // Drop calls that were cancelled before they were sent.
        if let ResponseSink::Cancellable(..) | ResponseSink::Start(..) | ResponseSink::Attach(..) =
            &call.sink
            && !call.sink.is_awaited()
        {
            return;
        }
        let Some(mut call) = self.defer(call) else {
            return;
        };
        if let Some(refusal) = self.refusal(&call) {
            return call.sink.fail(refusal);
        }
        if let ResponseSink::Cancellable(reply, resource) = call.sink {
            self.bodies.register(&resource);
            call.sink = ResponseSink::Cancellable(reply, self.watches.register(resource));
        }
        self.send(call);
    }

    fn refusal(&mut self, call: &Call) -> Option<ExecServerError> {
        if let Some(process) = &call.target {
            if let Err(error) = process.check() {
                return Some(process_failure(error));
            }
            if process.is_closed() {
                let text = format!("process {} has ended", process.id());
                return Some(ExecServerError::Remote(RpcError::invalid_request(text)));
            }
        }
        if self.unanswered >= limits::MAX_REQUESTS_IN_FLIGHT {
            let max_calls = limits::MAX_REQUESTS_IN_FLIGHT;
            return Some(ExecServerError::TooManyCalls(max_calls));
        }
        if let ResponseSink::Cancellable(_, OpenedResource::UsesConnection(connection)) = &call.sink
            && *connection != self.number
        {
            return Some(ExecServerError::Interrupted {
                method: call.method.as_str(),
                reason: "its resource belongs to a previous connection".to_owned(),
            });
        }
        // Register before sending, because events may arrive before the response.
        if let ResponseSink::Start(_, process) | ResponseSink::Attach(_, process, _) = &call.sink
            && !self.register(process)
        {
            return Some(ExecServerError::IdInUse(process.id().clone()));
        }
        None
    }

    /// Registers a process, unless its id is in use.
    fn register(&mut self, process: &Arc<ProcessEvents>) -> bool {
        self.processes.register(process) || {
            // The previous process with this id may just have been released.
            self.handle_wakeup();
            self.processes.register(process)
        }
    }

    /// Sends a call.
    pub(super) fn send(&mut self, call: Call) {
        let Call {
            method,
            request,
            retry,
            target,
            sink,
        } = call;
        let number = self.calls_sent + 1;
        let mut message = None;
        let sent = self.calls.register_with(|id| {
            message = Some(request(id));
            let rebuild = (retry != RetryPolicy::Never).then_some(request);
            SentCall {
                number,
                method,
                retry,
                target,
                sink,
                rebuild,
            }
        });
        if let (Ok(_), Some(message)) = (sent, message) {
            self.calls_sent = number;
            self.unanswered += 1;
            self.link.writer.push(message, self.encoding);
        }
    }

    pub(super) fn send_request<M: Method + Send + 'static>(
        &mut self,
        params: M,
        sink: ResponseSink,
    ) {
        let method = M::NAME;
        self.send(Call {
            method,
            request: Box::new(move |id| OutgoingMessage::request(id, method.as_str(), &params)),
            retry: RetryPolicy::of(method),
            target: None,
            sink,
        });
    }

    /// Reads missing output of a process.
    pub(super) fn read_output(
        &mut self,
        process: &ProcessEvents,
        missing: OutputGap,
        sink: ResponseSink,
    ) {
        let read = ReadProcess {
            process_id: process.id().clone(),
            after_seq: Some(missing.after),
            max_bytes: missing.max_bytes,
            wait_ms: Some(0),
            times: false,
        };
        self.send_request(read, sink);
    }

    /// Terminates a failed process and then removes it.
    pub(super) fn terminate_failed(&mut self, process: &Arc<ProcessEvents>) {
        let sink = ResponseSink::Terminate(Arc::clone(process));
        self.send_request(force_terminate(process), sink);
    }

    /// Terminates a process without handles. It stays registered until its close.
    pub(super) fn terminate(&mut self, process: &ProcessEvents) {
        self.send_unanswered(&force_terminate(process));
    }

    /// Acknowledges the consumed output of a process, if an ack is due.
    pub(super) fn acknowledge(&mut self, process: &ProcessEvents) {
        match process.take_ack() {
            Some(seq) if process.closes_at(seq) => self.send_final_ack(process.id(), seq),
            Some(seq) => self.send_ack(process.id(), seq),
            None => {}
        }
    }

    fn send_ack(&mut self, id: &ProcessId, seq: OutputSeq) {
        let ack = AcknowledgeProcess {
            process_id: id.clone(),
            seq,
        };
        let message = OutgoingMessage::notification(notification::PROCESS_ACKNOWLEDGE, &ack);
        self.link.writer.push(message, self.encoding);
    }

    /// Sends the final ack of a process, and remembers it until it is confirmed.
    pub(super) fn send_final_ack(&mut self, id: &ProcessId, seq: OutputSeq) {
        self.send_ack(id, seq);
        let final_ack = FinalAck {
            id: id.clone(),
            seq,
            calls_sent: self.calls_sent,
        };
        let finished = &mut self.processes.finished;
        finished.record_final_ack(final_ack, self.last_answered);
    }

    /// Acknowledges all output of a failed process, so that the server does not wait for acks.
    pub(super) fn release_unacked(&mut self, process: &ProcessEvents) {
        if self.flow_control == FlowControlMode::PerProcess {
            self.send_final_ack(process.id(), OutputSeq(u64::MAX));
        }
    }

    /// Removes a closed process without handles.
    pub(super) fn remove_if_done(&mut self, process: &Arc<ProcessEvents>) {
        if process.is_finished() && self.processes.contains(process) {
            // All events have arrived, whether or not they have been read.
            if let Some(seq) = process.take_final_ack() {
                self.send_final_ack(process.id(), seq);
            }
            self.processes.finish(process);
        }
    }

    /// Processes pending acks and releases.
    pub(super) fn handle_wakeup(&mut self) {
        for process in self.shared.take_pending_acks() {
            match process.owner() {
                ProcessOwner::Session if self.processes.contains(&process) => {
                    self.acknowledge(&process)
                }
                ProcessOwner::Session => {}
                ProcessOwner::Server => self.apply_flow_control(&process),
            }
        }
        for release in self.shared.take_releases() {
            match release {
                // An unregistered process did not start, or its start was not sent yet.
                DeferredRelease::Process(process) => {
                    if self.processes.contains(&process) {
                        // A failed process is already being terminated.
                        if !process.is_failed() {
                            self.terminate(&process);
                        }
                        self.remove_if_done(&process);
                    }
                }
                DeferredRelease::Attached(process) => self.handle_detached(&process),
                DeferredRelease::File(handle_id, connection) => {
                    if connection == self.number {
                        self.send_unanswered(&CloseFile { handle_id });
                    }
                }
                DeferredRelease::Watch(watch_id) => {
                    if self.watches.remove(&watch_id) {
                        self.send_unanswered(&StopWatch { watch_id });
                    }
                }
                DeferredRelease::Tunnel(id) => self.shared.tunnels.tunnels.send_close(id, None),
                DeferredRelease::MissingWatch(number) => self.end_missing_watch(number),
                DeferredRelease::Body(request_id) => {
                    if self.bodies.remove(&request_id) {
                        self.send_unanswered(&CancelHttpRequest { request_id });
                    }
                }
            }
        }
    }

    /// Ends a missing-path watch, unless a newer one has replaced it. The wire has no other way
    /// than to request an empty watch.
    fn end_missing_watch(&mut self, number: u64) {
        let shared = Arc::clone(&self.shared);
        let mut last = shared.last_missing_watch();
        if self.watches.remove_missing(number) && *last == number {
            *last += 1;
            self.send_unanswered(&WatchMissing {
                watch_id: *last,
                missing: Vec::new(),
                present: None,
                sandbox: None,
            });
        }
    }

    /// Sends a request without waiting for its response.
    pub(super) fn send_unanswered<M: Method>(&mut self, params: &M) {
        let id = RequestId::Text(FIRE_AND_FORGET_ID.into());
        let request = OutgoingMessage::request(&id, M::NAME.as_str(), params);
        self.link.writer.push(request, self.encoding);
    }

    /// Sends a response to a server request, if there is one.
    pub(super) fn send_response(&mut self, response: Option<OutgoingMessage>) {
        if let Some(response) = response {
            self.link.writer.push(response, self.encoding);
        }
    }
}

/// Maps the failure of a process to the error of a call for it.
fn process_failure(error: ProcessError) -> ExecServerError {
    match error {
        ProcessError::Remote(error) => ExecServerError::Remote(error),
        ProcessError::Disconnected(reason) => reason.into(),
        ProcessError::Terminated
        | ProcessError::StdinFull
        | ProcessError::NoTerminal(_)
        | ProcessError::EmptySize
        | _ => ExecServerError::Remote(RpcError::internal(error.to_string())),
    }
}

fn force_terminate(process: &ProcessEvents) -> TerminateProcess {
    TerminateProcess {
        process_id: process.id().clone(),
        mode: Some(TerminateMode::Force),
    }
}
