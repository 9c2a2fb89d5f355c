//! Bytes in JSON: RFC 4648 base64 with the standard alphabet and mandatory padding.

use std::fmt;

use ::bytes::Bytes;
use base64_simd::STANDARD;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// Bytes that are sent as base64 text, or raw if the `binaryData` extension was granted.
#[derive(Clone, Default, Eq, Ord, PartialEq, PartialOrd)]
pub struct Base64Bytes(pub Bytes);

impl fmt::Debug for Base64Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Base64({} bytes)", self.0.len())
    }
}

impl Serialize for Base64Bytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&STANDARD.encode_to_string(&self.0))
    }
}

impl<'de> Deserialize<'de> for Base64Bytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let UncheckedBase64(decoded) = UncheckedBase64::deserialize(deserializer)?;
        decoded.map(Self).map_err(de::Error::custom)
    }
}

/// Base64 text that may be invalid, for members where that does not invalidate the request.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct UncheckedBase64(pub Result<Bytes, Base64Error>);

impl Serialize for UncheckedBase64 {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match &self.0 {
            Ok(data) => serializer.serialize_str(&STANDARD.encode_to_string(data)),
            // Serialize as invalid base64 again.
            Err(_) => serializer.serialize_str("!"),
        }
    }
}

impl<'de> Deserialize<'de> for UncheckedBase64 {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct UncheckedBase64Visitor;

        impl de::Visitor<'_> for UncheckedBase64Visitor {
            type Value = UncheckedBase64;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a base64 string")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<UncheckedBase64, E> {
                Ok(UncheckedBase64(decode(text.as_bytes())))
            }
        }

        deserializer.deserialize_str(UncheckedBase64Visitor)
    }
}

/// Decodes strict base64.
pub fn decode(text: &[u8]) -> Result<Bytes, Base64Error> {
    STANDARD
        .decode_to_vec(text)
        .map(Bytes::from)
        .map_err(|_| Base64Error)
}

/// Appends the base64 form of `data` to `out` without a temporary buffer.
pub fn encode_append(data: &[u8], out: &mut Vec<u8>) {
    STANDARD.encode_append(data, out);
}

/// Caller: the text is not base64 with the standard alphabet and padding.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("invalid base64: expected the standard alphabet with padding")]
pub struct Base64Error;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unpadded_and_url_safe_text_is_refused() {
        for text in ["YQ", "YQ=", "_-8=", "Y Q==", "YQ==\n", "YR=="] {
            assert_eq!(decode(text.as_bytes()), Err(Base64Error), "{text:?}");
        }
        assert_eq!(decode(b"YQ=="), Ok(Bytes::from_static(b"a")));
        assert_eq!(decode(b""), Ok(Bytes::new()));
    }

    #[test]
    fn encoding_appends_to_the_buffer() {
        let mut out = b"x:".to_vec();
        encode_append(b"hello\n", &mut out);
        assert_eq!(out, b"x:aGVsbG8K");
    }
}
