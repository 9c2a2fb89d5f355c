//! The harness's end of a relay: one websocket for one stream, which is one link.
//!
//! A link to an executor that acknowledges survives the loss of its websocket: it fetches another
//! [grant](RendezvousGrant), opens another websocket and resumes. Any other link ends.
//! Invariant: a grant is used once, and the executor's key never changes during a link.

mod driver;
#[cfg(test)]
mod tests;

use std::{fmt, sync::Arc, time::Duration};

use exec_relay::{
    frame::{FrameBody, RelayFrame, StreamId},
    handshake::{HandshakeScope, NoiseChannel, NoiseInitiator},
    identity::{NoiseIdentity, NoisePublicKey},
    stream::{DeliveryMode, RelayStream},
};
use futures_util::future::BoxFuture;
use tokio::{
    sync::watch,
    time::{Instant, timeout},
};
use uuid::Uuid;

use self::driver::{Reconnector, StreamDriver};
use super::stream_shared::{ReadyQueue, StreamShared, stream_link};
use crate::{
    connect::{
        CONNECT_TIMEOUT, ConnectError, HttpProxy, RequestHeaders, ServerAddress, WebSocketConnector,
    },
    link::{Link, LinkPathState, LinkReadError},
    tls::TrustStore,
    trace::TraceSource,
    websocket::socket::{BinarySocket, RawMessage},
};

/// Options for reaching an executor.
#[derive(Clone, Debug)]
pub struct HarnessOptions {
    /// Certificates trusted for the relay.
    pub trust: TrustStore,
    /// Proxy to the relay.
    pub proxy: Option<HttpProxy>,
    /// Headers of upgrade requests.
    pub headers: RequestHeaders,
    /// Trace context of upgrade requests. Absent: they carry none.
    pub trace: Option<TraceSource>,
    /// Timeout for opening a websocket.
    pub connect_timeout: Duration,
    /// Timeout for the executor's handshake response. The session handshake shares it: see
    /// [`Link::handshake_started_at`].
    pub handshake_timeout: Duration,
    /// How long a reliable link may be without a websocket. Longer than an executor parks a stream,
    /// and shorter than it keeps a session.
    pub recovery: Duration,
    /// Delivery mode offered to the executor.
    pub offer: DeliveryOffer,
}

/// Delivery mode that is offered to an executor.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum DeliveryOffer {
    /// Acknowledged delivery. If the executor supports it, the link survives the loss of its
    /// websocket.
    Reliable,
    /// Plain delivery, as the stock harness.
    Plain,
}

impl Default for HarnessOptions {
    fn default() -> Self {
        Self {
            trust: TrustStore::default(),
            proxy: None,
            headers: RequestHeaders::default(),
            trace: None,
            connect_timeout: CONNECT_TIMEOUT,
            handshake_timeout: Duration::from_secs(10),
            recovery: Duration::from_secs(25),
            offer: DeliveryOffer::Reliable,
        }
    }
}

/// Opens a link to the executor named by the grants. Dropping the future closes the connection.
///
/// If the relay rejects the grant's URL (401), it is retried once with a fresh grant.
///
/// # Errors
/// Fails if the grant, the websocket or the response does not arrive in time.
pub async fn open(
    identity: Arc<NoiseIdentity>,
    grants: Arc<dyn GrantSource>,
    options: HarnessOptions,
) -> Result<Link, ConnectError> {
    let (grant, mut socket) = fetch_and_dial(&*grants, &options).await?;
    let within = options.handshake_timeout;
    let started_at = Instant::now();
    let handshake_future = handshake(&mut socket, &identity, &grant, options.offer);
    let accepted = timeout(within, handshake_future)
        .await
        .unwrap_or_else(|_| {
            Err(ConnectError::Timeout {
                peer: peer(&grant),
                within,
            })
        })?;
    let peer = peer(&grant);
    let reconnector = Reconnector {
        grants,
        options,
        executor_key: grant.executor_key,
    };
    Ok(Link {
        handshake_started_at: Some(started_at),
        ..start_driver(socket, accepted, reconnector, peer)
    })
}

async fn fetch_and_dial(
    grants: &dyn GrantSource,
    options: &HarnessOptions,
) -> Result<(RendezvousGrant, BinarySocket), ConnectError> {
    let grant = grants.fetch().await?;
    match dial(&grant, options).await {
        Err(ConnectError::Refused { status: 401, .. }) => {
            let grant = grants.fetch().await?;
            let socket = dial(&grant, options).await?;
            Ok((grant, socket))
        }
        opened => Ok((grant, opened?)),
    }
}

/// Starts the driver of a stream. From now on it pings the relay, as the stock harness does.
fn start_driver(
    mut socket: BinarySocket,
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
    let stream = RelayStream::new(stream_id.clone(), channel, delivery, now);
    let shared = StreamShared::new(stream_id, stream, Arc::clone(&ready_queue));
    let link = stream_link(Arc::clone(&shared), peer);
    let (path, watched) = watch::channel(LinkPathState::Connected);
    let driver = StreamDriver::new(shared, ready_queue, delivery, socket, reconnector, path);
    drop(tokio::spawn(driver.run()));
    Link {
        path: Some(watched),
        ..link
    }
}

fn peer(grant: &RendezvousGrant) -> String {
    format!("environment {:?}", grant.environment_id)
}

/// Issues rendezvous grants, for example by asking a registry.
pub trait GrantSource: Send + Sync {
    /// Fetches a fresh grant. Cancel safe.
    fn fetch(&self) -> BoxFuture<'_, Result<RendezvousGrant, ConnectError>>;
}

/// A single-use right to connect to an executor. Its parts belong together.
#[derive(Clone, Eq, PartialEq)]
pub struct RendezvousGrant {
    /// URL of the relay's websocket. Contains a secret.
    pub url: String,
    /// Id of the environment.
    pub environment_id: String,
    /// Registration of the executor.
    pub registration_id: String,
    /// Key that the executor must prove to hold.
    pub executor_key: NoisePublicKey,
    /// Authorization that the executor presents to the registry. Secret.
    pub authorization: String,
}

impl fmt::Debug for RendezvousGrant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ticket")
            .field("environment_id", &self.environment_id)
            .field("registration_id", &self.registration_id)
            .finish_non_exhaustive()
    }
}

/// Opens the websocket of a grant.
async fn dial(
    grant: &RendezvousGrant,
    options: &HarnessOptions,
) -> Result<BinarySocket, ConnectError> {
    let mut headers = options.headers.clone();
    for (name, value) in options.trace.iter().flat_map(TraceSource::headers) {
        // A trace header that does not fit is dropped; the connection matters more.
        drop(headers.add(name.as_str(), value.to_str().unwrap_or_default()));
    }
    let server = WebSocketConnector {
        headers,
        trust: options.trust.clone(),
        connect_timeout: options.connect_timeout,
        ..WebSocketConnector::new(grant.url.parse::<ServerAddress>()?)
    };
    server.open_socket(options.proxy.as_ref()).await
}

/// A stream that the executor has accepted.
#[derive(Debug)]
struct AcceptedStream {
    stream_id: StreamId,
    channel: NoiseChannel,
    delivery: DeliveryMode,
}

/// Performs the handshake for a new stream.
async fn handshake(
    socket: &mut BinarySocket,
    identity: &NoiseIdentity,
    grant: &RendezvousGrant,
    offer: DeliveryOffer,
) -> Result<AcceptedStream, ConnectError> {
    let name = Uuid::new_v4().to_string();
    let stream_id = StreamId::new(&name).map_err(|_| ConnectError::Relay("invalid stream id"))?;
    let scope = HandshakeScope {
        environment_id: &grant.environment_id,
        registration_id: &grant.registration_id,
        stream_id: &name,
    };
    let (initiator, message) =
        NoiseInitiator::start(identity, &grant.executor_key, scope, &grant.authorization)?;
    let mut push = |frame: RelayFrame| socket.writer.push(frame.encode());
    push(RelayFrame::new(
        stream_id.clone(),
        FrameBody::Resume { next_seq: 0 },
    ));
    if offer == DeliveryOffer::Reliable {
        push(RelayFrame::announcement(stream_id.clone()));
    }
    push(RelayFrame::new(
        stream_id.clone(),
        FrameBody::Handshake(message),
    ));
    socket.writer.flush().await?;
    let (answer, delivery) = await_response(socket, &stream_id, offer).await?;
    Ok(AcceptedStream {
        channel: initiator.finish(&answer)?,
        stream_id,
        delivery,
    })
}

/// Waits for the executor's handshake message.
async fn await_response(
    socket: &mut BinarySocket,
    stream_id: &StreamId,
    offer: DeliveryOffer,
) -> Result<(bytes::Bytes, DeliveryMode), ConnectError> {
    let mut delivery = DeliveryMode::Plain;
    loop {
        let message = match socket.reader.next().await.map_err(relay_error)? {
            Some(RawMessage::Binary(message)) => message,
            Some(RawMessage::Text) => return Err(ConnectError::Relay("relay sent a text message")),
            None => return Err(ConnectError::Closed),
        };
        let frame = RelayFrame::decode(message)
            .map_err(|_| ConnectError::Relay("relay sent an invalid frame"))?;
        if frame.stream_id != *stream_id {
            continue;
        }
        let is_announcement = frame.is_announcement();
        match frame.body {
            FrameBody::Handshake(answer) => return Ok((answer, delivery)),
            FrameBody::Ack if is_announcement && offer == DeliveryOffer::Reliable => {
                delivery = DeliveryMode::Reliable;
            }
            FrameBody::Ack | FrameBody::Resume { .. } | FrameBody::Heartbeat => {}
            FrameBody::Reset { .. } => return Err(ConnectError::StreamRefused),
            FrameBody::Data(_) => {
                return Err(ConnectError::Relay(
                    "executor sent data before the handshake",
                ));
            }
        }
    }
}

fn relay_error(error: LinkReadError) -> ConnectError {
    match error {
        LinkReadError::Io(error) => ConnectError::Io(error),
        LinkReadError::Protocol(what) => ConnectError::Relay(what),
        LinkReadError::TooLong(_) => ConnectError::Relay("relay sent a message that is too long"),
        LinkReadError::InvalidUtf8 => ConnectError::Relay("relay sent invalid UTF-8"),
        LinkReadError::Exited(_)
        | LinkReadError::ExecutorChanged
        | LinkReadError::Stalled
        | LinkReadError::Stream(_) => ConnectError::Closed,
    }
}
