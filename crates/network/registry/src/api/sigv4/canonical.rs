//! The canonical form of a request, over which both sides compute the signature.

use std::{borrow::Cow, fmt::Write as _};

use aws_lc_rs::digest;
use url::form_urlencoded;

/// A signed header: lower-case name and joined values.
pub(super) type CanonicalHeader<'a> = (Cow<'a, str>, String);

/// The signed parts of a request.
#[derive(Debug)]
pub(super) struct CanonicalRequest<'a> {
    pub(super) method: &'a str,
    /// Path as in the request line.
    pub(super) path: &'a str,
    /// Query as in the request line, without the question mark.
    pub(super) query: &'a str,
    /// Sorted by name, without duplicates.
    pub(super) headers: &'a [CanonicalHeader<'a>],
    pub(super) body: &'a [u8],
}

impl CanonicalRequest<'_> {
    /// Returns the header names as the `SignedHeaders` list.
    pub(super) fn signed_headers(&self) -> String {
        let names: Vec<&str> = self.headers.iter().map(|(name, _)| name.as_ref()).collect();
        names.join(";")
    }

    /// Returns the canonical request text.
    pub(super) fn text(&self) -> String {
        let (method, path, query) = (self.method, path(self.path), query(self.query));
        let mut text = format!("{method}\n{path}\n{query}\n");
        for (name, value) in self.headers {
            text.push_str(name);
            text.push(':');
            text.push_str(value);
            text.push('\n');
        }
        text.push('\n');
        text.push_str(&self.signed_headers());
        text.push('\n');
        text.push_str(&hash(self.body));
        text
    }
}

/// Trims a value and collapses runs of whitespace.
pub(super) fn trim(value: &str) -> String {
    let words: Vec<&str> = value.split_ascii_whitespace().collect();
    words.join(" ")
}

/// Returns the SHA-256 of `bytes` in hexadecimal.
pub(super) fn hash(bytes: &[u8]) -> String {
    hex(digest::digest(&digest::SHA256, bytes).as_ref())
}

pub(super) fn hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

/// Normalises dot segments and repeated slashes, then percent-encodes the path, including existing
/// escapes. Every AWS service except S3 expects this double encoding.
fn path(path: &str) -> String {
    let mut segments: Vec<&str> = Vec::new();
    for segment in path.split('/') {
        match segment {
            "" | "." => {}
            ".." => {
                segments.pop();
            }
            segment => segments.push(segment),
        }
    }
    let mut text = String::with_capacity(path.len() + 1);
    for segment in &segments {
        text.push('/');
        encode(segment, &mut text);
    }
    let is_directory = ["/", "/.", "/.."].iter().any(|end| path.ends_with(end));
    if segments.is_empty() || is_directory {
        text.push('/');
    }
    text
}

/// Decodes, re-encodes and sorts the query parameters.
fn query(query: &str) -> String {
    let mut pairs: Vec<(String, String)> = form_urlencoded::parse(query.as_bytes())
        .map(|(name, value)| (encoded(&name), encoded(&value)))
        .collect();
    pairs.sort();
    let pairs: Vec<String> = pairs.iter().map(|(n, v)| format!("{n}={v}")).collect();
    pairs.join("&")
}

fn encoded(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    encode(text, &mut out);
    out
}

/// Percent-encodes everything but the unreserved characters of RFC 3986.
fn encode(text: &str, out: &mut String) {
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~') {
            out.push(char::from(byte));
        } else {
            // Writing to a string cannot fail.
            let _ = write!(out, "%{byte:02X}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_normalised_and_encoded() {
        for (given, expected) in [
            ("", "/"),
            ("/", "/"),
            ("//", "/"),
            ("/./", "/"),
            ("/example/..", "/"),
            ("/example1/example2/../..", "/"),
            ("/..", "/"),
            ("//example//", "/example/"),
            ("/./example", "/example"),
            ("/a/./b/../c", "/a/c"),
            ("/a/.", "/a/"),
            ("/example space/", "/example%20space/"),
            ("/example%20space/", "/example%2520space/"),
            ("/\u{1234}", "/%E1%88%B4"),
            ("/-._~0Az", "/-._~0Az"),
            ("/a:b@c", "/a%3Ab%40c"),
        ] {
            assert_eq!(path(given), expected, "{given}");
        }
    }

    #[test]
    fn queries_are_sorted_and_encoded() {
        for (given, expected) in [
            ("", ""),
            ("b=2&a=1", "a=1&b=2"),
            ("a=2&a=1&A=3", "A=3&a=1&a=2"),
            ("flag", "flag="),
            ("a=x%2Fy&b=c+d", "a=x%2Fy&b=c%20d"),
            ("a=x/y", "a=x%2Fy"),
            ("\u{1234}=bar", "%E1%88%B4=bar"),
            ("sig=a%3D%3D", "sig=a%3D%3D"),
        ] {
            assert_eq!(query(given), expected, "{given}");
        }
    }

    #[test]
    fn whitespace_in_values_is_collapsed() {
        assert_eq!(trim("  a   b \t c  "), "a b c");
        assert_eq!(trim(""), "");
    }
}
