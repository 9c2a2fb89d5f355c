//! What two nodes say to each other about one circuit: one packet is one NATS message.
//! Invariant: every packet of a direction carries the next number, so that a lost one is always
//! noticed. Frames are opaque here. Not here: credits (`window`), the task (`bridge`).

use bytes::{BufMut, Bytes, BytesMut};

use crate::circuit::Ending;

/// One decoded packet.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Packet {
    /// Position in its direction of the circuit, from 0.
    pub(super) seq: u32,
    /// What it says.
    pub(super) body: Body,
}

/// What a packet says.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Body {
    /// Whole frames, in order. Never empty.
    Frames(Vec<Bytes>),
    /// The peer may send this many bytes more.
    Credit(u32),
    /// Nothing: it follows the last packet of a burst, so that the loss of that one shows.
    Mark,
    /// The circuit ends here, and why.
    Close(Ending),
}

impl Packet {
    /// Reads one NATS message. Frames are slices of it, not copies.
    ///
    /// # Errors
    /// [`PacketError`] when it is not what this module writes.
    pub(super) fn decode(message: &Bytes) -> Result<Self, PacketError> {
        let header: &[u8; HEADER] = message.first_chunk().ok_or(PacketError::Short)?;
        let [kind, seq @ ..] = *header;
        let rest = message.slice(HEADER..);
        let body = match kind {
            FRAMES => Body::Frames(frames(rest)?),
            CREDIT => {
                let bytes: [u8; 4] = rest.as_ref().try_into().map_err(|_| PacketError::Length)?;
                Body::Credit(u32::from_be_bytes(bytes))
            }
            MARK if rest.is_empty() => Body::Mark,
            MARK => return Err(PacketError::Length),
            // A reason that only a newer node knows still ends the circuit.
            CLOSE => Body::Close(serde_json::from_slice(&rest).unwrap_or(Ending::Unreachable)),
            other => return Err(PacketError::Kind(other)),
        };
        Ok(Self {
            seq: u32::from_be_bytes(seq),
            body,
        })
    }
}

/// A packet without frames, as bytes.
pub(super) fn credit(seq: u32, bytes: u32) -> Bytes {
    let mut packet = header(CREDIT, seq, 4);
    packet.put_u32(bytes);
    packet.freeze()
}

/// The packet behind a burst, as bytes.
pub(super) fn mark(seq: u32) -> Bytes {
    header(MARK, seq, 0).freeze()
}

/// The last packet of a direction, as bytes.
pub(super) fn close(seq: u32, ending: Ending) -> Bytes {
    let ending = serde_json::to_vec(&ending).unwrap_or_default();
    let mut packet = header(CLOSE, seq, ending.len());
    packet.put_slice(&ending);
    packet.freeze()
}

/// Frames on their way into one packet.
#[derive(Debug)]
pub(super) struct Batch {
    packet: BytesMut,
    cost: u32,
}

impl Batch {
    /// Starts the packet `seq` with its first frame.
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
        // A websocket message is at most 256 KiB, so the length always fits.
        self.packet
            .put_u32(u32::try_from(frame.len()).unwrap_or(u32::MAX));
        self.packet.put_slice(frame);
        self.cost = self.cost.saturating_add(cost(frame));
    }

    /// Whether further queued frames belong into the next packet.
    pub(super) fn is_full(&self) -> bool {
        self.packet.len() >= BATCH
    }

    /// The packet, and what its frames cost.
    pub(super) fn finish(self) -> (Bytes, u32) {
        (self.packet.freeze(), self.cost)
    }
}

/// What one frame costs in credits: its bytes, and what keeping it costs besides. Without the
/// second part a window of tiny frames would be a queue of any length.
pub(super) fn cost(frame: &Bytes) -> u32 {
    u32::try_from(frame.len())
        .unwrap_or(u32::MAX)
        .saturating_add(FRAME_OVERHEAD)
}

/// Why a message is no packet. Peer: the circuit ends.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub(super) enum PacketError {
    /// Shorter than its header.
    #[error("circuit packet is shorter than its header")]
    Short,
    /// The kind is not known: the other node is newer, or no hub.
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

/// Kind and number.
const HEADER: usize = 5;
const FRAMES: u8 = 1;
const CREDIT: u8 = 2;
const MARK: u8 = 3;
const CLOSE: u8 = 4;

/// Queued frames share one message up to here: large enough to spare the broker work, small
/// enough that one circuit does not hold up the others on the same connection.
const BATCH: usize = 64 * 1024;

/// Bookkeeping per frame, in credits.
const FRAME_OVERHEAD: u32 = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_come_back_in_order_and_unchanged() {
        let sent = [Bytes::from_static(b"one"), Bytes::from(vec![7; 70_000])];
        let mut batch = Batch::new(9, &sent[0]);
        assert!(!batch.is_full());
        batch.push(&sent[1]);
        assert!(batch.is_full());
        let (packet, cost) = batch.finish();
        assert_eq!(cost, 3 + 70_000 + 2 * FRAME_OVERHEAD);
        let packet = Packet::decode(&packet).expect("decodes");
        assert_eq!(
            packet,
            Packet {
                seq: 9,
                body: Body::Frames(sent.to_vec())
            }
        );
    }

    #[test]
    fn credits_marks_and_closes_come_back() {
        for (bytes, seq, body) in [
            (credit(1, 77), 1, Body::Credit(77)),
            (mark(2), 2, Body::Mark),
            (
                close(u32::MAX, Ending::Moved),
                u32::MAX,
                Body::Close(Ending::Moved),
            ),
        ] {
            assert_eq!(Packet::decode(&bytes), Ok(Packet { seq, body }));
        }
    }

    #[test]
    fn an_unknown_reason_still_ends_the_circuit() {
        let packet = Bytes::from_static(b"\x04\0\0\0\x01\"novel\"");
        let ending = Body::Close(Ending::Unreachable);
        assert_eq!(
            Packet::decode(&packet),
            Ok(Packet {
                seq: 1,
                body: ending
            })
        );
    }

    #[test]
    fn bad_packets_are_refused() {
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
                Packet::decode(&Bytes::copy_from_slice(bytes)),
                Err(error),
                "{bytes:?}"
            );
        }
    }
}
