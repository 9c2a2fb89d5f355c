//! Percent-encoding of single names.

use std::borrow::Cow;

use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, percent_encode};

/// Bytes of a name that are escaped, besides all that are not ASCII.
///
/// This is what the URL parser escapes in a path, so that both ways to make a URI give one
/// spelling; and in addition what it would read as syntax: `%`, `?`, `#` and `\`.
const ESCAPED: &AsciiSet = &CONTROLS
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

/// Spells one name of a native path as a URI segment.
pub(super) fn encode(name: &[u8]) -> Cow<'_, str> {
    percent_encode(name, ESCAPED).into()
}

/// Returns the bytes a URI segment stands for.
pub(super) fn decode(segment: &str) -> Cow<'_, [u8]> {
    percent_decode_str(segment).into()
}

/// Spells a segment that would read as a drive (`C:`, `C|`) so that it does not.
///
/// URL parsers rewrite such a segment at the start of a path, and drop the host before it.
pub(super) fn escape_drive(segment: &str) -> String {
    segment.replace(':', "%3A").replace('|', "%7C")
}

/// Iterates over the segments of an encoded path that name something.
pub(super) fn segments(path: &str) -> impl Iterator<Item = &str> {
    path.split('/').filter(|segment| !segment.is_empty())
}
