//! A tiny blocking websocket client: one TCP stream, one large reusable buffer, no extensions.
//! Its own cost is part of every number, so messages are handed out in place, never copied.
//! Not here: JSON-RPC (`rpc`), TLS, server side.

mod frame;
mod handshake;
mod stream;

pub(crate) use handshake::open;
pub(crate) use stream::{READ_BUFFER, WebSocket};

/// Encodes a text message, for those who write to a stream themselves.
pub(crate) fn encode_text(text: &[u8]) -> Vec<u8> {
    let mut frame = Vec::new();
    frame::encode(&mut frame, frame::Opcode::Text, &[text]);
    frame
}
