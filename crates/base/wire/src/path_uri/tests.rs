//! Tables of observed behaviour, and properties over arbitrary input.

mod lexical;
mod native;
mod properties;

use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};

use super::*;

fn uri(text: &str) -> PathUri {
    PathUri::parse(text).unwrap_or_else(|error| panic!("{text:?}: {error}"))
}

#[track_caller]
fn assert_canonical(table: &[(&str, &str)]) {
    for (text, canonical) in table {
        assert_eq!(uri(text).as_str(), *canonical, "from {text:?}");
    }
}

#[test]
fn loose_spellings_become_canonical() {
    assert_canonical(&[
        ("file:///a", "file:///a"),
        ("file:/a", "file:///a"),
        ("file:a", "file:///a"),
        ("FILE:///a", "file:///a"),
        ("file:", "file:///"),
        (r"file:///a\b", "file:///a/b"),
        (r"file:\\\a", "file:///a"),
    ]);
}

#[test]
fn dot_segments_are_resolved_even_when_encoded() {
    assert_canonical(&[
        ("file:///a/./b", "file:///a/b"),
        ("file:///a/../b", "file:///b"),
        ("file:///a/%2e%2e/b", "file:///b"),
        ("file:///a/.%2E/b", "file:///b"),
        ("file:///../../a", "file:///a"),
    ]);
}

#[test]
fn whitespace_around_and_line_breaks_inside_are_stripped() {
    assert_canonical(&[
        ("  file:///a \n", "file:///a"),
        ("file:///a\tb\r\nc", "file:///abc"),
    ]);
}

#[test]
fn raw_characters_are_encoded_in_upper_case_hex() {
    assert_canonical(&[
        ("file:///sp ace", "file:///sp%20ace"),
        ("file:///é", "file:///%C3%A9"),
        ("file:///\"<>`{}", "file:///%22%3C%3E%60%7B%7D"),
        ("file:///a\u{7f}", "file:///a%7F"),
    ]);
}

#[test]
fn empty_segments_and_a_trailing_slash_survive() {
    assert_canonical(&[("file:///a//b/", "file:///a//b/")]);
}

#[test]
fn localhost_is_dropped_and_other_hosts_are_lower_cased() {
    assert_canonical(&[
        ("file://localhost/a", "file:///a"),
        ("file://LocalHost/a", "file:///a"),
        ("file://SERVER/Share/x", "file://server/Share/x"),
        ("file://server", "file://server/"),
    ]);
}

#[test]
fn drive_letters_are_upper_cased() {
    assert_canonical(&[
        ("file:///c:/a", "file:///C:/a"),
        ("file://localhost/c:/a", "file:///C:/a"),
        ("file:///c:", "file:///C:"),
        ("file:c|/a", "file:///C:/a"),
        ("file:///a/c:/b", "file:///a/c:/b"),
    ]);
}

#[test]
fn repeated_parsing_reaches_a_canonical_form() {
    assert_canonical(&[
        ("file:c:\t.", "file:///C:/"),
        ("file:////c:/x", "file:///C:/x"),
        ("file:///a/../c:/x", "file:///C:/x"),
        ("file://server//c:/x", "file:///C:/x"),
    ]);
}

#[test]
fn letter_and_bar_is_an_ordinary_name() {
    // Browsers treat this as a drive; peers built on the same URL parser treat it as a name.
    assert_canonical(&[
        ("file:///c|/a", "file:///c|/a"),
        ("file:////c|/a", "file:///c|/a"),
    ]);
    assert_eq!(
        uri("file:///c|/a").convention(),
        Some(PathConvention::Posix)
    );
}

#[test]
fn forbidden_uri_components_are_refused() {
    let table = [
        (
            "http://h/a",
            PathUriError::UnsupportedScheme("http".to_owned()),
        ),
        (r"C:\a", PathUriError::UnsupportedScheme("c".to_owned())),
        ("file://user@host/a", PathUriError::Credentials),
        ("file://user:word@host/a", PathUriError::Credentials),
        ("FILE:\\\\user@host/a", PathUriError::Credentials),
        ("file://host:80/a", PathUriError::Port),
        ("file://[::1]:80/a", PathUriError::Port),
        ("file:///a?b", PathUriError::Query),
        ("file:///a?", PathUriError::Query),
        ("file:///a#b", PathUriError::Fragment),
        ("file:///a#", PathUriError::Fragment),
        ("file:///a%00", PathUriError::Nul),
        ("file:///a\0b", PathUriError::Nul),
        ("file:///C:/%00", PathUriError::Nul),
    ];
    for (text, error) in table {
        assert_eq!(PathUri::parse(text), Err(error), "from {text:?}");
    }
}

#[test]
fn native_paths_are_refused() {
    for text in ["/home/dev", "home", "~", "./a", ""] {
        let error = PathUri::parse(text).unwrap_err();
        assert_eq!(
            error.to_string(),
            "invalid URI: relative URL without a base"
        );
    }
}

#[test]
fn invalid_hosts_are_refused() {
    assert!(matches!(
        PathUri::parse("file://a b/c"),
        Err(PathUriError::Invalid(_))
    ));
}

#[test]
fn encoded_percent_before_zeros_is_not_a_nul() {
    assert_canonical(&[("file:///a%2500", "file:///a%2500")]);
}

#[test]
fn opaque_text_must_be_canonical() {
    assert!(uri("file:///%00/bad/path/L0M6L2QvZg").is_opaque());
    for text in [
        "file:///%00/bad/path/",
        "file:///%00/bad/path/L0M6L2QvZg==",
        "file:///%00/bad/path/L0M6L2QvZh",
        "file:///%00/bad/path/L0M6/L2QvZg",
        "file:///%00/bad/path/L0M6L2QvZg/",
        "file:///%00/bad/path/%4C0M6L2QvZg",
        "file:///%00/bad/path/+/8",
        "file:///%00/good/path/L0M6L2QvZg",
        "file://server/%00/bad/path/L0M6L2QvZg",
    ] {
        assert_eq!(
            PathUri::parse(text),
            Err(PathUriError::Nul),
            "from {text:?}"
        );
    }
}

#[test]
fn convention_is_derived_from_the_uri() {
    use PathConvention::{Posix, WindowsDrive, WindowsUnc};
    let table = [
        ("file:///", Some(Posix)),
        ("file:///a/C:", Some(Posix)),
        ("file:///CC:/a", Some(Posix)),
        ("file:///C:/x", Some(WindowsDrive)),
        ("file:///C:", Some(WindowsDrive)),
        ("file:///C%3A/x", Some(WindowsDrive)),
        ("file:///C%3a/x", Some(WindowsDrive)),
        ("file://server/share/x", Some(WindowsUnc)),
        ("file:///%00/bad/path/L0M6L2QvZg", Some(Posix)),
        // UTF-16LE of `C:\`, of `\\?\`, and of `C:\` followed by half a code unit.
        ("file:///%00/bad/path/QwA6AFwA", Some(WindowsDrive)),
        ("file:///%00/bad/path/XABcAD8AXAA", Some(WindowsUnc)),
        ("file:///%00/bad/path/QwA6AFwAYQ", None),
        ("file:///%00/bad/path/YWJj", None),
    ];
    for (text, convention) in table {
        assert_eq!(uri(text).convention(), convention, "of {text:?}");
    }
}

#[test]
fn json_carries_the_canonical_text() {
    let parsed: PathUri = serde_json::from_str(r#""FILE:\/\/\/a b""#).unwrap();
    assert_eq!(
        serde_json::to_string(&parsed).unwrap(),
        r#""file:///a%20b""#
    );
    assert_eq!(parsed.to_string(), "file:///a%20b");
    assert_eq!("file:/a%20b".parse(), Ok(parsed));
}

#[test]
fn json_errors_contain_the_parse_error() {
    let error = serde_json::from_str::<PathUri>(r#""/home/dev""#).unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with("invalid URI: relative URL without a base"),
        "{error}"
    );
    let error = serde_json::from_str::<PathUri>("7").unwrap_err();
    assert!(
        error.to_string().contains("expected a `file:` URI"),
        "{error}"
    );
}

fn hash(uri: &PathUri) -> u64 {
    BuildHasherDefault::<DefaultHasher>::default().hash_one(uri)
}

#[test]
fn windows_uris_compare_decoded_and_without_case() {
    for (left, right) in [
        ("file:///C:/Dir/x", "file:///c:/dir/X"),
        ("file:///C:/a%20b", "file:///C:/%61%20b"),
        ("file:///C:/x", "file:///C%3A/x"),
        ("file://server/Share/%C3%A9", "file://SERVER/share/%c3%a9"),
        // UTF-16LE of `\\?\A` and `\\?\a`.
        (
            "file:///%00/bad/path/XABcAD8AXABBAA",
            "file:///%00/bad/path/XABcAD8AXABhAA",
        ),
    ] {
        let (left, right) = (uri(left), uri(right));
        assert_eq!(left, right);
        assert_eq!(left.cmp(&right), Ordering::Equal);
        assert_eq!(hash(&left), hash(&right), "{left} and {right}");
    }
}

#[test]
fn other_differences_are_significant() {
    for (left, right) in [
        ("file:///a", "file:///A"),
        ("file:///ab", "file:///a%62"),
        ("file:///a", "file:///a/"),
        ("file:///C:/é", "file:///C:/É"),
        ("file:///C:/a%2Fb", "file:///C:/a/b"),
        ("file://server/a", "file:///server/a"),
        (
            "file:///%00/bad/path/L0M6L2QvZg",
            "file:///%00/bad/path/L0M6L2QvRg",
        ),
        // UTF-16LE of `\\?\` and U+4141 or U+6161, which are not ASCII letters.
        (
            "file:///%00/bad/path/XABcAD8AXABBQQ",
            "file:///%00/bad/path/XABcAD8AXABhYQ",
        ),
    ] {
        let (left, right) = (uri(left), uri(right));
        assert_ne!(left, right);
        assert_ne!(left.cmp(&right), Ordering::Equal);
    }
}
