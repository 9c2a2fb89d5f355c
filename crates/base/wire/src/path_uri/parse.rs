//! From text to canonical form.

use url::Url;

use super::{
    convention::is_drive,
    opaque,
    uri::{PathUri, SCHEME},
};

/// Why text is not a path URI. In every case the caller must send another.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum PathUriError {
    /// The text is no URL at all; a native path ends here.
    // The cause is part of the text: peers know this message by it.
    #[error("invalid URI: {0}")]
    Invalid(url::ParseError),
    /// The scheme is not `file`.
    #[error("unsupported path URI scheme `{0}`")]
    UnsupportedScheme(String),
    /// A user name or password stands before the host.
    #[error("credentials are not allowed in a path URI")]
    Credentials,
    /// A port follows the host.
    #[error("a port is not allowed in a path URI")]
    Port,
    /// A `?` that is not percent-encoded.
    #[error("query parameters are not allowed in a path URI")]
    Query,
    /// A `#` that is not percent-encoded.
    #[error("fragments are not allowed in a path URI")]
    Fragment,
    /// The path holds a NUL byte, and the URI is not a canonical opaque one.
    #[error("path URI decodes to a NUL byte")]
    Nul,
    /// The text changes each time it is parsed.
    #[error("path URI has no stable spelling")]
    Unsettled,
}

impl PathUri {
    /// Parses text by the WHATWG URL rules and makes it canonical.
    ///
    /// # Errors
    /// Fails if the text is no `file:` URI, or carries more than a host and a path.
    pub fn parse(text: &str) -> Result<Self, PathUriError> {
        let mut canonical = canonical_text(text)?;
        // One run of the URL parser may leave what the next would change, such as a `.` after a
        // tab or a host before a drive. Canonical text settles at once, so peers pay for one run.
        if canonical == text {
            return Ok(Self::from_canonical(canonical));
        }
        for _ in 0..MAX_MORE_RUNS {
            let next = canonical_text(&canonical)?;
            if next == canonical {
                return Ok(Self::from_canonical(canonical));
            }
            canonical = next;
        }
        Err(PathUriError::Unsettled)
    }
}

/// Runs the URL parser once, and applies our own rules to what it made of the text.
fn canonical_text(text: &str) -> Result<String, PathUriError> {
    let url = Url::parse(text).map_err(|error| blame(text, error))?;
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
    // `%` is no hexadecimal digit, so this finds exactly the escapes that decode to NUL.
    if text.contains("%00") && opaque::payload(&text).is_none() {
        return Err(PathUriError::Nul);
    }
    Ok(text)
}

/// Names the part of the authority a `file:` URL may not have.
///
/// The URL parser takes all of it for the host, and would report a bad domain name.
fn blame(text: &str, error: url::ParseError) -> PathUriError {
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

/// Spells the drive of serialized URL text in upper case; the URL parser keeps either.
fn with_upper_case_drive(mut text: String) -> String {
    let Some(path) = text.strip_prefix(SCHEME) else {
        return text;
    };
    let below_root = path.trim_start_matches('/');
    let letter = text.len() - below_root.len();
    let (first, _) = below_root.split_once('/').unwrap_or((below_root, ""));
    // No host reads as a drive, so this is the first segment.
    if is_drive(first.as_bytes())
        && let Some(letter) = text.get_mut(letter..=letter)
    {
        letter.make_ascii_uppercase();
    }
    text
}

/// How often text is parsed again before it counts as unstable. No text is known to need more
/// than two.
const MAX_MORE_RUNS: usize = 4;
