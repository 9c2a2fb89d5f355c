//! From bytes to frames.

use bytes::Bytes;
use prost::Message;

use crate::{
    frame::{
        Body, Data, Frame, StreamId, StreamIdError, Trace,
        proto::{RelayMessageFrame, relay_message_frame},
        segments_are_possible,
    },
    route::Route,
};

impl Frame {
    /// Decodes one websocket message. Payloads are slices of it; nothing but texts is copied.
    pub fn decode(message: Bytes) -> Result<Self, FrameError> {
        // The envelope is checked first, by the code that a hub checks it with: both agree.
        let stream_id = StreamId::new(Route::peek(&message)?.stream_id)?;
        let raw = RelayMessageFrame::decode(message).map_err(|_| FrameError::Malformed)?;
        let body = match raw.body.ok_or(FrameError::NoBody)? {
            relay_message_frame::Body::Data(data) => {
                if !segments_are_possible(data.segment_index, data.segment_count) {
                    return Err(FrameError::Segments {
                        index: data.segment_index,
                        count: data.segment_count,
                    });
                }
                if data.payload.is_empty() {
                    return Err(FrameError::NoPayload);
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
                return Err(FrameError::NoReason);
            }
            relay_message_frame::Body::Reset(reset) => Body::Reset {
                reason: reset.reason,
            },
            relay_message_frame::Body::Heartbeat(_) => Body::Heartbeat,
            relay_message_frame::Body::Handshake(handshake) if handshake.payload.is_empty() => {
                return Err(FrameError::NoPayload);
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
pub enum FrameError {
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
