//! Relay frames, written by hand: a few bytes of protobuf around a payload.

/// The frame that a stream begins with.
pub(crate) fn resume(stream: &str) -> Vec<u8> {
    let mut frame = head(stream);
    frame.extend_from_slice(&[0x3a, 0x00]);
    frame
}

/// A record of a stream.
pub(crate) fn data(stream: &str, seq: u32, payload: &[u8]) -> Vec<u8> {
    let mut record = Vec::with_capacity(payload.len() + 16);
    if seq > 0 {
        record.push(0x08);
        varint(&mut record, seq as usize);
    }
    record.extend_from_slice(&[0x18, 0x01, 0x22]);
    varint(&mut record, payload.len());
    record.extend_from_slice(payload);
    let mut frame = head(stream);
    frame.push(0x2a);
    varint(&mut frame, record.len());
    frame.extend_from_slice(&record);
    frame
}

/// Version and stream.
fn head(stream: &str) -> Vec<u8> {
    let mut frame = vec![0x08, 0x01, 0x12];
    varint(&mut frame, stream.len());
    frame.extend_from_slice(stream.as_bytes());
    frame
}

fn varint(out: &mut Vec<u8>, mut value: usize) {
    while value >= 0x80 {
        out.push(value.to_le_bytes()[0] | 0x80);
        value >>= 7;
    }
    out.push(value.to_le_bytes()[0]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encoded_frames_match_the_wire_format() {
        assert_eq!(resume("ab"), b"\x08\x01\x12\x02ab\x3a\x00");
        assert_eq!(
            data("ab", 0, b"xyz"),
            b"\x08\x01\x12\x02ab\x2a\x07\x18\x01\x22\x03xyz"
        );
        assert_eq!(
            data("ab", 300, b"z"),
            b"\x08\x01\x12\x02ab\x2a\x08\x08\xac\x02\x18\x01\x22\x01z"
        );
    }
}
