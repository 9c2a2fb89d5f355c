//! Whose rules a path follows, told from its URI alone.

use super::{encode, opaque, uri::PathUri};

/// The family of path rules a URI belongs to.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum Convention {
    /// `file:///home/x` is `/home/x`.
    Posix,
    /// `file:///C:/x` is `C:\x`.
    WindowsDrive,
    /// `file://server/share/x` is `\\server\share\x`. Opaque device paths (`\\?\…`) count here.
    WindowsUnc,
}

impl Convention {
    /// Tells whether the path follows Windows rules, on a drive or on a share.
    #[must_use]
    pub fn is_windows(self) -> bool {
        match self {
            Self::Posix => false,
            Self::WindowsDrive | Self::WindowsUnc => true,
        }
    }

    /// Tells whether `byte` separates names in native text.
    pub(super) fn is_separator(self, byte: u8) -> bool {
        byte == b'/' || (byte == b'\\' && self.is_windows())
    }
}

impl PathUri {
    /// Returns the convention, or `None` for an opaque URI whose payload is no absolute path.
    #[must_use]
    pub fn convention(&self) -> Option<Convention> {
        if self.is_opaque() {
            return opaque::payload(self.as_str()).and_then(|bytes| opaque::convention(&bytes));
        }
        Some(self.ordinary_convention())
    }

    /// Returns the convention of a URI that is not opaque.
    pub(super) fn ordinary_convention(&self) -> Convention {
        let (host, path) = self.host_and_path();
        if !host.is_empty() {
            return Convention::WindowsUnc;
        }
        match encode::segments(path).next() {
            Some(first) if is_drive(&encode::decode(first)) => Convention::WindowsDrive,
            Some(_) | None => Convention::Posix,
        }
    }
}

/// Tells whether a decoded name reads as a drive, such as `C:`.
pub(super) fn is_drive(name: &[u8]) -> bool {
    matches!(name, [letter, b':'] if letter.is_ascii_alphabetic())
}

/// Tells whether some URL parser takes an encoded first segment for a drive: `C:`, or its old
/// spelling `C|`.
pub(super) fn is_url_drive(segment: &str) -> bool {
    matches!(segment.as_bytes(), [letter, b':' | b'|'] if letter.is_ascii_alphabetic())
}
