//! Conversion between URIs and native paths of this POSIX host, and opaque URIs.
//!
//! An opaque URI contains a native path that an ordinary URI cannot represent. Its text is
//! `file:///%00/bad/path/<B>`, where `B` is the native path in unpadded URL-safe base64: raw bytes
//! for POSIX, UTF-16LE for Windows.

use std::{
    ffi::{OsStr, OsString},
    os::unix::ffi::{OsStrExt, OsStringExt},
    path::{Path, PathBuf},
};

use base64_simd::URL_SAFE_NO_PAD;

use super::{
    PathConvention, PathUri, decode_segment, encode_segment, is_drive, lexical::PathParts,
};

/// URI of the root directory.
const ROOT: &str = "file:///";

/// Why a URI is not a path of this host. In every case the caller must send another.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum NativePathError {
    /// The path has the Windows convention.
    #[error("path URI `{0}` is not valid on this host: it has the Windows convention")]
    ForeignConvention(PathUri),
    /// The payload of the opaque URI is not an absolute path.
    #[error("opaque path URI `{0}` does not hold an absolute path")]
    Unusable(PathUri),
    /// The URI is opaque, but its path has an ordinary URI. Refused, so that checks of ordinary
    /// URIs cannot be bypassed.
    #[error("opaque path URI `{0}` holds a path that has an ordinary URI")]
    NeedlesslyOpaque(PathUri),
}

/// Why a native path has no URI.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum FromNativeError {
    /// Caller: the path is relative.
    #[error("path `{}` is not absolute", .0.display())]
    NotAbsolute(PathBuf),
}

impl PathUri {
    /// Returns the URI of an absolute native path after lexical normalization.
    ///
    /// Symbolic links are not resolved: `..` removes the name before it.
    ///
    /// # Errors
    /// Fails if the path is not absolute.
    pub fn from_native(path: &Path) -> Result<Self, FromNativeError> {
        if !path.is_absolute() {
            return Err(FromNativeError::NotAbsolute(path.to_owned()));
        }
        let names = normalized_names(path.as_os_str().as_bytes());
        let bytes = join_names(&names);
        if needs_opaque(&bytes) {
            return Ok(opaque_from_payload(&bytes));
        }
        Ok(PathParts::posix(names.into_iter().map(encode_segment).collect()).into_uri())
    }

    /// Returns the URI of a directory entry by its native name.
    ///
    /// Returns `None` if this URI is opaque or has the convention of another host.
    pub fn child(&self, name: &OsStr) -> Option<Self> {
        let below_root = self.as_str().strip_prefix(ROOT).unwrap_or_default();
        let (first, _) = below_root.split_once('/').unwrap_or((below_root, ""));
        // Fast path for walks: most first names are neither a drive nor the mark of an opaque URI.
        let is_plain = !first.is_empty() && !first.contains([':', '%']);
        if !is_plain && (self.is_opaque() || self.convention() != Some(PathConvention::Posix)) {
            return None;
        }
        let parent = self.as_str().trim_end_matches('/');
        if parent.len() < ROOT.len() {
            // Only below the root can a name look like a drive.
            return Self::from_native(&Path::new("/").join(name)).ok();
        }
        let name = encode_segment(name.as_bytes());
        let mut text = String::with_capacity(parent.len() + 1 + name.len());
        text.push_str(parent);
        text.push('/');
        text.push_str(&name);
        Some(Self::from_canonical(text))
    }

    /// Returns the lexically normalized path on this host. It need not be UTF-8.
    ///
    /// # Errors
    /// Fails for Windows paths, and for opaque URIs whose path is not absolute or has an ordinary
    /// URI.
    pub fn to_native(&self) -> Result<PathBuf, NativePathError> {
        match self.convention() {
            Some(PathConvention::Posix) => {}
            Some(PathConvention::WindowsDrive | PathConvention::WindowsUnc) => {
                return Err(NativePathError::ForeignConvention(self.clone()));
            }
            None => return Err(NativePathError::Unusable(self.clone())),
        }
        let bytes = match opaque_payload(self.as_str()) {
            Some(payload) => {
                let bytes = join_names(&normalized_names(&payload));
                if !needs_opaque(&bytes) {
                    return Err(NativePathError::NeedlesslyOpaque(self.clone()));
                }
                bytes
            }
            // Decode first: an encoded slash separates names like a plain one.
            None => join_names(&normalized_names(&decode_segment(self.host_and_path().1))),
        };
        Ok(PathBuf::from(OsString::from_vec(bytes)))
    }
}

/// Splits an absolute POSIX path into names, without `.`, `..` and empty names.
fn normalized_names(path: &[u8]) -> Vec<&[u8]> {
    let mut names = Vec::new();
    for name in path.split(|&byte| byte == b'/') {
        match name {
            b"" | b"." => {}
            b".." => {
                names.pop();
            }
            name => names.push(name),
        }
    }
    names
}

/// Joins names into an absolute POSIX path.
fn join_names(names: &[&[u8]]) -> Vec<u8> {
    let mut path = vec![b'/'];
    path.extend(names.join(&b'/'));
    path
}

/// Start of every opaque URI, and of no other URI.
const OPAQUE_PREFIX: &str = "file:///%00/bad/path/";

impl PathUri {
    /// Returns whether this URI is opaque: it contains a native path and has no lexical structure.
    #[must_use]
    pub fn is_opaque(&self) -> bool {
        self.as_str().starts_with(OPAQUE_PREFIX)
    }
}

/// Returns the opaque URI of a native path, which must not be empty.
pub(super) fn opaque_from_payload(path: &[u8]) -> PathUri {
    PathUri::from_canonical(format!(
        "{OPAQUE_PREFIX}{}",
        URL_SAFE_NO_PAD.encode_to_string(path)
    ))
}

/// Returns the opaque URI of a Windows path, which must not be empty.
pub(super) fn opaque_from_windows(text: &str) -> PathUri {
    let payload: Vec<u8> = text.encode_utf16().flat_map(u16::to_le_bytes).collect();
    opaque_from_payload(&payload)
}

/// Returns the native path of canonical opaque text, or `None` for other text.
pub(super) fn opaque_payload(text: &str) -> Option<Vec<u8>> {
    let encoded = text
        .strip_prefix(OPAQUE_PREFIX)
        .filter(|encoded| !encoded.is_empty())?;
    let bytes = URL_SAFE_NO_PAD.decode_to_vec(encoded).ok()?;
    // A path has one encoding: no padding, and no stray bits in the last character.
    (URL_SAFE_NO_PAD.encode_to_string(&bytes) == encoded).then_some(bytes)
}

/// Returns the convention of a payload, or `None` if it is not an absolute path.
pub(super) fn opaque_convention(payload: &[u8]) -> Option<PathConvention> {
    match payload {
        [b'/', ..] => Some(PathConvention::Posix),
        [letter, 0, b':', 0, ..]
            if payload.len().is_multiple_of(2) && letter.is_ascii_alphabetic() =>
        {
            Some(PathConvention::WindowsDrive)
        }
        [b'\\', 0, b'\\', 0, ..] if payload.len().is_multiple_of(2) => {
            Some(PathConvention::WindowsUnc)
        }
        _ => None,
    }
}

/// Returns whether a normalized POSIX path needs an opaque URI.
pub(super) fn needs_opaque(path: &[u8]) -> bool {
    let first = path
        .split(|&byte| byte == b'/')
        .find(|name| !name.is_empty());
    path.contains(&0) || first.is_some_and(is_drive)
}
