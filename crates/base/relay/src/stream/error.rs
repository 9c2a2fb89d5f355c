//! Why a stream is over.

use crate::{
    channel::OpenError,
    limits::{MESSAGE_BYTES, PLAIN_INBOX_MESSAGES, REORDER_BYTES},
};

/// Why a stream is over. Nothing more goes in or comes out.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum StreamError {
    /// Peer, or the relay: a record is not what was sealed.
    #[error(transparent)]
    Record(#[from] OpenError),
    /// Peer, or the relay: a record is too far ahead of a plain stream.
    #[error("record {seq} is out of the window that starts at {next}")]
    OutOfWindow {
        /// Number of the record.
        seq: u32,
        /// The number that was expected.
        next: u32,
    },
    /// Peer, or the relay: too much waits for a record that does not come on a plain stream.
    #[error("more than {REORDER_BYTES} bytes wait for record {next}")]
    ReorderFull {
        /// The number that was expected.
        next: u32,
    },
    /// Peer: a message of no length.
    #[error("message is empty")]
    EmptyMessage,
    /// Peer: a message longer than any may be.
    #[error("message of {0} bytes exceeds {MESSAGE_BYTES}")]
    LongMessage(usize),
    /// Peer: places of records in their messages do not fit together.
    #[error("segments of record {0} do not fit")]
    Segments(u32),
    /// Peer: it sends faster than the application of a plain stream reads.
    #[error("more than {PLAIN_INBOX_MESSAGES} messages wait for the application")]
    InboxFull,
    /// Peer, or the relay: acknowledged what was never sent.
    #[error("record {0} was acknowledged and never sent")]
    AckOfUnsent(u32),
    /// Peer: a handshake on a stream that has its keys.
    #[error("handshake on an open stream")]
    Handshake,
    /// Peer, or the relay: the stream was reset.
    #[error("stream was reset")]
    Reset,
    /// Transport: the peer has shown no life for too long.
    #[error("peer is silent")]
    Silent,
    /// Transport: a plain stream does not outlive its connection.
    #[error("connection is lost")]
    Disconnected,
    /// Caller: record numbers are used up. A new stream has new ones.
    #[error("record numbers are used up")]
    Exhausted,
}
