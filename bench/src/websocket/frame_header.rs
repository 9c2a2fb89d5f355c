//! Frame headers (RFC 6455 section 5.2): parses those of a server and encodes those of a client.

use anyhow::{Result, bail, ensure};

/// Largest message in bytes, far above what servers send here.
pub(super) const MAX_PAYLOAD: usize = 256 << 20;

/// Kind of a frame.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Opcode {
    /// Continues the previous frame's message.
    Continuation,
    /// A text message.
    Text,
    /// A binary message.
    Binary,
    /// Closes the connection.
    Close,
    /// Requests a pong.
    Ping,
    /// Answers a ping.
    Pong,
}

/// Header of a frame from the server.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct WsFrameHeader {
    /// Whether the message ends with this frame.
    pub(super) fin: bool,
    /// Kind of a frame.
    pub(super) opcode: Opcode,
    /// Length of the header in bytes.
    pub(super) len: usize,
    /// Length of the payload in bytes.
    pub(super) payload: usize,
}

impl WsFrameHeader {
    /// Parses the header at the start of `bytes`; `None` until it is complete.
    pub(super) fn parse(bytes: &[u8]) -> Result<Option<Self>> {
        let &[first, second, ref rest @ ..] = bytes else {
            return Ok(None);
        };
        ensure!(
            first & 0x70 == 0,
            "frame uses an extension that was not negotiated"
        );
        ensure!(second & 0x80 == 0, "server masked a frame");
        let (extra, payload) = match second {
            126 => match rest.first_chunk() {
                Some(&len) => (2, u64::from(u16::from_be_bytes(len))),
                None => return Ok(None),
            },
            127 => match rest.first_chunk() {
                Some(&len) => (8, u64::from_be_bytes(len)),
                None => return Ok(None),
            },
            short => (0, u64::from(short)),
        };
        let payload = usize::try_from(payload).unwrap_or(usize::MAX);
        ensure!(payload <= MAX_PAYLOAD, "frame of {payload} bytes");
        let opcode = match first & 0x0f {
            0x0 => Opcode::Continuation,
            0x1 => Opcode::Text,
            0x2 => Opcode::Binary,
            0x8 => Opcode::Close,
            0x9 => Opcode::Ping,
            0xa => Opcode::Pong,
            unknown => bail!("frame with unknown opcode {unknown}"),
        };
        Ok(Some(Self {
            fin: first & 0x80 != 0,
            opcode,
            len: 2 + extra,
            payload,
        }))
    }
}

/// Appends one masked frame with a complete message that consists of `parts`.
pub(super) fn encode_frame(out: &mut Vec<u8>, opcode: Opcode, parts: &[&[u8]]) {
    let code = match opcode {
        Opcode::Continuation => 0x0,
        Opcode::Text => 0x1,
        Opcode::Binary => 0x2,
        Opcode::Close => 0x8,
        Opcode::Ping => 0x9,
        Opcode::Pong => 0xa,
    };
    out.push(0x80 | code);
    let len = parts.iter().map(|part| part.len()).sum::<usize>();
    if let Ok(len @ 0..126) = u8::try_from(len) {
        out.push(0x80 | len);
    } else if let Ok(len) = u16::try_from(len) {
        out.push(0x80 | 126);
        out.extend_from_slice(&len.to_be_bytes());
    } else {
        out.push(0x80 | 127);
        out.extend_from_slice(&(len as u64).to_be_bytes());
    }
    out.extend_from_slice(&MASK);
    let begin = out.len();
    out.reserve(len);
    for part in parts {
        out.extend_from_slice(part);
    }
    apply_mask(&mut out[begin..]);
}

/// Masks a payload. Works on words, since a file has tens of megabytes.
fn apply_mask(payload: &mut [u8]) {
    let [a, b, c, d] = MASK;
    let key = u64::from_ne_bytes([a, b, c, d, a, b, c, d]);
    let (words, rest) = payload.as_chunks_mut();
    for word in words {
        *word = (u64::from_ne_bytes(*word) ^ key).to_ne_bytes();
    }
    for (byte, mask) in rest.iter_mut().zip(MASK.iter().cycle()) {
        *byte ^= mask;
    }
}

/// The masking key. Masking protects proxies from hostile web pages, so a fixed key is fine here.
/// It is not zero, so that the server does its usual work.
const MASK: [u8; 4] = [0x5a, 0xc3, 0x17, 0x9e];

#[cfg(test)]
mod tests {
    use super::*;

    fn header(opcode: Opcode, len: usize, payload: usize) -> Option<WsFrameHeader> {
        Some(WsFrameHeader {
            fin: true,
            opcode,
            len,
            payload,
        })
    }

    #[test]
    fn all_three_length_forms_parse() {
        let text = Opcode::Text;
        assert_eq!(
            WsFrameHeader::parse(&[0x81, 5]).unwrap(),
            header(text, 2, 5)
        );
        assert_eq!(
            WsFrameHeader::parse(&[0x81, 126, 1, 0]).unwrap(),
            header(text, 4, 256)
        );
        let long = [0x82, 127, 0, 0, 0, 0, 0, 1, 0, 0];
        assert_eq!(
            WsFrameHeader::parse(&long).unwrap(),
            header(Opcode::Binary, 10, 65536)
        );
    }

    #[test]
    fn incomplete_header_needs_more_bytes() {
        for bytes in [&[][..], &[0x81], &[0x81, 126, 1], &[0x81, 127, 0, 0, 0]] {
            assert_eq!(WsFrameHeader::parse(bytes).unwrap(), None);
        }
    }

    #[test]
    fn invalid_server_frames_are_refused() {
        let huge = [0x82, 127, 1, 0, 0, 0, 0, 0, 0, 0];
        for bytes in [&[0x81, 0x85][..], &[0xc1, 5], &[0x83, 5], &huge] {
            assert!(WsFrameHeader::parse(bytes).is_err(), "{bytes:?}");
        }
    }

    #[test]
    fn sent_frame_is_masked() {
        for len in [0, 125, 126, 65535, 65536] {
            let payload = vec![7; len];
            let mut out = Vec::new();
            let (head, tail) = payload.split_at(len / 3);
            encode_frame(&mut out, Opcode::Text, &[head, tail]);
            assert_eq!(out[1] & 0x80, 0x80);
            out[1] &= 0x7f;
            let parsed = WsFrameHeader::parse(&out).unwrap().unwrap();
            assert_eq!(parsed.payload, len);
            let body = out[parsed.len + 4..].iter().zip(MASK.iter().cycle());
            assert!(body.map(|(byte, mask)| byte ^ mask).eq(payload));
        }
    }
}
