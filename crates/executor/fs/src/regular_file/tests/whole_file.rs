use std::{
    fs::{self, File, OpenOptions},
    io::Write,
    os::unix::net::UnixListener,
    path::Path,
};

use super::super::*;
use crate::test_dir::{Outcome, TestDir, odd_name, outcome, text, uri, within_seconds};

fn request(path: &Path) -> ReadFile {
    ReadFile {
        path: uri(path),
        follow_symlinks: None,
        sandbox: None,
    }
}

fn read_whole(path: &Path) -> Result<Vec<u8>, FileError> {
    WholeFile::open(&request(path))?.read()
}

fn read_without_links(path: &Path) -> Result<Vec<u8>, FileError> {
    WholeFile::open(&ReadFile {
        follow_symlinks: Some(false),
        ..request(path)
    })?
    .read()
}

#[test]
fn whole_file_is_read() {
    let scratch = TestDir::new();
    for size in [0, 1, 4095, 4096, 4097, 1_000_000] {
        let content = vec![7; size];
        let path = scratch.file("file", &content);
        let file = WholeFile::open(&request(&path)).unwrap();
        assert_eq!(file.size(), size as u64);
        assert!(file.read().unwrap() == content, "{size} bytes");
    }
}

#[test]
fn buffer_has_exactly_the_size_of_the_file() {
    let scratch = TestDir::new();
    let path = scratch.file("file", vec![7; 100_000]);
    assert_eq!(read_whole(&path).unwrap().capacity(), 100_000);
}

#[test]
fn name_need_not_be_utf_8() {
    let scratch = TestDir::new();
    let path = scratch.file(odd_name(), "odd");
    assert_eq!(read_whole(&path).unwrap(), b"odd");
}

#[test]
fn missing_file_is_not_found() {
    let scratch = TestDir::new();
    scratch.link("dangling", "nowhere");
    assert_eq!(
        outcome(read_whole(&scratch.path("none"))),
        Outcome::NotFound
    );
    assert_eq!(outcome(read_whole(&scratch.path("a/b"))), Outcome::NotFound);
    assert_eq!(
        outcome(read_whole(&scratch.path("dangling"))),
        Outcome::NotFound
    );
}

#[test]
fn path_through_a_file_is_an_error() {
    let scratch = TestDir::new();
    let path = scratch.file("file", "");
    assert_eq!(outcome(read_whole(&path.join("x"))), Outcome::Host);
}

#[test]
fn only_regular_files_are_read() {
    let scratch = TestDir::new();
    let directory = scratch.directory("directory");
    assert_eq!(
        text(read_whole(&directory)),
        format!("path `{}` is not a file", directory.display())
    );
    assert_eq!(outcome(read_whole(&directory)), Outcome::Invalid);
    assert_eq!(
        outcome(read_whole(Path::new("/dev/null"))),
        Outcome::Invalid
    );
    let socket = scratch.path("socket");
    let _listener = UnixListener::bind(&socket).unwrap();
    assert_eq!(outcome(read_whole(&socket)), Outcome::Host);
}

#[test]
fn fifo_without_writer_is_rejected_without_blocking() {
    let scratch = TestDir::new();
    let fifo = scratch.fifo("fifo");
    let read = within_seconds(move || outcome(read_whole(&fifo)));
    assert_eq!(read, Outcome::Invalid);
}

#[test]
fn file_at_the_size_limit_is_opened_but_not_beyond() {
    let scratch = TestDir::new();
    let path = scratch.path("sparse");
    let file = File::create(&path).unwrap();
    file.set_len(limits::MAX_READ_FILE_BYTES).unwrap();
    let opened = WholeFile::open(&request(&path)).unwrap();
    assert_eq!(opened.size(), 536_870_912);
    file.set_len(limits::MAX_READ_FILE_BYTES + 1).unwrap();
    let refused = WholeFile::open(&request(&path));
    assert_eq!(
        text(refused),
        "file is too large to read: limit is 536870912 bytes"
    );
}

#[test]
fn file_that_grows_too_large_is_rejected() {
    let scratch = TestDir::new();
    let path = scratch.path("sparse");
    let file = File::create(&path).unwrap();
    file.set_len(limits::MAX_READ_FILE_BYTES - 10).unwrap();
    let opened = WholeFile::open(&request(&path)).unwrap();
    file.set_len(limits::MAX_READ_FILE_BYTES + 10).unwrap();
    assert_eq!(outcome(opened.read()), Outcome::Invalid);
}

#[test]
fn growing_file_is_read_to_its_end() {
    let scratch = TestDir::new();
    let path = scratch.file("file", "begin,");
    let opened = WholeFile::open(&request(&path)).unwrap();
    let mut file = OpenOptions::new().append(true).open(&path).unwrap();
    file.write_all(&vec![b'x'; 200_000]).unwrap();
    let content = opened.read().unwrap();
    assert_eq!(content.len(), 200_006);
    assert!(content.starts_with(b"begin,xxx"));
}

#[test]
fn shrinking_file_is_read_to_its_end() {
    let scratch = TestDir::new();
    let path = scratch.file("file", vec![b'x'; 100_000]);
    let opened = WholeFile::open(&request(&path)).unwrap();
    fs::write(&path, "short").unwrap();
    assert_eq!(opened.read().unwrap(), b"short");
}

#[test]
fn generated_file_is_read() {
    let opened = WholeFile::open(&request(Path::new("/proc/self/status"))).unwrap();
    assert_eq!(opened.size(), 0);
    assert!(opened.read().unwrap().starts_with(b"Name:"));
}

#[test]
fn links_are_followed_unless_refused() {
    let scratch = TestDir::new();
    let real = scratch.file("real/file", "content");
    let last = scratch.link("last", "real/file");
    scratch.link("above", "real");
    let above = scratch.path("above/file");
    for path in [&real, &last, &above] {
        assert_eq!(read_whole(path).unwrap(), b"content");
    }
    let real = fs::canonicalize(real).unwrap();
    let root = fs::canonicalize(scratch.root()).unwrap();
    assert_eq!(read_without_links(&real).unwrap(), b"content");
    let last = read_without_links(&root.join("last"));
    assert!(text(last.clone()).contains("os error 40"), "{last:?}");
    assert_eq!(outcome(last), Outcome::Host);
    let above = read_without_links(&root.join("above/file"));
    assert!(text(above.clone()).contains("os error 20"), "{above:?}");
    assert_eq!(outcome(above), Outcome::Host);
}

fn pattern(length: usize) -> Vec<u8> {
    (0..length)
        .map(|index| ((index * 31) >> 3).to_le_bytes()[0])
        .collect()
}

#[test]
fn parallel_read_is_complete_and_in_order() {
    let scratch = TestDir::new();
    let least = usize::try_from(PARALLEL_READ_BYTES).unwrap();
    for size in [least, least + 1, least + 12_345] {
        let content = pattern(size);
        let path = scratch.file("file", &content);
        assert!(read_whole(&path).unwrap() == content, "{size} bytes");
    }
}

#[test]
fn large_file_may_grow_or_shrink_before_the_read() {
    let scratch = TestDir::new();
    let least = usize::try_from(PARALLEL_READ_BYTES).unwrap();
    let content = pattern(least);
    let path = scratch.file("file", &content);
    let file = WholeFile::open(&request(&path)).unwrap();
    let mut more = OpenOptions::new().append(true).open(&path).unwrap();
    more.write_all(&content[..100_000]).unwrap();
    assert!(file.read().unwrap() == [&content[..], &content[..100_000]].concat());
    // Shorter than the part of the first thread.
    let file = WholeFile::open(&request(&path)).unwrap();
    more.set_len(1000).unwrap();
    assert!(file.read().unwrap() == content[..1000]);
}

#[test]
fn file_opened_by_another_process_is_checked_again() {
    let scratch = TestDir::new();
    let path = scratch.file("file", "content");
    let read = request(&path);
    let opened = WholeFile::open(&read).unwrap().into_file();
    let received = WholeFile::from_file(opened, &read).unwrap();
    assert_eq!(received.size(), 7);
    assert_eq!(received.read().unwrap(), b"content");
    let directory = File::open(path.parent().unwrap()).unwrap();
    let refused = WholeFile::from_file(directory.into(), &read);
    assert_eq!(outcome(refused), Outcome::Invalid);
    let large = File::create(scratch.path("large")).unwrap();
    large.set_len(limits::MAX_READ_FILE_BYTES + 1).unwrap();
    let refused = WholeFile::from_file(large.into(), &read);
    assert_eq!(outcome(refused), Outcome::Invalid);
}
