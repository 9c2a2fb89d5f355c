//! Decodes one direction of a websocket, whole and in pieces.

use bytes::BytesMut;

use super::decoder::{FrameError, FrameEvent, MessageDecoder, MessageKind};
use crate::link::Role;

/// Longest message of a run: short enough that inputs exceed it.
const MAX_MESSAGE_BYTES: usize = 1000;

/// Decodes frames. The first byte says which end this is and in which pieces the rest arrives.
///
/// # Panics
/// When an invariant does not hold: what is decoded does not depend on how it arrives, text is UTF-8,
/// and messages keep to their limit.
pub fn websocket_frame(data: &[u8]) {
    let Some((first, stream)) = data.split_first() else {
        return;
    };
    let role = match first & 1 {
        0 => Role::Server,
        _ => Role::Client,
    };
    let whole = decode(role, stream.chunks(stream.len().max(1)));
    let pieces = decode(role, stream.chunks(usize::from(first >> 1).max(1)));
    assert_eq!(
        whole, pieces,
        "frames are decoded alike however they arrive"
    );
    for event in &whole.0 {
        if let FrameEvent::Message(kind, message) = event {
            assert!(
                message.len() <= MAX_MESSAGE_BYTES,
                "messages keep to their limit"
            );
            let is_text = str::from_utf8(message).is_ok();
            assert!(*kind == MessageKind::Binary || is_text, "text is UTF-8");
        }
    }
}

fn decode<'a>(
    role: Role,
    pieces: impl Iterator<Item = &'a [u8]>,
) -> (Vec<FrameEvent>, Option<FrameError>) {
    let mut decoder = MessageDecoder::new(BytesMut::new(), role, MAX_MESSAGE_BYTES);
    let mut events = Vec::new();
    for piece in pieces {
        decoder.buffer.extend_from_slice(piece);
        loop {
            match decoder.next() {
                Ok(Some(FrameEvent::Close(code))) => {
                    events.push(FrameEvent::Close(code));
                    return (events, None);
                }
                Ok(Some(event)) => events.push(event),
                Ok(None) => break,
                Err(error) => return (events, Some(error)),
            }
        }
        assert!(decoder.expected_bytes() <= MAX_MESSAGE_BYTES);
    }
    (events, None)
}
