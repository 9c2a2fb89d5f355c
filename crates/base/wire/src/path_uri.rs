//! Path URIs: the form of all paths on the wire.
//!
//! A [`PathUri`] contains the canonical text of a `file:` URI. Its [`PathConvention`] need not be
//! the convention of this host; only [`PathUri::to_native`] checks that. A path that a `file:` URI
//! cannot represent becomes an *opaque* URI, which contains the native path and has no lexical
//! structure. Its text is `file:///%00/bad/path/<B>`, where `B` is the native path in unpadded
//! URL-safe base64: raw bytes for POSIX, UTF-16LE for Windows.
//!
//! Invariant: the text is canonical, so parsing it again yields the same text, and it decodes to a
//! NUL byte only if it is opaque. Nothing here accesses a file system (symbolic links, existence,
//! `~`).

mod lexical;
#[cfg(test)]
mod tests;

use std::{
    borrow::Cow,
    cmp::Ordering,
    ffi::{OsStr, OsString},
    fmt,
    hash::{Hash, Hasher},
    os::unix::ffi::{OsStrExt, OsStringExt},
    path::{Path, PathBuf},
    str::FromStr,
    sync::Arc,
};

use base64_simd::URL_SAFE_NO_PAD;
use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, percent_encode};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use url::Url;

use self::lexical::PathParts;

pub use self::lexical::PathJoinError;

/// Start of every canonical text, followed by a host or the path.
const SCHEME: &str = "file://";

/// Canonical `file:` URI of an absolute path, on this host or on another.
///
/// Cloning is cheap. Equality follows the convention: Windows paths are compared decoded and
/// ignoring ASCII case, all others byte by byte.
#[derive(Clone, Debug)]
pub struct PathUri(Arc<str>);

impl PathUri {
    /// Wraps canonical text.
    fn from_canonical(text: impl Into<Arc<str>>) -> Self {
        Self(text.into())
    }

    /// Returns the canonical text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the host, which may be empty, and the encoded path.
    fn host_and_path(&self) -> (&str, &str) {
        let rest = self.0.strip_prefix(SCHEME).unwrap_or_default();
        rest.split_at(rest.find('/').unwrap_or(rest.len()))
    }
}

impl fmt::Display for PathUri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for PathUri {
    type Err = PathUriError;

    fn from_str(text: &str) -> Result<Self, PathUriError> {
        Self::parse(text)
    }
}

impl Serialize for PathUri {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for PathUri {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(PathUriVisitor)
    }
}

/// Parses borrowed text, so that a path costs one allocation.
struct PathUriVisitor;

impl de::Visitor<'_> for PathUriVisitor {
    type Value = PathUri;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a `file:` URI")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<PathUri, E> {
        PathUri::parse(text).map_err(E::custom)
    }
}

/// Why text is not a path URI. In every case the caller must send another.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum PathUriError {
    /// The text is not a URL, for example a native path.
    // The message contains the cause because peers compare it.
    #[error("invalid URI: {0}")]
    Invalid(url::ParseError),
    /// The scheme is not `file`.
    #[error("unsupported path URI scheme `{0}`")]
    UnsupportedScheme(String),
    /// The URI has a user name or password.
    #[error("credentials are not allowed in a path URI")]
    Credentials,
    /// The URI has a port.
    #[error("a port is not allowed in a path URI")]
    Port,
    /// The URI has a query.
    #[error("query parameters are not allowed in a path URI")]
    Query,
    /// The URI has a fragment.
    #[error("fragments are not allowed in a path URI")]
    Fragment,
    /// The path contains a NUL byte, and the URI is not a canonical opaque one.
    #[error("path URI decodes to a NUL byte")]
    Nul,
    /// The text changes each time it is parsed.
    #[error("path URI has no stable spelling")]
    Unstable,
}

impl PathUri {
    /// Parses text by the WHATWG URL rules into canonical form.
    ///
    /// # Errors
    /// Fails if the text is not a `file:` URI, or has more than a host and a path.
    pub fn parse(text: &str) -> Result<Self, PathUriError> {
        let mut canonical = canonical_text(text)?;
        // One run of the URL parser may leave text that the next run would change, such as a `.`
        // after a tab or a host before a drive. Canonical text is stable after one run.
        if canonical == text {
            return Ok(Self::from_canonical(canonical));
        }
        for _ in 0..MAX_REPARSES {
            let next = canonical_text(&canonical)?;
            if next == canonical {
                return Ok(Self::from_canonical(canonical));
            }
            canonical = next;
        }
        Err(PathUriError::Unstable)
    }
}

/// Runs the URL parser once and applies the additional rules of path URIs.
fn canonical_text(text: &str) -> Result<String, PathUriError> {
    let url = Url::parse(text).map_err(|error| authority_error(text, error))?;
    if url.scheme() != "file" {
        return Err(PathUriError::UnsupportedScheme(url.scheme().to_owned()));
    }
    if url.query().is_some() {
        return Err(PathUriError::Query);
    }
    if url.fragment().is_some() {
        return Err(PathUriError::Fragment);
    }
    let text = with_upper_case_drive(String::from(url));
    // `%` is not a hexadecimal digit, so this finds exactly the escapes that decode to NUL.
    if text.contains("%00") && opaque_payload(&text).is_none() {
        return Err(PathUriError::Nul);
    }
    Ok(text)
}

/// Returns the error for the part of the authority that a `file:` URL may not have.
///
/// The URL parser treats the whole authority as the host and would report an invalid domain name.
fn authority_error(text: &str, error: url::ParseError) -> PathUriError {
    let Some((scheme, rest)) = text.trim_start().split_once(':') else {
        return PathUriError::Invalid(error);
    };
    let is_slash = |c| c == '/' || c == '\\';
    let authority = rest
        .strip_prefix(is_slash)
        .and_then(|rest| rest.strip_prefix(is_slash))
        .and_then(|rest| rest.split(['/', '\\', '?', '#']).next());
    let Some(authority) = authority.filter(|_| scheme.eq_ignore_ascii_case("file")) else {
        return PathUriError::Invalid(error);
    };
    if authority.contains('@') {
        return PathUriError::Credentials;
    }
    match authority.rsplit_once(':') {
        Some((_, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => PathUriError::Port,
        Some(_) | None => PathUriError::Invalid(error),
    }
}

/// Converts the drive letter of serialized URL text to upper case. The URL parser keeps either
/// case.
fn with_upper_case_drive(mut text: String) -> String {
    let Some(path) = text.strip_prefix(SCHEME) else {
        return text;
    };
    let below_root = path.trim_start_matches('/');
    let letter = text.len() - below_root.len();
    let (first, _) = below_root.split_once('/').unwrap_or((below_root, ""));
    // A host never looks like a drive, so this is the first segment.
    if is_drive(first.as_bytes())
        && let Some(letter) = text.get_mut(letter..=letter)
    {
        letter.make_ascii_uppercase();
    }
    text
}

/// Maximum repeated parses before text counts as unstable. No text is known to need more than two.
const MAX_REPARSES: usize = 4;

/// Path convention of a URI.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum PathConvention {
    /// `file:///home/x` is `/home/x`.
    Posix,
    /// `file:///C:/x` is `C:\x`.
    WindowsDrive,
    /// `file://server/share/x` is `\\server\share\x`. Includes opaque device paths (`\\?\…`).
    WindowsUnc,
}

impl PathConvention {
    /// Returns whether the path follows Windows rules, on a drive or on a share.
    #[must_use]
    pub fn is_windows(self) -> bool {
        match self {
            Self::Posix => false,
            Self::WindowsDrive | Self::WindowsUnc => true,
        }
    }

    /// Returns whether `byte` separates names in native text.
    fn is_separator(self, byte: u8) -> bool {
        byte == b'/' || (byte == b'\\' && self.is_windows())
    }
}

impl PathUri {
    /// Returns the convention, or `None` for an opaque URI whose payload is not an absolute path.
    #[must_use]
    pub fn convention(&self) -> Option<PathConvention> {
        if self.is_opaque() {
            return opaque_payload(self.as_str()).and_then(|bytes| opaque_convention(&bytes));
        }
        Some(self.non_opaque_convention())
    }

    /// Returns the convention of a URI that is not opaque.
    fn non_opaque_convention(&self) -> PathConvention {
        let (host, path) = self.host_and_path();
        if !host.is_empty() {
            return PathConvention::WindowsUnc;
        }
        match split_segments(path).next() {
            Some(first) if is_drive(&decode_segment(first)) => PathConvention::WindowsDrive,
            Some(_) | None => PathConvention::Posix,
        }
    }
}

/// Returns whether a decoded name looks like a drive, such as `C:`.
fn is_drive(name: &[u8]) -> bool {
    matches!(name, [letter, b':'] if letter.is_ascii_alphabetic())
}

/// Returns whether a URL parser may treat an encoded first segment as a drive: `C:` or the old form
/// `C|`.
fn is_url_drive(segment: &str) -> bool {
    matches!(segment.as_bytes(), [letter, b':' | b'|'] if letter.is_ascii_alphabetic())
}

impl PartialEq for PathUri {
    fn eq(&self, other: &Self) -> bool {
        self.as_str() == other.as_str() || self.comparison_key() == other.comparison_key()
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
        self.comparison_key().cmp(&other.comparison_key())
    }
}

impl Hash for PathUri {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.comparison_key().hash(state);
    }
}

impl PathUri {
    fn comparison_key(&self) -> ComparisonKey<'_> {
        if self.is_opaque() {
            return match opaque_payload(self.as_str()) {
                Some(path) if opaque_convention(&path).is_some_and(PathConvention::is_windows) => {
                    ComparisonKey::OpaqueWindows(ascii_folded_utf16(&path))
                }
                Some(_) | None => ComparisonKey::Exact(self.as_str()),
            };
        }
        if !self.non_opaque_convention().is_windows() {
            return ComparisonKey::Exact(self.as_str());
        }
        let (host, path) = self.host_and_path();
        let names = path
            .split('/')
            .map(|segment| ascii_folded(decode_segment(segment)))
            .collect();
        ComparisonKey::Windows(host, names)
    }
}

/// Value by which URIs are compared. Equality, order and hash all use it, so they agree.
#[derive(Eq, Hash, Ord, PartialEq, PartialOrd)]
enum ComparisonKey<'a> {
    Exact(&'a str),
    /// Lower-case host and case-folded names. Names stay separate: `a%2Fb` differs from `a/b`.
    Windows(&'a str, Vec<Cow<'a, [u8]>>),
    OpaqueWindows(Vec<u16>),
}

fn ascii_folded(name: Cow<'_, [u8]>) -> Cow<'_, [u8]> {
    if name.iter().any(u8::is_ascii_uppercase) {
        return Cow::Owned(name.to_ascii_lowercase());
    }
    name
}

/// Folds ASCII case by UTF-16 code unit, because folding bytes would change other scripts.
fn ascii_folded_utf16(path: &[u8]) -> Vec<u16> {
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

/// ASCII bytes of a name that are percent-encoded, in addition to all non-ASCII bytes.
///
/// These are the bytes that the URL parser encodes in a path, so that both ways to create a URI
/// agree, and those that it would treat as syntax: `%`, `?`, `#` and `\`.
const ESCAPED_BYTES: &AsciiSet = &CONTROLS
    .add(b' ')
    .add(b'"')
    .add(b'#')
    .add(b'%')
    .add(b'/')
    .add(b'<')
    .add(b'>')
    .add(b'?')
    .add(b'\\')
    .add(b'`')
    .add(b'{')
    .add(b'}');

/// Percent-encodes one name of a native path as a URI segment.
fn encode_segment(name: &[u8]) -> Cow<'_, str> {
    percent_encode(name, ESCAPED_BYTES).into()
}

/// Decodes a URI segment.
fn decode_segment(segment: &str) -> Cow<'_, [u8]> {
    percent_decode_str(segment).into()
}

/// Encodes a segment that looks like a drive (`C:`, `C|`) so that it does not.
///
/// URL parsers rewrite such a segment at the start of a path, and drop the host before it.
fn escape_drive(segment: &str) -> String {
    segment.replace(':', "%3A").replace('|', "%7C")
}

/// Returns the non-empty segments of an encoded path.
fn split_segments(path: &str) -> impl Iterator<Item = &str> {
    path.split('/').filter(|segment| !segment.is_empty())
}

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
fn opaque_from_payload(path: &[u8]) -> PathUri {
    PathUri::from_canonical(format!(
        "{OPAQUE_PREFIX}{}",
        URL_SAFE_NO_PAD.encode_to_string(path)
    ))
}

/// Returns the opaque URI of a Windows path, which must not be empty.
fn opaque_from_windows(text: &str) -> PathUri {
    let payload: Vec<u8> = text.encode_utf16().flat_map(u16::to_le_bytes).collect();
    opaque_from_payload(&payload)
}

/// Returns the native path of canonical opaque text, or `None` for other text.
fn opaque_payload(text: &str) -> Option<Vec<u8>> {
    let encoded = text
        .strip_prefix(OPAQUE_PREFIX)
        .filter(|encoded| !encoded.is_empty())?;
    let bytes = URL_SAFE_NO_PAD.decode_to_vec(encoded).ok()?;
    // A path has one encoding: no padding, and no stray bits in the last character.
    (URL_SAFE_NO_PAD.encode_to_string(&bytes) == encoded).then_some(bytes)
}

/// Returns the convention of a payload, or `None` if it is not an absolute path.
fn opaque_convention(payload: &[u8]) -> Option<PathConvention> {
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
fn needs_opaque(path: &[u8]) -> bool {
    let first = path
        .split(|&byte| byte == b'/')
        .find(|name| !name.is_empty());
    path.contains(&0) || first.is_some_and(is_drive)
}
