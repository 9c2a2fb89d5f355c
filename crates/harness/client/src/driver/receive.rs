//! Handles messages from the server: notifications, server requests, responses.

use std::sync::Arc;

use bytes::Bytes;
use exec_core::output_log::LogEvent;
use exec_wire::{
    http::CancelHttpRequest,
    message::{RpcMessage, RpcNotification, split_binary},
    process::TerminateResult,
};
use serde_json::value::RawValue;

use super::{
    backpressure::FlowControlMode,
    call::{CallResult, OpenedResource, RawResponse, ResponseSink},
    connection::{ClientConnection, DisconnectCause},
};
use crate::{
    client_shared::{DeferredRelease, ReleaseGuard},
    error::ExecServerError,
    events::{EventsError, OutputGap, ProcessEvents, ProcessOwner},
    notification::{self, NotificationError, ServerNotification},
};

impl ClientConnection {
    pub(super) fn handle_message(&mut self, frame: &Bytes) -> Result<(), DisconnectCause> {
        let malformed = |error: &dyn std::error::Error| {
            DisconnectCause::Protocol(format!("server sent a malformed message: {error}"))
        };
        let (text, data) = match split_binary(frame) {
            None => (frame.clone(), None),
            Some(Ok((text, data))) => (text, Some(data)),
            Some(Err(error)) => return Err(malformed(&error)),
        };
        let message = RpcMessage::decode_with(&text, data).map_err(|error| malformed(&error))?;
        match message {
            RpcMessage::Notification(message) => self.handle_notification(&message)?,
            RpcMessage::Request(request) => {
                let answer = self
                    .server_requests
                    .handle_request(&request, &self.processes);
                self.send_response(answer);
            }
            answer @ (RpcMessage::Response(_) | RpcMessage::Error(_)) => {
                if let Some(answer) = self.calls.handle_response(answer) {
                    self.unanswered -= 1;
                    self.record_response(answer.waiter.number);
                    let response = |result: &RawValue| RawResponse {
                        result: text.slice_ref(result.get().as_bytes()),
                        data: answer.data,
                        release_guard: None,
                        connection: self.number,
                    };
                    let result = answer.result.map(response);
                    let result = result.map_err(ExecServerError::Remote);
                    self.handle_response(answer.waiter.sink, result);
                }
            }
        }
        Ok(())
    }

    fn handle_notification(
        &mut self,
        message: &RpcNotification<'_>,
    ) -> Result<(), DisconnectCause> {
        match notification::decode(message) {
            Ok(ServerNotification::Event(id, event)) => {
                if !self.releasing.contains(&id)
                    && let Some(process) = self.processes.find(&id)
                {
                    let closed = matches!(event, LogEvent::Closed(_));
                    let recorded = process.handle_event(event);
                    self.apply_recorded(&process, recorded);
                    if closed && process.is_failed() && process.owner() == ProcessOwner::Session {
                        self.release_unacked(&process);
                        self.processes.finish(&process);
                    }
                }
            }
            Ok(ServerNotification::Started(started)) => {
                if let Some(process) = self.processes.find(&started.process_id) {
                    process.handle_started(&started);
                }
            }
            Ok(ServerNotification::Changed(changed)) => self.watches.handle_changed(changed),
            Ok(ServerNotification::MissingChanged(changed)) => {
                self.watches.handle_missing_changed(changed)
            }
            Ok(ServerNotification::Decided(decision)) => {
                let process = self.processes.find(&decision.process_id);
                if let Some(hook) = process.as_ref().and_then(|process| process.network_hook()) {
                    hook.watcher().record(decision);
                }
            }
            Ok(ServerNotification::BodyDelta(delta, data)) => {
                if let Some(request_id) = self.bodies.handle_delta(delta, data) {
                    self.send_unanswered(&CancelHttpRequest { request_id });
                }
            }
            Ok(ServerNotification::Unknown) => {}
            Err(NotificationError { process, reason }) => {
                let text = format!("invalid `{}` notification: {reason}", message.method);
                match process {
                    None => return Err(DisconnectCause::Protocol(text)),
                    // Other processes are not affected.
                    Some(id) => {
                        if let Some(process) = self.processes.find(&id) {
                            self.apply_recorded(&process, Err(EventsError::Malformed(text)));
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// Acts on the result of recording events.
    pub(super) fn apply_recorded(
        &mut self,
        process: &Arc<ProcessEvents>,
        recorded: Result<Option<OutputGap>, EventsError>,
    ) {
        match recorded {
            Ok(None) => {}
            Ok(Some(missing)) => {
                self.read_output(process, missing, ResponseSink::FillGap(Arc::clone(process)));
            }
            Err(failure) => self.fail_process(process, &failure),
        }
        match process.owner() {
            ProcessOwner::Session => {
                self.acknowledge(process);
                self.remove_if_done(process);
            }
            ProcessOwner::Server => self.apply_flow_control(process),
        }
    }

    /// Fails one process because its events are lost. Other processes are not affected.
    pub(super) fn fail_process(&mut self, process: &Arc<ProcessEvents>, failure: &EventsError) {
        // Terminate or detach only once.
        if process.fail(failure.error(process.id())) {
            tracing::warn!(process = %process.id(), %failure, "process failed");
            match process.owner() {
                ProcessOwner::Session => self.terminate_failed(process),
                ProcessOwner::Server => self.detach(process),
            }
        }
    }
}

impl ClientConnection {
    pub(super) fn handle_response(&mut self, sink: ResponseSink, result: CallResult) {
        match sink {
            ResponseSink::Call(reply) => drop(reply.send(result)),
            ResponseSink::Start(reply, process) => {
                let started = result.is_ok();
                self.handed_out_process |= started;
                process.handle_start_response();
                if !started {
                    self.processes.remove(&process);
                }
                // The caller is gone: terminate the process.
                if reply.send(result).is_err() && started {
                    self.terminate(&process);
                    if process.owner() == ProcessOwner::Server {
                        self.detach(&process);
                    }
                }
            }
            ResponseSink::ProbeStart(reply, process) => {
                self.handle_start_probe(reply, &process, result)
            }
            ResponseSink::Attach(pending, process, after) => {
                self.handle_attach_response(pending, &process, after, result);
            }
            ResponseSink::LookUp(processes) => self.handle_process_list(processes, &result),
            ResponseSink::Release(id) => self.handle_release_response(&id),
            ResponseSink::FillGap(process) => self.handle_page(&process, result),
            ResponseSink::Terminate(process) => self.handle_terminated(&process, result),
            ResponseSink::Cancellable(reply, resource) => {
                self.bodies.handle_response(&resource, result.is_ok());
                let result = match result {
                    Ok(response) => Ok(RawResponse {
                        release_guard: self
                            .deferred_release(resource)
                            .map(|release| ReleaseGuard::new(&self.shared, release)),
                        ..response
                    }),
                    Err(error) => {
                        self.watches.cancel(&resource);
                        Err(error)
                    }
                };
                // If the caller is gone, dropping the response releases the opened resource.
                drop(reply.send(result));
            }
        }
    }

    /// Removes a failed process, unless its last events must still be acknowledged.
    fn handle_terminated(&mut self, process: &Arc<ProcessEvents>, result: CallResult) {
        if !self.processes.contains(process) {
            return;
        }
        self.release_unacked(process);
        let running = result.is_ok_and(|response| {
            serde_json::from_slice(&response.result)
                .is_ok_and(|TerminateResult { running, .. }| running)
        });
        if self.flow_control == FlowControlMode::PerConnection || !running {
            self.processes.finish(process);
        }
    }

    fn deferred_release(&self, resource: OpenedResource) -> Option<DeferredRelease> {
        match resource {
            OpenedResource::None
            | OpenedResource::UsesConnection(_)
            | OpenedResource::MissingWatch(..) => None,
            OpenedResource::File(handle) => Some(DeferredRelease::File(handle, self.number)),
            OpenedResource::Watch(watch) => Some(DeferredRelease::Watch(watch.id().clone())),
            // The request future releases it.
            OpenedResource::Body(_) => None,
        }
    }
}
