//! Joining native text to a URI, by the rules of the URI's convention.

use std::borrow::Cow;

use url::Host;

use super::{convention::Convention, encode, lexical::Parts, opaque, uri::PathUri};

/// Why text cannot be joined to a path. In every case the caller must act.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum JoinError {
    /// The base is opaque, and so has no lexical structure.
    #[error("opaque path URI `{0}` cannot be joined")]
    Opaque(PathUri),
    /// The text contains a NUL byte.
    #[error("text to join contains a NUL byte")]
    Nul,
    /// The text is relative to the current directory of a drive, which a URI does not know.
    #[error("text to join is relative to drive `{0}:`")]
    DriveRelative(char),
    /// A `..` meets a segment of this base that is several names in one.
    #[error("`..` cannot be resolved in path URI `{0}`: a segment contains an encoded separator")]
    EncodedSeparator(PathUri),
}

impl PathUri {
    /// Joins native text to this path.
    ///
    /// Absolute text replaces the path; empty names and `.` are ignored; `..` never leaves the
    /// root, drive or share. `%`, `?` and `#` stand for themselves.
    ///
    /// # Errors
    /// Fails if this URI is opaque, or if the text does not name one certain path.
    pub fn join(&self, text: &str) -> Result<Self, JoinError> {
        let Some(base) = Parts::of(self) else {
            return Err(JoinError::Opaque(self.clone()));
        };
        if text.contains('\0') {
            return Err(JoinError::Nul);
        }
        let target = match base.convention {
            Convention::Posix => posix_target(base, text),
            Convention::WindowsDrive | Convention::WindowsUnc => windows_target(base, text)?,
        };
        match target {
            Target::Below(parts, names) => {
                let joined = pushed(parts, names);
                joined
                    .map(Parts::into_uri)
                    .ok_or_else(|| JoinError::EncodedSeparator(self.clone()))
            }
            Target::Opaque(text) => Ok(opaque::from_windows_text(&text)),
        }
    }
}

/// Where text leads.
enum Target<'a> {
    /// From these parts, down the names of this text.
    Below(Parts<'a>, &'a str),
    /// To a Windows path that has no ordinary URI.
    Opaque(Cow<'a, str>),
}

fn posix_target<'a>(base: Parts<'a>, text: &'a str) -> Target<'a> {
    if text.starts_with('/') {
        return Target::Below(Parts::posix(Vec::new()), text);
    }
    Target::Below(base, text)
}

fn windows_target<'a>(mut base: Parts<'a>, text: &'a str) -> Result<Target<'a>, JoinError> {
    if let Some(network) = strip_separator(text).and_then(strip_separator)
        && let Some(target) = network_target(text, network)
    {
        return Ok(target);
    }
    if strip_separator(text).is_some() {
        base.names.clear();
        return Ok(Target::Below(base, text));
    }
    let mut chars = text.chars();
    let (Some(letter), Some(':')) = (chars.next().filter(char::is_ascii_alphabetic), chars.next())
    else {
        return Ok(Target::Below(base, text));
    };
    let Some(names) = strip_separator(chars.as_str()) else {
        return Err(JoinError::DriveRelative(letter));
    };
    let drive = Parts {
        convention: Convention::WindowsDrive,
        host: Cow::Borrowed(""),
        anchor: Some(Cow::Owned(format!("{}:", letter.to_ascii_uppercase()))),
        names: Vec::new(),
    };
    Ok(Target::Below(drive, names))
}

/// Reads `network`, which is `text` without its two leading separators, as `host\share\names`.
/// Without a host it is no network path.
fn network_target<'a>(text: &'a str, network: &'a str) -> Option<Target<'a>> {
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
        return Some(Target::Opaque(text));
    };
    let parts = Parts {
        convention: Convention::WindowsUnc,
        host: Cow::Owned(canonical_host),
        anchor: (!share.is_empty()).then(|| encode::encode(share.as_bytes())),
        names: Vec::new(),
    };
    Some(Target::Below(parts, names))
}

/// Returns the host as a URI spells it, if the URL parser would leave it alone.
///
/// It drops `localhost` and rewrites hosts such as `127.1`; `.` and `?` are device namespaces.
fn uri_host(host: &str) -> Option<String> {
    let canonical = Host::parse(host).ok()?.to_string();
    let is_faithful = canonical.eq_ignore_ascii_case(host);
    (is_faithful && !matches!(canonical.as_str(), "localhost" | "." | "?")).then_some(canonical)
}

/// Goes down from `parts`, name by name. `None` if a `..` meets an ambiguous segment.
fn pushed<'a>(mut parts: Parts<'a>, names: &'a str) -> Option<Parts<'a>> {
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
            name => parts.names.push(encode::encode(name.as_bytes())),
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
