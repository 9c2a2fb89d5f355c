use std::{
    ffi::OsStr,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

use super::{
    super::{FromNativeError, NativePathError, PathUri},
    uri,
};

fn path(bytes: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(bytes))
}

#[test]
fn native_paths_decode_and_normalize() {
    let table: [(&str, &[u8]); 12] = [
        ("file:///", b"/"),
        ("file:///home/dev", b"/home/dev"),
        ("file:///home/dev/n%FF", b"/home/dev/n\xFF"),
        ("file:///a%2Fb", b"/a/b"),
        ("file:///x/..%2Fa", b"/a"),
        ("file:///..%2f..%2fa", b"/a"),
        ("file:///a//b/", b"/a/b"),
        ("file:///~/a", b"/~/a"),
        ("file:///a%5Cb", b"/a\\b"),
        ("file:///a%2", b"/a%2"),
        ("file:///sp%20ace%25%23%3F%C3%A9", "/sp ace%#?é".as_bytes()),
        ("file:///%00/bad/path/L0M6L2QvZg", b"/C:/d/f"),
    ];
    for (text, bytes) in table {
        assert_eq!(
            uri(text).to_native().as_deref(),
            Ok(path(bytes)),
            "of {text:?}"
        );
    }
}

#[test]
fn native_paths_are_spelled_canonically() {
    let table: [(&[u8], &str); 10] = [
        (b"/", "file:///"),
        ("/sp ace%#?é".as_bytes(), "file:///sp%20ace%25%23%3F%C3%A9"),
        (b"/n\xFF", "file:///n%FF"),
        (b"/a\\b", "file:///a%5Cb"),
        (b"/a//./b/../c/", "file:///a/c"),
        (b"/\n\t\"<>`{}", "file:///%0A%09%22%3C%3E%60%7B%7D"),
        (b"/a^b|c[]'~$&*@:", "file:///a^b|c[]'~$&*@:"),
        (b"/C|/d", "file:///C%7C/d"),
        (b"/C:d", "file:///C:d"),
        (b"/x/C:/d", "file:///x/C:/d"),
    ];
    for (bytes, text) in table {
        assert_eq!(PathUri::from_native(path(bytes)).unwrap().as_str(), text);
        assert_eq!(uri(text).as_str(), text, "text is not canonical");
    }
}

#[test]
fn paths_without_an_ordinary_uri_become_opaque() {
    let drive = PathUri::from_native(Path::new("/C:/d/f")).unwrap();
    assert_eq!(drive.as_str(), "file:///%00/bad/path/L0M6L2QvZg");
    for bytes in [&b"/a\0b"[..], b"/C:", b"/z:/\xFF", b"/\0"] {
        let opaque = PathUri::from_native(path(bytes)).unwrap();
        assert!(opaque.is_opaque(), "{opaque}");
        assert_eq!(opaque.to_native().as_deref(), Ok(path(bytes)));
    }
}

#[test]
fn relative_paths_have_no_uri() {
    for text in ["", "a", "./a", "~"] {
        let error = PathUri::from_native(Path::new(text)).unwrap_err();
        assert_eq!(error, FromNativeError::NotAbsolute(PathBuf::from(text)));
    }
}

#[test]
fn windows_paths_are_foreign() {
    for text in [
        "file:///C:/x",
        "file:///c%3A/x",
        "file://server/share/x",
        "file:///%00/bad/path/QwA6AFwA",
    ] {
        let foreign = uri(text);
        assert_eq!(
            foreign.to_native(),
            Err(NativePathError::ForeignConvention(foreign))
        );
    }
    assert_eq!(
        uri("file:///C:/x").to_native().unwrap_err().to_string(),
        "path URI `file:///C:/x` is not valid on this host: it has the Windows convention"
    );
}

#[test]
fn opaque_payload_must_be_an_absolute_path() {
    let relative = uri("file:///%00/bad/path/YWJj");
    assert_eq!(
        relative.to_native(),
        Err(NativePathError::Unusable(relative))
    );
}

#[test]
fn opaque_uri_of_an_ordinary_path_is_refused() {
    // `/etc/passwd`, and `/C:/../etc`, which is `/etc` once normalized.
    for text in [
        "file:///%00/bad/path/L2V0Yy9wYXNzd2Q",
        "file:///%00/bad/path/L0M6Ly4uL2V0Yw",
    ] {
        let needless = uri(text);
        assert_eq!(
            needless.to_native(),
            Err(NativePathError::NeedlesslyOpaque(needless))
        );
    }
}

#[test]
fn child_uri_equals_the_uri_of_the_native_path() {
    let names: [&[u8]; 8] = [
        b"x",
        "sp ace%#?é".as_bytes(),
        b"n\xFF",
        b"a\\b",
        b"C:",
        b"C|",
        b"a:b",
        b"...",
    ];
    for parent in ["/", "/a", "/a/b:/c", "/sp ace/d", "/C|", "/a:b"] {
        let parent = Path::new(parent);
        for name in names {
            let name = OsStr::from_bytes(name);
            let child = PathUri::from_native(parent).unwrap().child(name).unwrap();
            let expected = PathUri::from_native(&parent.join(name)).unwrap();
            assert_eq!(child.as_str(), expected.as_str());
        }
    }
}

#[test]
fn child_of_a_directory_with_a_trailing_slash_has_one_slash() {
    for text in ["file:///a", "file:///a/", "file:///a//"] {
        let child = uri(text).child(OsStr::new("b")).unwrap();
        assert_eq!(child.as_str(), "file:///a/b", "of {text:?}");
    }
}

#[test]
fn opaque_and_foreign_directories_have_no_children() {
    for text in [
        "file:///%00/bad/path/L0M6L2QvZg",
        "file:///C:/x",
        "file:///c%3A/x",
        "file:////C:/x",
        "file://server/share",
    ] {
        assert_eq!(uri(text).child(OsStr::new("b")), None, "of {text:?}");
    }
}
