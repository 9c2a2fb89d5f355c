//! Lexical operations on path URIs: parent, file name, containment and join.
//!
//! A segment with an encoded separator stands for several names and may hide a `..`. Operations
//! that would have to look inside such a segment fail.

use std::borrow::Cow;

use url::Host;

use super::{
    PathConvention, PathUri, SCHEME, decode_segment, encode_segment, escape_drive, is_drive,
    is_url_drive, opaque_from_payload, opaque_from_windows, split_segments,
};

impl PathUri {
    /// Returns the parent directory.
    ///
    /// Returns `None` for `/`, a drive root, a UNC share, an opaque URI, and a last segment that
    /// contains an encoded separator.
    #[must_use]
    pub fn parent(&self) -> Option<Self> {
        let mut parts = PathParts::of(self)?;
        let last = parts.names.pop()?;
        (!parts.has_separator(&last)).then(|| parts.into_uri())
    }

    /// Returns the decoded last name of the path, which need not be UTF-8.
    ///
    /// Returns `None` where [`parent`](Self::parent) does.
    #[must_use]
    pub fn file_name(&self) -> Option<Vec<u8>> {
        let mut parts = PathParts::of(self)?;
        let last = parts.names.pop()?;
        (!parts.has_separator(&last)).then(|| decode_segment(&last).into_owned())
    }

    /// Returns whether `other` is this path or lies below it, comparing whole names.
    ///
    /// Returns `false` whenever the text does not decide it: across conventions, for two different
    /// opaque URIs, and if a segment of either contains an encoded separator.
    #[must_use]
    pub fn contains(&self, other: &Self) -> bool {
        let (Some(base), Some(other_parts)) = (PathParts::of(self), PathParts::of(other)) else {
            return self == other;
        };
        let is_same_tree =
            base.convention == other_parts.convention && base.host == other_parts.host;
        let (Some(base), Some(names)) = (base.comparable(), other_parts.comparable()) else {
            return false;
        };
        is_same_tree && names.starts_with(&base)
    }
}

/// Components of a URI. Empty segments are omitted, as in native paths.
pub(super) struct PathParts<'a> {
    pub(super) convention: PathConvention,
    pub(super) host: Cow<'a, str>,
    /// Drive or share as an encoded segment. Lexical operations never remove it.
    pub(super) anchor: Option<Cow<'a, str>>,
    /// Encoded segments below the anchor.
    pub(super) names: Vec<Cow<'a, str>>,
}

impl<'a> PathParts<'a> {
    /// Splits a URI unless it is opaque.
    pub(super) fn of(uri: &'a PathUri) -> Option<Self> {
        if uri.is_opaque() {
            return None;
        }
        let (host, path) = uri.host_and_path();
        let convention = uri.non_opaque_convention();
        let mut segments = split_segments(path).map(Cow::Borrowed);
        let anchor = if convention.is_windows() {
            segments.next()
        } else {
            None
        };
        Some(Self {
            convention,
            host: Cow::Borrowed(host),
            anchor,
            names: segments.collect(),
        })
    }

    /// Creates the components of a POSIX path.
    pub(super) fn posix(names: Vec<Cow<'a, str>>) -> Self {
        Self {
            convention: PathConvention::Posix,
            host: Cow::Borrowed(""),
            anchor: None,
            names,
        }
    }

    /// Builds the URI. A POSIX path that looks like a drive becomes opaque.
    pub(super) fn into_uri(mut self) -> PathUri {
        let starts_with_drive = |names: &[Cow<'_, str>]| {
            names
                .first()
                .is_some_and(|first| is_drive(&decode_segment(first)))
        };
        if self.convention == PathConvention::Posix && starts_with_drive(&self.names) {
            let path = format!("/{}", self.names.join("/"));
            return opaque_from_payload(&decode_segment(&path));
        }
        if self.convention != PathConvention::WindowsDrive {
            let first = self.anchor.as_mut().or_else(|| self.names.first_mut());
            if let Some(first) = first.filter(|first| is_url_drive(first)) {
                *first = Cow::Owned(escape_drive(first));
            }
        }
        let is_drive_root =
            self.convention == PathConvention::WindowsDrive && self.names.is_empty();
        let mut text = format!("{SCHEME}{}", self.host);
        for segment in self.anchor.iter().chain(&self.names) {
            text.push('/');
            text.push_str(segment);
        }
        // `C:` alone is the current directory of that drive.
        if is_drive_root || (self.anchor.is_none() && self.names.is_empty()) {
            text.push('/');
        }
        PathUri::from_canonical(text)
    }

    /// Returns whether an encoded segment stands for several names.
    pub(super) fn has_separator(&self, segment: &str) -> bool {
        decode_segment(segment)
            .iter()
            .any(|&byte| self.convention.is_separator(byte))
    }

    /// Returns all names from the root in comparable form, or `None` if one is ambiguous.
    fn comparable(&self) -> Option<Vec<Vec<u8>>> {
        let segments = self.anchor.iter().chain(&self.names);
        segments
            .map(|segment| {
                let mut name = decode_segment(segment).into_owned();
                if self.convention.is_windows() {
                    name.make_ascii_lowercase();
                }
                (!self.has_separator(segment)).then_some(name)
            })
            .collect()
    }
}

/// Why text cannot be joined to a path. In every case the caller must act.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum PathJoinError {
    /// The base is opaque and has no lexical structure.
    #[error("opaque path URI `{0}` cannot be joined")]
    Opaque(PathUri),
    /// The text contains a NUL byte.
    #[error("text to join contains a NUL byte")]
    Nul,
    /// The text is relative to the current directory of a drive, which is unknown.
    #[error("text to join is relative to drive `{0}:`")]
    DriveRelative(char),
    /// A `..` follows a segment that contains an encoded separator.
    #[error("`..` cannot be resolved in path URI `{0}`: a segment contains an encoded separator")]
    EncodedSeparator(PathUri),
}

impl PathUri {
    /// Joins native text to this path.
    ///
    /// Absolute text replaces the path. Empty names and `.` are ignored. `..` never leaves the
    /// root, drive or share. `%`, `?` and `#` are literal.
    ///
    /// # Errors
    /// Fails if this URI is opaque, or if the text is ambiguous.
    pub fn join(&self, text: &str) -> Result<Self, PathJoinError> {
        let Some(base) = PathParts::of(self) else {
            return Err(PathJoinError::Opaque(self.clone()));
        };
        if text.contains('\0') {
            return Err(PathJoinError::Nul);
        }
        let target = match base.convention {
            PathConvention::Posix => posix_target(base, text),
            PathConvention::WindowsDrive | PathConvention::WindowsUnc => {
                windows_target(base, text)?
            }
        };
        match target {
            JoinTarget::Below(parts, names) => {
                let joined = push_names(parts, names);
                joined
                    .map(PathParts::into_uri)
                    .ok_or_else(|| PathJoinError::EncodedSeparator(self.clone()))
            }
            JoinTarget::Opaque(text) => Ok(opaque_from_windows(&text)),
        }
    }
}

/// Target of a join.
enum JoinTarget<'a> {
    /// Names of this text below these components.
    Below(PathParts<'a>, &'a str),
    /// Windows path without an ordinary URI.
    Opaque(Cow<'a, str>),
}

fn posix_target<'a>(base: PathParts<'a>, text: &'a str) -> JoinTarget<'a> {
    if text.starts_with('/') {
        return JoinTarget::Below(PathParts::posix(Vec::new()), text);
    }
    JoinTarget::Below(base, text)
}

fn windows_target<'a>(
    mut base: PathParts<'a>,
    text: &'a str,
) -> Result<JoinTarget<'a>, PathJoinError> {
    if let Some(network) = strip_separator(text).and_then(strip_separator)
        && let Some(target) = network_target(text, network)
    {
        return Ok(target);
    }
    if strip_separator(text).is_some() {
        base.names.clear();
        return Ok(JoinTarget::Below(base, text));
    }
    let mut chars = text.chars();
    let (Some(letter), Some(':')) = (chars.next().filter(char::is_ascii_alphabetic), chars.next())
    else {
        return Ok(JoinTarget::Below(base, text));
    };
    let Some(names) = strip_separator(chars.as_str()) else {
        return Err(PathJoinError::DriveRelative(letter));
    };
    let drive = PathParts {
        convention: PathConvention::WindowsDrive,
        host: Cow::Borrowed(""),
        anchor: Some(Cow::Owned(format!("{}:", letter.to_ascii_uppercase()))),
        names: Vec::new(),
    };
    Ok(JoinTarget::Below(drive, names))
}

/// Parses `network`, which is `text` without its two leading separators, as `host\share\names`.
/// Returns `None` without a host.
fn network_target<'a>(text: &'a str, network: &'a str) -> Option<JoinTarget<'a>> {
    let (host, rest) = split_name(network);
    if host.is_empty() {
        return None;
    }
    let (share, names) = split_name(rest);
    let Some(canonical_host) = uri_host(host).filter(|_| share != "." && share != "..") else {
        // In the verbatim namespace `/` is not a separator.
        let is_verbatim = text.starts_with(r"\\?\");
        let text = if is_verbatim {
            Cow::Borrowed(text)
        } else {
            Cow::Owned(text.replace('/', "\\"))
        };
        return Some(JoinTarget::Opaque(text));
    };
    let parts = PathParts {
        convention: PathConvention::WindowsUnc,
        host: Cow::Owned(canonical_host),
        anchor: (!share.is_empty()).then(|| encode_segment(share.as_bytes())),
        names: Vec::new(),
    };
    Some(JoinTarget::Below(parts, names))
}

/// Returns the host in its URI form, if the URL parser would not change it.
///
/// The parser drops `localhost` and rewrites hosts such as `127.1`; `.` and `?` are device
/// namespaces.
fn uri_host(host: &str) -> Option<String> {
    let canonical = Host::parse(host).ok()?.to_string();
    let is_faithful = canonical.eq_ignore_ascii_case(host);
    (is_faithful && !matches!(canonical.as_str(), "localhost" | "." | "?")).then_some(canonical)
}

/// Appends the names one by one. Returns `None` if a `..` follows an ambiguous segment.
fn push_names<'a>(mut parts: PathParts<'a>, names: &'a str) -> Option<PathParts<'a>> {
    let convention = parts.convention;
    let is_separator = |c: char| u8::try_from(c).is_ok_and(|byte| convention.is_separator(byte));
    for name in names.split(is_separator) {
        match name {
            "" | "." => {}
            ".." => {
                if parts
                    .names
                    .pop()
                    .is_some_and(|last| parts.has_separator(&last))
                {
                    return None;
                }
            }
            name => parts.names.push(encode_segment(name.as_bytes())),
        }
    }
    Some(parts)
}

fn strip_separator(text: &str) -> Option<&str> {
    text.strip_prefix(['/', '\\'])
}

/// Splits Windows text at its first separator.
fn split_name(text: &str) -> (&str, &str) {
    text.split_once(['/', '\\']).unwrap_or((text, ""))
}
