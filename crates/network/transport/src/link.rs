//! The interface of every transport: a reader and a writer of whole messages.

use std::{
    fmt,
    future::poll_fn,
    io,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
#[cfg(feature = "relay")]
use exec_relay::stream::RelayStreamError;
use exec_wire::{limits, outgoing_message::OutgoingMessage};
use tokio::{
    sync::{OwnedSemaphorePermit, watch},
    time::Instant,
};

use crate::connect::ProgramExit;

/// A connection to a peer.
#[derive(Debug)]
pub struct Link {
    /// Messages from the peer.
    pub reader: Box<dyn MessageReader>,
    /// Messages to the peer.
    pub writer: Box<dyn MessageWriter>,
    /// Name of the peer for logs and messages.
    pub peer: String,
    /// Whether the link can carry raw data.
    pub binary: BinarySupport,
    /// Maximum number of requests in flight. A peer with a bounded queue may accept no more.
    pub max_in_flight: usize,
    /// Connection slot of a listener, released when the link is dropped.
    pub slot: Option<OwnedSemaphorePermit>,
    /// When the handshake of the link started, if it had one. The session handshake shares its
    /// timeout.
    pub handshake_started_at: Option<Instant>,
    /// The authenticated client, if its credentials name one. Links without a principal all belong
    /// to the same one.
    pub principal: Option<Principal>,
    /// State of the underlying path, if the link survives its loss. For status messages.
    pub path: Option<watch::Receiver<LinkPathState>>,
}

impl Link {
    /// Creates a link for any number of requests, without a slot, a handshake, a principal or a
    /// path.
    pub fn new(
        reader: impl MessageReader + 'static,
        writer: impl MessageWriter + 'static,
        peer: String,
        binary: BinarySupport,
    ) -> Self {
        Self {
            reader: Box::new(reader),
            writer: Box::new(writer),
            peer,
            binary,
            max_in_flight: usize::MAX,
            slot: None,
            handshake_started_at: None,
            principal: None,
            path: None,
        }
    }
}

/// The authenticated name of a client: the subject of its signed token.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Principal(pub Arc<str>);

/// State of the path below a link that survives the loss of its connection.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum LinkPathState {
    /// The peer is reachable.
    Connected,
    /// The path is lost; the link reconnects.
    Lost,
}

/// Which end of a link this is. Clients mask their frames; servers send pings and have a lower
/// message limit.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum LinkRole {
    /// The end that accepted the connection.
    Server,
    /// The end that opened it.
    Client,
}

impl LinkRole {
    /// Returns the maximum message size that this end accepts.
    pub const fn max_message_bytes(self) -> usize {
        match self {
            Self::Server => limits::MAX_MESSAGE_BYTES,
            Self::Client => limits::MAX_RESPONSE_BYTES,
        }
    }
}

/// Whether a link can carry raw data.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum BinarySupport {
    /// Text and binary messages are distinct.
    Supported,
    /// The link carries text only.
    TextOnly,
}

/// Reads messages from a link.
pub trait MessageReader: fmt::Debug + Send {
    /// Returns the next message; `None` when the peer has closed. Cancel safe.
    fn poll_message(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, LinkReadError>>;
}

impl dyn MessageReader + '_ {
    /// Waits for the next message.
    pub async fn next(&mut self) -> Result<Option<Bytes>, LinkReadError> {
        poll_fn(|cx| self.poll_message(cx)).await
    }
}

/// Writes messages to a link.
pub trait MessageWriter: fmt::Debug + Send {
    /// Encodes a message after those not flushed yet.
    fn push(&mut self, message: OutgoingMessage, encoding: DataEncoding);

    /// Returns the number of bytes waiting to be flushed.
    fn buffered(&self) -> usize;

    /// Hands the buffered bytes to the operating system.
    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;

    /// Resolves when the link itself has something to flush, such as a keepalive ping.
    fn poll_keepalive(&mut self, cx: &mut Context<'_>) -> Poll<()>;

    /// Flushes and closes the link.
    fn poll_close(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;
}

impl dyn MessageWriter + '_ {
    /// Flushes the buffered bytes.
    pub async fn flush(&mut self) -> io::Result<()> {
        poll_fn(|cx| self.poll_flush(cx)).await
    }

    /// Flushes and closes the link.
    pub async fn close(&mut self) -> io::Result<()> {
        poll_fn(|cx| self.poll_close(cx)).await
    }
}

/// Encoding of binary data in messages.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum DataEncoding {
    /// Base64 inside the text.
    Text,
    /// Raw bytes after the text.
    Binary,
}

impl DataEncoding {
    /// Appends a message in this encoding.
    pub(crate) fn encode(self, message: &OutgoingMessage, out: &mut Vec<u8>) {
        match (message, self) {
            (OutgoingMessage::Data(message), Self::Binary) => {
                let data = message.encode_binary(out);
                out.extend_from_slice(&data);
            }
            (message, _) => message.encode_text(out),
        }
    }
}

impl LinkReadError {
    /// Returns the websocket close code (RFC 6455 section 7.4) for the peer; `None` if it cannot be
    /// reached.
    pub const fn close_code(&self) -> Option<u16> {
        match self {
            Self::Protocol(_) => Some(1002),
            Self::InvalidUtf8 => Some(1007),
            Self::TooLong(_) => Some(1009),
            Self::Stalled => Some(1013),
            Self::Io(_) | Self::Exited(_) | Self::ExecutorChanged => None,
            #[cfg(feature = "relay")]
            Self::Stream(_) => None,
        }
    }
}

/// Peer: the link cannot be read further.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LinkReadError {
    /// The connection failed.
    #[error("connection broke")]
    Io(#[from] io::Error),
    /// A frame or message is longer than this.
    #[error("message exceeds {0} bytes")]
    TooLong(usize),
    /// The peer violated the transport protocol.
    #[error("{0}")]
    Protocol(&'static str),
    /// A text message is not UTF-8.
    #[error("text message is not valid UTF-8")]
    InvalidUtf8,
    /// A large message arrived too slowly while others waited for its share of the message budget.
    #[error("message took too long to arrive while others waited for memory")]
    Stalled,
    /// The program at the other end exited.
    #[error("server program {0}")]
    Exited(ProgramExit),
    /// The executor behind the relay is gone with its sessions: another one uses its name.
    #[error("executor key changed")]
    ExecutorChanged,
    /// The stream through a relay failed.
    #[cfg(feature = "relay")]
    #[error(transparent)]
    Stream(RelayStreamError),
}
