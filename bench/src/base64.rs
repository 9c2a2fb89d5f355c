//! Base64 with padding, for request data and samples of responses.
//!
//! Simple on purpose: it runs outside of timed code or over a few bytes.

use anyhow::{Result, ensure};

/// Encodes `bytes`.
pub(crate) fn encode(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(encoded_len(bytes.len()));
    for group in bytes.chunks(3) {
        let byte = |index: usize| u32::from(group.get(index).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for index in 0..4 {
            let digit = bits >> (18 - 6 * index) & 0x3f;
            let padding = index > group.len();
            text.push(if padding {
                '='
            } else {
                char::from(ALPHABET[digit as usize])
            });
        }
    }
    text
}

/// Returns the encoded length of `bytes` bytes.
pub(crate) const fn encoded_len(bytes: usize) -> usize {
    bytes.div_ceil(3) * 4
}

/// Returns the decoded length of padded base64, from its length and padding alone.
pub(crate) fn decoded_len(base64: &[u8]) -> Result<u64> {
    ensure!(
        base64.len().is_multiple_of(4),
        "base64 of {} characters",
        base64.len()
    );
    let padding = base64
        .iter()
        .rev()
        .take(2)
        .take_while(|&&byte| byte == b'=')
        .count();
    Ok((base64.len() / 4 * 3 - padding) as u64)
}

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rfc_4648_examples_are_encoded() {
        for (plain, text) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foobar", "Zm9vYmFy"),
        ] {
            assert_eq!(encode(plain.as_bytes()), text);
            assert_eq!(encoded_len(plain.len()), text.len());
        }
        assert_eq!(encode(&[0xfb, 0xff, 0xfe]), "+//+");
    }

    #[test]
    fn base64_length_follows_from_padding() {
        for (text, len) in [
            ("", 0),
            ("YQ==", 1),
            ("YWI=", 2),
            ("YWJj", 3),
            ("YWJjZA==", 4),
        ] {
            assert_eq!(decoded_len(text.as_bytes()).unwrap(), len, "{text}");
        }
        assert!(decoded_len(b"YQ").is_err());
    }
}
