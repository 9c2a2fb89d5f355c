//! Opaque URIs: native paths carried whole, because an ordinary URI would misspell them.
//!
//! The text is `file:///%00/bad/path/<B>`, with `B` the native path in unpadded URL-safe base64:
//! raw bytes for POSIX, UTF-16LE for Windows.

use base64_simd::URL_SAFE_NO_PAD;

use super::{
    convention::{Convention, is_drive},
    uri::PathUri,
};

/// What every opaque URI starts with, and no other URI does.
const PREFIX: &str = "file:///%00/bad/path/";

impl PathUri {
    /// Tells whether this URI carries a native path whole, and so has no lexical structure.
    #[must_use]
    pub fn is_opaque(&self) -> bool {
        self.as_str().starts_with(PREFIX)
    }
}

/// Makes the opaque URI of a native path, which must not be empty.
pub(super) fn from_payload(path: &[u8]) -> PathUri {
    PathUri::from_canonical(format!(
        "{PREFIX}{}",
        URL_SAFE_NO_PAD.encode_to_string(path)
    ))
}

/// Makes the opaque URI of a Windows path, which must not be empty.
pub(super) fn from_windows_text(text: &str) -> PathUri {
    let payload: Vec<u8> = text.encode_utf16().flat_map(u16::to_le_bytes).collect();
    from_payload(&payload)
}

/// Returns the native path of canonical opaque text, or `None` if the text is anything else.
pub(super) fn payload(text: &str) -> Option<Vec<u8>> {
    let encoded = text
        .strip_prefix(PREFIX)
        .filter(|encoded| !encoded.is_empty())?;
    let bytes = URL_SAFE_NO_PAD.decode_to_vec(encoded).ok()?;
    // A path has one spelling: no padding, and no stray bits in the last character.
    (URL_SAFE_NO_PAD.encode_to_string(&bytes) == encoded).then_some(bytes)
}

/// Returns the convention of a payload, or `None` if it is no absolute path of any.
pub(super) fn convention(payload: &[u8]) -> Option<Convention> {
    match payload {
        [b'/', ..] => Some(Convention::Posix),
        [letter, 0, b':', 0, ..]
            if payload.len().is_multiple_of(2) && letter.is_ascii_alphabetic() =>
        {
            Some(Convention::WindowsDrive)
        }
        [b'\\', 0, b'\\', 0, ..] if payload.len().is_multiple_of(2) => Some(Convention::WindowsUnc),
        _ => None,
    }
}

/// Tells whether a normalized POSIX path needs an opaque URI.
pub(super) fn is_needed(path: &[u8]) -> bool {
    let first = path
        .split(|&byte| byte == b'/')
        .find(|name| !name.is_empty());
    path.contains(&0) || first.is_some_and(is_drive)
}
