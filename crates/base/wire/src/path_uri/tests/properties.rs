use std::{ffi::OsString, os::unix::ffi::OsStringExt, path::PathBuf};

use proptest::{collection::vec, prelude::*, sample::select};

use super::{
    super::{PathUri, PathUriError},
    hash,
};

/// Generates text that often passes the URL parser and reaches its corner cases.
fn uri_like() -> impl Strategy<Value = String> {
    let pieces = vec![
        "/",
        "/",
        "//",
        "\\",
        ".",
        "..",
        "%2e",
        "%2F",
        "%5c",
        "%3A",
        "%00",
        "%",
        "C",
        "c:",
        "C|",
        "|",
        ":",
        "a",
        "B",
        " ",
        "\t",
        "é",
        "?",
        "#",
        "@",
        "localhost",
        "server",
        "^",
        "~",
        "é",
        "%00/bad/path/",
        "L0M6L2QvZg",
        "=",
    ];
    let head = select(vec![
        "file:", "file:/", "file://", "file:///", "FILE:", " file://", "",
    ]);
    (head, vec(select(pieces), 0..10)).prop_map(|(head, tail)| head.to_owned() + &tail.concat())
}

/// Generates absolute byte paths with many special characters.
fn byte_path() -> impl Strategy<Value = Vec<u8>> {
    let byte = prop_oneof![any::<u8>(), select(b"/.:C|%\\\0".to_vec())];
    vec(byte, 0..24).prop_map(|tail| [b"/", &tail[..]].concat())
}

/// Reference implementation of lexical normalization: scans from the end and counts `..`.
fn normalized(path: &[u8]) -> Vec<u8> {
    let (mut names, mut skip) = (Vec::new(), 0_usize);
    for name in path.split(|&byte| byte == b'/').rev() {
        match name {
            b"" | b"." => {}
            b".." => skip += 1,
            _ if skip > 0 => skip -= 1,
            name => names.push(name),
        }
    }
    names.reverse();
    [b"/", &names.join(&b'/')[..]].concat()
}

fn assert_canonical(uri: &PathUri) -> Result<(), TestCaseError> {
    let reparsed = PathUri::parse(uri.as_str());
    prop_assert_eq!(reparsed.as_ref().map(PathUri::as_str), Ok(uri.as_str()));
    prop_assert!(
        uri.host_and_path()
            .1
            .split('/')
            .all(|name| name != "." && name != "..")
    );
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2048, ..ProptestConfig::default() })]

    #[test]
    fn parsing_never_panics(text in any::<String>()) {
        if let Ok(uri) = PathUri::parse(&text) {
            assert_canonical(&uri)?;
        }
    }

    #[test]
    fn parsing_is_idempotent(text in uri_like()) {
        let parsed = PathUri::parse(&text);
        prop_assert_ne!(&parsed, &Err(PathUriError::Unstable));
        if let Ok(uri) = parsed {
            assert_canonical(&uri)?;
            let reparsed = PathUri::parse(uri.as_str()).unwrap();
            prop_assert_eq!(reparsed.convention(), uri.convention());
        }
    }

    #[test]
    fn native_paths_round_trip(bytes in byte_path()) {
        let path = PathBuf::from(OsString::from_vec(bytes.clone()));
        let uri = PathUri::from_native(&path).unwrap();
        assert_canonical(&uri)?;
        let native = uri.to_native().unwrap().into_os_string().into_vec();
        prop_assert_eq!(native, normalized(&bytes));
    }

    #[test]
    fn lexical_results_are_canonical(base in uri_like(), text in "[/\\\\.:C|%a? ]{0,12}|\\PC{0,8}") {
        if let Ok(base) = PathUri::parse(&base) {
            if let Some(parent) = base.parent() {
                assert_canonical(&parent)?;
            }
            if let Ok(joined) = base.join(&text) {
                assert_canonical(&joined)?;
            }
        }
    }

    #[test]
    fn containment_agrees_with_native_paths(left in uri_like(), right in uri_like()) {
        if let (Ok(left), Ok(right)) = (PathUri::parse(&left), PathUri::parse(&right))
            && left.contains(&right)
            && let (Ok(left), Ok(right)) = (left.to_native(), right.to_native())
        {
            prop_assert!(right.starts_with(&left));
        }
    }

    #[test]
    fn posix_joins_agree_with_native_paths(base in byte_path(), text in "[/.a%:C]{0,12}") {
        let base = PathBuf::from(OsString::from_vec(base));
        let uri = PathUri::from_native(&base).unwrap();
        if let Ok(joined) = uri.join(&text) {
            // Normalize the base first, because joining is lexical.
            let native = uri.to_native().unwrap().join(&text);
            prop_assert_eq!(joined, PathUri::from_native(&native).unwrap());
        }
    }

    #[test]
    fn order_and_hash_agree_with_equality(text in uri_like(), other in uri_like()) {
        // The second URI is often equal to the first, in particular on Windows.
        for other in [text.to_ascii_uppercase(), other] {
            if let (Ok(left), Ok(right)) = (PathUri::parse(&text), PathUri::parse(&other)) {
                prop_assert_eq!(left == right, left.cmp(&right).is_eq());
                prop_assert_eq!(left.cmp(&right), right.cmp(&left).reverse());
                prop_assert!(left != right || hash(&left) == hash(&right));
            }
        }
    }
}
