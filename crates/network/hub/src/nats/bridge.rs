//! Bridges one circuit between two nodes, with one task at each end.
//!
//! A bridge connects the local end of a circuit to a pair of NATS subjects. Invariant: frames
//! arrive unchanged and in order, or the circuit closes at both ends; no frame is lost silently.
//!
//! Flow control is credit-based: credit returns when the websocket behind the far end has taken the
//! bytes. So neither the broker nor the other node ever buffers more than a window per circuit, and
//! a slow websocket applies backpressure only to its own peer.

#[cfg(test)]
mod tests;

use std::{
    collections::VecDeque,
    future::poll_fn,
    task::{Context, Poll},
    time::Duration,
};

use async_nats::{Client, Subject, Subscriber};
use bytes::Bytes;
use futures_util::StreamExt as _;
use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};

use super::{
    circuits::CircuitRegistration,
    connection::{NatsConnection, NatsLinkState, connection_lost},
    packet::{self, CircuitPacket, PacketBody, PacketBuilder, PacketError, cost},
};
use crate::{
    circuit::{Circuit, CloseReason, FrameReceiver, FrameSender},
    limits::{MAX_FRAME_BYTES, ROUND_FRAMES},
};

/// Connects the local end of a circuit to the other node.
#[derive(Debug)]
pub(super) struct CircuitBridge {
    circuit: Circuit,
    outbound: BridgeSender,
    inbound: BridgeReceiver,
    packets: Subscriber,
    registration: CircuitRegistration,
    link: watch::Receiver<NatsLinkState>,
    losses: u64,
    /// When to send the mark after the last burst.
    mark: Option<Instant>,
    /// Deadline for the first packet of the other end.
    opening: Option<Instant>,
    /// Set while the local end is closed and its remaining frames wait for credit.
    pending_close: Option<PendingClose>,
}

/// Remaining frames of a closed local end that wait for credit.
#[derive(Clone, Copy, Debug)]
struct PendingClose {
    close_reason: CloseReason,
    /// When to give up.
    until: Instant,
}

impl CircuitBridge {
    /// Connects `circuit` to the other node, which receives at `subject` and granted `window`.
    /// `packets` is the subscription of this end, made after `losses` connection losses.
    pub(super) fn new(
        circuit: Circuit,
        connection: &NatsConnection,
        subject: String,
        packets: Subscriber,
        registration: CircuitRegistration,
        window: u32,
        losses: u64,
    ) -> Self {
        let now = Instant::now();
        Self {
            circuit,
            outbound: BridgeSender::new(connection.client.clone(), subject, window),
            inbound: BridgeReceiver::new(registration.window),
            packets,
            registration,
            link: connection.watch(),
            losses,
            // The first packet is a mark, which shows the other end that this one is running.
            mark: Some(now),
            opening: Some(now + OPEN_TIMEOUT),
            pending_close: None,
        }
    }

    /// Forwards frames until the circuit closes at either end, or the nodes lose contact.
    pub(super) async fn run(mut self) -> CloseReason {
        let close_reason = match self.forward_frames().await {
            // The other end closed it, or is gone.
            BridgeEnd::Remote(close_reason) => close_reason,
            BridgeEnd::Local(close_reason) => {
                let last = self.outbound.close(close_reason);
                // Without a connection, the other node learns it from this node's next heartbeat.
                if self.link.borrow().is_up {
                    // Neither end waits for the other.
                    let sent = tokio::time::timeout(CLOSE_TIMEOUT, self.outbound.send(last)).await;
                    tracing::trace!(?sent, "circuit closed");
                }
                close_reason
            }
        };
        self.circuit.close(close_reason);
        close_reason
    }

    async fn forward_frames(&mut self) -> BridgeEnd {
        loop {
            if let Some(close_reason) = self.inbound.close_reason() {
                return BridgeEnd::Remote(close_reason);
            }
            let event = tokio::select! {
                close_reason = &mut self.registration.stopped => return BridgeEnd::Local(stopped(close_reason)),
                () = connection_lost(&mut self.link, self.losses) => return BridgeEnd::Local(CloseReason::Unreachable),
                message = self.packets.next() => BridgeEvent::Message(message.map(|message| message.payload)),
                moved = poll_fn(|cx| self.inbound.poll_forward(&mut self.circuit.sender, cx)),
                    if self.inbound.has_frames() => BridgeEvent::Moved(moved),
                event = next(&mut self.circuit.receiver, self.outbound.is_open()),
                    if self.outbound.is_open() || self.pending_close.is_none() => event,
                close_reason = unsent_timeout(self.pending_close) => return BridgeEnd::Local(close_reason),
                () = at(self.mark) => BridgeEvent::Mark,
                () = at(self.opening) => return BridgeEnd::Local(CloseReason::Unreachable),
            };
            let packet = match self.handle(event) {
                Ok(packet) => packet,
                Err(end) => return end,
            };
            if let Some(packet) = packet
                && let Err(end) = self.send(packet).await
            {
                return end;
            }
        }
    }

    /// Handles one event and returns the packet to send, if any.
    fn handle(&mut self, event: BridgeEvent) -> Result<Option<Bytes>, BridgeEnd> {
        match event {
            BridgeEvent::Message(Some(message)) => {
                self.opening = None;
                let effect = self.inbound.handle_message(&message).map_err(|fault| {
                    tracing::error!(%fault, "closing a bridged circuit");
                    BridgeEnd::Local(CloseReason::Unreachable)
                })?;
                match effect {
                    PacketEffect::Nothing => {}
                    PacketEffect::Grant(bytes) => {
                        self.outbound.grant(bytes);
                        // The other end accepts frames again, so the deadline is lifted.
                        self.pending_close = None;
                    }
                }
                Ok(None)
            }
            // The subscription ends only with the client.
            BridgeEvent::Message(None) => Err(BridgeEnd::Local(CloseReason::Stopping)),
            BridgeEvent::Moved(Err(close_reason)) | BridgeEvent::Frame(Err(close_reason)) => {
                Err(BridgeEnd::Local(close_reason))
            }
            BridgeEvent::Moved(Ok(credit)) => Ok(credit.map(|bytes| self.outbound.credit(bytes))),
            BridgeEvent::Frame(Ok(frame)) => {
                self.mark = Some(Instant::now() + MARK_DELAY);
                Ok(Some(
                    self.outbound.batch(&frame, &mut self.circuit.receiver),
                ))
            }
            BridgeEvent::Gone(close_reason) if self.circuit.receiver.is_empty() => {
                Err(BridgeEnd::Local(close_reason))
            }
            BridgeEvent::Gone(close_reason) => {
                let until = Instant::now() + UNSENT_TIMEOUT;
                self.pending_close = Some(PendingClose {
                    close_reason,
                    until,
                });
                Ok(None)
            }
            BridgeEvent::Mark => {
                self.mark = None;
                Ok(Some(self.outbound.mark()))
            }
        }
    }

    /// Sends a packet, unless the circuit must close first.
    async fn send(&mut self, packet: Bytes) -> Result<(), BridgeEnd> {
        tokio::select! {
            biased;
            sent = self.outbound.send(packet) => sent.map_err(BridgeEnd::Local),
            close_reason = &mut self.registration.stopped => Err(BridgeEnd::Local(stopped(close_reason))),
            () = connection_lost(&mut self.link, self.losses) => Err(BridgeEnd::Local(CloseReason::Unreachable)),
        }
    }
}

enum BridgeEvent {
    /// A packet, or the end of the subscription.
    Message(Option<Bytes>),
    /// The local end took frames, for which credit may be due, or is closed.
    Moved(Result<Option<u32>, CloseReason>),
    /// The local end sent a frame, or is closed.
    Frame(Result<Bytes, CloseReason>),
    /// The local end is closed, but its remaining frames lack credit.
    Gone(CloseReason),
    /// Some time has passed since the last burst.
    Mark,
}

enum BridgeEnd {
    /// Closed locally: notify the other end.
    Local(CloseReason),
    /// Closed by the other end.
    Remote(CloseReason),
}

fn stopped(
    close_reason: Result<CloseReason, tokio::sync::oneshot::error::RecvError>,
) -> CloseReason {
    close_reason.unwrap_or(CloseReason::Stopping)
}

async fn at(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time).await,
        None => std::future::pending().await,
    }
}

/// Returns the next event of the local end. Without credit, its frames stay in the queue.
async fn next(receiver: &mut FrameReceiver, has_credit: bool) -> BridgeEvent {
    if has_credit {
        BridgeEvent::Frame(receiver.frame().await)
    } else {
        BridgeEvent::Gone(receiver.closed().await)
    }
}

async fn unsent_timeout(pending_close: Option<PendingClose>) -> CloseReason {
    match pending_close {
        Some(PendingClose {
            close_reason,
            until,
        }) => {
            sleep_until(until).await;
            close_reason
        }
        None => std::future::pending().await,
    }
}

/// After a burst, a mark reveals within this time whether the last packet was lost.
const MARK_DELAY: Duration = Duration::from_millis(500);

/// Deadline for the first packet of the other end. The dial request itself may take two seconds.
const OPEN_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a closed end waits for credit before it drops its last frames: the peers resend them
/// after reconnecting.
const UNSENT_TIMEOUT: Duration = Duration::from_secs(5);

/// Timeout for sending the last packet.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// Sending half of a bridged circuit.
#[derive(Debug)]
struct BridgeSender {
    client: Client,
    subject: Subject,
    next: u32,
    credit: SendCredit,
}

impl BridgeSender {
    /// Creates a half that sends to `subject` with the granted window.
    fn new(client: Client, subject: String, window: u32) -> Self {
        Self {
            client,
            subject: subject.into(),
            next: 0,
            credit: SendCredit::new(window),
        }
    }

    /// Returns whether frames may be sent.
    fn is_open(&self) -> bool {
        self.credit.is_open()
    }

    /// Adds credit granted by the other end.
    fn grant(&mut self, bytes: u32) {
        self.credit.grant(bytes);
    }

    /// Builds a packet from a frame and further queued ones.
    fn batch(&mut self, first: &Bytes, queue: &mut FrameReceiver) -> Bytes {
        let mut batch = PacketBuilder::new(self.number(), first);
        while !batch.is_full()
            && let Some(frame) = queue.try_frame()
        {
            batch.push(&frame);
        }
        let (packet, cost) = batch.finish();
        self.credit.spend(cost);
        packet
    }

    /// Builds a packet that grants credit.
    fn credit(&mut self, bytes: u32) -> Bytes {
        packet::credit(self.number(), bytes)
    }

    /// Builds the mark after a burst.
    fn mark(&mut self) -> Bytes {
        packet::mark(self.number())
    }

    /// Builds the last packet.
    fn close(&mut self, close_reason: CloseReason) -> Bytes {
        packet::close(self.number(), close_reason)
    }

    /// Sends a packet. Waits while the connection's buffer is full.
    async fn send(&self, packet: Bytes) -> Result<(), CloseReason> {
        self.client
            .publish(self.subject.clone(), packet)
            .await
            .map_err(|error| {
                tracing::warn!(%error, "failed to send a packet");
                CloseReason::Unreachable
            })
    }

    fn number(&mut self) -> u32 {
        let number = self.next;
        self.next = number.wrapping_add(1);
        number
    }
}

/// Receiving half of a bridged circuit. Independent of NATS.
#[derive(Debug)]
struct BridgeReceiver {
    next: u32,
    receive_window: ReceiveWindow,
    inbox: VecDeque<Bytes>,
    closed: Option<CloseReason>,
}

/// What a packet requires from the sending half.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum PacketEffect {
    /// Nothing.
    Nothing,
    /// Permits to send this many more bytes.
    Grant(u32),
}

impl BridgeReceiver {
    /// Creates a half that granted `window` to the sender.
    fn new(window: u32) -> Self {
        Self {
            next: 0,
            receive_window: ReceiveWindow::new(window),
            inbox: VecDeque::new(),
            closed: None,
        }
    }

    /// Handles a message.
    ///
    /// # Errors
    /// Returns [`BridgeFault`] if the circuit cannot continue.
    fn handle_message(&mut self, message: &Bytes) -> Result<PacketEffect, BridgeFault> {
        let packet = CircuitPacket::decode(message)?;
        if packet.seq != self.next {
            return Err(BridgeFault::Gap {
                expected: self.next,
                got: packet.seq,
            });
        }
        self.next = self.next.wrapping_add(1);
        match packet.body {
            PacketBody::Frames(frames) => {
                if frames.iter().any(|frame| frame.len() > MAX_FRAME_BYTES) {
                    return Err(BridgeFault::Frame);
                }
                let total = frames.iter().map(cost).fold(0, u32::saturating_add);
                self.receive_window.receive(total)?;
                self.inbox.extend(frames);
                Ok(PacketEffect::Nothing)
            }
            PacketBody::Credit(bytes) => Ok(PacketEffect::Grant(bytes)),
            PacketBody::Mark => Ok(PacketEffect::Nothing),
            PacketBody::Close(close_reason) => {
                self.closed = Some(close_reason);
                Ok(PacketEffect::Nothing)
            }
        }
    }

    /// Returns whether a frame is queued for the local end.
    fn has_frames(&self) -> bool {
        !self.inbox.is_empty()
    }

    /// Moves frames to the local end while it accepts them. Returns credit to grant.
    fn poll_forward(
        &mut self,
        sender: &mut FrameSender,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<u32>, CloseReason>> {
        let mut credit = None;
        let mut moved = 0;
        while moved < ROUND_FRAMES && self.has_frames() {
            match sender.poll_ready(cx) {
                Poll::Ready(ready) => ready?,
                Poll::Pending if moved == 0 => return Poll::Pending,
                Poll::Pending => break,
            }
            let Some(frame) = self.inbox.pop_front() else {
                break;
            };
            if let Some(more) = self.receive_window.release(cost(&frame)) {
                credit = Some(credit.unwrap_or(0_u32).saturating_add(more));
            }
            sender.push(frame)?;
            moved += 1;
        }
        if self.inbox.is_empty() {
            // The burst is over: an idle circuit uses almost no memory.
            self.inbox = VecDeque::new();
        }
        Poll::Ready(Ok(credit))
    }

    /// Returns the close reason of the other end, once all its frames have been forwarded.
    fn close_reason(&self) -> Option<CloseReason> {
        self.closed.filter(|_| self.inbox.is_empty())
    }
}

/// Peer: why a circuit cannot continue.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
enum BridgeFault {
    /// A packet is missing.
    #[error("expected packet {expected} between nodes, got {got}")]
    Gap {
        /// The expected number.
        expected: u32,
        /// The received number.
        got: u32,
    },
    /// A frame exceeds the limit of a websocket message.
    #[error("frame between nodes is too large")]
    Frame,
    /// See the source.
    #[error(transparent)]
    Packet(#[from] PacketError),
    /// See the source.
    #[error(transparent)]
    Overrun(#[from] CreditOverrun),
}

/// Credit of the sending end.
#[derive(Debug)]
struct SendCredit {
    /// Negative after a packet larger than the remaining credit: the last packet may overdraw.
    available: i64,
}

impl SendCredit {
    /// Starts with the window granted by the receiving end.
    fn new(window: u32) -> Self {
        Self {
            available: i64::from(window),
        }
    }

    /// Returns whether a packet may be sent.
    fn is_open(&self) -> bool {
        self.available > 0
    }

    /// Spends credit for a sent packet.
    fn spend(&mut self, cost: u32) {
        self.available -= i64::from(cost);
    }

    /// Adds granted credit.
    fn grant(&mut self, cost: u32) {
        self.available = self.available.saturating_add(i64::from(cost));
    }
}

/// Window of the receiving end: bytes buffered, and credit not yet granted back.
#[derive(Debug)]
struct ReceiveWindow {
    window: u32,
    buffered: u64,
    due: u32,
}

impl ReceiveWindow {
    /// Starts with the window granted by this end.
    fn new(window: u32) -> Self {
        Self {
            window,
            buffered: 0,
            due: 0,
        }
    }

    /// Records a received packet.
    ///
    /// # Errors
    /// Returns [`CreditOverrun`] if the peer exceeded its credit, which bounds the buffer.
    fn receive(&mut self, cost: u32) -> Result<(), CreditOverrun> {
        // Credit that is due but not granted yet is not available to the peer.
        if self.buffered + u64::from(self.due) >= u64::from(self.window) {
            return Err(CreditOverrun);
        }
        self.buffered += u64::from(cost);
        Ok(())
    }

    /// Records that the websocket took a frame. Returns credit to grant, once it is worth a packet.
    fn release(&mut self, cost: u32) -> Option<u32> {
        self.buffered = self.buffered.saturating_sub(u64::from(cost));
        self.due = self.due.saturating_add(cost);
        (self.due >= self.window / GRANTS_PER_WINDOW).then(|| std::mem::take(&mut self.due))
    }
}

/// Peer: it exceeded its credit.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("other node exceeded its credit")]
struct CreditOverrun;

/// Credit is granted in eighths of the window: few packets, while the sender keeps most of its
/// window.
const GRANTS_PER_WINDOW: u32 = 8;
