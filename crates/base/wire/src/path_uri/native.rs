//! Between URIs and the paths of this host, which is a POSIX one.

use std::{
    ffi::{OsStr, OsString},
    os::unix::ffi::{OsStrExt, OsStringExt},
    path::{Path, PathBuf},
};

use super::{convention::Convention, encode, lexical::Parts, opaque, uri::PathUri};

/// The URI of the root.
const ROOT: &str = "file:///";

/// Why a URI names no path of this host. In every case the caller must name another.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum NativePathError {
    /// The path belongs to a host of the other family.
    #[error("path URI `{0}` is not valid on this host: it has the Windows convention")]
    ForeignConvention(PathUri),
    /// The URI is opaque, and its payload is an absolute path nowhere.
    #[error("opaque path URI `{0}` does not hold an absolute path")]
    Unusable(PathUri),
    /// The URI is opaque, but its path has an ordinary spelling. Refused, so that checks on the
    /// ordinary spelling cannot be bypassed.
    #[error("opaque path URI `{0}` holds a path that has an ordinary URI")]
    NeedlesslyOpaque(PathUri),
}

/// Why a native path has no URI.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum FromNativeError {
    /// Caller: a URI has no base a relative path could start from.
    #[error("path `{}` is not absolute", .0.display())]
    NotAbsolute(PathBuf),
}

impl PathUri {
    /// Makes the URI of an absolute native path, after normalizing it lexically.
    ///
    /// Symlinks are not looked at: `..` takes back the name before it.
    ///
    /// # Errors
    /// Fails if the path is not absolute.
    pub fn from_native(path: &Path) -> Result<Self, FromNativeError> {
        if !path.is_absolute() {
            return Err(FromNativeError::NotAbsolute(path.to_owned()));
        }
        let names = normalized_names(path.as_os_str().as_bytes());
        let bytes = joined(&names);
        if opaque::is_needed(&bytes) {
            return Ok(opaque::from_payload(&bytes));
        }
        Ok(Parts::posix(names.into_iter().map(encode::encode).collect()).into_uri())
    }

    /// Makes the URI of an entry of this directory by its native name, which is one name.
    ///
    /// Returns `None` if this URI is opaque, or has the convention of another host.
    pub fn child(&self, name: &OsStr) -> Option<Self> {
        let below_root = self.as_str().strip_prefix(ROOT).unwrap_or_default();
        let (first, _) = below_root.split_once('/').unwrap_or((below_root, ""));
        // Most first names are like this, and so neither a drive nor the mark of an opaque URI. A
        // walk asks for very many children.
        let is_plain = !first.is_empty() && !first.contains([':', '%']);
        if !is_plain && (self.is_opaque() || self.convention() != Some(Convention::Posix)) {
            return None;
        }
        let parent = self.as_str().trim_end_matches('/');
        if parent.len() < ROOT.len() {
            // Only here can a name look like a drive.
            return Self::from_native(&Path::new("/").join(name)).ok();
        }
        let name = encode::encode(name.as_bytes());
        let mut text = String::with_capacity(parent.len() + 1 + name.len());
        text.push_str(parent);
        text.push('/');
        text.push_str(&name);
        Some(Self::from_canonical(text))
    }

    /// Returns the path on this host, lexically normalized. It need not be UTF-8.
    ///
    /// # Errors
    /// Fails for Windows paths, and for opaque URIs that do not carry exactly the kind of path
    /// they exist for.
    pub fn to_native(&self) -> Result<PathBuf, NativePathError> {
        match self.convention() {
            Some(Convention::Posix) => {}
            Some(Convention::WindowsDrive | Convention::WindowsUnc) => {
                return Err(NativePathError::ForeignConvention(self.clone()));
            }
            None => return Err(NativePathError::Unusable(self.clone())),
        }
        let bytes = match opaque::payload(self.as_str()) {
            Some(payload) => {
                let bytes = joined(&normalized_names(&payload));
                if !opaque::is_needed(&bytes) {
                    return Err(NativePathError::NeedlesslyOpaque(self.clone()));
                }
                bytes
            }
            // Decoding comes first: an encoded slash separates names like a plain one.
            None => joined(&normalized_names(&encode::decode(self.host_and_path().1))),
        };
        Ok(PathBuf::from(OsString::from_vec(bytes)))
    }
}

/// Splits an absolute POSIX path into names, without `.`, `..` and empty ones.
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
fn joined(names: &[&[u8]]) -> Vec<u8> {
    let mut path = vec![b'/'];
    path.extend(names.join(&b'/'));
    path
}
