//! Carries the frames of one circuit between two nodes: one task at each end.
//!
//! A bridge joins the local end of a circuit with a pair of subjects. Invariant: frames arrive
//! unchanged and in order, or the circuit ends at both ends; nothing is lost silently. Memory per
//! circuit is bounded by its window.

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

/// What both nodes agreed on before frames flow.
#[derive(Debug)]
pub(in crate::nats) struct Opening {
    /// The circuit.
    pub(in crate::nats) wire: WireId,
    /// The direction in which this end sends.
    pub(in crate::nats) towards: Towards,
    /// What the other end granted this one.
    pub(in crate::nats) window: u32,
    /// How often the connection had been lost when the subscription was made.
    pub(in crate::nats) losses: u64,
}

/// Joins the local end of a circuit with the other node.
#[derive(Debug)]
pub(in crate::nats) struct Bridge {
    circuit: Circuit,
    outbound: Outbound,
    inbound: Inbound,
    packets: Subscriber,
    place: Place,
    link: watch::Receiver<Link>,
    losses: u64,
    /// When to send the mark behind the last burst.
    mark: Option<Instant>,
    /// Until when the other end must have said something.
    opening: Option<Instant>,
    /// Set while the local end is gone and the other has no room for what it sent.
    rest: Option<Rest>,
}

/// What a local end sent before it was gone, and what goes no further for want of credit.
#[derive(Clone, Copy, Debug)]
struct Rest {
    ending: Ending,
    /// When it is given up.
    until: Instant,
}

impl Bridge {
    /// Joins `circuit` with the other node. `packets` is the subscription of this end.
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
            // The first packet is a mark: it tells the other end that this one is there.
            mark: Some(now),
            opening: Some(now + OPENING),
            rest: None,
        }
    }

    /// Carries frames until the circuit ends at either end, or one node loses the other.
    pub(in crate::nats) async fn run(mut self) -> Ending {
        let ending = match self.carry().await {
            // The peer ended it, or nobody is there to be told.
            End::Remote(ending) => ending,
            End::Local(ending) => {
                let last = self.outbound.close(ending);
                // What cannot be told now the other node learns from this one's next heartbeat.
                if self.link.borrow().is_up {
                    // The connection takes it or is broken; neither end waits for the other.
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

    /// Handles one event, and returns the packet that answers it.
    fn handle(&mut self, event: Event) -> Result<Option<Bytes>, End> {
        match event {
            Event::Message(Some(message)) => {
                self.opening = None;
                let asks = self.inbound.handle_message(&message).map_err(|fault| {
                    tracing::error!(%fault, "circuit between nodes ends");
                    End::Local(Ending::Unreachable)
                })?;
                match asks {
                    Asks::Nothing => {}
                    Asks::Grant(bytes) => {
                        self.outbound.grant(bytes);
                        // The other end takes some: there is time again.
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

    /// Sends a packet, unless the circuit must end first.
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
    /// The local end took frames, for which credit may be due, or is gone.
    Moved(Result<Option<u32>, Ending>),
    /// The local end gave a frame, or is gone.
    Frame(Result<Bytes, Ending>),
    /// The local end is gone, and there is no credit for what it may have sent before.
    Gone(Ending),
    /// A burst was over a while ago.
    Mark,
}

enum End {
    /// The other end must be told.
    Local(Ending),
    /// The other end told.
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

/// What the local end does next. Without credit its frames stay where they are.
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

/// After a burst, a mark shows the other end within this time whether the burst's end was lost.
const MARK: Duration = Duration::from_millis(500);

/// How long the other end has to say something at first. The request for the circuit itself may
/// take two seconds.
const OPENING: Duration = Duration::from_secs(5);

/// How long the other end may take nothing before it is told that this one is gone, without the
/// frames that were sent last: it comes back for all of them anyway.
const REST: Duration = Duration::from_secs(5);

/// How long the last packet may take.
const FAREWELL: Duration = Duration::from_secs(1);

/// One direction of a circuit, at its sending end.
#[derive(Debug)]
struct Outbound {
    client: Client,
    subject: Subject,
    next: u32,
    credit: Credit,
}

impl Outbound {
    /// Sends to `subject`, whose receiver granted `window`.
    fn new(client: Client, subject: String, window: u32) -> Self {
        Self {
            client,
            subject: subject.into(),
            next: 0,
            credit: Credit::new(window),
        }
    }

    /// Whether frames may be sent.
    fn is_open(&self) -> bool {
        self.credit.is_open()
    }

    /// The other end took some.
    fn grant(&mut self, bytes: u32) {
        self.credit.grant(bytes);
    }

    /// Makes a packet of a frame and of those that wait behind it.
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

    /// Makes a packet that gives credit.
    fn credit(&mut self, bytes: u32) -> Bytes {
        packet::credit(self.number(), bytes)
    }

    /// Makes a packet that follows a burst.
    fn mark(&mut self) -> Bytes {
        packet::mark(self.number())
    }

    /// Makes the last packet.
    fn close(&mut self, ending: Ending) -> Bytes {
        packet::close(self.number(), ending)
    }

    /// Sends a packet. It waits while the connection has more to do than it can.
    async fn send(&self, packet: Bytes) -> Result<(), Ending> {
        self.client
            .publish(self.subject.clone(), packet)
            .await
            .map_err(|error| {
                tracing::warn!(%error, "a packet was not sent");
                Ending::Unreachable
            })
    }

    fn number(&mut self) -> u32 {
        let number = self.next;
        self.next = number.wrapping_add(1);
        number
    }
}
