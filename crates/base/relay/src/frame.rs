//! Relay frames: everything sent on the rendezvous websocket.
//!
//! Invariant: a [`RelayFrame`] is valid; [`RelayFrame::decode`] refuses invalid ones. Payloads are
//! slices of the message they arrived in.
//!
//! A relay reads only the [route](FrameRoute) of a frame: its stream and its kind. For every frame
//! that [`RelayFrame::decode`] accepts, the route has the same stream and kind. To read it,
//! payloads are skipped and nothing is allocated.

#[rustfmt::skip]
#[expect(unreachable_pub, reason = "generated from the schema")]
mod proto;
#[cfg(test)]
mod tests;

use std::{borrow::Borrow, fmt, sync::Arc};

use bytes::Bytes;
use prost::{Message, length_delimiter_len};

use self::proto::{
    RelayAck, RelayData, RelayHandshake, RelayHeartbeat, RelayMessageFrame, RelayReset,
    RelayResume, relay_message_frame,
};
use crate::limits;

/// Frame version. There is only one.
pub const VERSION: u32 = 1;
/// Value of `ack` if a reliable endpoint has received nothing: bit 0 of `ack_bits` is record 0.
pub const NOTHING_RECEIVED: u32 = u32::MAX;
/// Reason of every reset that an executor sends. It does not reveal the cause, because the peer may
/// be unauthenticated.
pub const RESET_PROTOCOL_ERROR: &str = "noise_relay_protocol_error";
/// Reason of the reset with which a reliable harness closes its stream.
pub const RESET_CLOSED: &str = "closed";

/// Valid relay frame: one binary websocket message.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct RelayFrame {
    /// Stream of the frame. Untrusted text.
    pub stream_id: StreamId,
    /// Highest record received without a gap. 0 on plain streams.
    pub ack: u32,
    /// Bit i: record `ack + 1 + i` was received. 0 on plain streams.
    pub ack_bits: u32,
    /// Body.
    pub body: FrameBody,
    /// Trace context in clear text. Stock harnesses repeat the trace context of a request here.
    pub trace: Option<FrameTrace>,
}

impl RelayFrame {
    /// Creates a frame without acknowledgement, like a stock endpoint.
    pub fn new(stream_id: StreamId, body: FrameBody) -> Self {
        Self {
            stream_id,
            ack: 0,
            ack_bits: 0,
            body,
            trace: None,
        }
    }

    /// Creates the frame with which an endpoint announces acknowledgements. Stock peers ignore it.
    pub fn announcement(stream_id: StreamId) -> Self {
        Self {
            ack: NOTHING_RECEIVED,
            ..Self::new(stream_id, FrameBody::Ack)
        }
    }

    /// Returns whether this frame is an [announcement](Self::announcement).
    pub fn is_announcement(&self) -> bool {
        self.body == FrameBody::Ack && self.ack == NOTHING_RECEIVED && self.ack_bits == 0
    }

    /// Returns whether stock endpoints accept the frame: they do not support segmented records.
    /// Stock executors drop other frames silently; stock harnesses close the connection.
    pub fn is_plain(&self) -> bool {
        let FrameBody::Data(data) = &self.body else {
            return true;
        };
        data.segment_index == 0 && data.segment_count == 1
    }
}

/// Body of a frame.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum FrameBody {
    /// One sealed record.
    Data(SealedRecord),
    /// Only the acknowledgement fields, or the announcement that they are used.
    Ack,
    /// The sender continues the stream on a new connection.
    Resume {
        /// Number of the sender's next new record. 0 before a handshake.
        next_seq: u32,
    },
    /// The stream or its path ended.
    Reset {
        /// Never empty. Untrusted and unauthenticated text.
        reason: String,
    },
    /// A heartbeat.
    Heartbeat,
    /// One Noise handshake message. Never empty.
    Handshake(Bytes),
}

impl FrameBody {
    /// Returns the kind of the body.
    pub fn kind(&self) -> FrameKind {
        match self {
            Self::Data(_) => FrameKind::Data,
            Self::Ack => FrameKind::Ack,
            Self::Resume { .. } => FrameKind::Resume,
            Self::Reset { .. } => FrameKind::Reset,
            Self::Heartbeat => FrameKind::Heartbeat,
            Self::Handshake(_) => FrameKind::Handshake,
        }
    }
}

/// Sealed record and its position in the message it belongs to.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct SealedRecord {
    /// Number of the record in its direction, starting at 0 without gaps.
    pub seq: u32,
    /// Index of the record within its message.
    pub segment_index: u32,
    /// Number of records of the message. 1 for whole messages.
    pub segment_count: u32,
    /// Ciphertext and tag. Never empty.
    pub payload: Bytes,
}

/// W3C trace context. Not validated.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct FrameTrace {
    /// `traceparent`.
    pub parent: Option<String>,
    /// `tracestate`.
    pub state: Option<String>,
}

/// Returns whether a message can have a segment `index` of `count`.
pub(crate) fn is_valid_segment(index: u32, count: u32) -> bool {
    index < count && count <= limits::MAX_SEGMENTS
}

impl RelayFrame {
    /// Decodes one websocket message. Payloads are slices of it; only strings are copied.
    pub fn decode(message: Bytes) -> Result<Self, RelayFrameError> {
        // Peek the route first, with the code that the hub uses, so that both agree.
        let stream_id = StreamId::new(FrameRoute::peek(&message)?.stream_id)?;
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
                FrameBody::Data(SealedRecord {
                    seq: data.seq,
                    segment_index: data.segment_index,
                    segment_count: data.segment_count,
                    payload: data.payload,
                })
            }
            relay_message_frame::Body::AckFrame(_) => FrameBody::Ack,
            relay_message_frame::Body::Resume(resume) => FrameBody::Resume {
                next_seq: resume.next_seq,
            },
            relay_message_frame::Body::Reset(reset) if reset.reason.is_empty() => {
                return Err(RelayFrameError::NoReason);
            }
            relay_message_frame::Body::Reset(reset) => FrameBody::Reset {
                reason: reset.reason,
            },
            relay_message_frame::Body::Heartbeat(_) => FrameBody::Heartbeat,
            relay_message_frame::Body::Handshake(handshake) if handshake.payload.is_empty() => {
                return Err(RelayFrameError::NoPayload);
            }
            relay_message_frame::Body::Handshake(handshake) => {
                FrameBody::Handshake(handshake.payload)
            }
        };
        let trace = FrameTrace {
            parent: raw.traceparent,
            state: raw.tracestate,
        };
        Ok(Self {
            stream_id,
            ack: raw.ack,
            ack_bits: raw.ack_bits,
            body,
            trace: (trace != FrameTrace::default()).then_some(trace),
        })
    }
}

/// Why a frame is invalid.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum RelayFrameError {
    /// Peer: the schema cannot decode it.
    #[error("malformed relay frame")]
    Malformed,
    /// Peer: unsupported version.
    #[error("unsupported frame version {0}")]
    Version(u32),
    /// Peer: invalid stream id.
    #[error(transparent)]
    StreamId(#[from] StreamIdError),
    /// Peer: no body, or one that is unknown here.
    #[error("frame has no body")]
    NoBody,
    /// Peer: an empty record or handshake message.
    #[error("frame has no payload")]
    NoPayload,
    /// Peer: a reset without a reason.
    #[error("reset has no reason")]
    NoReason,
    /// Peer: no message has such a segment.
    #[error("invalid segment {index} of {count}")]
    Segments {
        /// Claimed index of the record within its message.
        index: u32,
        /// Claimed number of records of the message.
        count: u32,
    },
}

/// Stream id, chosen by the harness. Bounded, not blank, cheap to clone. Untrusted: it may contain
/// control characters, so print it only with `{:?}`.
#[derive(Clone, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct StreamId(Arc<str>);

impl StreamId {
    /// Creates a stream id.
    pub fn new(text: &str) -> Result<Self, StreamIdError> {
        check_stream_id(text)?;
        Ok(Self(text.into()))
    }

    /// Returns the id as text.
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

/// Why a stream id is invalid.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum StreamIdError {
    /// Peer: only white space.
    #[error("stream id is blank")]
    Blank,
    /// Peer: longer than [`limits::STREAM_ID_BYTES`].
    #[error("stream id of {0} bytes is too long")]
    TooLong(usize),
}

/// Checks a stream id without storing it.
pub(crate) fn check_stream_id(text: &str) -> Result<(), StreamIdError> {
    if text.len() > limits::STREAM_ID_BYTES {
        Err(StreamIdError::TooLong(text.len()))
    } else if text.trim().is_empty() {
        Err(StreamIdError::Blank)
    } else {
        Ok(())
    }
}

impl RelayFrame {
    /// Encodes the frame as one websocket message.
    pub fn encode(&self) -> Bytes {
        let body = match &self.body {
            FrameBody::Data(data) => relay_message_frame::Body::Data(RelayData {
                seq: data.seq,
                segment_index: data.segment_index,
                segment_count: data.segment_count,
                payload: data.payload.clone(),
            }),
            FrameBody::Ack => relay_message_frame::Body::AckFrame(RelayAck {}),
            FrameBody::Resume { next_seq } => relay_message_frame::Body::Resume(RelayResume {
                next_seq: *next_seq,
            }),
            FrameBody::Reset { reason } => relay_message_frame::Body::Reset(RelayReset {
                reason: reason.clone(),
            }),
            FrameBody::Heartbeat => relay_message_frame::Body::Heartbeat(RelayHeartbeat {}),
            FrameBody::Handshake(payload) => relay_message_frame::Body::Handshake(RelayHandshake {
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

/// Header of a data frame, encoded by hand so that the record can be sealed in the frame's buffer.
/// The tests compare it with the schema's encoder.
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
    /// Returns a buffer that contains the header for a payload of `payload` bytes and has exactly
    /// the capacity for the caller to append it.
    pub(crate) fn start(&self, payload: usize) -> Vec<u8> {
        let data_len = scalar_len(self.seq)
            + scalar_len(self.segment_index)
            + scalar_len(self.segment_count)
            + 1
            + length_delimiter_len(payload)
            + payload;
        let id = self.stream_id.as_str().as_bytes();
        let total = scalar_len(VERSION)
            + 1
            + length_delimiter_len(id.len())
            + id.len()
            + scalar_len(self.ack)
            + scalar_len(self.ack_bits)
            + 1
            + length_delimiter_len(data_len)
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

/// Writes an integer field unless it has the default value.
fn scalar(frame: &mut Vec<u8>, field: u8, value: u32) {
    if value != 0 {
        frame.push(field << 3);
        varint(frame, u64::from(value));
    }
}

/// Returns the encoded length of a [`scalar`] field.
fn scalar_len(value: u32) -> usize {
    if value == 0 {
        0
    } else {
        1 + length_delimiter_len(value as usize)
    }
}

/// Writes the tag and length of a bytes field.
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

/// Routing information of a frame.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct FrameRoute<'a> {
    /// Stream of the frame. Untrusted text, but bounded and not blank.
    pub stream_id: &'a str,
    /// Kind of the body.
    pub kind: FrameKind,
}

impl<'a> FrameRoute<'a> {
    /// Reads the route of one websocket message. The content of the body is not checked.
    pub fn peek(message: &'a [u8]) -> Result<Self, RelayFrameError> {
        let mut fields = FieldCursor(message);
        let (mut version, mut stream_id, mut kind) = (0, &b""[..], None);
        while !fields.0.is_empty() {
            let tag = fields.varint()?;
            match (tag >> 3, tag & 7) {
                // Like the schema's decoder: truncate to 32 bits.
                (1, VARINT) => version = fields.varint()? & u64::from(u32::MAX),
                (2, BYTES) => stream_id = fields.bytes()?,
                (field @ 5..=10, BYTES) => {
                    // The last body wins, as in every decoder of the schema.
                    kind = FrameKind::from_field(field);
                    fields.bytes()?;
                }
                (11 | 12, BYTES) => fields.bytes().map(drop)?,
                (3 | 4, VARINT) => fields.varint().map(drop)?,
                // Unknown fields of later schemas are skipped.
                (13.., VARINT) => fields.varint().map(drop)?,
                (13.., BYTES) => fields.bytes().map(drop)?,
                (13.., FIXED_64) => fields.take(8).map(drop)?,
                (13.., FIXED_32) => fields.take(4).map(drop)?,
                _ => return Err(RelayFrameError::Malformed),
            }
        }
        if version != u64::from(VERSION) {
            let version = u32::try_from(version).unwrap_or(u32::MAX);
            return Err(RelayFrameError::Version(version));
        }
        let stream_id = str::from_utf8(stream_id).map_err(|_| RelayFrameError::Malformed)?;
        check_stream_id(stream_id)?;
        Ok(Self {
            stream_id,
            kind: kind.ok_or(RelayFrameError::NoBody)?,
        })
    }
}

/// Kind of a frame's body.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum FrameKind {
    /// A sealed record.
    Data,
    /// Only acknowledgement fields.
    Ack,
    /// The stream continues on a new connection.
    Resume,
    /// The stream or its path ended.
    Reset,
    /// A heartbeat.
    Heartbeat,
    /// A handshake message.
    Handshake,
}

impl FrameKind {
    /// Returns the kind of the body field with this number in the schema.
    fn from_field(field: u64) -> Option<Self> {
        match field {
            5 => Some(Self::Data),
            6 => Some(Self::Ack),
            7 => Some(Self::Resume),
            8 => Some(Self::Reset),
            9 => Some(Self::Heartbeat),
            10 => Some(Self::Handshake),
            _ => None,
        }
    }
}

/// Unread part of a message.
struct FieldCursor<'a>(&'a [u8]);

impl<'a> FieldCursor<'a> {
    fn varint(&mut self) -> Result<u64, RelayFrameError> {
        let mut value = 0;
        // 64 bits, seven at a time.
        for shift in (0..64).step_by(7) {
            let (&byte, rest) = self.0.split_first().ok_or(RelayFrameError::Malformed)?;
            self.0 = rest;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                // The tenth byte carries only one bit.
                let fits = shift < 63 || byte < 2;
                return fits.then_some(value).ok_or(RelayFrameError::Malformed);
            }
        }
        Err(RelayFrameError::Malformed)
    }

    fn bytes(&mut self) -> Result<&'a [u8], RelayFrameError> {
        let len = self.varint()?;
        self.take(usize::try_from(len).map_err(|_| RelayFrameError::Malformed)?)
    }

    fn take(&mut self, len: usize) -> Result<&'a [u8], RelayFrameError> {
        let (taken, rest) = self
            .0
            .split_at_checked(len)
            .ok_or(RelayFrameError::Malformed)?;
        self.0 = rest;
        Ok(taken)
    }
}

/// Wire types of the protobuf encoding.
const VARINT: u64 = 0;
const FIXED_64: u64 = 1;
const BYTES: u64 = 2;
const FIXED_32: u64 = 5;
