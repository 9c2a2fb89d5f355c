//! Decodes and handles messages from the server: notifications, server requests, responses.

use std::sync::Arc;

use bytes::Bytes;
use exec_core::output_log::{ExitInfo, LogEvent, OutputChunk};
use exec_wire::{
    base64_bytes::Base64Bytes,
    http::{CancelHttpRequest, HttpBodyDelta},
    id::ProcessId,
    message::{ParamsError, RpcMessage, RpcNotification, decode_params, split_binary},
    method::notification,
    network::PolicyDecision,
    process::{
        ExitCause, ProcessClosed, ProcessExited, ProcessOutput, ProcessStarted, TerminateResult,
    },
    signal_name::known_signal_name,
    tunnel::TunnelMessage,
};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::{
    call::{CallResult, OpenedResource, RawResponse, ResponseSink},
    connection::{ClientConnection, DisconnectCause, FlowControlMode},
};
use crate::{
    client_shared::{DeferredRelease, ReleaseGuard},
    error::ExecServerError,
    events::{EventsError, OutputGap, ProcessEvents, ProcessOwner},
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
        if self.tunnels.is_some()
            && let Some(message) = TunnelMessage::decode(message)
        {
            let message = message.map_err(|error| {
                DisconnectCause::Protocol(format!("invalid message about a tunnel: {error}"))
            })?;
            self.shared.tunnels.handle_message(message);
            return Ok(());
        }
        let Err(ParamsError(reason)) = self.handle_known(message) else {
            return Ok(());
        };
        let text = format!("invalid `{}` notification: {reason}", message.method);
        let Ok(ProcessRef { process_id }) = decode_params(message.params) else {
            return Err(DisconnectCause::Protocol(text));
        };
        // Other processes are not affected.
        if let Some(process) = self.processes.find(&process_id) {
            self.apply_recorded(&process, Err(EventsError::Malformed(text)));
        }
        Ok(())
    }

    /// Handles a notification that this version knows, and ignores others. Fails if it is malformed.
    fn handle_known(&mut self, message: &RpcNotification<'_>) -> Result<(), ParamsError> {
        match &*message.method {
            notification::PROCESS_OUTPUT => {
                let output: ProcessOutput = decode_params(message.params)?;
                let chunk = OutputChunk {
                    seq: output.seq,
                    stream: output.stream,
                    data: data_member(output.chunk, message, "chunk")?,
                };
                self.handle_event(&output.process_id, LogEvent::Output(chunk));
            }
            notification::PROCESS_EXITED => {
                let exited: ProcessExited = decode_params(message.params)?;
                let exit = ExitInfo {
                    code: exited.exit_code,
                    signal: exited.signal.as_deref().map(known_signal_name),
                    cause: exited.cause.unwrap_or(ExitCause::Unknown),
                    usage: exited.usage,
                    sandbox_denied: exited.sandbox_denied.unwrap_or(false),
                };
                self.handle_event(&exited.process_id, LogEvent::Exited(exited.seq, exit));
            }
            notification::PROCESS_CLOSED => {
                let closed: ProcessClosed = decode_params(message.params)?;
                self.handle_event(&closed.process_id, LogEvent::Closed(closed.seq));
            }
            notification::PROCESS_STARTED => {
                let started: ProcessStarted = decode_params(message.params)?;
                if let Some(process) = self.processes.find(&started.process_id) {
                    process.handle_start_time(started.started_at_ms, started.os_pid);
                }
            }
            notification::FS_CHANGED => self.watches.handle_changed(decode_params(message.params)?),
            notification::FS_MISSING_CHANGED => {
                self.watches
                    .handle_missing_changed(decode_params(message.params)?);
            }
            notification::HTTP_BODY_DELTA => {
                let mut delta: HttpBodyDelta = decode_params(message.params)?;
                let data = data_member(delta.delta_base64.take(), message, "deltaBase64")?;
                if let Some(request_id) = self.bodies.handle_delta(delta, data) {
                    self.send_unanswered(&CancelHttpRequest { request_id });
                }
            }
            notification::NETWORK_POLICY_DECISION => {
                // Decision records are best-effort: ignore malformed ones.
                if let Ok(decision) = decode_params::<PolicyDecision>(message.params)
                    && let Some(process) = self.processes.find(&decision.process_id)
                    && let Some(hook) = process.network_hook()
                {
                    hook.watcher.record(decision);
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Passes an event to its process.
    fn handle_event(&mut self, id: &ProcessId, event: LogEvent) {
        if self.releasing.contains(id) {
            return;
        }
        let Some(process) = self.processes.find(id) else {
            return;
        };
        let closed = matches!(event, LogEvent::Closed(_));
        let recorded = process.handle_event(event);
        self.apply_recorded(&process, recorded);
        if closed && process.is_failed() && process.owner() == ProcessOwner::Session {
            self.release_unacked(&process);
            self.processes.finish(&process);
        }
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
            OpenedResource::Tunnel(id) => Some(DeferredRelease::Tunnel(id)),
            OpenedResource::Watch(watch) => Some(DeferredRelease::Watch(watch.id().clone())),
            // The request future releases it.
            OpenedResource::Body(_) => None,
        }
    }
}

/// The member that names the process of a notification.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ProcessRef {
    process_id: ProcessId,
}

/// Returns the data of a notification: in a member, or raw beside the text.
fn data_member(
    embedded: Option<Base64Bytes>,
    message: &RpcNotification<'_>,
    member: &str,
) -> Result<Bytes, ParamsError> {
    let data = embedded.map(|data| data.0).or_else(|| message.data.clone());
    data.ok_or_else(|| ParamsError(format!("missing field `{member}`")))
}
