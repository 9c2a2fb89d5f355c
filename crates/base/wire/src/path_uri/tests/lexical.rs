use super::uri;

const OPAQUE: &str = "file:///%00/bad/path/L0M6L2QvZg";

#[test]
fn the_parent_stops_at_the_anchor() {
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
fn the_file_name_is_decoded() {
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
