//! Request dispatch: decodes requests, admits them, orders them and runs them.
//!
//! Invariant: requests that conflict take effect in order of arrival. [`exec_core::request_order`]
//! has the record of each request and decides the order; this module executes it. Queued requests
//! and blocked responses are bounded: at the bound the dispatcher stops reading, which is the
//! backpressure on the client.

use std::{
    pin::pin,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use exec_core::{
    peer::{HandshakeGate, MessageAction},
    request_order::{OrderTicket, OrderingClaim, RequestOrder},
};
use exec_transport::link::{BinarySupport, MessageReader, Principal};
use exec_wire::{
    error::{ErrorCode, RpcError},
    limits,
    message::{RequestId, RpcMessage, TraceContext},
    method::{MethodCall, MethodName, OrderingClass, notification},
    outgoing_message::OutgoingMessage,
};
use futures_util::{
    StreamExt,
    future::{BoxFuture, FutureExt},
    stream::FuturesUnordered,
};
use serde_json::value::RawValue;
use tokio::task::{JoinError, JoinHandle, spawn_blocking, yield_now};
use tracing::Instrument;

use super::decoded_request::{
    DecodedMethod, DecodedRequest, LARGE_MESSAGE_BYTES, LargeMessage, split_frame,
};
use crate::{
    handler::{Dispatch, PinnedFile, RequestHandler, RequestResult},
    metrics::RequestOutcome,
    request_guard::RequestGuard,
    send_queue::SendQueue,
    service::{Concurrency, ServiceShared},
    session::Session,
};

/// Reads messages of one connection and dispatches requests to their handlers.
pub(super) struct RequestDispatcher {
    peer: String,
    binary: BinarySupport,
    gate: HandshakeGate,
    shared: Arc<ServiceShared>,
    handler: RequestHandler,
    send_queue: Arc<SendQueue>,
    serial: bool,
    /// Busy polling: how long to poll after each message, and the end of the current period.
    busy_poll: Duration,
    poll_until: Option<Instant>,
    /// Requests without a response, and blocked responses.
    requests: RequestOrder<QueuedItem>,
    /// A large message in decoding. Nothing else is read meanwhile.
    decoding: Option<JoinHandle<LargeMessage>>,
    /// The futures of requests that are not queued.
    ///
    /// Polled in every iteration: a future in here may be first in line for the send queue's
    /// permits, and would deadlock this task if this task awaited permits itself.
    running: FuturesUnordered<BoxFuture<'static, OrderTicket>>,
}

/// Why [`RequestDispatcher::run`] returned.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum ReadOutcome {
    /// The peer closed the connection.
    Done,
    /// The peer violated the transport protocol, or the connection broke.
    Failed,
    /// This side stopped reading.
    Stopped,
}

/// A request that passed the checks of [`RequestDispatcher::admit`].
struct AdmittedRequest {
    id: RequestId,
    call: Box<MethodCall>,
    /// The file that the handle of the request named when the request arrived.
    file: PinnedFile,
    guard: RequestGuard,
}

enum QueuedItem {
    Request(AdmittedRequest),
    /// A finished response that must keep its position in serial order.
    Response(OutgoingMessage),
}

impl RequestDispatcher {
    pub(super) fn new(
        shared: Arc<ServiceShared>,
        send_queue: Arc<SendQueue>,
        peer: &str,
        binary: BinarySupport,
        principal: Option<Principal>,
    ) -> Self {
        let (serial, max) = match shared.config.concurrency {
            Concurrency::Serial => (true, 1),
            Concurrency::AtMost(max) => (false, max.get()),
        };
        let busy_poll = shared.config.busy_poll;
        Self {
            peer: peer.to_owned(),
            binary,
            gate: HandshakeGate::default(),
            handler: RequestHandler::new(
                Arc::clone(&shared),
                Arc::clone(&send_queue),
                binary,
                principal,
            ),
            shared,
            send_queue,
            serial,
            busy_poll,
            poll_until: None,
            requests: RequestOrder::new(max),
            decoding: None,
            running: FuturesUnordered::new(),
        }
    }

    /// Reads and dispatches messages until the connection ends, or until `stop` resolves and the
    /// client has a session.
    pub(super) async fn run(
        &mut self,
        input: &mut dyn MessageReader,
        stop: impl Future<Output = ()>,
    ) -> ReadOutcome {
        let mut stop = pin!(stop);
        loop {
            // Backpressure: stop reading while queued requests or responses exceed their bounds.
            let full =
                self.requests.bytes() >= limits::MAX_MESSAGE_BYTES || self.decoding.is_some();
            let busy_polling = self.poll_until.is_some_and(|until| Instant::now() < until);
            tokio::select! {
                biased;
                Some(ticket) = self.running.next() => {
                    self.requests.finish(ticket);
                    self.start_ready();
                }
                Some(message) = decoded(&mut self.decoding) => {
                    self.decoding = None;
                    match message {
                        Ok(message) => self.handle_large(message).await,
                        // The runtime is shutting down.
                        Err(_) => return ReadOutcome::Done,
                    }
                }
                () = &mut stop, if self.handler.session_id().is_some() => {
                    return ReadOutcome::Stopped;
                }
                message = input.next(), if !full => match message {
                    Ok(Some(message)) => {
                        self.handle_message(message).await;
                        self.extend_busy_poll();
                    }
                    Ok(None) => return ReadOutcome::Done,
                    Err(error) => {
                        tracing::debug!(
                            peer = self.peer, %error, "failed to read from the connection"
                        );
                        return ReadOutcome::Failed;
                    }
                },
                // Busy polling: poll again at once instead of sleeping.
                () = yield_now(), if busy_polling => {}
            }
        }
    }

    /// Starts a new busy-polling period: the next message often arrives faster than a thread wakes.
    fn extend_busy_poll(&mut self) {
        self.poll_until = (!self.busy_poll.is_zero()).then(|| Instant::now() + self.busy_poll);
    }

    /// Finishes pending requests that have an effect, without reading more: a client cannot know
    /// whether an unanswered request took effect. Requests that only wait are not awaited.
    pub(super) async fn drain(&mut self) {
        loop {
            if let Some(decoding) = self.decoding.take()
                && let Ok(message) = decoding.await
            {
                self.handle_large(message).await;
            }
            if !self.requests.has_unfinished() {
                return;
            }
            let Some(ticket) = self.running.next().await else {
                return;
            };
            self.requests.finish(ticket);
            self.start_ready();
        }
    }

    /// Returns the session of the connection, if one was initialized.
    pub(super) fn into_session(self) -> Option<Arc<Session>> {
        self.handler.into_session()
    }

    async fn handle_message(&mut self, frame: Bytes) {
        let bytes = frame.len();
        let metrics = Arc::clone(&self.shared.metrics);
        metrics.messages_received.increment();
        metrics.received_bytes.add_bytes(bytes);
        if bytes > LARGE_MESSAGE_BYTES {
            self.decoding = Some(spawn_blocking(move || LargeMessage::decode(frame)));
            return;
        }
        let (text, data) = match split_frame(frame) {
            Ok(parts) => parts,
            Err(reason) => return self.reject_malformed(&reason),
        };
        let has_data = data.is_some();
        let message = RpcMessage::decode_with(&text, data);
        match message.map(|message| self.gate.handle_message(message)) {
            Ok(MessageAction::Request(request)) => {
                self.handle_request(DecodedRequest::new(request, bytes))
                    .await;
            }
            Ok(MessageAction::Tunnel(message)) => {
                if let Err(error) = self.check_data(has_data) {
                    return self.respond(OutgoingMessage::error(&RequestId::NONE, &error));
                }
                self.handler.handle_tunnel(message);
            }
            Ok(input) => self.handle_non_request(input),
            Err(error) => self.reject_malformed(&error.to_string()),
        }
    }

    /// Handles a message that was decoded on the blocking pool.
    async fn handle_large(&mut self, message: LargeMessage) {
        match message {
            LargeMessage::Request(request) => self.handle_request(request).await,
            LargeMessage::Notification(method) if method == notification::TUNNEL_DATA => {
                let text = format!("`{method}` must not exceed {LARGE_MESSAGE_BYTES} bytes");
                let error = RpcError::invalid_params(text);
                self.respond(OutgoingMessage::error(&RequestId::NONE, &error));
            }
            LargeMessage::Notification(method) => {
                let note = exec_wire::message::RpcNotification {
                    method: method.into(),
                    params: None,
                    data: None,
                };
                let input = self.gate.handle_message(RpcMessage::Notification(note));
                self.handle_non_request(input);
            }
            LargeMessage::Response(id) => {
                let response = exec_wire::message::RpcResponse {
                    id,
                    result: RawValue::NULL,
                    data: None,
                };
                self.handle_non_request(MessageAction::Response(RpcMessage::Response(response)));
            }
            LargeMessage::Malformed(reason) => self.reject_malformed(&reason),
        }
    }

    async fn handle_request(&mut self, request: DecodedRequest) {
        let DecodedRequest { id, bytes, .. } = request;
        let (method, call) = match request.decoded {
            DecodedMethod::Known(method, call) => (method, call),
            DecodedMethod::Unknown(name) => {
                self.shared.metrics.requests.unknown_methods.increment();
                let message = format!("exec-server does not implement `{name}`");
                let unknown = RpcError::new(ErrorCode::METHOD_NOT_FOUND, message);
                let error = self.check_data(request.has_data).err().unwrap_or(unknown);
                return self.respond(OutgoingMessage::error(&id, &error));
            }
        };
        let guard = self.start_guard(method, request.trace.as_ref());
        match self.admit(method, request.has_data, call) {
            Ok((ordering, call)) => {
                guard.record_process(call.process_id());
                let request = AdmittedRequest {
                    id,
                    call,
                    file: None,
                    guard,
                };
                self.handle_call(request, ordering, bytes).await;
            }
            Err(error) => {
                guard.finish(RequestOutcome::of(&error));
                self.respond(OutgoingMessage::error(&id, &error));
            }
        }
    }

    /// Handles notifications, responses and protocol errors.
    fn handle_non_request(&mut self, input: MessageAction<'_>) {
        match input {
            MessageAction::Reply(reply) => self.respond(reply),
            MessageAction::Acknowledge(acknowledged) => self.handler.acknowledge(&acknowledged),
            MessageAction::Response(response) => {
                if !self.send_queue.server_requests().handle_response(response) {
                    self.shared.metrics.unsolicited_responses.increment();
                }
            }
            MessageAction::Ready => self.handler.begin_tunnels(),
            MessageAction::Request(_) | MessageAction::Tunnel(_) | MessageAction::Ignore => {}
        }
    }

    fn reject_malformed(&mut self, reason: &str) {
        self.shared.metrics.requests.malformed.increment();
        let peer = &self.peer;
        // The stock server's text: its clients compare it.
        let text = match self.binary {
            BinarySupport::Supported => format!(
                "failed to parse websocket JSON-RPC message from exec-server websocket \
                 {peer}: {reason}"
            ),
            BinarySupport::TextOnly => {
                format!("failed to parse JSON-RPC message from {peer}: {reason}")
            }
        };
        let error = RpcError::invalid_request(text);
        self.respond(OutgoingMessage::error(&RequestId::NONE, &error));
    }

    /// Rejects raw binary data unless the extension was granted.
    fn check_data(&self, has_data: bool) -> Result<(), RpcError> {
        match has_data && !self.handler.accepts_binary() {
            true => Err(RpcError::invalid_request("binary data was not granted")),
            false => Ok(()),
        }
    }

    /// Checks a request with a known method in the order that the protocol fixes: data, parameters,
    /// handshake.
    fn admit(
        &self,
        method: MethodName,
        has_data: bool,
        call: Result<Box<MethodCall>, RpcError>,
    ) -> Result<(OrderingClass, Box<MethodCall>), RpcError> {
        self.check_data(has_data)?;
        let call = call?;
        self.gate.admit(method)?;
        Ok((method.ordering(), call))
    }

    fn start_guard(&self, method: MethodName, trace: Option<&TraceContext>) -> RequestGuard {
        let ServiceShared {
            metrics,
            continue_trace,
            ..
        } = &*self.shared;
        let session = self.handler.session_id();
        RequestGuard::new(metrics, method, session, trace, *continue_trace)
    }

    async fn handle_call(
        &mut self,
        mut request: AdmittedRequest,
        ordering: OrderingClass,
        bytes: usize,
    ) {
        if let MethodCall::Initialize(params) = &*request.call {
            let opened = self.handler.initialize(params);
            let opened = opened.instrument(request.guard.span.clone()).await;
            if let Ok(opened) = &opened {
                self.gate.handle_initialize(&opened.extensions);
            }
            let result = RequestResult::new(&request.id, &opened);
            return self.complete(result, request.guard, None);
        }
        // In serial mode a handle id is resolved when the request runs.
        let ordering = if self.serial {
            ordering
        } else {
            self.pin_file_handle(&mut request, ordering)
        };
        if ordering == OrderingClass::Control && !self.serial {
            // Control requests run at once and are exempt from the limit.
            let ticket = self.requests.submit_unordered();
            self.dispatch(request, ticket);
        } else if self.requests.len() >= limits::MAX_REQUESTS_IN_FLIGHT
            && !matches!(*request.call, MethodCall::FsUnwatch(_))
        {
            let max = limits::MAX_REQUESTS_IN_FLIGHT;
            let error = RpcError::internal(format!("more than {max} requests are in flight"));
            let result = RequestResult::error(&request.id, &error);
            self.complete(result, request.guard, None);
        } else {
            let claim = OrderingClaim {
                ordering,
                starts: request.call.started_process().cloned(),
                changes_handle: request.call.changed_handle().cloned(),
                bytes,
            };
            self.requests.submit(claim, QueuedItem::Request(request));
            self.start_ready();
        }
    }

    /// Resolves the file handle of a block request now, so that a later `fs/close`, which does not
    /// queue, cannot overtake a queued block. Skips ids that a queued `fs/open` or `fs/close` will
    /// change. Returns the ordering of the request: an `fs/close` queues if an operation on the
    /// same id is pending.
    fn pin_file_handle(
        &mut self,
        request: &mut AdmittedRequest,
        ordering: OrderingClass,
    ) -> OrderingClass {
        let Some(id) = request.call.file_handle() else {
            return ordering;
        };
        let closes = matches!(*request.call, MethodCall::FsClose(_));
        if self.requests.will_change(id) {
            return if closes {
                OrderingClass::Changes
            } else {
                ordering
            };
        }
        if closes {
            for queued in self.requests.queued_mut() {
                if let QueuedItem::Request(earlier) = queued
                    && earlier.file.is_none()
                    && earlier.call.file_handle() == Some(id)
                {
                    earlier.file = self.handler.file_handle(&earlier.call);
                }
            }
        } else {
            request.file = self.handler.file_handle(&request.call);
        }
        ordering
    }

    /// Sends a finished response: at once, or in serial mode after the responses before it.
    fn respond(&mut self, response: OutgoingMessage) {
        if self.serial && !self.requests.is_empty() {
            let claim = OrderingClaim {
                bytes: response.text_len(),
                ..OrderingClass::Reads.into()
            };
            self.requests.submit(claim, QueuedItem::Response(response));
            self.start_ready();
        } else {
            self.send_response(response, None);
        }
    }

    /// Queues a response for sending, now or when the send queue has space, and finishes its
    /// request.
    fn send_response(&mut self, response: OutgoingMessage, ticket: Option<OrderTicket>) {
        match (self.send_queue.try_send(response), ticket) {
            (Ok(()), None) => {}
            (Ok(()), Some(ticket)) => self.requests.finish(ticket),
            (Err(response), ticket) => {
                let ticket = ticket.unwrap_or_else(|| self.requests.submit_unordered());
                // Read nothing until the response is sent.
                self.requests.set_bytes(ticket, limits::MAX_MESSAGE_BYTES);
                let send_queue = Arc::clone(&self.send_queue);
                let send = async move {
                    send_queue.send(response).await;
                    ticket
                };
                self.running.push(send.boxed());
            }
        }
    }

    /// Dispatches every request without unfinished conflicting predecessors.
    fn start_ready(&mut self) {
        while let Some((ticket, item)) = self.requests.poll_ready() {
            match item {
                QueuedItem::Request(request) => self.dispatch(request, ticket),
                QueuedItem::Response(response) => self.send_response(response, Some(ticket)),
            }
        }
    }

    /// Runs a request.
    fn dispatch(&mut self, request: AdmittedRequest, ticket: OrderTicket) {
        let AdmittedRequest {
            id,
            call,
            file,
            guard,
        } = request;
        let span = guard.span.clone();
        let result = match span.in_scope(|| self.handler.dispatch(id, *call, file)) {
            Dispatch::Ready(result) => return self.complete(result, guard, Some(ticket)),
            Dispatch::Running(result) => result,
            Dispatch::Waiting(result) => {
                self.release(ticket);
                result
            }
        };
        let send_queue = Arc::clone(&self.send_queue);
        let run = async move {
            let result = result.await;
            guard.finish(result.outcome);
            result.send(&send_queue).await;
            ticket
        };
        self.running.push(run.instrument(span).boxed());
    }

    /// Records the result of a request and sends its response.
    fn complete(
        &mut self,
        mut result: RequestResult,
        guard: RequestGuard,
        ticket: Option<OrderTicket>,
    ) {
        guard.finish(result.outcome);
        match (result.take_message(), ticket) {
            (Some(message), ticket) => self.send_response(message, ticket),
            (None, Some(ticket)) => self.requests.finish(ticket),
            (None, None) => {}
        }
    }

    /// Releases what a request occupies that only waits. It blocks later requests in serial mode
    /// only.
    fn release(&mut self, ticket: OrderTicket) {
        self.requests.set_bytes(ticket, 0);
        if !self.serial {
            self.requests.leave_order(ticket);
        }
    }
}

/// Awaits the large message in decoding, if there is one.
async fn decoded(
    decoding: &mut Option<JoinHandle<LargeMessage>>,
) -> Option<Result<LargeMessage, JoinError>> {
    Some(decoding.as_mut()?.await)
}
