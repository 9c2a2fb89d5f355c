//! Messages whose data member travels raw: `0x01`, header length, header, bytes.

use ::bytes::Bytes;

/// First byte of such a message. No JSON text begins with it.
pub const BINARY_TAG: u8 = 0x01;
/// Tag and header length.
const PREFIX_BYTES: usize = 4;

/// Splits a binary message into its JSON header and its raw data; `None` if it is no such message.
pub fn split_binary(frame: &Bytes) -> Option<Result<(Bytes, Bytes), BinaryError>> {
    if frame.first() != Some(&BINARY_TAG) {
        return None;
    }
    let &[_, high, middle, low, ..] = frame.as_ref() else {
        return Some(Err(BinaryError));
    };
    let header = usize::from(high) << 16 | usize::from(middle) << 8 | usize::from(low);
    if frame.len() < PREFIX_BYTES + header {
        return Some(Err(BinaryError));
    }
    let data = frame.slice(PREFIX_BYTES + header..);
    Some(Ok((frame.slice(PREFIX_BYTES..PREFIX_BYTES + header), data)))
}

/// Appends everything of a binary message but its raw data. `header` is shorter than 16 MiB.
pub fn encode_binary_head(header: &[u8], out: &mut Vec<u8>) {
    let length = u32::try_from(header.len())
        .unwrap_or(u32::MAX)
        .to_be_bytes();
    out.push(BINARY_TAG);
    out.extend_from_slice(&length[1..]);
    out.extend_from_slice(header);
}

/// Peer: the header's length exceeds the message.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("binary message is shorter than its header says")]
pub struct BinaryError;
