//! A forwarding executor: it joins every harness stream to its own websocket at one destination.
//!
//! Messages pass through unchanged; sessions of either side are not tracked. Elsewhere:
//! registration, handshakes and limits, which are those of any executor (`executor`).

#[cfg(test)]
mod tests;

use std::{convert::Infallible, fmt, io, pin::pin, str::FromStr, time::Duration};

use bytes::Bytes;
use exec_transport::{
    connect::{ConnectError, ServerAddress, ServerAddressError, WebSocketConnector},
    link::{DataEncoding, Link, LinkReadError},
    message_pump::{PumpEnd, pump_messages},
    tls::TrustStore,
    websocket::{LinkOptions, TextFraming},
};
use exec_wire::{limits, outgoing_message::OutgoingMessage};
use tokio::{sync::mpsc, task::JoinSet, time::timeout};

use crate::executor::{ExecutorError, RemoteExecutor};

/// Accepted streams that wait for their task to start, which happens at once.
const PENDING_STREAMS: usize = 16;

/// An executor that forwards streams.
#[derive(Debug)]
pub struct Forwarder {
    executor: RemoteExecutor,
    destination: ForwardDestination,
    trust: TrustStore,
}

impl Forwarder {
    /// Creates a forwarder. `trust` applies to the destination. Nothing is sent yet.
    pub fn new(
        executor: RemoteExecutor,
        destination: ForwardDestination,
        trust: TrustStore,
    ) -> Self {
        Self {
            executor,
            destination,
            trust,
        }
    }

    /// Forwards until `stop` resolves, then drops all connections without a close frame.
    ///
    /// # Errors
    /// See [`RemoteExecutor::run`].
    pub async fn run(self, stop: impl Future<Output = ()>) -> Result<(), ExecutorError> {
        let (links, streams) = mpsc::channel(PENDING_STREAMS);
        tokio::select! {
            ended = self.executor.run(links, stop) => ended,
            () = forward(streams, self.destination, self.trust) => Err(ExecutorError::Abandoned),
        }
    }
}

/// Runs one task per stream. The executor limits their number.
async fn forward(
    mut streams: mpsc::Receiver<Link>,
    destination: ForwardDestination,
    trust: TrustStore,
) {
    // Dropping the set aborts all tasks.
    let mut running = JoinSet::new();
    loop {
        tokio::select! {
            Some(ended) = running.join_next() => {
                if let Err(error) = ended {
                    tracing::warn!(%error, "forwarding task failed");
                }
            }
            stream = streams.recv() => {
                let Some(stream) = stream else { return };
                running.spawn(forward_stream(stream, destination.clone(), trust.clone()));
            }
        }
    }
}

/// Forwards one stream until either side ends. Failures affect only this stream.
async fn forward_stream(stream: Link, destination: ForwardDestination, trust: TrustStore) {
    let ended = pump_stream(stream, destination.open(&trust)).await;
    match ended {
        Ok(()) => tracing::debug!(%destination, "stream ended"),
        Err(error) => tracing::warn!(%destination, %error, "stream failed"),
    }
}

/// Time limit for opening a destination.
const OPEN_TIMEOUT: Duration = Duration::from_secs(10);

/// A websocket server: `ws://HOST:PORT/PATH` or `wss://…`. It receives no credentials.
#[derive(Clone)]
pub struct ForwardDestination(ServerAddress);

impl ForwardDestination {
    /// Opens a websocket. Dropping the future closes it.
    async fn open(&self, trust: &TrustStore) -> Result<Link, ConnectError> {
        let socket = WebSocketConnector {
            trust: trust.clone(),
            connect_timeout: OPEN_TIMEOUT,
            ..WebSocketConnector::new(self.0.clone())
        };
        // Messages are not inspected, so they are not declared as text.
        let options = LinkOptions {
            sends: TextFraming::Binary,
            max_message_bytes: limits::MAX_MESSAGE_BYTES,
            budget: None,
        };
        socket.open_with(options, None).await
    }
}

impl FromStr for ForwardDestination {
    type Err = ForwardDestinationError;

    fn from_str(url: &str) -> Result<Self, ForwardDestinationError> {
        match url.trim().parse()? {
            address @ ServerAddress::Network(_) => Ok(Self(address)),
            ServerAddress::Unix(_) => Err(ForwardDestinationError::Unix),
        }
    }
}

impl fmt::Display for ForwardDestination {
    /// Writes the URL without path and query, which may contain a secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for ForwardDestination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Destination({self})")
    }
}

/// Caller: the text is not a valid destination.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ForwardDestinationError {
    /// The text is not the URL of a server.
    #[error("invalid destination: {0}")]
    Address(#[from] ServerAddressError),
    /// The URL names a unix socket.
    #[error("destination must begin with ws:// or wss://")]
    Unix,
}

/// Time limit for the destination to acknowledge the close.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);
/// Time limit for a harness to read the last messages of its destination.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);

/// Joins a stream to a destination that is being opened, until either side ends. When the stream
/// ends, the destination is dropped without a close frame. When the destination ends, its close is
/// acknowledged and everything it sent is delivered before the stream ends.
async fn pump_stream(
    mut stream: Link,
    opening: impl Future<Output = Result<Link, ConnectError>>,
) -> Result<(), ForwardError> {
    let Some((mut destination, early)) = open_destination(&mut stream, opening).await? else {
        return Ok(());
    };
    if let Some(message) = early {
        let message = OutgoingMessage::Text(message.into());
        destination.writer.push(message, DataEncoding::Text);
    }
    let mut write_error = None;
    let to_destination = async {
        let (reader, writer) = (&mut *stream.reader, &mut *destination.writer);
        let end = pump_messages(reader, writer, None, |_| Ok::<_, Infallible>(true)).await;
        if let PumpEnd::Write(error) = end {
            write_error = Some(error);
            // Messages that the destination sent may still be unread.
            while let Ok(Some(_)) = stream.reader.next().await {}
        }
    };
    let to_stream = pump_messages(
        &mut *destination.reader,
        &mut *stream.writer,
        None,
        |message| match message.len() {
            // Streams cannot carry empty messages; dropping them has no effect.
            0 => Ok(false),
            1..=limits::MAX_MESSAGE_BYTES => Ok(true),
            _ => Err(ForwardError::TooLong),
        },
    );
    let end = tokio::select! {
        biased;
        () = to_destination => return Ok(()),
        end = to_stream => end,
    };
    match (end, write_error) {
        (PumpEnd::Closed, None) => {}
        (PumpEnd::Closed, Some(error)) => return Err(ForwardError::Write(error)),
        (PumpEnd::Read(error), _) => return Err(ForwardError::Read(error)),
        (PumpEnd::Write(error), _) => return Err(ForwardError::Harness(error)),
        (PumpEnd::Refused(error), _) => return Err(error),
    }
    // The destination must not wait for a slow harness.
    let (acknowledged, delivered) = tokio::join!(
        timeout(CLOSE_TIMEOUT, destination.writer.close()),
        timeout(DRAIN_TIMEOUT, stream.writer.close()),
    );
    if !matches!(acknowledged, Ok(Ok(()))) {
        tracing::debug!("destination did not acknowledge the close");
    }
    delivered
        .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
        .map_err(ForwardError::Harness)
}

/// Why forwarding a stream failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
enum ForwardError {
    /// As the source says: the destination could not be opened.
    #[error("failed to open the destination")]
    Open(#[source] ConnectError),
    /// Peer: reading from the destination failed.
    #[error("failed to read from the destination")]
    Read(#[source] LinkReadError),
    /// Peer: a message of the destination exceeds the limit of a stream.
    #[error(
        "destination sent a message of more than {} bytes",
        limits::MAX_MESSAGE_BYTES
    )]
    TooLong,
    /// Transport: writing to the destination failed.
    #[error("failed to write to the destination")]
    Write(#[source] io::Error),
    /// Transport: writing to the stream failed.
    #[error("failed to write to the stream")]
    Harness(#[source] io::Error),
}

/// Waits for the destination while the stream lives. Buffers one message that arrives meanwhile and
/// then stops reading, so a disconnected harness is noticed only before its first message.
async fn open_destination(
    stream: &mut Link,
    opening: impl Future<Output = Result<Link, ConnectError>>,
) -> Result<Option<(Link, Option<Bytes>)>, ForwardError> {
    let mut opening = pin!(opening);
    let early = tokio::select! {
        opened = &mut opening => {
            return opened.map(|link| Some((link, None))).map_err(ForwardError::Open);
        }
        message = stream.reader.next() => match message {
            Ok(Some(message)) => message,
            Ok(None) | Err(_) => return Ok(None),
        },
    };
    let opened = opening.await.map_err(ForwardError::Open)?;
    Ok(Some((opened, Some(early))))
}
