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
        assert_eq!(uri(text).as_str(), text, "the spelling is canonical");
    }
}

#[test]
fn a_path_with_no_ordinary_spelling_becomes_opaque() {
    let drive = PathUri::from_native(Path::new("/C:/d/f")).unwrap();
    assert_eq!(drive.as_str(), "file:///%00/bad/path/L0M6L2QvZg");
    for bytes in [&b"/a\0b"[..], b"/C:", b"/z:/\xFF", b"/\0"] {
        let opaque = PathUri::from_native(path(bytes)).unwrap();
        assert!(opaque.is_opaque(), "{opaque}");
        assert_eq!(opaque.to_native().as_deref(), Ok(path(bytes)));
    }
}

#[test]
fn a_relative_path_has_no_uri() {
    for text in ["", "a", "./a", "~"] {
        let error = PathUri::from_native(Path::new(text)).unwrap_err();
        assert_eq!(error, FromNativeError::NotAbsolute(PathBuf::from(text)));
    }
}

#[test]
fn a_windows_path_is_foreign() {
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
fn an_opaque_payload_that_is_no_absolute_path_is_unusable() {
    let relative = uri("file:///%00/bad/path/YWJj");
    assert_eq!(
        relative.to_native(),
        Err(NativePathError::Unusable(relative))
    );
}

#[test]
fn an_opaque_payload_with_an_ordinary_spelling_is_refused() {
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
