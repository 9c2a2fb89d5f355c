//! What a frame says.

use bytes::Bytes;

use crate::{frame::StreamId, limits, route::Kind};

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
    /// One Noise handshake message. Never empty.
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
pub(crate) fn segments_are_possible(index: u32, count: u32) -> bool {
    index < count && count <= limits::SEGMENTS
}
