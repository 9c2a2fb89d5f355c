//! Streams: messages over a channel, split into records, reordered and reassembled.
//!
//! A *plain* stream is what stock endpoints speak: it has no acknowledgements, and a lost frame or
//! connection ends it. A *reliable* stream, between two endpoints that announced it, acknowledges
//! records, retransmits lost ones, applies backpressure when the receiving application is slow, and
//! survives the loss of its connection.
//!
//! Invariant: messages are delivered whole, once and in order, or the stream ends with an error.
//! Handshakes are in [`crate::handshake`]; `exec-transport` decides how long a stream without a
//! connection is retained.

mod record_receiver;
mod reliable_state;
mod send_queue;
#[cfg(test)]
mod tests;

use std::time::Instant;

use bytes::Bytes;

pub use self::send_queue::StreamPushError;
use self::{
    record_receiver::RecordReceiver,
    reliable_state::ReliableState,
    send_queue::{RecordPacking, RecordSlice, SendQueue},
};
use crate::{
    frame::{DataHeader, FrameBody, RelayFrame, StreamId},
    handshake::{NoiseChannel, RecordOpenError, RecordSealer},
    limits::{LAST_SEQ, MESSAGE_BYTES, PLAIN_QUEUE_MESSAGES, REORDER_BYTES, TAG_BYTES},
};

/// Delivery mode that both endpoints agreed on.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum DeliveryMode {
    /// No acknowledgements, as in stock endpoints.
    Plain,
    /// Both endpoints announced acknowledgements.
    Reliable,
}

/// One end of a stream, after its handshake. The caller owns the connection and the clock.
///
/// A driver passes in each received frame ([`Self::handle_frame`]), takes messages
/// ([`Self::poll_message`]), sends frames while there are any ([`Self::poll_frame`]), and wakes up
/// at [`Self::poll_timeout`]. Any of these calls can make a frame ready. After an error every call
/// returns that error.
#[derive(Debug)]
pub struct RelayStream {
    id: StreamId,
    sealer: RecordSealer,
    send_queue: SendQueue,
    receiver: RecordReceiver,
    /// Absent on plain streams.
    reliable: Option<ReliableState>,
    pub(crate) failed: Option<RelayStreamError>,
    /// Latest time passed in.
    now: Instant,
}

impl RelayStream {
    /// Creates one end of a connected stream.
    pub fn new(id: StreamId, channel: NoiseChannel, delivery: DeliveryMode, now: Instant) -> Self {
        let NoiseChannel { sealer, opener } = channel;
        Self {
            id,
            sealer,
            send_queue: SendQueue::default(),
            receiver: RecordReceiver::new(opener),
            reliable: match delivery {
                DeliveryMode::Plain => None,
                DeliveryMode::Reliable => Some(ReliableState::new(now)),
            },
            failed: None,
            now,
        }
    }

    /// Queues one message, which `encode` appends. The queue is unbounded; callers check
    /// [`Self::buffered`] first.
    pub fn push(&mut self, encode: impl FnOnce(&mut Vec<u8>)) -> Result<(), StreamPushError> {
        self.send_queue.push(encode)
    }

    /// Processes a frame. Frames of other streams are ignored. Resets and handshakes end the
    /// stream; a driver that survives a reset must intercept it.
    pub fn handle_frame(
        &mut self,
        frame: RelayFrame,
        now: Instant,
    ) -> Result<(), RelayStreamError> {
        self.run_unless_failed(now, |stream| {
            if frame.stream_id != stream.id {
                return Ok(());
            }
            stream.process_frame(frame, now)
        })
    }

    /// Processes expired timers.
    pub fn handle_timeout(&mut self, now: Instant) -> Result<(), RelayStreamError> {
        self.run_unless_failed(now, |stream| match &mut stream.reliable {
            Some(reliable) => reliable.handle_timeout(now),
            None => Ok(()),
        })
    }

    /// Records the loss of the connection. A plain stream ends. A reliable one sends nothing until
    /// [`Self::handle_reconnect`] or until the peer resumes.
    pub fn handle_disconnect(&mut self, now: Instant) {
        // The error is recorded, and later calls return it.
        let _recorded = self.run_unless_failed(now, |stream| match &mut stream.reliable {
            Some(reliable) => {
                reliable.handle_disconnect();
                Ok(())
            }
            None => Err(RelayStreamError::Disconnected),
        });
    }

    /// Records a new connection. A reliable stream first sends `Resume`, and after the peer's
    /// response everything that the peer lacks.
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
            let frame = self.control(FrameBody::Resume { next_seq }, now);
            if let Some(reliable) = &mut self.reliable {
                reliable.keepalive.record_resume_sent(now);
            }
            return Some(frame);
        }
        if reliable.keepalive.is_established() {
            // Retransmitted frames contain old acknowledgements, so a due one is sent first.
            if reliable.acks.is_due() && reliable.window.has_retransmits() {
                return Some(self.control(FrameBody::Ack, now));
            }
            if let Some(frame) = reliable.window.poll_retransmit(now) {
                reliable.keepalive.record_sent(now);
                return Some(frame);
            }
            if let Some(slice) = self.send_queue.next(RecordPacking::WholeMessages)
                && reliable.window.has_capacity(slice.len() + TAG_BYTES)
            {
                return self.seal(&slice, now);
            }
        }
        if reliable.acks.is_due() {
            return Some(self.control(FrameBody::Ack, now));
        }
        if reliable.keepalive.is_heartbeat_due() {
            return Some(self.control(FrameBody::Heartbeat, now));
        }
        None
    }

    /// Returns the peer's next message. It may be a slice of a larger buffer.
    pub fn poll_message(&mut self) -> Option<Bytes> {
        let message = self.receiver.receive_queue.pop()?;
        if let Some(reliable) = &mut self.reliable {
            // Buffered records arrived earlier, so the current time does not count as activity.
            let delivered = reliable.handle_message_read(&mut self.receiver, self.now);
            self.failed = self.failed.or(delivered.err());
        }
        Some(message)
    }

    /// Returns when [`Self::handle_timeout`] must be called.
    pub fn poll_timeout(&self) -> Option<Instant> {
        if self.failed.is_some() {
            return Some(self.now);
        }
        self.reliable.as_ref()?.poll_timeout()
    }

    /// Returns the delivery mode.
    pub fn delivery(&self) -> DeliveryMode {
        match self.reliable {
            None => DeliveryMode::Plain,
            Some(_) => DeliveryMode::Reliable,
        }
    }

    /// Returns the number of queued bytes that are not in a frame yet, prefixes included.
    pub fn buffered(&self) -> usize {
        self.send_queue.len()
    }

    /// Returns whether the driver should pause reading because the application is slow. Applies to
    /// plain streams only, where the connection provides the backpressure. Reliable streams
    /// withhold acknowledgements instead.
    pub fn should_pause_reading(&self) -> bool {
        self.reliable.is_none() && self.receiver.receive_queue.should_pause()
    }

    /// Returns the number of unacknowledged records. Always 0 on plain streams.
    pub fn unacknowledged(&self) -> usize {
        self.reliable
            .as_ref()
            .map_or(0, |reliable| reliable.window.len())
    }

    fn process_frame(&mut self, frame: RelayFrame, now: Instant) -> Result<(), RelayStreamError> {
        // A reset may come from the relay, which does not set acknowledgement fields.
        match &frame.body {
            FrameBody::Reset { .. } => return Err(RelayStreamError::Reset),
            FrameBody::Handshake(_) => return Err(RelayStreamError::Handshake),
            FrameBody::Data(_)
            | FrameBody::Ack
            | FrameBody::Resume { .. }
            | FrameBody::Heartbeat => {}
        }
        if let Some(reliable) = &mut self.reliable {
            let sealed = self.sealer.next_seq();
            reliable.handle_ack(frame.ack, frame.ack_bits, sealed, now)?;
        }
        match (frame.body, &mut self.reliable) {
            (FrameBody::Data(data), None) => self.receiver.handle_plain(data),
            (FrameBody::Data(data), Some(reliable)) => {
                reliable.handle_data(data, &mut self.receiver, now)
            }
            (FrameBody::Resume { next_seq }, Some(reliable)) => {
                reliable.handle_resume(next_seq, &self.receiver, now);
                Ok(())
            }
            (
                FrameBody::Resume { .. }
                | FrameBody::Ack
                | FrameBody::Heartbeat
                | FrameBody::Reset { .. }
                | FrameBody::Handshake(_),
                _,
            ) => Ok(()),
        }
    }

    /// Seals the next record in its frame.
    fn seal(&mut self, slice: &RecordSlice, now: Instant) -> Option<Bytes> {
        let seq = self.sealer.next_seq();
        if seq > LAST_SEQ {
            self.failed = Some(RelayStreamError::Exhausted);
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
            self.failed = Some(RelayStreamError::Exhausted);
            return None;
        }
        self.send_queue.advance(slice);
        let frame = Bytes::from(frame);
        if let Some(reliable) = &mut self.reliable {
            reliable.window.add(frame.clone(), len, now);
        }
        Some(frame)
    }

    /// Creates a frame without a record.
    fn control(&mut self, body: FrameBody, now: Instant) -> Bytes {
        let (ack, ack_bits) = self.take_ack_fields(now);
        let frame = RelayFrame {
            ack,
            ack_bits,
            ..RelayFrame::new(self.id.clone(), body)
        };
        frame.encode()
    }

    /// Returns the acknowledgement fields of the frame being created.
    fn take_ack_fields(&mut self, now: Instant) -> (u32, u32) {
        match &mut self.reliable {
            None => (0, 0),
            Some(reliable) => reliable.take_ack_fields(&self.receiver, now),
        }
    }

    /// Runs `act` unless the stream has ended, and records its error.
    fn run_unless_failed(
        &mut self,
        now: Instant,
        act: impl FnOnce(&mut Self) -> Result<(), RelayStreamError>,
    ) -> Result<(), RelayStreamError> {
        self.now = self.now.max(now);
        if let Some(error) = self.failed {
            return Err(error);
        }
        act(self).inspect_err(|error| self.failed = Some(*error))
    }
}

/// Why a stream ended. An ended stream neither accepts nor yields anything.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum RelayStreamError {
    /// Peer or relay: a record could not be opened.
    #[error(transparent)]
    Record(#[from] RecordOpenError),
    /// Peer or relay: a record of a plain stream is too far ahead.
    #[error("record {seq} is outside the window that starts at {next}")]
    OutOfWindow {
        /// Number of the record.
        seq: u32,
        /// Expected number.
        next: u32,
    },
    /// Peer or relay: the reorder buffer of a plain stream is full and the next record is missing.
    #[error("more than {REORDER_BYTES} bytes buffered while record {next} is missing")]
    ReorderFull {
        /// Expected number.
        next: u32,
    },
    /// Peer: an empty message.
    #[error("message is empty")]
    EmptyMessage,
    /// Peer: a message exceeds [`MESSAGE_BYTES`].
    #[error("message of {0} bytes exceeds {MESSAGE_BYTES}")]
    MessageTooLong(usize),
    /// Peer: the segment numbers of a record are inconsistent.
    #[error("segment numbers of record {0} are inconsistent")]
    Segments(u32),
    /// Peer: it sends faster than the application of a plain stream reads.
    #[error("more than {PLAIN_QUEUE_MESSAGES} messages are unread")]
    QueueFull,
    /// Peer or relay: acknowledgement of a record that was never sent.
    #[error("record {0} was acknowledged but never sent")]
    AckOfUnsent(u32),
    /// Peer: a handshake message on an established stream.
    #[error("unexpected handshake on an established stream")]
    Handshake,
    /// Peer or relay: the stream was reset.
    #[error("stream was reset")]
    Reset,
    /// Transport: the keepalive timeout expired.
    #[error("peer is silent")]
    Silent,
    /// Transport: a plain stream ends with its connection.
    #[error("connection lost")]
    Disconnected,
    /// Caller: all record numbers are used. Open a new stream.
    #[error("record numbers are exhausted")]
    Exhausted,
}
