//! From frames to bytes.
//!
//! Data frames have a header written by hand, so that a record can be sealed where it is sent from;
//! the tests compare it with what the schema's own encoder writes.

use bytes::Bytes;
use prost::Message;

use crate::frame::{
    Body, Frame, StreamId, VERSION,
    proto::{
        RelayAck, RelayData, RelayHandshake, RelayHeartbeat, RelayMessageFrame, RelayReset,
        RelayResume, relay_message_frame,
    },
};

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
