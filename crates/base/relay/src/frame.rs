//! Relay frames: the envelope in which everything travels on the rendezvous websocket.
//!
//! Invariant: a [`Frame`] is valid; what is not, is refused by [`Frame::decode`]. Payloads are slices
//! of the message they came in. Not here: what a relay reads of a frame ([`crate::route`]).

#[rustfmt::skip]
#[expect(unreachable_pub, reason = "generated from the schema")]
mod proto;
#[cfg(test)]
mod tests;

use std::{borrow::Borrow, fmt, sync::Arc};

use bytes::Bytes;
use prost::Message;

use self::proto::{
    RelayAck, RelayData, RelayHandshake, RelayHeartbeat, RelayMessageFrame, RelayReset,
    RelayResume, relay_message_frame,
};
use crate::{
    limits,
    route::{Kind, Route},
};

/// The one version of the frame.
pub const VERSION: u32 = 1;
/// The acknowledgement of a reliable endpoint that has received nothing: its bit 0 is record 0.
pub const NOTHING_RECEIVED: u32 = u32::MAX;
/// The reason of every reset that an executor sends, whatever the cause. It tells nothing to a peer
/// that is not authenticated.
pub const RESET_PROTOCOL_ERROR: &str = "noise_relay_protocol_error";
/// The reason of a reset by which a reliable harness ends its stream on purpose.
pub const RESET_CLOSED: &str = "closed";

/// One valid relay frame: one binary websocket message.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Frame {
    /// The stream it belongs to. Untrusted text.
    pub stream_id: StreamId,
    /// Highest record taken without a gap. Means something on reliable streams only; else 0.
    pub ack: u32,
    /// Bit i: record `ack + 1 + i` has arrived. Means something on reliable streams only; else 0.
    pub ack_bits: u32,
    /// What it carries.
    pub body: Body,
    /// Trace context in clear text. Stock harnesses repeat here what a traced request says inside.
    pub trace: Option<Trace>,
}

impl Frame {
    /// Makes a frame without acknowledgement, as a stock endpoint does.
    pub fn new(stream_id: StreamId, body: Body) -> Self {
        Self {
            stream_id,
            ack: 0,
            ack_bits: 0,
            body,
            trace: None,
        }
    }

    /// Makes the frame by which an endpoint announces that it acknowledges. Stock peers ignore it.
    pub fn announcement(stream_id: StreamId) -> Self {
        Self {
            ack: NOTHING_RECEIVED,
            ..Self::new(stream_id, Body::Ack)
        }
    }

    /// Tells whether this is what [`Self::announcement`] makes.
    pub fn is_announcement(&self) -> bool {
        self.body == Body::Ack && self.ack == NOTHING_RECEIVED && self.ack_bits == 0
    }

    /// Tells whether a stock endpoint holds the frame to be valid: records are never segmented.
    /// Stock executors drop others in silence, stock harnesses end the connection.
    pub fn is_plain(&self) -> bool {
        match &self.body {
            Body::Data(data) => data.segment_index == 0 && data.segment_count == 1,
            Body::Ack
            | Body::Resume { .. }
            | Body::Reset { .. }
            | Body::Heartbeat
            | Body::Handshake(_) => true,
        }
    }
}

/// What a frame carries.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Body {
    /// One sealed record.
    Data(Data),
    /// Nothing but the acknowledgement fields, or the announcement that they are used.
    Ack,
    /// The sender goes on with the stream on a new connection.
    Resume {
        /// The number of its next new record. 0 in front of a handshake.
        next_seq: u32,
    },
    /// The stream, or its path, is over.
    Reset {
        /// Never empty. Untrusted, unauthenticated text.
        reason: String,
    },
    /// A sign of life.
    Heartbeat,
    /// One NoiseState handshake message. Never empty.
    Handshake(Bytes),
}

impl Body {
    /// Returns which body it is.
    pub fn kind(&self) -> Kind {
        match self {
            Self::Data(_) => Kind::Data,
            Self::Ack => Kind::Ack,
            Self::Resume { .. } => Kind::Resume,
            Self::Reset { .. } => Kind::Reset,
            Self::Heartbeat => Kind::Heartbeat,
            Self::Handshake(_) => Kind::Handshake,
        }
    }
}

/// One sealed record, and its place in the message that it is a part of.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Data {
    /// Number of the record in its direction, from 0 without gaps.
    pub seq: u32,
    /// Place of the record within its message.
    pub segment_index: u32,
    /// Records that carry the message: 1 for whole messages.
    pub segment_count: u32,
    /// Ciphertext and tag. Never empty.
    pub payload: Bytes,
}

/// W3C trace context, unchecked.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Trace {
    /// `traceparent`.
    pub parent: Option<String>,
    /// `tracestate`.
    pub state: Option<String>,
}

/// Tells whether any message is cut like this.
pub(crate) fn is_valid_segment(index: u32, count: u32) -> bool {
    index < count && count <= limits::MAX_SEGMENTS
}

impl Frame {
    /// Decodes one websocket message. Payloads are slices of it; nothing but texts is copied.
    pub fn decode(message: Bytes) -> Result<Self, RelayFrameError> {
        // The envelope is checked first, by the code that a hub checks it with: both agree.
        let stream_id = StreamId::new(Route::peek(&message)?.stream_id)?;
        let raw = RelayMessageFrame::decode(message).map_err(|_| RelayFrameError::Malformed)?;
        let body = match raw.body.ok_or(RelayFrameError::NoBody)? {
            relay_message_frame::Body::Data(data) => {
                if !is_valid_segment(data.segment_index, data.segment_count) {
                    return Err(RelayFrameError::Segments {
                        index: data.segment_index,
                        count: data.segment_count,
                    });
                }
                if data.payload.is_empty() {
                    return Err(RelayFrameError::NoPayload);
                }
                Body::Data(Data {
                    seq: data.seq,
                    segment_index: data.segment_index,
                    segment_count: data.segment_count,
                    payload: data.payload,
                })
            }
            relay_message_frame::Body::AckFrame(_) => Body::Ack,
            relay_message_frame::Body::Resume(resume) => Body::Resume {
                next_seq: resume.next_seq,
            },
            relay_message_frame::Body::Reset(reset) if reset.reason.is_empty() => {
                return Err(RelayFrameError::NoReason);
            }
            relay_message_frame::Body::Reset(reset) => Body::Reset {
                reason: reset.reason,
            },
            relay_message_frame::Body::Heartbeat(_) => Body::Heartbeat,
            relay_message_frame::Body::Handshake(handshake) if handshake.payload.is_empty() => {
                return Err(RelayFrameError::NoPayload);
            }
            relay_message_frame::Body::Handshake(handshake) => Body::Handshake(handshake.payload),
        };
        let trace = Trace {
            parent: raw.traceparent,
            state: raw.tracestate,
        };
        Ok(Self {
            stream_id,
            ack: raw.ack,
            ack_bits: raw.ack_bits,
            body,
            trace: (trace != Trace::default()).then_some(trace),
        })
    }
}

/// Why bytes are not a valid frame.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum RelayFrameError {
    /// Peer: not a message of the schema.
    #[error("frame is not a relay message")]
    Malformed,
    /// Peer: a version that is not spoken here.
    #[error("frame has version {0}")]
    Version(u32),
    /// Peer: the stream has no usable name.
    #[error(transparent)]
    StreamId(#[from] StreamIdError),
    /// Peer: none of the bodies that are known here.
    #[error("frame has no body")]
    NoBody,
    /// Peer: a record or a handshake message without bytes.
    #[error("frame has no payload")]
    NoPayload,
    /// Peer: a reset without a reason.
    #[error("reset has no reason")]
    NoReason,
    /// Peer: no message is cut like this.
    #[error("segment {index} of {count} is impossible")]
    Segments {
        /// Place of the record within its message, as the frame says.
        index: u32,
        /// Records of the message, as the frame says.
        count: u32,
    },
}

/// The name of a stream, chosen by its harness. Not blank, bounded, cheap to clone. Untrusted: it may
/// hold control characters, so show it with `{:?}` only.
#[derive(Clone, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct StreamId(Arc<str>);

impl StreamId {
    /// Takes a name.
    pub fn new(text: &str) -> Result<Self, StreamIdError> {
        check_stream_id(text)?;
        Ok(Self(text.into()))
    }

    /// Returns the name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for StreamId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Borrow<str> for StreamId {
    fn borrow(&self) -> &str {
        &self.0
    }
}

/// Why a text does not name a stream.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum StreamIdError {
    /// Peer: white space names nothing.
    #[error("stream id is blank")]
    Blank,
    /// Peer: the name is longer than [`limits::STREAM_ID_BYTES`].
    #[error("stream id of {0} bytes is too long")]
    TooLong(usize),
}

/// Checks a name that is not kept.
pub(crate) fn check_stream_id(text: &str) -> Result<(), StreamIdError> {
    if text.len() > limits::STREAM_ID_BYTES {
        Err(StreamIdError::TooLong(text.len()))
    } else if text.trim().is_empty() {
        Err(StreamIdError::Blank)
    } else {
        Ok(())
    }
}

impl Frame {
    /// Encodes the frame as one websocket message.
    pub fn encode(&self) -> Bytes {
        let body = match &self.body {
            Body::Data(data) => relay_message_frame::Body::Data(RelayData {
                seq: data.seq,
                segment_index: data.segment_index,
                segment_count: data.segment_count,
                payload: data.payload.clone(),
            }),
            Body::Ack => relay_message_frame::Body::AckFrame(RelayAck {}),
            Body::Resume { next_seq } => relay_message_frame::Body::Resume(RelayResume {
                next_seq: *next_seq,
            }),
            Body::Reset { reason } => relay_message_frame::Body::Reset(RelayReset {
                reason: reason.clone(),
            }),
            Body::Heartbeat => relay_message_frame::Body::Heartbeat(RelayHeartbeat {}),
            Body::Handshake(payload) => relay_message_frame::Body::Handshake(RelayHandshake {
                payload: payload.clone(),
            }),
        };
        let trace = self.trace.clone().unwrap_or_default();
        let raw = RelayMessageFrame {
            version: VERSION,
            stream_id: self.stream_id.as_str().to_owned(),
            ack: self.ack,
            ack_bits: self.ack_bits,
            body: Some(body),
            traceparent: trace.parent,
            tracestate: trace.state,
        };
        raw.encode_to_vec().into()
    }
}

/// What stands in front of a record in its frame.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DataHeader<'a> {
    pub(crate) stream_id: &'a StreamId,
    pub(crate) ack: u32,
    pub(crate) ack_bits: u32,
    pub(crate) seq: u32,
    pub(crate) segment_index: u32,
    pub(crate) segment_count: u32,
}

impl DataHeader<'_> {
    /// Starts a frame: returns a buffer with the header for a payload of `payload` bytes, which the
    /// caller appends, and with room for exactly that.
    pub(crate) fn start(&self, payload: usize) -> Vec<u8> {
        let data_len = scalar_len(self.seq)
            + scalar_len(self.segment_index)
            + scalar_len(self.segment_count)
            + 1
            + varint_len(payload as u64)
            + payload;
        let id = self.stream_id.as_str().as_bytes();
        let total = scalar_len(VERSION)
            + 1
            + varint_len(id.len() as u64)
            + id.len()
            + scalar_len(self.ack)
            + scalar_len(self.ack_bits)
            + 1
            + varint_len(data_len as u64)
            + data_len;
        let mut frame = Vec::with_capacity(total);
        scalar(&mut frame, 1, VERSION);
        length(&mut frame, 2, id.len());
        frame.extend_from_slice(id);
        scalar(&mut frame, 3, self.ack);
        scalar(&mut frame, 4, self.ack_bits);
        length(&mut frame, 5, data_len);
        scalar(&mut frame, 1, self.seq);
        scalar(&mut frame, 2, self.segment_index);
        scalar(&mut frame, 3, self.segment_count);
        length(&mut frame, 4, payload);
        frame
    }
}

/// Writes a number, unless it is the default.
fn scalar(frame: &mut Vec<u8>, field: u8, value: u32) {
    if value != 0 {
        frame.push(field << 3);
        varint(frame, u64::from(value));
    }
}

/// Length of what [`scalar`] writes.
fn scalar_len(value: u32) -> usize {
    if value == 0 {
        0
    } else {
        1 + varint_len(u64::from(value))
    }
}

/// Opens a field of bytes.
fn length(frame: &mut Vec<u8>, field: u8, len: usize) {
    frame.push(field << 3 | 2);
    varint(frame, len as u64);
}

fn varint(frame: &mut Vec<u8>, mut value: u64) {
    while value > 0x7f {
        frame.push((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    frame.push((value & 0x7f) as u8);
}

fn varint_len(value: u64) -> usize {
    // Seven bits per byte; zero takes one as well.
    (64 - (value | 1).leading_zeros() as usize).div_ceil(7)
}
