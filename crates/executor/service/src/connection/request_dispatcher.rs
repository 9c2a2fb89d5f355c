//! The reading half: decodes requests, keeps their order, and runs them.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use exec_core::{
    order::{Claim, Order, Ticket},
    peer::{Gate, Input},
};
use exec_transport::link::{Binary, MessageReader, Principal};
use exec_wire::{
    error::{ErrorCode, RpcError},
    id::HandleId,
    limits,
    message::{Message, RequestId, Trace, split_binary},
    method::{MethodName, Ordering},
    outgoing::Outgoing,
};
use futures_util::{
    StreamExt,
    future::{BoxFuture, FutureExt},
    stream::FuturesUnordered,
};
use serde_json::value::RawValue;
use tokio::task::{JoinError, JoinHandle, spawn_blocking, yield_now};
use tracing::Instrument;

use crate::{
    handler::{Dispatch, RequestHandler},
    handler::{EncodedResponse, HandlerOutcome},
    meters::Outcome,
    method_call::{DecodedMethod, DecodedRequest, LARGE_MESSAGE_BYTES, LargeMessage, MethodCall},
    request_guard::RequestGuard,
    send_queue::SendQueue,
    service::{Concurrency, ServiceShared},
    session::Session,
};

pub(super) struct RequestDispatcher {
    peer: String,
    binary: Binary,
    gate: Gate,
    shared: Arc<ServiceShared>,
    handler: RequestHandler,
    send_queue: Arc<SendQueue>,
    serial: bool,
    /// How long to stay awake after a message, and until when that is.
    busy_poll: Duration,
    poll_until: Option<Instant>,
    order: Order,
    /// Requests that wait for their turn.
    queued: BTreeMap<Ticket, QueuedRequest>,
    /// Files that are to be opened or closed, in their turn.
    pending_handle_ops: BTreeMap<Ticket, HandleId>,
    /// What queued requests and those that run take.
    queued_bytes: usize,
    /// A large message that is being decoded. No other is read meanwhile.
    decoding: Option<JoinHandle<LargeMessage>>,
    /// Answers that are ready and wait for room.
    blocked_responses: usize,
    /// Requests that run or wait, and answers that wait.
    ///
    /// They are polled always: whoever waits for room here may be first in line for it, and would
    /// hold up this task if this task waited, too.
    running: FuturesUnordered<BoxFuture<'static, Completion>>,
}

/// How reading ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum ReadOutcome {
    /// The peer is done.
    Done,
    /// The peer broke the rules of the transport, or the connection broke.
    Failed,
}

/// What something that is over gives back.
#[derive(Default)]
struct Completion {
    ticket: Option<Ticket>,
    bytes: usize,
    blocked_responses: usize,
}

/// A request that was admitted.
struct AdmittedRequest {
    id: RequestId,
    call: MethodCall,
    guard: RequestGuard,
}

struct QueuedRequest {
    item: QueuedItem,
    bytes: usize,
}

enum QueuedItem {
    Request(AdmittedRequest),
    /// An answer that is ready, and comes in its turn.
    Response(Outgoing),
}

impl RequestDispatcher {
    pub(super) fn new(
        shared: Arc<ServiceShared>,
        send_queue: Arc<SendQueue>,
        peer: &str,
        binary: Binary,
        principal: Option<Principal>,
    ) -> Self {
        let (serial, most) = match shared.config.concurrency {
            Concurrency::Serial => (true, 1),
            Concurrency::AtMost(most) => (false, most.get()),
        };
        let busy_poll = shared.config.attention;
        Self {
            peer: peer.to_owned(),
            binary,
            gate: Gate::default(),
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
            order: Order::new(most),
            queued: BTreeMap::new(),
            pending_handle_ops: BTreeMap::new(),
            queued_bytes: 0,
            decoding: None,
            blocked_responses: 0,
            running: FuturesUnordered::new(),
        }
    }

    /// Runs until the peer is done, or breaks the rules of the transport.
    pub(super) async fn run(&mut self, input: &mut dyn MessageReader) -> ReadOutcome {
        loop {
            // Requests and answers are kept in memory, so they are bounded.
            let full = self.queued_bytes >= limits::MAX_MESSAGE_BYTES
                || self.blocked_responses > 0
                || self.decoding.is_some();
            let busy_polling = self.poll_until.is_some_and(|until| Instant::now() < until);
            tokio::select! {
                biased;
                Some(completion) = self.running.next() => self.handle_completion(&completion),
                Some(message) = decoded(&mut self.decoding) => {
                    self.decoding = None;
                    match message {
                        Ok(message) => self.handle_large(message).await,
                        // The runtime ends.
                        Err(_) => return ReadOutcome::Done,
                    }
                }
                message = input.next(), if !full => match message {
                    Ok(Some(message)) => {
                        self.handle_message(message).await;
                        self.extend_busy_poll();
                    }
                    Ok(None) => return ReadOutcome::Done,
                    Err(error) => {
                        tracing::debug!(peer = self.peer, %error, "connection is given up");
                        return ReadOutcome::Failed;
                    }
                },
                // Looks again at once, instead of going to sleep.
                () = yield_now(), if busy_polling => {}
            }
        }
    }

    fn handle_completion(&mut self, completion: &Completion) {
        self.queued_bytes -= completion.bytes;
        self.blocked_responses -= completion.blocked_responses;
        if let Some(ticket) = completion.ticket {
            self.finish(ticket);
            self.start_ready();
        }
    }

    fn finish(&mut self, ticket: Ticket) {
        self.pending_handle_ops.remove(&ticket);
        self.order.finish(ticket);
    }

    /// What follows a message often comes sooner than a thread that sleeps wakes up.
    fn extend_busy_poll(&mut self) {
        self.poll_until = (!self.busy_poll.is_zero()).then(|| Instant::now() + self.busy_poll);
    }

    /// Gives up the connection's session.
    pub(super) fn into_session(self) -> Option<Arc<Session>> {
        self.handler.into_session()
    }

    async fn handle_message(&mut self, frame: Bytes) {
        let bytes = frame.len();
        let meters = Arc::clone(&self.shared.meters);
        meters.messages_received.increment();
        meters.received_bytes.add_bytes(bytes);
        if bytes > LARGE_MESSAGE_BYTES {
            self.decoding = Some(spawn_blocking(move || LargeMessage::decode(frame)));
            return;
        }
        let decoded = match split_binary(&frame) {
            None => Ok((frame, None)),
            Some(Ok((header, data))) => Ok((header, Some(data))),
            Some(Err(error)) => Err(error.to_string()),
        };
        let message = match &decoded {
            Ok((text, data)) => {
                Message::decode_with(text, data.clone()).map_err(|error| error.to_string())
            }
            Err(error) => Err(error.clone()),
        };
        match message.map(|message| self.gate.handle_message(message)) {
            Ok(Input::Request(mut request)) => {
                let has_data = request.data.is_some();
                let decoded = match MethodName::parse(&request.method) {
                    Some(method) => {
                        let granted = self.check_data(has_data);
                        let call = granted.and_then(|()| MethodCall::decode(method, &mut request));
                        DecodedMethod::Known(method, call)
                    }
                    None => DecodedMethod::Unknown(request.method.into_owned()),
                };
                let request = DecodedRequest {
                    id: request.id,
                    trace: request.trace,
                    has_data,
                    decoded,
                    bytes,
                };
                self.handle_request(request).await;
            }
            Ok(input) => self.handle_non_request(input),
            Err(reason) => self.reject_malformed(&reason),
        }
    }

    /// Handles a message that was decoded on the blocking pool.
    async fn handle_large(&mut self, message: LargeMessage) {
        match message {
            LargeMessage::Request(request) => self.handle_request(request).await,
            LargeMessage::Notification(method) => {
                let note = exec_wire::message::Notification {
                    method: method.into(),
                    params: None,
                    data: None,
                };
                let input = self.gate.handle_message(Message::Notification(note));
                self.handle_non_request(input);
            }
            LargeMessage::Response(id) => {
                let response = exec_wire::message::Response {
                    id,
                    result: RawValue::NULL,
                    data: None,
                };
                self.handle_non_request(Input::Answer(Message::Response(response)));
            }
            LargeMessage::Malformed(reason) => self.reject_malformed(&reason),
        }
    }

    async fn handle_request(&mut self, request: DecodedRequest) {
        let DecodedRequest { id, bytes, .. } = request;
        let (method, call) = match request.decoded {
            DecodedMethod::Known(method, call) => (method, call),
            DecodedMethod::Unknown(name) => {
                self.shared.meters.requests.unknown_methods.increment();
                let message = format!("exec-server does not implement `{name}`");
                let unknown = RpcError::new(ErrorCode::METHOD_NOT_FOUND, message);
                let error = self.check_data(request.has_data).err().unwrap_or(unknown);
                return self.respond(Outgoing::error(&id, &error));
            }
        };
        let guard = self.start_guard(method, request.trace.as_ref());
        match self.admit(method, request.has_data, call) {
            Ok((ordering, call)) => {
                guard.record_process(call.process());
                let request = AdmittedRequest { id, call, guard };
                self.handle_call(request, ordering, bytes).await;
            }
            Err(error) => {
                guard.finish(Outcome::of(&error));
                self.respond(Outgoing::error(&id, &error));
            }
        }
    }

    /// Handles what is not a request.
    fn handle_non_request(&mut self, input: Input<'_>) {
        match input {
            Input::Reply(reply) => self.respond(reply),
            Input::Acknowledged(acknowledged) => self.handler.acknowledge(&acknowledged),
            Input::Answer(response) => {
                if !self.send_queue.server_requests().handle_response(response) {
                    self.gate.handle_unsolicited();
                    self.shared.meters.unsolicited_responses.increment();
                }
            }
            Input::Request(_) | Input::Nothing => {}
        }
    }

    fn reject_malformed(&mut self, reason: &str) {
        self.shared.meters.requests.malformed.increment();
        let peer = &self.peer;
        // The stock server's words: its clients compare them.
        let text = match self.binary {
            Binary::Possible => format!(
                "failed to parse websocket JSON-RPC message from exec-server websocket \
                 {peer}: {reason}"
            ),
            Binary::Refused => {
                format!("failed to parse JSON-RPC message from {peer}: {reason}")
            }
        };
        let error = RpcError::invalid_request(text);
        self.respond(Outgoing::error(&RequestId::NONE, &error));
    }

    /// Checks that raw data came from a peer that may send it.
    fn check_data(&self, has_data: bool) -> Result<(), RpcError> {
        match has_data && !self.handler.takes_binary() {
            true => Err(RpcError::invalid_request("binary data was not granted")),
            false => Ok(()),
        }
    }

    /// Checks a request whose method there is in the order the protocol fixes: parameters, handshake.
    fn admit(
        &self,
        method: MethodName,
        has_data: bool,
        call: Result<MethodCall, RpcError>,
    ) -> Result<(Ordering, MethodCall), RpcError> {
        self.check_data(has_data)?;
        let call = call?;
        self.gate.admit(method)?;
        Ok((method.ordering(), call))
    }

    fn start_guard(&self, method: MethodName, trace: Option<&Trace>) -> RequestGuard {
        let ServiceShared {
            meters,
            continue_trace,
            ..
        } = &*self.shared;
        let session = self.handler.session_id();
        RequestGuard::new(meters, method, session, trace, *continue_trace)
    }

    async fn handle_call(&mut self, request: AdmittedRequest, ordering: Ordering, bytes: usize) {
        let AdmittedRequest {
            id,
            mut call,
            guard,
        } = request;
        if let MethodCall::Initialize(params) = call {
            let opened = self.handler.initialize(params);
            let opened = opened.instrument(guard.span.clone()).await;
            if let Ok(opened) = &opened {
                self.gate.handle_session(&opened.extensions);
            }
            let response = EncodedResponse::new(&id, &opened);
            guard.finish(response.outcome);
            return self.send_response(response.message, None);
        }
        // In strict order, a name means what it means in its turn.
        let ordering = if self.serial {
            ordering
        } else {
            self.pin_file_handle(&mut call, ordering)
        };
        if ordering == Ordering::Control && !self.serial {
            // Never queues, and is never refused for the many that wait.
            self.dispatch(AdmittedRequest { id, call, guard }, None, 0);
        } else if self.is_busy() && !matches!(call, MethodCall::Unwatch(_)) {
            let most = limits::MAX_REQUESTS_IN_FLIGHT;
            let error = RpcError::internal(format!("more than {most} requests are unanswered"));
            guard.finish(Outcome::of(&error));
            self.send_response(Outgoing::error(&id, &error), None);
        } else {
            let starts = call.started_process().cloned();
            let changed_handle = call.changed_handle().cloned();
            let item = QueuedItem::Request(AdmittedRequest { id, call, guard });
            let ticket = self.enqueue(Claim { ordering, starts }, QueuedRequest { item, bytes });
            self.pending_handle_ops
                .extend(changed_handle.map(|id| (ticket, id)));
            self.start_ready();
        }
    }

    fn is_busy(&self) -> bool {
        self.running.len() + self.queued.len() >= limits::MAX_REQUESTS_IN_FLIGHT
    }

    /// Takes hold of the open file that a block is of, if its name stays what it is until the
    /// block's turn: closing does not queue, and would otherwise overtake. Returns how the request
    /// is ordered: a close queues after all if its name is to be opened or closed before.
    fn pin_file_handle(&mut self, call: &mut MethodCall, ordering: Ordering) -> Ordering {
        let Some(id) = call.file_handle() else {
            return ordering;
        };
        if self
            .pending_handle_ops
            .values()
            .any(|pending_handle_ops| pending_handle_ops == id)
        {
            return if matches!(call, MethodCall::CloseFile(_)) {
                Ordering::Changes
            } else {
                ordering
            };
        }
        if let MethodCall::CloseFile(close) = call {
            for queued in self.queued.values_mut() {
                if let QueuedItem::Request(earlier) = &mut queued.item
                    && earlier.call.file_handle() == Some(&close.handle_id)
                {
                    self.handler.pin_file_handle(&mut earlier.call);
                }
            }
        } else {
            self.handler.pin_file_handle(call);
        }
        ordering
    }

    /// Sends an answer that is ready: at once, or, in strict order, in its turn.
    fn respond(&mut self, response: Outgoing) {
        if self.serial && !self.order.is_idle() {
            let bytes = response.text_len();
            let item = QueuedItem::Response(response);
            self.enqueue(Ordering::Reads.into(), QueuedRequest { item, bytes });
            self.start_ready();
        } else {
            self.send_response(response, None);
        }
    }

    /// Sends an answer, now or when there is room, and ends its request.
    fn send_response(&mut self, response: Outgoing, ticket: Option<Ticket>) {
        match (self.send_queue.try_send(response), ticket) {
            (Ok(()), None) => {}
            (Ok(()), Some(ticket)) => self.finish(ticket),
            (Err(response), ticket) => {
                self.blocked_responses += 1;
                let send_queue = Arc::clone(&self.send_queue);
                let send = async move {
                    send_queue.send(response).await;
                    Completion {
                        ticket,
                        bytes: 0,
                        blocked_responses: 1,
                    }
                };
                self.running.push(send.boxed());
            }
        }
    }

    fn enqueue(&mut self, claim: Claim, item: QueuedRequest) -> Ticket {
        let ticket = self.order.submit(claim);
        self.queued_bytes += item.bytes;
        self.queued.insert(ticket, item);
        ticket
    }

    /// Begins every request whose turn it is.
    fn start_ready(&mut self) {
        while let Some(ticket) = self.order.poll_ready() {
            let Some(QueuedRequest { item, bytes }) = self.queued.remove(&ticket) else {
                continue;
            };
            match item {
                QueuedItem::Request(request) => self.dispatch(request, Some(ticket), bytes),
                QueuedItem::Response(response) => {
                    self.queued_bytes -= bytes;
                    self.send_response(response, Some(ticket));
                }
            }
        }
    }

    /// Begins a request that takes `bytes` until it is done, or only waits.
    fn dispatch(&mut self, request: AdmittedRequest, ticket: Option<Ticket>, bytes: usize) {
        let AdmittedRequest { id, call, guard } = request;
        let (send_queue, span) = (Arc::clone(&self.send_queue), guard.span.clone());
        match span.in_scope(|| self.handler.dispatch(id, call)) {
            Dispatch::Ready(response) => {
                self.queued_bytes -= bytes;
                guard.finish(response.outcome);
                self.send_response(response.message, ticket);
            }
            Dispatch::Running(reply) => {
                let run = async move {
                    let reply = reply.await;
                    guard.finish(reply.outcome());
                    if let HandlerOutcome::Respond(response) = reply {
                        send_queue.send(response.message).await;
                    }
                    Completion {
                        ticket,
                        bytes,
                        blocked_responses: 0,
                    }
                };
                self.running.push(run.instrument(span).boxed());
            }
            Dispatch::Waiting(response) => {
                let send = async move {
                    let response = response.await;
                    guard.finish(response.outcome);
                    send_queue.send(response.message).await;
                };
                self.run_waiting(send.instrument(span).boxed(), ticket, bytes);
            }
            Dispatch::Streaming(answers) => {
                let send = async move { guard.finish(answers.await) };
                self.run_waiting(send.instrument(span).boxed(), ticket, bytes);
            }
        }
    }

    /// Lets a request wait. In strict order even that holds everybody up; otherwise nobody.
    fn run_waiting(&mut self, waits: BoxFuture<'static, ()>, ticket: Option<Ticket>, bytes: usize) {
        self.queued_bytes -= bytes;
        let held = if self.serial { ticket } else { None };
        if let (false, Some(ticket)) = (self.serial, ticket) {
            self.finish(ticket);
        }
        let completion = Completion {
            ticket: held,
            ..Completion::default()
        };
        self.running.push(waits.map(|()| completion).boxed());
    }
}

/// Waits for a message that is being decoded, if one is.
async fn decoded(
    decoding: &mut Option<JoinHandle<LargeMessage>>,
) -> Option<Result<LargeMessage, JoinError>> {
    Some(decoding.as_mut()?.await)
}
