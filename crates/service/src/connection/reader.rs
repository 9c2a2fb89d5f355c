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
use exec_transport::link::{Binary, MessageReader};
use exec_wire::{
    error::RpcError,
    id::HandleId,
    limits,
    message::{Message, RequestId, split_binary},
    method::Ordering,
    outgoing::Outgoing,
};
use futures_util::{
    StreamExt,
    future::{BoxFuture, FutureExt},
    stream::FuturesUnordered,
};

use tokio::task::yield_now;

use crate::{
    call::Call,
    handler::{Begun, Handler},
    outbox::Outbox,
    service::{Concurrency, Shared},
    session::Session,
};

pub(super) struct Reader {
    peer: String,
    gate: Gate,
    handler: Handler,
    outbox: Arc<Outbox>,
    serial: bool,
    /// How long to stay awake after a message, and until when that is.
    attention: Duration,
    awake_until: Option<Instant>,
    order: Order,
    /// Requests that wait for their turn.
    queued: BTreeMap<Ticket, Queued>,
    queued_bytes: usize,
    /// Requests that run or wait, and the place in the order that they give back.
    running: FuturesUnordered<BoxFuture<'static, Option<Ticket>>>,
}

struct Queued {
    work: Work,
    bytes: usize,
}

enum Work {
    Call(RequestId, Call),
    /// An answer that is ready, and comes in its turn.
    Answer(Outgoing),
}

impl Reader {
    pub(super) fn new(
        shared: Arc<Shared>,
        outbox: Arc<Outbox>,
        peer: &str,
        binary: Binary,
    ) -> Self {
        let (serial, most) = match shared.config.concurrency {
            Concurrency::Serial => (true, 1),
            Concurrency::AtMost(most) => (false, most.get()),
        };
        let attention = shared.config.attention;
        Self {
            peer: peer.to_owned(),
            gate: Gate::default(),
            handler: Handler::new(shared, Arc::clone(&outbox), binary),
            outbox,
            serial,
            attention,
            awake_until: None,
            order: Order::new(most),
            queued: BTreeMap::new(),
            queued_bytes: 0,
            running: FuturesUnordered::new(),
        }
    }

    /// Runs until the peer is done, or breaks the rules of the transport.
    pub(super) async fn run(&mut self, input: &mut dyn MessageReader) {
        loop {
            // Requests that wait for their turn are kept in memory, so they are bounded.
            let full = self.queued_bytes >= limits::MAX_MESSAGE_BYTES;
            let awake = self.awake_until.is_some_and(|until| Instant::now() < until);
            tokio::select! {
                biased;
                Some(ticket) = self.running.next() => {
                    if let Some(ticket) = ticket {
                        self.order.finish(ticket);
                        self.start_ready().await;
                    }
                }
                message = input.next(), if !full => match message {
                    Ok(Some(message)) => {
                        self.handle_message(message).await;
                        self.stay_awake();
                    }
                    Ok(None) => return,
                    Err(error) => {
                        tracing::debug!(peer = self.peer, %error, "connection is given up");
                        return;
                    }
                },
                // Looks again at once, instead of going to sleep.
                () = yield_now(), if awake => {}
            }
        }
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
                let id = request.id.clone();
                match self.admit(&mut request) {
                    Ok((ordering, call)) => self.handle_call(id, ordering, call, bytes).await,
                    Err(error) => self.answer(Outgoing::error(&id, &error)).await,
                }
            }
            Ok(Input::Reply(reply)) => self.answer(reply).await,
            Ok(Input::Nothing) => {}
            Err(reason) => {
                let peer = &self.peer;
                let text = format!("failed to parse JSON-RPC message from {peer}: {reason}");
                let error = RpcError::invalid_request(text);
                self.answer(Outgoing::error(&RequestId::NONE, &error)).await;
            }
        }
    }

    /// Checks a request in the order the protocol fixes: method, parameters, handshake.
    fn admit(
        &self,
        request: &mut exec_wire::message::Request<'_>,
    ) -> Result<(Ordering, Call), RpcError> {
        if request.data.is_some() && !self.handler.takes_binary() {
            return Err(RpcError::invalid_request("binary data was not granted"));
        }
        let (method, call) = Call::decode(request)?;
        self.gate.admit(method)?;
        Ok((method.ordering(), call))
    }

    async fn handle_call(
        &mut self,
        id: RequestId,
        ordering: Ordering,
        mut call: Call,
        bytes: usize,
    ) {
        self.handler.take_hold(&mut call);
        let ordering = if let Call::CloseFile(close) = &call {
            self.close_ordering(&close.handle_id)
        } else {
            ordering
        };
        if let Call::Initialize(params) = call {
            let answer = match self.handler.initialize(params).await {
                Ok(response) => {
                    self.gate.handle_session();
                    Outgoing::result(&id, &response)
                }
                Err(error) => Outgoing::error(&id, &error),
            };
            self.outbox.send(answer).await;
        } else if ordering == Ordering::Control && !self.serial {
            // Never queues, and is never refused for the many that wait.
            self.begin(id, call, None).await;
        } else if self.running.len() + self.queued.len() >= limits::MAX_REQUESTS_IN_FLIGHT {
            let most = limits::MAX_REQUESTS_IN_FLIGHT;
            let error = RpcError::internal(format!("more than {most} requests are unanswered"));
            self.outbox.send(Outgoing::error(&id, &error)).await;
        } else {
            let starts = call.starts().cloned();
            let claim = Claim { ordering, starts };
            self.enqueue(
                claim,
                Queued {
                    work: Work::Call(id, call),
                    bytes,
                },
            )
            .await;
        }
    }

    /// Decides how a close is ordered. It never queues, unless what it closes is yet to be opened.
    fn close_ordering(&mut self, id: &HandleId) -> Ordering {
        let mut opens = false;
        for queued in self.queued.values_mut() {
            if let Work::Call(_, call) = &mut queued.work {
                // Blocks that were asked for before are read from what was open then.
                self.handler.take_hold(call);
                opens |= matches!(call, Call::OpenFile(open) if open.handle_id == *id);
            }
        }
        if opens || (!self.handler.has_open(id) && !self.order.is_idle()) {
            Ordering::Changes
        } else {
            Ordering::Control
        }
    }

    /// Sends an answer that is ready: at once, or, in strict order, in its turn.
    async fn answer(&mut self, answer: Outgoing) {
        if self.serial && !self.order.is_idle() {
            let bytes = answer.text_len();
            let work = Queued {
                work: Work::Answer(answer),
                bytes,
            };
            self.enqueue(Ordering::Reads.into(), work).await;
        } else {
            self.outbox.send(answer).await;
        }
    }

    async fn enqueue(&mut self, claim: Claim, work: Queued) {
        let ticket = self.order.submit(claim);
        self.queued_bytes += work.bytes;
        self.queued.insert(ticket, work);
        self.start_ready().await;
    }

    /// Begins every request whose turn it is.
    async fn start_ready(&mut self) {
        while let Some(ticket) = self.order.poll_ready() {
            let Some(Queued { work, bytes }) = self.queued.remove(&ticket) else {
                continue;
            };
            self.queued_bytes -= bytes;
            match work {
                Work::Call(id, call) => self.begin(id, call, Some(ticket)).await,
                Work::Answer(answer) => {
                    self.outbox.send(answer).await;
                    self.order.finish(ticket);
                }
            }
        }
    }

    async fn begin(&mut self, id: RequestId, call: Call, ticket: Option<Ticket>) {
        let outbox = Arc::clone(&self.outbox);
        match self.handler.begin(id, call) {
            Begun::Done(answer) => {
                outbox.send(answer).await;
                if let Some(ticket) = ticket {
                    self.order.finish(ticket);
                }
            }
            Begun::Runs(answer) => self.running.push(
                async move {
                    if let Some(answer) = answer.await {
                        outbox.send(answer).await;
                    }
                    ticket
                }
                .boxed(),
            ),
            Begun::Waits(answer) => {
                // In strict order even waiting holds everybody up; otherwise nobody.
                let held = if self.serial { ticket } else { None };
                if let (false, Some(ticket)) = (self.serial, ticket) {
                    self.order.finish(ticket);
                }
                self.running.push(
                    async move {
                        outbox.send(answer.await).await;
                        held
                    }
                    .boxed(),
                );
            }
        }
    }
}
