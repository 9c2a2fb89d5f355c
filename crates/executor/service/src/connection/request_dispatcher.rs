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
    handler::{Answer, Reply},
    handler::{Begun, Handler},
    meters::Outcome,
    method_call::{Call, DecodedMethod, DecodedRequest, LARGE_MESSAGE_BYTES, LargeMessage},
    request_guard::Observed,
    send_queue::Outbox,
    service::{Concurrency, Shared},
    session::Session,
};

pub(super) struct Reader {
    peer: String,
    binary: Binary,
    gate: Gate,
    shared: Arc<Shared>,
    handler: Handler,
    outbox: Arc<Outbox>,
    serial: bool,
    /// How long to stay awake after a message, and until when that is.
    attention: Duration,
    awake_until: Option<Instant>,
    order: Order,
    /// Requests that wait for their turn.
    queued: BTreeMap<Ticket, Queued>,
    /// Files that are to be opened or closed, in their turn.
    renamed: BTreeMap<Ticket, HandleId>,
    /// What queued requests and those that run take.
    held_bytes: usize,
    /// A large message that is being decoded. No other is read meanwhile.
    decoding: Option<JoinHandle<LargeMessage>>,
    /// Answers that are ready and wait for room.
    crowded: usize,
    /// Requests that run or wait, and answers that wait.
    ///
    /// They are polled always: whoever waits for room here may be first in line for it, and would
    /// hold up this task if this task waited, too.
    running: FuturesUnordered<BoxFuture<'static, Over>>,
}

/// How reading ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum ReadEnd {
    /// The peer is done.
    Done,
    /// The peer broke the rules of the transport, or the connection broke.
    Failed,
}

/// What something that is over gives back.
#[derive(Default)]
struct Over {
    ticket: Option<Ticket>,
    bytes: usize,
    crowded: usize,
}

/// A request that was admitted.
struct Request {
    id: RequestId,
    call: Call,
    observed: Observed,
}

struct Queued {
    work: Work,
    bytes: usize,
}

enum Work {
    Call(Request),
    /// An answer that is ready, and comes in its turn.
    Answer(Outgoing),
}

impl Reader {
    pub(super) fn new(
        shared: Arc<Shared>,
        outbox: Arc<Outbox>,
        peer: &str,
        binary: Binary,
        principal: Option<Principal>,
    ) -> Self {
        let (serial, most) = match shared.config.concurrency {
            Concurrency::Serial => (true, 1),
            Concurrency::AtMost(most) => (false, most.get()),
        };
        let attention = shared.config.attention;
        Self {
            peer: peer.to_owned(),
            binary,
            gate: Gate::default(),
            handler: Handler::new(Arc::clone(&shared), Arc::clone(&outbox), binary, principal),
            shared,
            outbox,
            serial,
            attention,
            awake_until: None,
            order: Order::new(most),
            queued: BTreeMap::new(),
            renamed: BTreeMap::new(),
            held_bytes: 0,
            decoding: None,
            crowded: 0,
            running: FuturesUnordered::new(),
        }
    }

    /// Runs until the peer is done, or breaks the rules of the transport.
    pub(super) async fn run(&mut self, input: &mut dyn MessageReader) -> ReadEnd {
        loop {
            // Requests and answers are kept in memory, so they are bounded.
            let full = self.held_bytes >= limits::MAX_MESSAGE_BYTES
                || self.crowded > 0
                || self.decoding.is_some();
            let awake = self.awake_until.is_some_and(|until| Instant::now() < until);
            tokio::select! {
                biased;
                Some(over) = self.running.next() => self.handle_over(&over),
                Some(message) = decoded(&mut self.decoding) => {
                    self.decoding = None;
                    match message {
                        Ok(message) => self.handle_large(message).await,
                        // The runtime ends.
                        Err(_) => return ReadEnd::Done,
                    }
                }
                message = input.next(), if !full => match message {
                    Ok(Some(message)) => {
                        self.handle_message(message).await;
                        self.stay_awake();
                    }
                    Ok(None) => return ReadEnd::Done,
                    Err(error) => {
                        tracing::debug!(peer = self.peer, %error, "connection is given up");
                        return ReadEnd::Failed;
                    }
                },
                // Looks again at once, instead of going to sleep.
                () = yield_now(), if awake => {}
            }
        }
    }

    fn handle_over(&mut self, over: &Over) {
        self.held_bytes -= over.bytes;
        self.crowded -= over.crowded;
        if let Some(ticket) = over.ticket {
            self.finish(ticket);
            self.start_ready();
        }
    }

    fn finish(&mut self, ticket: Ticket) {
        self.renamed.remove(&ticket);
        self.order.finish(ticket);
    }

    /// What follows a message often comes sooner than a thread that sleeps wakes up.
    fn stay_awake(&mut self) {
        self.awake_until = (!self.attention.is_zero()).then(|| Instant::now() + self.attention);
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
                        let call = granted.and_then(|()| Call::decode(method, &mut request));
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
            Ok(input) => self.handle_other(input),
            Err(reason) => self.refuse_malformed(&reason),
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
                self.handle_other(input);
            }
            LargeMessage::Answer(id) => {
                let answer = exec_wire::message::Response {
                    id,
                    result: RawValue::NULL,
                    data: None,
                };
                self.handle_other(Input::Answer(Message::Response(answer)));
            }
            LargeMessage::Malformed(reason) => self.refuse_malformed(&reason),
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
                return self.answer(Outgoing::error(&id, &error));
            }
        };
        let observed = self.observe(method, request.trace.as_ref());
        match self.admit(method, request.has_data, call) {
            Ok((ordering, call)) => {
                observed.names(call.process());
                let request = Request { id, call, observed };
                self.handle_call(request, ordering, bytes).await;
            }
            Err(error) => {
                observed.finish(Outcome::of(&error));
                self.answer(Outgoing::error(&id, &error));
            }
        }
    }

    /// Handles what is not a request.
    fn handle_other(&mut self, input: Input<'_>) {
        match input {
            Input::Reply(reply) => self.answer(reply),
            Input::Acknowledged(acknowledged) => self.handler.acknowledge(&acknowledged),
            Input::Answer(answer) => {
                if !self.outbox.asked().handle_answer(answer) {
                    self.gate.handle_unsolicited();
                    self.shared.meters.unsolicited_responses.increment();
                }
            }
            Input::Request(_) | Input::Nothing => {}
        }
    }

    fn refuse_malformed(&mut self, reason: &str) {
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
        self.answer(Outgoing::error(&RequestId::NONE, &error));
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
        call: Result<Call, RpcError>,
    ) -> Result<(Ordering, Call), RpcError> {
        self.check_data(has_data)?;
        let call = call?;
        self.gate.admit(method)?;
        Ok((method.ordering(), call))
    }

    fn observe(&self, method: MethodName, trace: Option<&Trace>) -> Observed {
        let Shared {
            meters,
            continue_trace,
            ..
        } = &*self.shared;
        let session = self.handler.session_id();
        Observed::begin(meters, method, session, trace, *continue_trace)
    }

    async fn handle_call(&mut self, request: Request, ordering: Ordering, bytes: usize) {
        let Request {
            id,
            mut call,
            observed,
        } = request;
        if let Call::Initialize(params) = call {
            let begun = self.handler.initialize(params);
            let begun = begun.instrument(observed.span.clone()).await;
            if let Ok(response) = &begun {
                self.gate.handle_session(&response.extensions);
            }
            let answer = Answer::new(&id, &begun);
            observed.finish(answer.outcome);
            return self.deliver(answer.message, None);
        }
        // In strict order, a name means what it means in its turn.
        let ordering = if self.serial {
            ordering
        } else {
            self.take_hold(&mut call, ordering)
        };
        if ordering == Ordering::Control && !self.serial {
            // Never queues, and is never refused for the many that wait.
            self.begin(Request { id, call, observed }, None, 0);
        } else if self.is_busy() && !matches!(call, Call::Unwatch(_)) {
            let most = limits::MAX_REQUESTS_IN_FLIGHT;
            let error = RpcError::internal(format!("more than {most} requests are unanswered"));
            observed.finish(Outcome::of(&error));
            self.deliver(Outgoing::error(&id, &error), None);
        } else {
            let starts = call.starts().cloned();
            let renames = call.renames().cloned();
            let work = Work::Call(Request { id, call, observed });
            let ticket = self.enqueue(Claim { ordering, starts }, Queued { work, bytes });
            self.renamed.extend(renames.map(|id| (ticket, id)));
            self.start_ready();
        }
    }

    fn is_busy(&self) -> bool {
        self.running.len() + self.queued.len() >= limits::MAX_REQUESTS_IN_FLIGHT
    }

    /// Takes hold of the open file that a block is of, if its name stays what it is until the
    /// block's turn: closing does not queue, and would otherwise overtake. Returns how the request
    /// is ordered: a close queues after all if its name is to be opened or closed before.
    fn take_hold(&mut self, call: &mut Call, ordering: Ordering) -> Ordering {
        let Some(id) = call.handle() else {
            return ordering;
        };
        if self.renamed.values().any(|renamed| renamed == id) {
            return if matches!(call, Call::CloseFile(_)) {
                Ordering::Changes
            } else {
                ordering
            };
        }
        if let Call::CloseFile(close) = call {
            for queued in self.queued.values_mut() {
                if let Work::Call(earlier) = &mut queued.work
                    && earlier.call.handle() == Some(&close.handle_id)
                {
                    self.handler.take_hold(&mut earlier.call);
                }
            }
        } else {
            self.handler.take_hold(call);
        }
        ordering
    }

    /// Sends an answer that is ready: at once, or, in strict order, in its turn.
    fn answer(&mut self, answer: Outgoing) {
        if self.serial && !self.order.is_idle() {
            let bytes = answer.text_len();
            let work = Work::Answer(answer);
            self.enqueue(Ordering::Reads.into(), Queued { work, bytes });
            self.start_ready();
        } else {
            self.deliver(answer, None);
        }
    }

    /// Sends an answer, now or when there is room, and ends its request.
    fn deliver(&mut self, answer: Outgoing, ticket: Option<Ticket>) {
        match (self.outbox.try_send(answer), ticket) {
            (Ok(()), None) => {}
            (Ok(()), Some(ticket)) => self.finish(ticket),
            (Err(answer), ticket) => {
                self.crowded += 1;
                let outbox = Arc::clone(&self.outbox);
                let send = async move {
                    outbox.send(answer).await;
                    Over {
                        ticket,
                        bytes: 0,
                        crowded: 1,
                    }
                };
                self.running.push(send.boxed());
            }
        }
    }

    fn enqueue(&mut self, claim: Claim, work: Queued) -> Ticket {
        let ticket = self.order.submit(claim);
        self.held_bytes += work.bytes;
        self.queued.insert(ticket, work);
        ticket
    }

    /// Begins every request whose turn it is.
    fn start_ready(&mut self) {
        while let Some(ticket) = self.order.poll_ready() {
            let Some(Queued { work, bytes }) = self.queued.remove(&ticket) else {
                continue;
            };
            match work {
                Work::Call(request) => self.begin(request, Some(ticket), bytes),
                Work::Answer(answer) => {
                    self.held_bytes -= bytes;
                    self.deliver(answer, Some(ticket));
                }
            }
        }
    }

    /// Begins a request that takes `bytes` until it is done, or only waits.
    fn begin(&mut self, request: Request, ticket: Option<Ticket>, bytes: usize) {
        let Request { id, call, observed } = request;
        let (outbox, span) = (Arc::clone(&self.outbox), observed.span.clone());
        match span.in_scope(|| self.handler.begin(id, call)) {
            Begun::Done(answer) => {
                self.held_bytes -= bytes;
                observed.finish(answer.outcome);
                self.deliver(answer.message, ticket);
            }
            Begun::Runs(reply) => {
                let run = async move {
                    let reply = reply.await;
                    observed.finish(reply.outcome());
                    if let Reply::Send(answer) = reply {
                        outbox.send(answer.message).await;
                    }
                    Over {
                        ticket,
                        bytes,
                        crowded: 0,
                    }
                };
                self.running.push(run.instrument(span).boxed());
            }
            Begun::Waits(answer) => {
                let send = async move {
                    let answer = answer.await;
                    observed.finish(answer.outcome);
                    outbox.send(answer.message).await;
                };
                self.wait(send.instrument(span).boxed(), ticket, bytes);
            }
            Begun::Answers(answers) => {
                let send = async move { observed.finish(answers.await) };
                self.wait(send.instrument(span).boxed(), ticket, bytes);
            }
        }
    }

    /// Lets a request wait. In strict order even that holds everybody up; otherwise nobody.
    fn wait(&mut self, waits: BoxFuture<'static, ()>, ticket: Option<Ticket>, bytes: usize) {
        self.held_bytes -= bytes;
        let held = if self.serial { ticket } else { None };
        if let (false, Some(ticket)) = (self.serial, ticket) {
            self.finish(ticket);
        }
        let over = Over {
            ticket: held,
            ..Over::default()
        };
        self.running.push(waits.map(|()| over).boxed());
    }
}

/// Waits for a message that is being decoded, if one is.
async fn decoded(
    decoding: &mut Option<JoinHandle<LargeMessage>>,
) -> Option<Result<LargeMessage, JoinError>> {
    Some(decoding.as_mut()?.await)
}
