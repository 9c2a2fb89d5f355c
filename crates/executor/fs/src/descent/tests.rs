use rustix::{
    fd::AsFd,
    fs::OFlags,
    io::{Errno, Result},
};

use super::{Kind, Names, Root, open_by_name, open_file};
use crate::{
    directory_stack::Identity,
    resolve::Links,
    test_dir::{Scratch, odd_name, open_directory, within_seconds},
    workers::Stop,
};

const LIST: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY);

fn listed(scratch: &Scratch, keep: usize) -> Result<Vec<(Vec<u8>, Kind)>> {
    let root = Root::open(scratch.root(), Links::Refuse)?;
    let directory = root.directory(b"")?;
    let names = Names::read(directory.as_fd(), keep, &mut Vec::new(), &Stop::default())?;
    let entry = |(name, kind): (&std::ffi::OsStr, Kind)| (name.as_encoded_bytes().to_vec(), kind);
    Ok(names.iter().map(entry).collect())
}

#[test]
fn names_are_sorted_bytewise_with_what_they_name() {
    let scratch = Scratch::new();
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
    let expected: [(&[u8], Kind); 9] = [
        (b".x", Kind::File),
        (b"B", Kind::File),
        (b"a", Kind::Directory),
        (b"a-b", Kind::File),
        (b"b", Kind::File),
        (b"odd \xff?#%", Kind::File),
        (b"pipe", Kind::Other),
        (b"to-a", Kind::DirectoryLink),
        (b"to-b", Kind::Other),
    ];
    let expected = expected.map(|(name, kind)| (name.to_vec(), kind));
    assert_eq!(listed(&scratch, 100).unwrap(), expected);
}

#[test]
fn of_very_many_names_the_first_are_kept() {
    let scratch = Scratch::new();
    for number in 0..10_000 {
        scratch.link(format!("{number:05}"), "/");
    }
    let names = listed(&scratch, 3).unwrap();
    let expected = ["00000", "00001", "00002"].map(|name| (name.into(), Kind::DirectoryLink));
    assert_eq!(names, expected);
}

#[test]
fn names_are_looked_up() {
    let scratch = Scratch::new();
    for name in ["c", "a", "b"] {
        scratch.file(name, "");
    }
    let root = Root::open(scratch.root(), Links::Refuse).unwrap();
    let directory = root.directory(b"").unwrap();
    let names = Names::read(directory.as_fd(), 9, &mut Vec::new(), &Stop::default()).unwrap();
    assert!(names.contains(b"b"));
    assert!(!names.contains(b"bb"));
    assert_eq!((names.name(2), names.name(3)), (&b"c"[..], &b""[..]));
}

#[test]
fn both_ways_open_the_same_directory() {
    let scratch = Scratch::new();
    let expected = Identity::of(open_directory(&scratch.directory("a/b/c"))).unwrap();
    let root = Root::open(scratch.root(), Links::Refuse).unwrap();
    let by_kernel = root.directory(b"a/b/c").unwrap();
    assert_eq!(Identity::of(by_kernel), Ok(expected));
    let top = open_directory(scratch.root());
    let by_name = open_by_name(top.as_fd(), b"a/b/c", LIST).unwrap();
    assert_eq!(Identity::of(by_name), Ok(expected));
}

#[test]
fn neither_way_follows_a_link() {
    let scratch = Scratch::new();
    scratch.directory("a/b");
    scratch.link("link", "a");
    scratch.link("a/link", "b");
    let root = Root::open(scratch.root(), Links::Refuse).unwrap();
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
fn links_are_followed_if_so_asked() {
    let scratch = Scratch::new();
    let expected = Identity::of(open_directory(&scratch.directory("a/b"))).unwrap();
    scratch.link("link", "a");
    let root = Root::open(&scratch.path("link"), Links::Follow).unwrap();
    assert_eq!(Identity::of(root.directory(b"b").unwrap()), Ok(expected));
    let root = Root::open(scratch.root(), Links::Follow).unwrap();
    assert_eq!(
        Identity::of(root.directory(b"link/b").unwrap()),
        Ok(expected)
    );
    let refused = Root::open(&scratch.path("link"), Links::Refuse).map(drop);
    assert!(
        matches!(refused, Err(Errno::LOOP | Errno::NOTDIR)),
        "{refused:?}"
    );
}

#[test]
fn only_a_regular_file_is_opened_to_be_read() {
    let scratch = Scratch::new();
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
