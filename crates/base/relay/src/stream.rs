//! Messages over a channel: cut into records, put in order, and made whole again.
//!
//! A *plain* stream is what stock endpoints speak: nothing is acknowledged, and a lost frame or
//! connection is the end. A *reliable* stream, between two endpoints that announced it, acknowledges,
//! sends again, holds the sender back while the receiving application does not read, and outlives its
//! connection.
//!
//! Invariant: messages come out whole, once, and in the order in which they went in, or the stream
//! ends with an error. Not here: handshakes, and how long a stream without a connection is kept.

mod record_receiver;
mod reliable_state;
mod send_queue;
mod send_window;
#[cfg(test)]
mod tests;

use std::time::Instant;

use bytes::Bytes;

pub use self::send_queue::PushError;
use self::{
    record_receiver::RecordReceiver,
    reliable_state::ReliableState,
    send_queue::{RecordPacking, RecordSlice, SendQueue},
};
use crate::{
    channel::{Channel, RecordOpenError, RecordSealer},
    frame::{Body, DataHeader, Frame, StreamId},
    limits::{LAST_SEQ, MESSAGE_BYTES, PLAIN_QUEUE_MESSAGES, REORDER_BYTES, TAG_BYTES},
};

/// What both endpoints of a stream have agreed on.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Delivery {
    /// As stock endpoints: nothing is acknowledged.
    Plain,
    /// Both endpoints announced that they acknowledge.
    Reliable,
}

/// One end of a stream, after its handshake. The caller owns the connection and the clock.
///
/// A driver hands in each frame of the stream ([`Self::handle_frame`]), takes messages out
/// ([`Self::poll_message`]), sends frames as long as there are some ([`Self::poll_frame`]), and wakes
/// up at [`Self::poll_timeout`]. Any of these can make a frame ready. After an error every call
/// returns that same error.
#[derive(Debug)]
pub struct Stream {
    id: StreamId,
    sealer: RecordSealer,
    send_queue: SendQueue,
    receiver: RecordReceiver,
    /// Absent on plain streams.
    reliable: Option<ReliableState>,
    failed: Option<StreamError>,
    /// The latest time that was seen.
    now: Instant,
}

impl Stream {
    /// Makes one end of a stream that is connected.
    pub fn new(id: StreamId, channel: Channel, delivery: Delivery, now: Instant) -> Self {
        let Channel { sealer, opener } = channel;
        Self {
            id,
            sealer,
            send_queue: SendQueue::default(),
            receiver: RecordReceiver::new(opener),
            reliable: match delivery {
                Delivery::Plain => None,
                Delivery::Reliable => Some(ReliableState::new(now)),
            },
            failed: None,
            now,
        }
    }

    /// Queues one message: `encode` appends it. The queue has no bound of its own; callers look at
    /// [`Self::buffered`] first.
    pub fn push(&mut self, encode: impl FnOnce(&mut Vec<u8>)) -> Result<(), PushError> {
        self.send_queue.push(encode)
    }

    /// Takes a frame in. Frames of other streams are ignored. A driver that outlives a reset looks at
    /// resets itself: here they are an error, as are handshakes.
    pub fn handle_frame(&mut self, frame: Frame, now: Instant) -> Result<(), StreamError> {
        self.run_unless_failed(now, |stream| {
            if frame.stream_id != stream.id {
                return Ok(());
            }
            stream.process_frame(frame, now)
        })
    }

    /// Lets time pass.
    pub fn handle_timeout(&mut self, now: Instant) -> Result<(), StreamError> {
        self.run_unless_failed(now, |stream| match &mut stream.reliable {
            Some(reliable) => reliable.handle_timeout(now),
            None => Ok(()),
        })
    }

    /// The connection is gone. A plain stream is over; a reliable one sends nothing until
    /// [`Self::handle_reconnect`], or until the peer resumes.
    pub fn handle_disconnect(&mut self, now: Instant) {
        // The error is kept, and returned by the next call that can.
        let _recorded = self.run_unless_failed(now, |stream| match &mut stream.reliable {
            Some(reliable) => {
                reliable.handle_disconnect();
                Ok(())
            }
            None => Err(StreamError::Disconnected),
        });
    }

    /// There is a new connection. A reliable stream sends `Resume` on it first, and once the peer
    /// answers, what that lacks.
    pub fn handle_reconnect(&mut self, now: Instant) {
        self.now = self.now.max(now);
        if let Some(reliable) = &mut self.reliable {
            reliable.handle_reconnect(now);
        }
    }

    /// Returns the next frame to send: one binary websocket message.
    pub fn poll_frame(&mut self, now: Instant) -> Option<Bytes> {
        self.now = self.now.max(now);
        if self.failed.is_some() {
            return None;
        }
        let Some(reliable) = &mut self.reliable else {
            let slice = self.send_queue.next(RecordPacking::OneMessage)?;
            return self.seal(&slice, now);
        };
        if !reliable.keepalive.is_connected() {
            return None;
        }
        if reliable.keepalive.is_resume_due() {
            let next_seq = self.sealer.next_seq();
            let frame = self.control(Body::Resume { next_seq }, now);
            if let Some(reliable) = &mut self.reliable {
                reliable.keepalive.record_resume_sent(now);
            }
            return Some(frame);
        }
        if reliable.keepalive.is_established() {
            // What is sent again tells old acknowledgements, so a new one goes first.
            if reliable.acks.is_due() && reliable.window.has_retransmits() {
                return Some(self.control(Body::Ack, now));
            }
            if let Some(frame) = reliable.window.poll_retransmit(now) {
                reliable.keepalive.record_sent(now);
                return Some(frame);
            }
            if let Some(slice) = self.send_queue.next(RecordPacking::WholeMessages)
                && reliable.window.has_room(slice.len() + TAG_BYTES)
            {
                return self.seal(&slice, now);
            }
        }
        if reliable.acks.is_due() {
            return Some(self.control(Body::Ack, now));
        }
        if reliable.keepalive.is_heartbeat_due() {
            return Some(self.control(Body::Heartbeat, now));
        }
        None
    }

    /// Returns the next message of the peer. It may be a slice of a larger buffer.
    pub fn poll_message(&mut self) -> Option<Bytes> {
        let message = self.receiver.poll_message()?;
        if let Some(reliable) = &mut self.reliable {
            // What waited for room arrived before, so it is not ack_progress at this time.
            let delivered = reliable.handle_message_taken(&mut self.receiver, self.now);
            self.failed = self.failed.or(delivered.err());
        }
        Some(message)
    }

    /// Returns when [`Self::handle_timeout`] has something to do.
    pub fn poll_timeout(&self) -> Option<Instant> {
        if self.failed.is_some() {
            return Some(self.now);
        }
        self.reliable.as_ref()?.poll_timeout()
    }

    /// Returns the name of the stream.
    pub fn id(&self) -> &StreamId {
        &self.id
    }

    /// Returns what the endpoints have agreed on.
    pub fn delivery(&self) -> Delivery {
        match self.reliable {
            None => Delivery::Plain,
            Some(_) => Delivery::Reliable,
        }
    }

    /// Returns how many bytes were pushed, prefixes included, that no frame holds yet.
    pub fn buffered(&self) -> usize {
        self.send_queue.len()
    }

    /// Tells whether so much waits for the application that no more should be read. Only of plain
    /// streams, whose peer learns it from the connection: reliable ones hold it back themselves.
    pub fn is_crowded(&self) -> bool {
        self.reliable.is_none() && self.receiver.receive_queue().should_pause()
    }

    /// Returns how many records were sent that the peer has not acknowledged: always 0 on plain
    /// streams.
    pub fn unacknowledged(&self) -> usize {
        self.reliable
            .as_ref()
            .map_or(0, |reliable| reliable.window.len())
    }

    /// Returns why the stream is over, if it is.
    pub fn error(&self) -> Option<StreamError> {
        self.failed
    }

    fn process_frame(&mut self, frame: Frame, now: Instant) -> Result<(), StreamError> {
        // A reset may be the relay's own, which knows no acknowledgements.
        match &frame.body {
            Body::Reset { .. } => return Err(StreamError::Reset),
            Body::Handshake(_) => return Err(StreamError::Handshake),
            Body::Data(_) | Body::Ack | Body::Resume { .. } | Body::Heartbeat => {}
        }
        if let Some(reliable) = &mut self.reliable {
            let sealed = self.sealer.next_seq();
            reliable.handle_ack(frame.ack, frame.ack_bits, sealed, now)?;
        }
        match (frame.body, &mut self.reliable) {
            (Body::Data(data), None) => self.receiver.handle_plain(data),
            (Body::Data(data), Some(reliable)) => {
                reliable.handle_data(data, &mut self.receiver, now)
            }
            (Body::Resume { next_seq }, Some(reliable)) => {
                reliable.handle_resume(next_seq, &self.receiver, now);
                Ok(())
            }
            (
                Body::Resume { .. }
                | Body::Ack
                | Body::Heartbeat
                | Body::Reset { .. }
                | Body::Handshake(_),
                _,
            ) => Ok(()),
        }
    }

    /// Seals the next record inside its frame.
    fn seal(&mut self, slice: &RecordSlice, now: Instant) -> Option<Bytes> {
        let seq = self.sealer.next_seq();
        if seq > LAST_SEQ {
            self.failed = Some(StreamError::Exhausted);
            return None;
        }
        let (ack, ack_bits) = self.take_ack_fields(now);
        let len = slice.len() + TAG_BYTES;
        let header = DataHeader {
            stream_id: &self.id,
            ack,
            ack_bits,
            seq,
            segment_index: slice.segment_index,
            segment_count: slice.segment_count,
        };
        let mut frame = header.start(len);
        let start = frame.len();
        frame.extend_from_slice(self.send_queue.bytes(slice));
        if self.sealer.seal(&mut frame, start).is_err() {
            self.failed = Some(StreamError::Exhausted);
            return None;
        }
        self.send_queue.advance(slice);
        let frame = Bytes::from(frame);
        if let Some(reliable) = &mut self.reliable {
            reliable.window.add(frame.clone(), len, now);
        }
        Some(frame)
    }

    /// Makes a frame that is no record.
    fn control(&mut self, body: Body, now: Instant) -> Bytes {
        let (ack, ack_bits) = self.take_ack_fields(now);
        let frame = Frame {
            ack,
            ack_bits,
            ..Frame::new(self.id.clone(), body)
        };
        frame.encode()
    }

    /// Returns the acknowledgement fields of the frame that is being made.
    fn take_ack_fields(&mut self, now: Instant) -> (u32, u32) {
        match &mut self.reliable {
            None => (0, 0),
            Some(reliable) => reliable.take_ack_fields(&self.receiver, now),
        }
    }

    /// Does something that can end the stream, unless it is over.
    fn run_unless_failed(
        &mut self,
        now: Instant,
        act: impl FnOnce(&mut Self) -> Result<(), StreamError>,
    ) -> Result<(), StreamError> {
        self.now = self.now.max(now);
        if let Some(error) = self.failed {
            return Err(error);
        }
        act(self).inspect_err(|error| self.failed = Some(*error))
    }
}

/// Why a stream is over. Nothing more goes in or comes out.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum StreamError {
    /// Peer, or the relay: a record is not what was sealed.
    #[error(transparent)]
    Record(#[from] RecordOpenError),
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
    MessageTooLong(usize),
    /// Peer: places of records in their messages do not fit together.
    #[error("segments of record {0} do not fit")]
    Segments(u32),
    /// Peer: it sends faster than the application of a plain stream reads.
    #[error("more than {PLAIN_QUEUE_MESSAGES} messages wait for the application")]
    QueueFull,
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
