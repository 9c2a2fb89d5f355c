//! Bridges one circuit between two nodes, with one task at each end.
//!
//! A bridge connects the local end of a circuit to a pair of NATS subjects. Invariant: frames
//! arrive unchanged and in order, or the circuit closes at both ends; no frame is lost silently.
//! The flow control window bounds the memory of each circuit.

mod inbound;

use std::{future::poll_fn, time::Duration};

use async_nats::{Client, Subject, Subscriber};
use bytes::Bytes;
use futures_util::StreamExt as _;
use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};

use self::inbound::{Asks, Inbound};
use super::{
    circuits::Place,
    connection::{Connection, Link, lost},
    packet::{self, Batch},
    subjects::{Subjects, Towards, WireId},
    window::Credit,
};
use crate::circuit::{Circuit, Ending, Receiver};

/// Parameters that both nodes agreed on.
#[derive(Debug)]
pub(in crate::nats) struct Opening {
    /// Id of the circuit.
    pub(in crate::nats) wire: WireId,
    /// Direction in which this end sends.
    pub(in crate::nats) towards: Towards,
    /// Window granted by the other end.
    pub(in crate::nats) window: u32,
    /// Number of connection losses when the subscription was made.
    pub(in crate::nats) losses: u64,
}

/// Connects the local end of a circuit to the other node.
#[derive(Debug)]
pub(in crate::nats) struct Bridge {
    circuit: Circuit,
    outbound: Outbound,
    inbound: Inbound,
    packets: Subscriber,
    place: Place,
    link: watch::Receiver<Link>,
    losses: u64,
    /// When to send the mark after the last burst.
    mark: Option<Instant>,
    /// Deadline for the first packet of the other end.
    opening: Option<Instant>,
    /// Set while the local end is closed and its remaining frames wait for credit.
    rest: Option<Rest>,
}

/// Remaining frames of a closed local end that wait for credit.
#[derive(Clone, Copy, Debug)]
struct Rest {
    ending: Ending,
    /// When to give up.
    until: Instant,
}

impl Bridge {
    /// Connects `circuit` to the other node. `packets` is the subscription of this end.
    pub(in crate::nats) fn new(
        circuit: Circuit,
        connection: &Connection,
        subjects: &Subjects,
        packets: Subscriber,
        place: Place,
        opening: &Opening,
    ) -> Self {
        let subject = subjects.circuit(opening.wire, opening.towards);
        let now = Instant::now();
        Self {
            circuit,
            outbound: Outbound::new(connection.client.clone(), subject, opening.window),
            inbound: Inbound::new(place.window),
            packets,
            place,
            link: connection.watch(),
            losses: opening.losses,
            // The first packet is a mark, which shows the other end that this one is running.
            mark: Some(now),
            opening: Some(now + OPENING),
            rest: None,
        }
    }

    /// Forwards frames until the circuit closes at either end, or the nodes lose contact.
    pub(in crate::nats) async fn run(mut self) -> Ending {
        let ending = match self.carry().await {
            // The other end closed it, or is gone.
            End::Remote(ending) => ending,
            End::Local(ending) => {
                let last = self.outbound.close(ending);
                // Without a connection, the other node learns it from this node's next heartbeat.
                if self.link.borrow().is_up {
                    // Neither end waits for the other.
                    let sent = tokio::time::timeout(FAREWELL, self.outbound.send(last)).await;
                    tracing::trace!(?sent, "circuit closed");
                }
                ending
            }
        };
        self.circuit.close(ending);
        ending
    }

    async fn carry(&mut self) -> End {
        loop {
            if let Some(ending) = self.inbound.ending() {
                return End::Remote(ending);
            }
            let event = tokio::select! {
                ending = &mut self.place.stopped => return End::Local(stopped(ending)),
                () = lost(&mut self.link, self.losses) => return End::Local(Ending::Unreachable),
                message = self.packets.next() => Event::Message(message.map(|got| got.payload)),
                moved = poll_fn(|cx| self.inbound.poll_forward(&mut self.circuit.sender, cx)),
                    if self.inbound.has_frames() => Event::Moved(moved),
                event = next(&mut self.circuit.receiver, self.outbound.is_open()),
                    if self.outbound.is_open() || self.rest.is_none() => event,
                ending = given_up(self.rest) => return End::Local(ending),
                () = at(self.mark) => Event::Mark,
                () = at(self.opening) => return End::Local(Ending::Unreachable),
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
    fn handle(&mut self, event: Event) -> Result<Option<Bytes>, End> {
        match event {
            Event::Message(Some(message)) => {
                self.opening = None;
                let asks = self.inbound.handle_message(&message).map_err(|fault| {
                    tracing::error!(%fault, "closing a bridged circuit");
                    End::Local(Ending::Unreachable)
                })?;
                match asks {
                    Asks::Nothing => {}
                    Asks::Grant(bytes) => {
                        self.outbound.grant(bytes);
                        // The other end accepts frames again, so the deadline is lifted.
                        self.rest = None;
                    }
                }
                Ok(None)
            }
            // The subscription ends only with the client.
            Event::Message(None) => Err(End::Local(Ending::Stopping)),
            Event::Moved(Err(ending)) | Event::Frame(Err(ending)) => Err(End::Local(ending)),
            Event::Moved(Ok(credit)) => Ok(credit.map(|bytes| self.outbound.credit(bytes))),
            Event::Frame(Ok(frame)) => {
                self.mark = Some(Instant::now() + MARK);
                Ok(Some(
                    self.outbound.batch(&frame, &mut self.circuit.receiver),
                ))
            }
            Event::Gone(ending) if self.circuit.receiver.is_empty() => Err(End::Local(ending)),
            Event::Gone(ending) => {
                let until = Instant::now() + REST;
                self.rest = Some(Rest { ending, until });
                Ok(None)
            }
            Event::Mark => {
                self.mark = None;
                Ok(Some(self.outbound.mark()))
            }
        }
    }

    /// Sends a packet, unless the circuit must close first.
    async fn send(&mut self, packet: Bytes) -> Result<(), End> {
        tokio::select! {
            biased;
            sent = self.outbound.send(packet) => sent.map_err(End::Local),
            ending = &mut self.place.stopped => Err(End::Local(stopped(ending))),
            () = lost(&mut self.link, self.losses) => Err(End::Local(Ending::Unreachable)),
        }
    }
}

enum Event {
    /// A packet, or the end of the subscription.
    Message(Option<Bytes>),
    /// The local end took frames, for which credit may be due, or is closed.
    Moved(Result<Option<u32>, Ending>),
    /// The local end sent a frame, or is closed.
    Frame(Result<Bytes, Ending>),
    /// The local end is closed, but its remaining frames lack credit.
    Gone(Ending),
    /// Some time has passed since the last burst.
    Mark,
}

enum End {
    /// Closed locally: notify the other end.
    Local(Ending),
    /// Closed by the other end.
    Remote(Ending),
}

fn stopped(ending: Result<Ending, tokio::sync::oneshot::error::RecvError>) -> Ending {
    ending.unwrap_or(Ending::Stopping)
}

async fn at(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time).await,
        None => std::future::pending().await,
    }
}

/// Returns the next event of the local end. Without credit, its frames stay in the queue.
async fn next(receiver: &mut Receiver, has_credit: bool) -> Event {
    if has_credit {
        Event::Frame(receiver.frame().await)
    } else {
        Event::Gone(receiver.ended().await)
    }
}

async fn given_up(rest: Option<Rest>) -> Ending {
    match rest {
        Some(Rest { ending, until }) => {
            sleep_until(until).await;
            ending
        }
        None => std::future::pending().await,
    }
}

/// After a burst, a mark reveals within this time whether the last packet was lost.
const MARK: Duration = Duration::from_millis(500);

/// Deadline for the first packet of the other end. The dial request itself may take two seconds.
const OPENING: Duration = Duration::from_secs(5);

/// How long a closed end waits for credit before it drops its last frames: the peers resend them
/// after reconnecting.
const REST: Duration = Duration::from_secs(5);

/// Timeout for sending the last packet.
const FAREWELL: Duration = Duration::from_secs(1);

/// Sending half of a bridged circuit.
#[derive(Debug)]
struct Outbound {
    client: Client,
    subject: Subject,
    next: u32,
    credit: Credit,
}

impl Outbound {
    /// Creates a half that sends to `subject` with the granted window.
    fn new(client: Client, subject: String, window: u32) -> Self {
        Self {
            client,
            subject: subject.into(),
            next: 0,
            credit: Credit::new(window),
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
    fn batch(&mut self, first: &Bytes, queue: &mut Receiver) -> Bytes {
        let mut batch = Batch::new(self.number(), first);
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
    fn close(&mut self, ending: Ending) -> Bytes {
        packet::close(self.number(), ending)
    }

    /// Sends a packet. Waits while the connection's buffer is full.
    async fn send(&self, packet: Bytes) -> Result<(), Ending> {
        self.client
            .publish(self.subject.clone(), packet)
            .await
            .map_err(|error| {
                tracing::warn!(%error, "failed to send a packet");
                Ending::Unreachable
            })
    }

    fn number(&mut self) -> u32 {
        let number = self.next;
        self.next = number.wrapping_add(1);
        number
    }
}
