//! Packets of a bridged circuit: one packet is one NATS message.
//! Invariant: packets of a direction are numbered consecutively, so that a loss is always noticed.
//! Frames are opaque here. Elsewhere: flow control (`window`), the task (`bridge`).

use bytes::{BufMut, Bytes, BytesMut};

use crate::circuit::CloseReason;

/// A decoded packet.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct CircuitPacket {
    /// Sequence number in its direction, from 0.
    pub(super) seq: u32,
    /// The content.
    pub(super) body: PacketBody,
}

/// Content of a packet.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum PacketBody {
    /// Complete frames, in order. Never empty.
    Frames(Vec<Bytes>),
    /// Grants this many more bytes to the peer.
    Credit(u32),
    /// Follows the last packet of a burst, so that its loss is noticed.
    Mark,
    /// Closes the circuit with a reason.
    Close(CloseReason),
}

impl CircuitPacket {
    /// Decodes a NATS message. Frames are slices of it, not copies.
    ///
    /// # Errors
    /// Returns [`PacketError`] if the message is malformed.
    pub(super) fn decode(message: &Bytes) -> Result<Self, PacketError> {
        let header: &[u8; HEADER] = message.first_chunk().ok_or(PacketError::Short)?;
        let [kind, seq @ ..] = *header;
        let rest = message.slice(HEADER..);
        let body = match kind {
            FRAMES => PacketBody::Frames(frames(rest)?),
            CREDIT => {
                let bytes: [u8; 4] = rest.as_ref().try_into().map_err(|_| PacketError::Length)?;
                PacketBody::Credit(u32::from_be_bytes(bytes))
            }
            MARK if rest.is_empty() => PacketBody::Mark,
            MARK => return Err(PacketError::Length),
            // A reason known only to newer nodes still closes the circuit.
            CLOSE => {
                PacketBody::Close(serde_json::from_slice(&rest).unwrap_or(CloseReason::Unreachable))
            }
            other => return Err(PacketError::Kind(other)),
        };
        Ok(Self {
            seq: u32::from_be_bytes(seq),
            body,
        })
    }
}

/// Encodes a credit packet.
pub(super) fn credit(seq: u32, bytes: u32) -> Bytes {
    let mut packet = header(CREDIT, seq, 4);
    packet.put_u32(bytes);
    packet.freeze()
}

/// Encodes the mark after a burst.
pub(super) fn mark(seq: u32) -> Bytes {
    header(MARK, seq, 0).freeze()
}

/// Encodes the last packet of a direction.
pub(super) fn close(seq: u32, close_reason: CloseReason) -> Bytes {
    let close_reason = serde_json::to_vec(&close_reason).unwrap_or_default();
    let mut packet = header(CLOSE, seq, close_reason.len());
    packet.put_slice(&close_reason);
    packet.freeze()
}

/// A packet of frames being built.
#[derive(Debug)]
pub(super) struct PacketBuilder {
    packet: BytesMut,
    cost: u32,
}

impl PacketBuilder {
    /// Starts packet `seq` with its first frame.
    pub(super) fn new(seq: u32, first: &Bytes) -> Self {
        let mut batch = Self {
            packet: header(FRAMES, seq, first.len() + 4),
            cost: 0,
        };
        batch.push(first);
        batch
    }

    /// Appends a frame.
    pub(super) fn push(&mut self, frame: &Bytes) {
        // A websocket message has at most 256 KiB, so the length always fits.
        self.packet
            .put_u32(u32::try_from(frame.len()).unwrap_or(u32::MAX));
        self.packet.put_slice(frame);
        self.cost = self.cost.saturating_add(cost(frame));
    }

    /// Returns whether further frames belong in the next packet.
    pub(super) fn is_full(&self) -> bool {
        self.packet.len() >= MAX_BATCH_BYTES
    }

    /// Returns the packet and the cost of its frames.
    pub(super) fn finish(self) -> (Bytes, u32) {
        (self.packet.freeze(), self.cost)
    }
}

/// Returns the cost of a frame in credit: its bytes plus overhead. Without the overhead, a window
/// of tiny frames would allow a queue of any length.
pub(super) fn cost(frame: &Bytes) -> u32 {
    u32::try_from(frame.len())
        .unwrap_or(u32::MAX)
        .saturating_add(FRAME_OVERHEAD)
}

/// Peer: why a message is not a valid packet. The circuit closes.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub(super) enum PacketError {
    /// The message is shorter than the header.
    #[error("circuit packet is shorter than its header")]
    Short,
    /// The kind is unknown: the other node is newer, or not a hub.
    #[error("circuit packet of unknown kind {0}")]
    Kind(u8),
    /// A length inside does not fit the message.
    #[error("circuit packet with lengths that do not fit")]
    Length,
}

fn header(kind: u8, seq: u32, body: usize) -> BytesMut {
    let mut packet = BytesMut::with_capacity(HEADER + body);
    packet.put_u8(kind);
    packet.put_u32(seq);
    packet
}

fn frames(mut rest: Bytes) -> Result<Vec<Bytes>, PacketError> {
    let mut frames = Vec::new();
    while !rest.is_empty() {
        let prefix: [u8; 4] = *rest.first_chunk().ok_or(PacketError::Length)?;
        let length =
            usize::try_from(u32::from_be_bytes(prefix)).map_err(|_| PacketError::Length)?;
        let end = 4_usize.checked_add(length).ok_or(PacketError::Length)?;
        if end > rest.len() || length == 0 {
            return Err(PacketError::Length);
        }
        frames.push(rest.slice(4..end));
        rest = rest.slice(end..);
    }
    if frames.is_empty() {
        Err(PacketError::Length)
    } else {
        Ok(frames)
    }
}

/// Kind and sequence number.
const HEADER: usize = 5;
const FRAMES: u8 = 1;
const CREDIT: u8 = 2;
const MARK: u8 = 3;
const CLOSE: u8 = 4;

/// Queued frames share a message up to this size: large enough to relieve the broker, small enough
/// not to delay other circuits on the connection.
const MAX_BATCH_BYTES: usize = 64 * 1024;

/// Overhead per frame, in credit.
const FRAME_OVERHEAD: u32 = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_round_trip_in_order_and_unchanged() {
        let sent = [Bytes::from_static(b"one"), Bytes::from(vec![7; 70_000])];
        let mut batch = PacketBuilder::new(9, &sent[0]);
        assert!(!batch.is_full());
        batch.push(&sent[1]);
        assert!(batch.is_full());
        let (packet, cost) = batch.finish();
        assert_eq!(cost, 3 + 70_000 + 2 * FRAME_OVERHEAD);
        let packet = CircuitPacket::decode(&packet).expect("decodes");
        assert_eq!(
            packet,
            CircuitPacket {
                seq: 9,
                body: PacketBody::Frames(sent.to_vec())
            }
        );
    }

    #[test]
    fn credit_mark_and_close_round_trip() {
        for (bytes, seq, body) in [
            (credit(1, 77), 1, PacketBody::Credit(77)),
            (mark(2), 2, PacketBody::Mark),
            (
                close(u32::MAX, CloseReason::Moved),
                u32::MAX,
                PacketBody::Close(CloseReason::Moved),
            ),
        ] {
            assert_eq!(
                CircuitPacket::decode(&bytes),
                Ok(CircuitPacket { seq, body })
            );
        }
    }

    #[test]
    fn unknown_reason_still_closes_the_circuit() {
        let packet = Bytes::from_static(b"\x04\0\0\0\x01\"novel\"");
        let close_reason = PacketBody::Close(CloseReason::Unreachable);
        assert_eq!(
            CircuitPacket::decode(&packet),
            Ok(CircuitPacket {
                seq: 1,
                body: close_reason
            })
        );
    }

    #[test]
    fn malformed_packets_are_rejected() {
        let cases: [(&[u8], PacketError); 9] = [
            (&[], PacketError::Short),
            (&[FRAMES, 0, 0, 0], PacketError::Short),
            (&[FRAMES, 0, 0, 0, 0], PacketError::Length),
            (&[FRAMES, 0, 0, 0, 0, 0, 0, 0], PacketError::Length),
            (&[FRAMES, 0, 0, 0, 0, 0, 0, 0, 0], PacketError::Length),
            (&[FRAMES, 0, 0, 0, 0, 0, 0, 0, 2, b'x'], PacketError::Length),
            (&[CREDIT, 0, 0, 0, 0, 1], PacketError::Length),
            (&[MARK, 0, 0, 0, 0, 1], PacketError::Length),
            (&[200, 0, 0, 0, 0], PacketError::Kind(200)),
        ];
        for (bytes, error) in cases {
            assert_eq!(
                CircuitPacket::decode(&Bytes::copy_from_slice(bytes)),
                Err(error),
                "{bytes:?}"
            );
        }
    }
}
