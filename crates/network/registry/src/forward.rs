//! An executor that serves nothing itself: every stream of a harness is joined to a websocket of its
//! own, at one destination.
//!
//! Messages pass as they are, and neither side's session is known here. Not here: registration,
//! handshakes and limits, which are those of any executor (`executor`).

#[cfg(test)]
mod tests;

use std::{
    fmt,
    future::poll_fn,
    io,
    pin::pin,
    str::FromStr,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use exec_transport::{
    connect::{Address, AddressError, ConnectError, WebSocket},
    link::{Encoding, Link, MessageWriter, ReadError},
    tls::Trust,
    websocket::{LinkOptions, Sends},
};
use exec_wire::{limits, outgoing::Outgoing};
use tokio::{sync::mpsc, task::JoinSet, time::timeout};

use crate::executor::{ExecutorError, RemoteExecutor};

/// Streams that were let in and whose task has not begun: it begins at once.
const STARTING: usize = 16;

/// An executor that forwards.
#[derive(Debug)]
pub struct Forwarder {
    executor: RemoteExecutor,
    destination: Destination,
    trust: Trust,
}

impl Forwarder {
    /// Describes a forwarder. `trust` is for the destination. Nothing is sent.
    pub fn new(executor: RemoteExecutor, destination: Destination, trust: Trust) -> Self {
        Self {
            executor,
            destination,
            trust,
        }
    }

    /// Forwards until told to stop. Then everything is cut without a word.
    ///
    /// # Errors
    /// As [`RemoteExecutor::run`].
    pub async fn run(self, stop: impl Future<Output = ()>) -> Result<(), ExecutorError> {
        let (links, streams) = mpsc::channel(STARTING);
        tokio::select! {
            ended = self.executor.run(links, stop) => ended,
            () = forward(streams, self.destination, self.trust) => Err(ExecutorError::Abandoned),
        }
    }
}

/// Gives every stream a task. The executor bounds how many there are.
async fn forward(mut streams: mpsc::Receiver<Link>, destination: Destination, trust: Trust) {
    // Dropping the set ends them all.
    let mut running = JoinSet::new();
    loop {
        tokio::select! {
            Some(ended) = running.join_next() => {
                if let Err(error) = ended {
                    tracing::warn!(%error, "forwarding ended badly");
                }
            }
            stream = streams.recv() => {
                let Some(stream) = stream else { return };
                running.spawn(one(stream, destination.clone(), trust.clone()));
            }
        }
    }
}

/// Forwards one stream until either side ends. Whatever happens to it stays its own.
async fn one(stream: Link, destination: Destination, trust: Trust) {
    let ended = run(stream, destination.open(&trust)).await;
    match ended {
        Ok(()) => tracing::debug!(%destination, "stream ended"),
        Err(error) => tracing::warn!(%destination, %error, "stream failed"),
    }
}

/// How long a destination may take to answer.
const OPEN_TIMEOUT: Duration = Duration::from_secs(10);

/// A websocket server: `ws://HOST:PORT/PATH` or `wss://…`. Nothing is shown to it but the request.
#[derive(Clone)]
pub struct Destination(Address);

impl Destination {
    /// Opens a websocket to it. Dropping the future leaves none.
    async fn open(&self, trust: &Trust) -> Result<Link, ConnectError> {
        let socket = WebSocket {
            trust: trust.clone(),
            connect_timeout: OPEN_TIMEOUT,
            ..WebSocket::new(self.0.clone())
        };
        // Who passes on what it has not read does not call it text.
        let options = LinkOptions {
            sends: Sends::Binary,
            max_message_bytes: limits::MAX_MESSAGE_BYTES,
            budget: None,
        };
        socket.open_with(options, None).await
    }
}

impl FromStr for Destination {
    type Err = DestinationError;

    fn from_str(url: &str) -> Result<Self, DestinationError> {
        match url.trim().parse()? {
            address @ Address::Network(_) => Ok(Self(address)),
            Address::Unix(_) => Err(DestinationError::Unix),
        }
    }
}

impl fmt::Display for Destination {
    /// Writes the URL without path and query, which may hold a secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Destination({self})")
    }
}

/// Caller: the text is no destination.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum DestinationError {
    /// It is no URL of a server.
    #[error("destination is refused: {0}")]
    Address(#[from] AddressError),
    /// It names a socket of this machine's file system.
    #[error("destination begins with ws:// or wss://")]
    Unix,
}

/// Bytes that may wait on their way to one side before the other side is read on.
const HIGH_WATER: usize = limits::OUTBOX_BYTES;
/// How long the end of a destination may take to be acknowledged.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);
/// How long a harness may take to read what its destination said last.
const LAST_WORDS: Duration = Duration::from_secs(10);

/// Joins a stream to the destination that is being opened, until either side ends. The stream's end
/// cuts the destination without a word; the destination's end is acknowledged, and what it said
/// before still reaches the stream, which then ends.
async fn run(
    mut stream: Link,
    opening: impl Future<Output = Result<Link, ConnectError>>,
) -> Result<(), PumpError> {
    let Some((mut destination, early)) = open(&mut stream, opening).await? else {
        return Ok(());
    };
    if let Some(message) = early {
        push(&mut *destination.writer, message);
    }
    let mut pump = Pump {
        stream,
        destination,
        deaf: None,
    };
    let end = poll_fn(|cx| pump.poll(cx)).await?;
    if end == End::Stream {
        return Ok(());
    }
    let Pump {
        mut stream,
        mut destination,
        ..
    } = pump;
    // The destination does not wait for a harness that reads slowly.
    let (acknowledged, delivered) = tokio::join!(
        timeout(CLOSE_TIMEOUT, destination.writer.close()),
        timeout(LAST_WORDS, stream.writer.close()),
    );
    if !matches!(acknowledged, Ok(Ok(()))) {
        tracing::debug!("destination did not wait for the end");
    }
    delivered
        .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
        .map_err(PumpError::Harness)
}

/// Why a stream was not forwarded to its end.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
enum PumpError {
    /// As the source says: there is no destination.
    #[error("cannot open the destination")]
    Open(#[source] ConnectError),
    /// Peer: the destination cannot be read any further.
    #[error("destination broke")]
    Read(#[source] ReadError),
    /// Peer: a message of the destination is longer than a stream carries.
    #[error(
        "destination sent a message of more than {} bytes",
        limits::MAX_MESSAGE_BYTES
    )]
    TooLong,
    /// Transport: the destination takes nothing any more.
    #[error("destination broke")]
    Write(#[source] io::Error),
    /// Transport: the stream takes nothing any more.
    #[error("stream broke")]
    Harness(#[source] io::Error),
}

/// Which side was done first.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum End {
    Stream,
    Destination,
}

/// Waits for the destination while the stream lives. A message that comes meanwhile is kept, and the
/// next is not read: a harness that is gone is noticed as long as it has said nothing.
async fn open(
    stream: &mut Link,
    opening: impl Future<Output = Result<Link, ConnectError>>,
) -> Result<Option<(Link, Option<Bytes>)>, PumpError> {
    let mut opening = pin!(opening);
    let early = tokio::select! {
        opened = &mut opening => {
            return opened.map(|link| Some((link, None))).map_err(PumpError::Open);
        }
        message = stream.reader.next() => match message {
            Ok(Some(message)) => message,
            Ok(None) | Err(_) => return Ok(None),
        },
    };
    let opened = opening.await.map_err(PumpError::Open)?;
    Ok(Some((opened, Some(early))))
}

/// Both sides.
struct Pump {
    stream: Link,
    destination: Link,
    /// Why the destination takes nothing any more. What it has said may still be unread.
    deaf: Option<io::Error>,
}

impl Pump {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<End, PumpError>> {
        loop {
            let there = self.poll_there(cx);
            if matches!(there, Moved::Ended) {
                return Poll::Ready(Ok(End::Stream));
            }
            let back = self.poll_back(cx)?;
            if matches!(back, Moved::Ended) {
                return Poll::Ready(match self.deaf.take() {
                    Some(error) => Err(PumpError::Write(error)),
                    None => Ok(End::Destination),
                });
            }
            if self.deaf.is_none()
                && let Err(error) = poll_out(&mut *self.destination.writer, cx)
            {
                self.deaf = Some(error);
            }
            poll_out(&mut *self.stream.writer, cx).map_err(PumpError::Harness)?;
            // A side that was not read has nobody to wake us for it, unless its way is still full.
            let again = |moved: &Moved, writer: &dyn MessageWriter| match moved {
                Moved::One => true,
                Moved::Full => writer.buffered() < HIGH_WATER,
                Moved::None | Moved::Ended => false,
            };
            if !again(&there, &*self.destination.writer) && !again(&back, &*self.stream.writer) {
                return Poll::Pending;
            }
        }
    }

    /// Moves one message of the stream.
    fn poll_there(&mut self, cx: &mut Context<'_>) -> Moved {
        if self.deaf.is_none() && self.destination.writer.buffered() >= HIGH_WATER {
            return Moved::Full;
        }
        match self.stream.reader.poll_message(cx) {
            Poll::Ready(Ok(Some(message))) => {
                if self.deaf.is_none() {
                    push(&mut *self.destination.writer, message);
                }
                Moved::One
            }
            // Whatever became of the stream, nobody is there to be told.
            Poll::Ready(Ok(None) | Err(_)) => Moved::Ended,
            Poll::Pending => Moved::None,
        }
    }

    /// Moves one message of the destination.
    fn poll_back(&mut self, cx: &mut Context<'_>) -> Result<Moved, PumpError> {
        if self.stream.writer.buffered() >= HIGH_WATER {
            return Ok(Moved::Full);
        }
        match self.destination.reader.poll_message(cx) {
            Poll::Ready(Ok(Some(message))) if message.len() > limits::MAX_MESSAGE_BYTES => {
                Err(PumpError::TooLong)
            }
            Poll::Ready(Ok(Some(message))) => {
                // Streams have no empty messages, and nobody misses them.
                if !message.is_empty() {
                    push(&mut *self.stream.writer, message);
                }
                Ok(Moved::One)
            }
            Poll::Ready(Ok(None)) => Ok(Moved::Ended),
            Poll::Ready(Err(error)) => Err(PumpError::Read(error)),
            Poll::Pending => Ok(Moved::None),
        }
    }
}

/// What came of one direction.
enum Moved {
    /// A message was moved.
    One,
    /// There is none.
    None,
    /// Nobody looked: too much is on its way already.
    Full,
    /// There will be none any more.
    Ended,
}

/// Passes a message on as it is: its bytes, in one message.
fn push(to: &mut dyn MessageWriter, message: Bytes) {
    to.push(Outgoing::Text(message.into()), Encoding::Text);
}

/// Flushes what waits, and what the link itself has to say.
fn poll_out(writer: &mut dyn MessageWriter, cx: &mut Context<'_>) -> io::Result<()> {
    loop {
        match writer.poll_flush(cx) {
            Poll::Ready(flushed) => flushed?,
            Poll::Pending => return Ok(()),
        }
        // Pending means that it will wake us.
        if writer.poll_upkeep(cx).is_pending() {
            return Ok(());
        }
    }
}
