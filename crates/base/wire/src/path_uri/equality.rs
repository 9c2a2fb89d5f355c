//! Equality, order and hash. All three read one key, so they cannot disagree.

use std::{
    borrow::Cow,
    cmp::Ordering,
    hash::{Hash, Hasher},
};

use super::{convention::Convention, encode, opaque, uri::PathUri};

impl PartialEq for PathUri {
    fn eq(&self, other: &Self) -> bool {
        self.as_str() == other.as_str() || self.key() == other.key()
    }
}

impl Eq for PathUri {}

impl PartialOrd for PathUri {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for PathUri {
    fn cmp(&self, other: &Self) -> Ordering {
        self.key().cmp(&other.key())
    }
}

impl Hash for PathUri {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.key().hash(state);
    }
}

impl PathUri {
    fn key(&self) -> Key<'_> {
        if self.is_opaque() {
            return match opaque::payload(self.as_str()) {
                Some(path) if opaque::convention(&path).is_some_and(Convention::is_windows) => {
                    Key::OpaqueWindows(folded_utf16(&path))
                }
                Some(_) | None => Key::Exact(self.as_str()),
            };
        }
        if !self.ordinary_convention().is_windows() {
            return Key::Exact(self.as_str());
        }
        let (host, path) = self.host_and_path();
        let names = path
            .split('/')
            .map(|segment| folded(encode::decode(segment)))
            .collect();
        Key::Windows(host, names)
    }
}

/// What two equal URIs share.
#[derive(Eq, Hash, Ord, PartialEq, PartialOrd)]
enum Key<'a> {
    Exact(&'a str),
    /// The host, which the URL parser has put in lower case, and the folded names. Names stay
    /// apart: `a%2Fb` is not `a/b`.
    Windows(&'a str, Vec<Cow<'a, [u8]>>),
    OpaqueWindows(Vec<u16>),
}

fn folded(name: Cow<'_, [u8]>) -> Cow<'_, [u8]> {
    if name.iter().any(u8::is_ascii_uppercase) {
        return Cow::Owned(name.to_ascii_lowercase());
    }
    name
}

/// Folds UTF-16LE by code unit: bytes alone would also change other scripts.
fn folded_utf16(path: &[u8]) -> Vec<u16> {
    let units = path
        .as_chunks::<2>()
        .0
        .iter()
        .map(|unit| u16::from_le_bytes(*unit));
    units
        .map(|unit| match u8::try_from(unit) {
            Ok(ascii) => u16::from(ascii.to_ascii_lowercase()),
            Err(_) => unit,
        })
        .collect()
}
