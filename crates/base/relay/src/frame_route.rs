//! Routing information of a frame, which is all that a relay reads: its stream and its kind.
//!
//! Invariant: for every frame that [`crate::frame::RelayFrame::decode`] accepts, the route has the
//! same stream and kind. Payloads are skipped and nothing is allocated.

use crate::frame::{RelayFrameError, VERSION, check_stream_id};

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
        let mut rest = FieldCursor(message);
        let (mut version, mut stream_id, mut kind) = (0, &b""[..], None);
        while !rest.0.is_empty() {
            let tag = rest.varint()?;
            match (tag >> 3, tag & 7) {
                // Like the schema's decoder: truncate to 32 bits.
                (1, VARINT) => version = rest.varint()? & u64::from(u32::MAX),
                (2, BYTES) => stream_id = rest.bytes()?,
                (field @ 5..=10, BYTES) => {
                    // The last body wins, as in every decoder of the schema.
                    kind = FrameKind::from_field(field);
                    rest.bytes()?;
                }
                (11 | 12, BYTES) => rest.bytes().map(drop)?,
                (3 | 4, VARINT) => rest.varint().map(drop)?,
                // Unknown fields of later schemas are skipped.
                (13.., VARINT) => rest.varint().map(drop)?,
                (13.., BYTES) => rest.bytes().map(drop)?,
                (13.., FIXED_64) => rest.take(8).map(drop)?,
                (13.., FIXED_32) => rest.take(4).map(drop)?,
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
