//! Our websocket framing: a message is encoded straight into its frame, large messages are
//! fragmented, and limits are checked before memory is allocated.
//!
//! A [`Link`] carries session messages; a [`Socket`](socket::BinarySocket) carries raw binary
//! messages for relays. Frame headers and masking follow RFC 6455 section 5, the handshake's key
//! section 4.2.2.

mod frame_output;
mod keepalive;
mod message_decoder;
mod reader;
pub mod socket;
#[cfg(test)]
mod tests;
mod writer;

use std::{fmt, sync::Arc};

use base64_simd::STANDARD;
use bytes::{Bytes, BytesMut};
use sha1::{Digest, Sha1};
use tokio::io::{AsyncRead, AsyncWrite};

use self::{
    frame_output::{FrameOutput, SharedControl},
    reader::FrameReader,
    socket::{BinarySocket, SocketLimits},
    writer::FrameWriter,
};
use crate::link::{BinarySupport, Link, LinkRole};

#[cfg(any(test, fuzzing))]
pub use self::message_decoder::websocket_frame;
pub use self::reader::{MessageBudget, MessageBudgetLimits};

/// Options of a link.
#[derive(Clone, Debug)]
pub struct LinkOptions {
    /// Frame type of text messages.
    pub sends: TextFraming,
    /// Maximum size of an incoming message.
    pub max_message_bytes: usize,
    /// Shared memory budget for large incoming messages. `None`: bounded only by the message size.
    pub budget: Option<MessageBudget>,
}

impl LinkOptions {
    /// Returns the options for session links.
    pub fn of(role: LinkRole) -> Self {
        Self {
            sends: TextFraming::Text,
            max_message_bytes: role.max_message_bytes(),
            budget: None,
        }
    }
}

/// Frame type in which a link sends its texts. It accepts either.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum TextFraming {
    /// Text frames.
    Text,
    /// Binary frames, for intermediaries that forward messages unread.
    Binary,
}

/// A connection after its handshake.
pub struct UpgradedStream {
    input: Box<dyn AsyncRead + Send + Unpin>,
    output: Box<dyn AsyncWrite + Send + Unpin>,
    /// Bytes that followed the handshake.
    already_read: Bytes,
}

impl fmt::Debug for UpgradedStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UpgradedStream").finish_non_exhaustive()
    }
}

impl UpgradedStream {
    /// Makes a stream of its read half and its write half.
    pub fn new<R, W>((input, output): (R, W), already_read: Bytes) -> Self
    where
        R: AsyncRead + Send + Unpin + 'static,
        W: AsyncWrite + Send + Unpin + 'static,
    {
        Self {
            input: Box::new(input),
            output: Box::new(output),
            already_read,
        }
    }

    /// Makes a link with options.
    pub fn into_link(self, role: LinkRole, peer: String, options: LinkOptions) -> Link {
        let (reader, output) = self.into_frames(role, options.max_message_bytes);
        let reader = reader.with_budget(options.budget);
        let writer = FrameWriter::new(output).with_text_framing(options.sends);
        Link::new(reader, writer, peer, BinarySupport::Supported)
    }

    /// Makes a socket for binary messages.
    pub(crate) fn into_socket(self, role: LinkRole, limits: SocketLimits) -> BinarySocket {
        let (reader, output) = self.into_frames(role, limits.max_message_bytes);
        BinarySocket::of_frames(reader, output, limits)
    }

    fn into_frames(self, role: LinkRole, max_message_bytes: usize) -> (FrameReader, FrameOutput) {
        let control = Arc::new(SharedControl::default());
        let buffer = BytesMut::from(self.already_read);
        let shared = Arc::clone(&control);
        (
            FrameReader::new(self.input, buffer, role, max_message_bytes, shared),
            FrameOutput::new(self.output, role, control),
        )
    }
}

/// Type of a frame.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum FrameOpcode {
    Continuation = 0x0,
    Text = 0x1,
    Binary = 0x2,
    Close = 0x8,
    Ping = 0x9,
    Pong = 0xa,
}

impl FrameOpcode {
    fn from_number(number: u8) -> Option<Self> {
        Some(match number {
            0x0 => Self::Continuation,
            0x1 => Self::Text,
            0x2 => Self::Binary,
            0x8 => Self::Close,
            0x9 => Self::Ping,
            0xa => Self::Pong,
            _ => return None,
        })
    }

    fn is_control(self) -> bool {
        matches!(self, Self::Close | Self::Ping | Self::Pong)
    }
}

/// Header of a frame.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct FrameHeader {
    fin: bool,
    opcode: FrameOpcode,
    mask: Option<[u8; 4]>,
    length: u64,
}

impl FrameHeader {
    /// Parses a header and returns it with its length; `None` while it is incomplete.
    ///
    /// # Errors
    /// Fails as soon as the available bytes violate the RFC.
    fn parse(bytes: &[u8]) -> Result<Option<(Self, usize)>, &'static str> {
        let &[first, ref rest @ ..] = bytes else {
            return Ok(None);
        };
        if first & 0x70 != 0 {
            return Err("websocket frame uses an extension that was not negotiated");
        }
        let opcode = FrameOpcode::from_number(first & 0x0f)
            .ok_or("websocket frame with a reserved opcode")?;
        let fin = first & 0x80 != 0;
        if opcode.is_control() && !fin {
            return Err("websocket control frame is fragmented");
        }
        let &[second, ref rest @ ..] = rest else {
            return Ok(None);
        };
        if opcode.is_control() && second & 0x7f > 125 {
            return Err("websocket control frame exceeds 125 bytes");
        }
        let (length, size) = match second & 0x7f {
            126 => match rest {
                &[a, b, ..] => (u64::from(u16::from_be_bytes([a, b])), 2),
                _ => return Ok(None),
            },
            127 => match rest.first_chunk() {
                Some(length) => (u64::from_be_bytes(*length), 8),
                None => return Ok(None),
            },
            length => (u64::from(length), 0),
        };
        if (size == 2 && length <= 125) || (size == 8 && length <= u64::from(u16::MAX)) {
            return Err("websocket frame length is not encoded minimally");
        }
        if length > i64::MAX as u64 {
            return Err("websocket frame length has its highest bit set");
        }
        let (mask, mask_size) = match (second & 0x80 != 0, rest[size..].first_chunk()) {
            (false, _) => (None, 0),
            (true, Some(mask)) => (Some(*mask), 4),
            (true, None) => return Ok(None),
        };
        Ok(Some((
            Self {
                fin,
                opcode,
                mask,
                length,
            },
            2 + size + mask_size,
        )))
    }

    /// Returns the length of the payload.
    fn payload_len(&self) -> usize {
        usize::try_from(self.length).unwrap_or(usize::MAX)
    }

    /// Appends the header.
    fn encode(&self, out: &mut Vec<u8>) {
        out.push(self.opcode as u8 | if self.fin { 0x80 } else { 0 });
        let masked = if self.mask.is_some() { 0x80 } else { 0 };
        match (u8::try_from(self.length), u16::try_from(self.length)) {
            (Ok(length @ ..=125), _) => out.push(masked | length),
            (_, Ok(length)) => {
                out.push(masked | 126);
                out.extend_from_slice(&length.to_be_bytes());
            }
            _ => {
                out.push(masked | 127);
                out.extend_from_slice(&self.length.to_be_bytes());
            }
        }
        out.extend_from_slice(self.mask.as_ref().map_or(&[][..], |mask| &mask[..]));
    }
}

/// Masks or unmasks in place. Masking twice restores the data.
fn apply_mask(mask: [u8; 4], data: &mut [u8]) {
    let wide = u64::from_ne_bytes([
        mask[0], mask[1], mask[2], mask[3], mask[0], mask[1], mask[2], mask[3],
    ]);
    let (words, rest) = data.as_chunks_mut::<8>();
    for word in words {
        *word = (u64::from_ne_bytes(*word) ^ wide).to_ne_bytes();
    }
    for (byte, mask) in rest.iter_mut().zip(mask.into_iter().cycle()) {
        *byte ^= mask;
    }
}

/// Computes `Sec-WebSocket-Accept` for the key of a handshake.
pub fn accept_key(key: &[u8]) -> String {
    let mut hash = Sha1::new();
    hash.update(key);
    hash.update(b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11");
    STANDARD.encode_to_string(hash.finalize())
}

#[cfg(test)]
mod frame_tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn accept_key_matches_the_rfc_example() {
        assert_eq!(
            accept_key(b"dGhlIHNhbXBsZSBub25jZQ=="),
            "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
        );
    }

    #[test]
    fn invalid_headers_are_rejected() {
        for bad in [
            &[0xc1][..],
            &[0x83],
            &[0x09],
            &[0x89, 126],
            &[0x82, 126, 0, 125],
            &[0x82, 127, 0, 0, 0, 0, 0, 0, 0xff, 0xff],
            &[0x82, 127, 0x80, 0, 0, 0, 0, 0, 0, 0],
        ] {
            assert!(FrameHeader::parse(bad).is_err(), "{bad:x?}");
            for cut in 0..bad.len() {
                assert_eq!(FrameHeader::parse(&bad[..cut]), Ok(None), "{bad:x?}");
            }
        }
        assert_eq!(FrameHeader::parse(&[0x81]), Ok(None));
        assert_eq!(FrameHeader::parse(&[0x81, 0xfe, 0]), Ok(None));
    }

    proptest! {
        #[test]
        fn headers_survive_a_round_trip(
            fin in any::<bool>(),
            mask in any::<Option<[u8; 4]>>(),
            length in prop_oneof![0u64..300, 65_000u64..66_000, 0..=i64::MAX as u64],
        ) {
            let header = FrameHeader { fin, opcode: FrameOpcode::Binary, mask, length };
            let mut out = Vec::new();
            header.encode(&mut out);
            prop_assert_eq!(FrameHeader::parse(&out), Ok(Some((header, out.len()))));
            for cut in 0..out.len() {
                prop_assert_eq!(FrameHeader::parse(&out[..cut]), Ok(None));
            }
        }

        #[test]
        fn masking_is_its_own_inverse(mask in any::<[u8; 4]>(), data in any::<Vec<u8>>()) {
            let mut twice = data.clone();
            apply_mask(mask, &mut twice);
            for (index, byte) in twice.iter().enumerate() {
                prop_assert_eq!(*byte, data[index] ^ mask[index % 4]);
            }
            apply_mask(mask, &mut twice);
            prop_assert_eq!(twice, data);
        }
    }
}
