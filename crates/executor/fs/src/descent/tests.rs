use rustix::{
    fd::AsFd,
    fs::OFlags,
    io::{Errno, Result},
};

use super::{DescentRoot, DirectoryNames, NameKind, open_by_name, open_file};
use crate::{
    cancel_flag::CancelFlag,
    directory::InodeId,
    resolve::LinkPolicy,
    test_dir::{TestDir, odd_name, open_directory, within_seconds},
};

const LIST: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY);

fn listed(scratch: &TestDir, keep: usize) -> Result<Vec<(Vec<u8>, NameKind)>> {
    let root = DescentRoot::open(scratch.root(), LinkPolicy::Refuse)?;
    let directory = root.directory(b"")?;
    let names = DirectoryNames::read(
        directory.as_fd(),
        keep,
        &mut Vec::new(),
        &CancelFlag::default(),
    )?;
    let entry =
        |(name, kind): (&std::ffi::OsStr, NameKind)| (name.as_encoded_bytes().to_vec(), kind);
    Ok(names.iter().map(entry).collect())
}

#[test]
fn names_are_sorted_bytewise_with_their_kinds() {
    let scratch = TestDir::new();
    for name in ["b", "B", "a-b", ".x"] {
        scratch.file(name, "");
    }
    scratch.directory("a");
    scratch.file(odd_name(), "");
    scratch.fifo("pipe");
    scratch.link("to-a", "a");
    scratch.link("to-b", "b");
    scratch.link("to-nowhere", "nowhere");
    scratch.link("to-itself", "to-itself");
    let expected: [(&[u8], NameKind); 9] = [
        (b".x", NameKind::File),
        (b"B", NameKind::File),
        (b"a", NameKind::Directory),
        (b"a-b", NameKind::File),
        (b"b", NameKind::File),
        (b"odd \xff?#%", NameKind::File),
        (b"pipe", NameKind::Other),
        (b"to-a", NameKind::DirectoryLink),
        (b"to-b", NameKind::Other),
    ];
    let expected = expected.map(|(name, kind)| (name.to_vec(), kind));
    assert_eq!(listed(&scratch, 100).unwrap(), expected);
}

#[test]
fn only_the_first_of_many_names_are_kept() {
    let scratch = TestDir::new();
    for number in 0..10_000 {
        scratch.link(format!("{number:05}"), "/");
    }
    let names = listed(&scratch, 3).unwrap();
    let expected = ["00000", "00001", "00002"].map(|name| (name.into(), NameKind::DirectoryLink));
    assert_eq!(names, expected);
}

#[test]
fn names_are_looked_up() {
    let scratch = TestDir::new();
    for name in ["c", "a", "b"] {
        scratch.file(name, "");
    }
    let root = DescentRoot::open(scratch.root(), LinkPolicy::Refuse).unwrap();
    let directory = root.directory(b"").unwrap();
    let names = DirectoryNames::read(
        directory.as_fd(),
        9,
        &mut Vec::new(),
        &CancelFlag::default(),
    )
    .unwrap();
    assert!(names.contains(b"b"));
    assert!(!names.contains(b"bb"));
    assert_eq!((names.name(2), names.name(3)), (&b"c"[..], &b""[..]));
}

#[test]
fn both_implementations_open_the_same_directory() {
    let scratch = TestDir::new();
    let expected = InodeId::of(open_directory(&scratch.directory("a/b/c"))).unwrap();
    let root = DescentRoot::open(scratch.root(), LinkPolicy::Refuse).unwrap();
    let by_kernel = root.directory(b"a/b/c").unwrap();
    assert_eq!(InodeId::of(by_kernel), Ok(expected));
    let top = open_directory(scratch.root());
    let by_name = open_by_name(top.as_fd(), b"a/b/c", LIST).unwrap();
    assert_eq!(InodeId::of(by_name), Ok(expected));
}

#[test]
fn neither_implementation_follows_a_link() {
    let scratch = TestDir::new();
    scratch.directory("a/b");
    scratch.link("link", "a");
    scratch.link("a/link", "b");
    let root = DescentRoot::open(scratch.root(), LinkPolicy::Refuse).unwrap();
    let top = open_directory(scratch.root());
    for path in [&b"link"[..], b"link/b", b"a/link"] {
        for opened in [root.directory(path), open_by_name(top.as_fd(), path, LIST)] {
            let refused = opened.map(drop);
            assert!(
                matches!(refused, Err(Errno::LOOP | Errno::NOTDIR)),
                "{refused:?}"
            );
        }
    }
}

#[test]
fn links_are_followed_on_request() {
    let scratch = TestDir::new();
    let expected = InodeId::of(open_directory(&scratch.directory("a/b"))).unwrap();
    scratch.link("link", "a");
    let root = DescentRoot::open(&scratch.path("link"), LinkPolicy::Follow).unwrap();
    assert_eq!(InodeId::of(root.directory(b"b").unwrap()), Ok(expected));
    let root = DescentRoot::open(scratch.root(), LinkPolicy::Follow).unwrap();
    assert_eq!(
        InodeId::of(root.directory(b"link/b").unwrap()),
        Ok(expected)
    );
    let refused = DescentRoot::open(&scratch.path("link"), LinkPolicy::Refuse).map(drop);
    assert!(
        matches!(refused, Err(Errno::LOOP | Errno::NOTDIR)),
        "{refused:?}"
    );
}

#[test]
fn only_regular_files_are_opened_for_reading() {
    let scratch = TestDir::new();
    scratch.file("file", "");
    scratch.fifo("pipe");
    scratch.link("link", "file");
    let opened = within_seconds(move || {
        let top = open_directory(scratch.root());
        [&b"file"[..], b"pipe", b"link", b"none"].map(|name| open_file(top.as_fd(), name).map(drop))
    });
    let expected = [
        Ok(()),
        Err(Errno::INVAL),
        Err(Errno::LOOP),
        Err(Errno::NOENT),
    ];
    assert_eq!(opened, expected);
}
