//! Decodes and handles messages from the server: notifications, server requests, responses.

use std::sync::Arc;

use bytes::Bytes;
use exec_core::output_log::{ExitInfo, LogEvent, OutputChunk};
use exec_wire::{
    fs::{MissingPathNotification, WatchNotification},
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
            self.shared.tunnels().handle_message(message);
            return Ok(());
        }
        match decode_notification(message) {
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
            OpenedResource::Tunnel(id) => Some(DeferredRelease::Tunnel(id)),
            OpenedResource::Watch(watch) => Some(DeferredRelease::Watch(watch.id().clone())),
            // The request future releases it.
            OpenedResource::Body(_) => None,
        }
    }
}

/// A decoded notification.
#[derive(Debug)]
enum ServerNotification {
    /// An event of a process.
    Event(ProcessId, LogEvent),
    /// A process has started.
    Started(ProcessStarted),
    /// Changes of watched files.
    Changed(WatchNotification),
    /// The end of a missing-path watch.
    MissingChanged(MissingPathNotification),
    /// A network policy decision for a process.
    Decided(PolicyDecision),
    /// A chunk of a streamed body, or its end.
    BodyDelta(HttpBodyDelta, Bytes),
    /// An unknown notification.
    Unknown,
}

/// Peer: a known notification is malformed.
#[derive(Debug)]
struct NotificationError {
    /// The process of the notification, if it names one.
    process: Option<ProcessId>,
    /// The decoding error.
    reason: String,
}

/// Decodes a notification. Unknown ones are not errors.
fn decode_notification(
    message: &RpcNotification<'_>,
) -> Result<ServerNotification, NotificationError> {
    decode_known(message).map_err(|ParamsError(reason)| NotificationError {
        process: decode_params(message.params)
            .ok()
            .map(|ProcessRef { process_id }| process_id),
        reason,
    })
}

/// The member that names the process of a notification.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ProcessRef {
    process_id: ProcessId,
}

fn decode_known(message: &RpcNotification<'_>) -> Result<ServerNotification, ParamsError> {
    match &*message.method {
        notification::PROCESS_OUTPUT => {
            let output: ProcessOutput = decode_params(message.params)?;
            let embedded = output.chunk.map(|chunk| chunk.0);
            let data: Bytes = embedded
                .or_else(|| message.data.clone())
                .ok_or_else(|| ParamsError("missing field `chunk`".to_owned()))?;
            let chunk = OutputChunk {
                seq: output.seq,
                stream: output.stream,
                data,
            };
            Ok(ServerNotification::Event(
                output.process_id,
                LogEvent::Output(chunk),
            ))
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
            Ok(ServerNotification::Event(
                exited.process_id,
                LogEvent::Exited(exited.seq, exit),
            ))
        }
        notification::PROCESS_CLOSED => {
            let closed: ProcessClosed = decode_params(message.params)?;
            Ok(ServerNotification::Event(
                closed.process_id,
                LogEvent::Closed(closed.seq),
            ))
        }
        notification::PROCESS_STARTED => {
            decode_params(message.params).map(ServerNotification::Started)
        }
        notification::FS_CHANGED => decode_params(message.params).map(ServerNotification::Changed),
        notification::FS_MISSING_CHANGED => {
            decode_params(message.params).map(ServerNotification::MissingChanged)
        }
        notification::HTTP_BODY_DELTA => {
            let mut delta: HttpBodyDelta = decode_params(message.params)?;
            let embedded = delta.delta_base64.take().map(|data| data.0);
            let data = embedded
                .or_else(|| message.data.clone())
                .ok_or_else(|| ParamsError("missing field `deltaBase64`".to_owned()))?;
            Ok(ServerNotification::BodyDelta(delta, data))
        }
        // Decision records are best-effort: ignore malformed ones.
        notification::NETWORK_POLICY_DECISION => Ok(decode_params(message.params)
            .map_or(ServerNotification::Unknown, ServerNotification::Decided)),
        _ => Ok(ServerNotification::Unknown),
    }
}
