//! The harness's end of a relay: one websocket for one stream, which is one link.
//!
//! A link to an executor that acknowledges outlives the loss of its websocket: it fetches another
//! [ticket](Ticket), opens another websocket, and goes on where it was. Any other link ends.
//! Invariant: a ticket is used once, and the executor's key stays the same for the life of a link.

mod driver;
mod reconnect;
#[cfg(test)]
mod tests;

use std::{fmt, sync::Arc, time::Duration};

use exec_relay::{
    channel::Channel,
    frame::{Body, Frame, StreamId},
    handshake::{Initiator, Scope},
    identity::{Identity, PublicKey},
    stream::{Delivery, Stream},
};
use futures_util::future::BoxFuture;
use tokio::{
    sync::watch,
    time::{Instant, timeout},
};
use uuid::Uuid;

use self::{driver::StreamDriver, reconnect::Reconnector};
use super::{
    stream_link,
    stream_shared::{ReadyQueue, StreamShared},
};
use crate::{
    connect::{Address, CONNECT_TIMEOUT, ConnectError, Headers, Proxy, WebSocket},
    link::{Link, Path, ReadError},
    tls::Trust,
    trace::TraceSource,
    websocket::socket::{Raw, Socket},
};

/// How an executor is reached.
#[derive(Clone, Debug)]
pub struct HarnessOptions {
    /// Whose certificates are accepted of a relay.
    pub trust: Trust,
    /// What the relay is reached through.
    pub proxy: Option<Proxy>,
    /// What is sent with the request for a websocket.
    pub headers: Headers,
    /// What the requests for websockets belong to. Absent: they carry no trace.
    pub trace: Option<TraceSource>,
    /// How long opening a websocket may take.
    pub connect_timeout: Duration,
    /// How long the executor may take to answer. Whoever uses the link counts from the same moment:
    /// [`Link::handshake_began`].
    pub handshake_timeout: Duration,
    /// How long a reliable link may be without a websocket. Longer than an executor keeps a stream
    /// whose harness is away, and less than it keeps a session.
    pub recovery: Duration,
    /// What the executor is offered.
    pub offer: Offer,
}

/// Whether an executor is told that we acknowledge.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Offer {
    /// It is; if it does too, the link survives the loss of its websocket.
    Reliable,
    /// It is not: this end behaves as a stock one does.
    Plain,
}

impl Default for HarnessOptions {
    fn default() -> Self {
        Self {
            trust: Trust::default(),
            proxy: None,
            headers: Headers::default(),
            trace: None,
            connect_timeout: CONNECT_TIMEOUT,
            handshake_timeout: Duration::from_secs(10),
            recovery: Duration::from_secs(25),
            offer: Offer::Reliable,
        }
    }
}

/// Opens a link to the executor that the tickets lead to. Dropping the future leaves nothing behind.
///
/// A relay that does not know the ticket's URL any more (401) is asked once more with a fresh ticket.
///
/// # Errors
/// When there is no ticket, no websocket, or no answer in time.
pub async fn open(
    identity: Arc<Identity>,
    tickets: Arc<dyn Tickets>,
    options: HarnessOptions,
) -> Result<Link, ConnectError> {
    let (ticket, mut socket) = fetch_and_dial(&*tickets, &options).await?;
    let within = options.handshake_timeout;
    let started_at = Instant::now();
    let handshake_future = handshake(&mut socket, &identity, &ticket, options.offer);
    let accepted = timeout(within, handshake_future)
        .await
        .unwrap_or_else(|_| {
            Err(ConnectError::Timeout {
                peer: peer(&ticket),
                within,
            })
        })?;
    let peer = peer(&ticket);
    let reconnector = Reconnector {
        tickets,
        options,
        executor_key: ticket.executor_key,
    };
    Ok(Link {
        handshake_began: Some(started_at),
        ..start_driver(socket, accepted, reconnector, peer)
    })
}

async fn fetch_and_dial(
    tickets: &dyn Tickets,
    options: &HarnessOptions,
) -> Result<(Ticket, Socket), ConnectError> {
    let ticket = tickets.fetch().await?;
    match dial(&ticket, options).await {
        Err(ConnectError::Refused { status: 401, .. }) => {
            let ticket = tickets.fetch().await?;
            let socket = dial(&ticket, options).await?;
            Ok((ticket, socket))
        }
        opened => Ok((ticket, opened?)),
    }
}

/// Starts the driver of a stream. From now on the relay is pinged, as by the stock harness.
fn start_driver(
    mut socket: Socket,
    accepted: AcceptedStream,
    reconnector: Reconnector,
    peer: String,
) -> Link {
    let AcceptedStream {
        stream_id,
        channel,
        delivery,
    } = accepted;
    socket.writer.defer_ping();
    let ready_queue = Arc::new(ReadyQueue::default());
    let now = Instant::now().into_std();
    let stream = Stream::new(stream_id.clone(), channel, delivery, now);
    let shared = StreamShared::new(stream_id, stream, Arc::clone(&ready_queue));
    let link = stream_link::link(Arc::clone(&shared), peer);
    let (path, watched) = watch::channel(Path::There);
    let driver = StreamDriver::new(shared, ready_queue, delivery, socket, reconnector, path);
    drop(tokio::spawn(driver.run()));
    Link {
        path: Some(watched),
        ..link
    }
}

fn peer(ticket: &Ticket) -> String {
    format!("environment {:?}", ticket.environment_id)
}

/// Gives out tickets, such as by asking a registry.
pub trait Tickets: Send + Sync {
    /// Fetches a fresh ticket. Dropping the future leaves nothing behind.
    fn fetch(&self) -> BoxFuture<'_, Result<Ticket, ConnectError>>;
}

/// All that is needed to reach an executor once. Its parts belong together, and are good for one
/// attempt.
#[derive(Clone, Eq, PartialEq)]
pub struct Ticket {
    /// The relay's websocket, with a secret in it.
    pub url: String,
    /// The environment.
    pub environment_id: String,
    /// The registration that the executor holds.
    pub registration_id: String,
    /// The key that the executor must prove to hold.
    pub executor_key: PublicKey,
    /// What the executor shows to the registry: a secret.
    pub authorization: String,
}

impl fmt::Debug for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ticket")
            .field("environment_id", &self.environment_id)
            .field("registration_id", &self.registration_id)
            .finish_non_exhaustive()
    }
}

/// Opens the websocket of a ticket.
async fn dial(ticket: &Ticket, options: &HarnessOptions) -> Result<Socket, ConnectError> {
    let mut headers = options.headers.clone();
    for (name, value) in options.trace.iter().flat_map(TraceSource::headers) {
        // A connection is worth more than the trace that finds no room.
        drop(headers.add(name.as_str(), value.to_str().unwrap_or_default()));
    }
    let server = WebSocket {
        headers,
        trust: options.trust.clone(),
        connect_timeout: options.connect_timeout,
        ..WebSocket::new(ticket.url.parse::<Address>()?)
    };
    match &options.proxy {
        Some(proxy) => server.open_socket_through(proxy).await,
        None => server.open_socket().await,
    }
}

/// A stream that the executor has accepted.
#[derive(Debug)]
struct AcceptedStream {
    stream_id: StreamId,
    channel: Channel,
    delivery: Delivery,
}

/// Asks the executor of a ticket for a new stream.
async fn handshake(
    socket: &mut Socket,
    identity: &Identity,
    ticket: &Ticket,
    offer: Offer,
) -> Result<AcceptedStream, ConnectError> {
    let name = Uuid::new_v4().to_string();
    let stream_id =
        StreamId::new(&name).map_err(|_| ConnectError::Relay("no name for a stream"))?;
    let scope = Scope {
        environment_id: &ticket.environment_id,
        registration_id: &ticket.registration_id,
        stream_id: &name,
    };
    let (initiator, message) =
        Initiator::start(identity, &ticket.executor_key, scope, &ticket.authorization)?;
    let mut push = |frame: Frame| socket.writer.push(frame.encode());
    push(Frame::new(stream_id.clone(), Body::Resume { next_seq: 0 }));
    if offer == Offer::Reliable {
        push(Frame::announcement(stream_id.clone()));
    }
    push(Frame::new(stream_id.clone(), Body::Handshake(message)));
    socket.writer.flush().await?;
    let (answer, delivery) = await_response(socket, &stream_id, offer).await?;
    Ok(AcceptedStream {
        channel: initiator.finish(&answer)?,
        stream_id,
        delivery,
    })
}

/// Waits for the executor's message.
async fn await_response(
    socket: &mut Socket,
    stream_id: &StreamId,
    offer: Offer,
) -> Result<(bytes::Bytes, Delivery), ConnectError> {
    let mut delivery = Delivery::Plain;
    loop {
        let message = match socket.reader.next().await.map_err(relay_error)? {
            Some(Raw::Binary(message)) => message,
            Some(Raw::Text) => return Err(ConnectError::Relay("relay sends text")),
            None => return Err(ConnectError::Closed),
        };
        let frame = Frame::decode(message)
            .map_err(|_| ConnectError::Relay("relay sends what is no frame"))?;
        if frame.stream_id != *stream_id {
            continue;
        }
        let is_announcement = frame.is_announcement();
        match frame.body {
            Body::Handshake(answer) => return Ok((answer, delivery)),
            Body::Ack if is_announcement && offer == Offer::Reliable => {
                delivery = Delivery::Reliable;
            }
            Body::Ack | Body::Resume { .. } | Body::Heartbeat => {}
            Body::Reset { .. } => return Err(ConnectError::StreamRefused),
            Body::Data(_) => return Err(ConnectError::Relay("data comes before the handshake")),
        }
    }
}

fn relay_error(error: ReadError) -> ConnectError {
    match error {
        ReadError::Io(error) => ConnectError::Io(error),
        ReadError::Protocol(what) => ConnectError::Relay(what),
        ReadError::TooLong(_) => ConnectError::Relay("relay sends a message that is too long"),
        ReadError::InvalidUtf8 => ConnectError::Relay("relay sends text that is not UTF-8"),
        ReadError::Exited(_)
        | ReadError::ExecutorChanged
        | ReadError::Stalled
        | ReadError::Stream(_) => ConnectError::Closed,
    }
}
