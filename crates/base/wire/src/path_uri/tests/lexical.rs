use super::{super::PathJoinError, uri};

const OPAQUE: &str = "file:///%00/bad/path/L0M6L2QvZg";

#[test]
fn parent_stops_at_the_root_drive_or_share() {
    let table = [
        ("file:///a/b", Some("file:///a")),
        ("file:///a/b/", Some("file:///a")),
        ("file:///a//b", Some("file:///a")),
        ("file:///a", Some("file:///")),
        ("file:///", None),
        ("file:///C:/a", Some("file:///C:/")),
        ("file:///C:/", None),
        ("file:///C:", None),
        ("file://server/share/a/b", Some("file://server/share/a")),
        ("file://server/share/a", Some("file://server/share")),
        ("file://server/share", None),
        ("file://server/", None),
        ("file:///a%2Fb", None),
        ("file:///a%2Fb/c", Some("file:///a%2Fb")),
        (OPAQUE, None),
    ];
    for (text, parent) in table {
        assert_eq!(uri(text).parent(), parent.map(uri), "of {text:?}");
    }
}

#[test]
fn file_name_is_decoded() {
    let table: [(&str, Option<&[u8]>); 9] = [
        ("file:///a/b%20c", Some(b"b c")),
        ("file:///a/n%FF/", Some(b"n\xFF")),
        ("file:///a%5Cb", Some(b"a\\b")),
        ("file:///C:/x", Some(b"x")),
        ("file:///", None),
        ("file:///C:/", None),
        ("file://server/share", None),
        ("file:///a%2Fb", None),
        (OPAQUE, None),
    ];
    for (text, name) in table {
        assert_eq!(uri(text).file_name().as_deref(), name, "of {text:?}");
    }
}

#[test]
fn containment_compares_whole_names() {
    let table = [
        ("file:///a", "file:///a", true),
        ("file:///a", "file:///a/b", true),
        ("file:///a/", "file:///a//b", true),
        ("file:///", "file:///a", true),
        ("file:///ab", "file:///a%62/c", true),
        ("file:///a", "file:///ab", false),
        ("file:///a/b", "file:///a", false),
        ("file:///a", "file:///A/b", false),
        ("file:///C:/Dir", "file:///c:/dIR/x", true),
        ("file:///C:/", "file:///C%3A/x", true),
        ("file:///C:/", "file:///D:/x", false),
        ("file://server/share", "file://SERVER/Share/x", true),
        ("file://server/share", "file://other/share/x", false),
        ("file:///", "file:///C:/x", false),
        ("file:///", "file://server/share", false),
        (OPAQUE, OPAQUE, true),
        ("file:///", OPAQUE, false),
        (OPAQUE, "file:///C:/d/f/x", false),
    ];
    for (base, other, expected) in table {
        assert_eq!(
            uri(base).contains(&uri(other)),
            expected,
            "{base} contains {other}"
        );
    }
}

#[test]
fn containment_fails_closed_on_encoded_separators() {
    let table = [
        ("file:///a", "file:///a/..%2Fb", false),
        ("file:///a", "file:///a/b%2fc", false),
        ("file:///a%2Fb", "file:///a%2Fb/c", false),
        ("file:///C:/a", "file:///C:/a/..%5Cb", false),
        // A backslash is part of a POSIX name.
        ("file:///a", "file:///a/..%5Cb", true),
    ];
    for (base, other, expected) in table {
        assert_eq!(
            uri(base).contains(&uri(other)),
            expected,
            "{base} contains {other}"
        );
    }
}

#[track_caller]
fn assert_joins(table: &[(&str, &str, &str)]) {
    for (base, text, expected) in table {
        let joined = uri(base).join(text).unwrap();
        assert_eq!(joined.as_str(), *expected, "{base} with {text:?}");
        assert_eq!(uri(expected).as_str(), *expected, "result is not canonical");
    }
}

#[test]
fn posix_text_is_joined() {
    assert_joins(&[
        ("file:///a", "b/c", "file:///a/b/c"),
        ("file:///a/", "./b//c/", "file:///a/b/c"),
        ("file:///a", "", "file:///a"),
        ("file:///a", "../../../b", "file:///b"),
        ("file:///a", "/b/../c", "file:///c"),
        ("file:///a", "50%?#é", "file:///a/50%25%3F%23%C3%A9"),
        ("file:///a", "%2e%2e", "file:///a/%252e%252e"),
        ("file:///a", r"b\..\c", "file:///a/b%5C..%5Cc"),
        ("file:///a", "C:/b", "file:///a/C:/b"),
        ("file:///a", "/C|/b", "file:///C%7C/b"),
        ("file:///a%2Fb", "c", "file:///a%2Fb/c"),
    ]);
}

#[test]
fn posix_join_that_looks_like_a_drive_becomes_opaque() {
    assert_joins(&[
        ("file:///a", "/C:/d/f", "file:///%00/bad/path/L0M6L2QvZg"),
        ("file:///a", "../C:/d/f", "file:///%00/bad/path/L0M6L2QvZg"),
    ]);
}

#[test]
fn windows_text_is_joined_with_either_separator() {
    assert_joins(&[
        ("file:///C:/a", r"b\c/d", "file:///C:/a/b/c/d"),
        ("file:///C:/a", r"..\..\..\b", "file:///C:/b"),
        ("file:///C:/a", "..", "file:///C:/"),
        ("file:///C:/a", r"\b", "file:///C:/b"),
        ("file:///C:/a", r"d:\b", "file:///D:/b"),
        ("file:///C:/a", r"\\Server\Share\b", "file://server/Share/b"),
        (
            "file:///C:/a",
            "//server/share/../b",
            "file://server/share/b",
        ),
        ("file://server/share/a", r"..\..\b", "file://server/share/b"),
        ("file://server/share/a", "/b", "file://server/share/b"),
        ("file://server/share/a", r"C:\b", "file:///C:/b"),
        ("file:///C:/a", r"\\server\C:\b", "file://server/C%3A/b"),
        ("file:///C:/a", r"\\\b", "file:///C:/b"),
    ]);
}

#[test]
fn windows_paths_without_an_ordinary_uri_become_opaque() {
    for text in [
        r"\\?\C:\b",
        r"\\.\pipe\b",
        r"\\localhost\share",
        r"\\127.1\share",
        r"\\bad host\share",
        r"\\server\..\b",
    ] {
        let joined = uri("file:///C:/a").join(text).unwrap();
        assert!(joined.is_opaque(), "{text} gives {joined}");
        assert_eq!(uri(joined.as_str()).convention(), joined.convention());
    }
    assert_joins(&[("file:///C:/a", r"\\?\", "file:///%00/bad/path/XABcAD8AXAA")]);
}

#[test]
fn ambiguous_text_is_refused() {
    let opaque = uri("file:///%00/bad/path/L0M6L2QvZg");
    assert_eq!(opaque.join("/a"), Err(PathJoinError::Opaque(opaque)));
    assert_eq!(uri("file:///a").join("b\0"), Err(PathJoinError::Nul));
    assert_eq!(
        uri("file:///C:/a").join("d:b"),
        Err(PathJoinError::DriveRelative('d'))
    );
    let ambiguous = uri("file:///x/a%2Fb");
    assert_eq!(
        ambiguous.join("../c"),
        Err(PathJoinError::EncodedSeparator(ambiguous))
    );
}
