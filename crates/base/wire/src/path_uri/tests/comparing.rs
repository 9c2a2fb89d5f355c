use std::{
    cmp::Ordering,
    hash::{BuildHasher, BuildHasherDefault, DefaultHasher},
};

use super::{super::PathUri, uri};

pub(super) fn hash(uri: &PathUri) -> u64 {
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
fn other_differences_count() {
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
        // UTF-16LE of `\\?\` and U+4141 or U+6161: no ASCII letters.
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
