//! What every transport offers: a reader and a writer of whole messages.

use std::{
    fmt,
    future::poll_fn,
    io,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use exec_relay::stream::StreamError;
use exec_wire::{limits, outgoing::Outgoing};
use tokio::{
    sync::{OwnedSemaphorePermit, watch},
    time::Instant,
};

use crate::connect::Exit;

/// A connection to a peer.
#[derive(Debug)]
pub struct Link {
    /// Messages from the peer.
    pub reader: Box<dyn MessageReader>,
    /// Messages to the peer.
    pub writer: Box<dyn MessageWriter>,
    /// The peer, for people.
    pub peer: String,
    /// Whether data may travel raw on it.
    pub binary: Binary,
    /// Requests that may be under way on it. Peers that queue them may have room for no more.
    pub most_unanswered: usize,
    /// Its place among the connections of a listener, given back when the link is dropped.
    pub slot: Option<OwnedSemaphorePermit>,
    /// When its ends began to shake hands, if they did. What else has to be settled before the link is
    /// of use shares the time that this may take.
    pub handshake_began: Option<Instant>,
    /// Who authenticated as its client, where that has a name. Links without one are all of the same
    /// principal: the one that may connect.
    pub principal: Option<Principal>,
    /// What it travels on, if that can be lost and found again below the link. People are told.
    pub path: Option<watch::Receiver<Path>>,
}

/// The name that a client proved to have: the subject of its signed token.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Principal(pub Arc<str>);

/// Whether a link that survives the loss of what it travels on has anything to travel on.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Path {
    /// The peer is heard.
    There,
    /// Another one is looked for.
    Lost,
}

/// Which end of a link this is: clients mask what they send, servers ping and take in less.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Role {
    /// Accepted the connection.
    Server,
    /// Opened it.
    Client,
}

impl Role {
    /// Returns the largest message that this end takes in.
    pub const fn max_message_bytes(self) -> usize {
        match self {
            Self::Server => limits::MAX_MESSAGE_BYTES,
            Self::Client => limits::MAX_ANSWER_BYTES,
        }
    }
}

/// Whether a link can carry raw data.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Binary {
    /// Binary messages are told from text.
    Possible,
    /// Only text travels.
    Refused,
}

/// Takes messages off a link.
pub trait MessageReader: fmt::Debug + Send {
    /// Returns the next message; `None` when the peer is done. Cancelling loses nothing.
    fn poll_message(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, ReadError>>;
}

impl dyn MessageReader + '_ {
    /// Waits for the next message.
    pub async fn next(&mut self) -> Result<Option<Bytes>, ReadError> {
        poll_fn(|cx| self.poll_message(cx)).await
    }
}

/// Puts messages on a link.
pub trait MessageWriter: fmt::Debug + Send {
    /// Encodes a message behind those not flushed yet.
    fn push(&mut self, message: Outgoing, encoding: Encoding);

    /// Returns how many bytes wait to be flushed.
    fn buffered(&self) -> usize;

    /// Hands what is buffered to the operating system.
    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;

    /// Resolves when the link itself has something to flush, such as a ping.
    fn poll_upkeep(&mut self, cx: &mut Context<'_>) -> Poll<()>;

    /// Flushes and ends the link.
    fn poll_close(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;
}

impl dyn MessageWriter + '_ {
    /// Flushes what is buffered.
    pub async fn flush(&mut self) -> io::Result<()> {
        poll_fn(|cx| self.poll_flush(cx)).await
    }

    /// Flushes and ends the link.
    pub async fn close(&mut self) -> io::Result<()> {
        poll_fn(|cx| self.poll_close(cx)).await
    }
}

/// How data members travel.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Encoding {
    /// As base64 inside the text.
    Text,
    /// Raw, behind the text.
    Binary,
}

impl ReadError {
    /// Returns the status code (RFC 6455 section 7.4) that tells the peer of a websocket; `None` if it
    /// cannot be told.
    pub const fn close_code(&self) -> Option<u16> {
        match self {
            Self::Protocol(_) => Some(1002),
            Self::InvalidUtf8 => Some(1007),
            Self::TooLong(_) => Some(1009),
            Self::Stalled => Some(1013),
            Self::Io(_) | Self::Exited(_) | Self::ExecutorChanged | Self::Stream(_) => None,
        }
    }
}

/// Peer: the link cannot be read any further.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The connection broke.
    #[error("connection broke")]
    Io(#[from] io::Error),
    /// A frame or message is longer than this.
    #[error("message exceeds {0} bytes")]
    TooLong(usize),
    /// The peer does not keep to the rules of the transport.
    #[error("{0}")]
    Protocol(&'static str),
    /// A text message is not UTF-8.
    #[error("text message is not valid UTF-8")]
    InvalidUtf8,
    /// A large message was held up while others waited for the memory that is set aside for it.
    #[error("message took too long to arrive while others waited for memory")]
    Stalled,
    /// The program at the other end is gone.
    #[error("server program {0}")]
    Exited(Exit),
    /// The executor behind a relay is gone with its sessions: another one answers under its name.
    #[error("executor key changed")]
    ExecutorChanged,
    /// The stream through a relay failed.
    #[error(transparent)]
    Stream(StreamError),
}
