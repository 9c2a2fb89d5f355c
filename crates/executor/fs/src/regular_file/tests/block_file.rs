use std::{fs, path::Path};

use super::super::*;
use crate::test_dir::{Outcome, TestDir, odd_name, outcome, text, uri, within_seconds};

fn open(path: &Path, mode: OpenMode) -> Result<BlockFile, FileError> {
    BlockFile::open(&uri(path), mode)
}

fn block(file: &BlockFile, offset: u64, length: usize) -> Vec<u8> {
    let mut block = vec![0xaa; length];
    let read = file.read_block(offset, &mut block).unwrap();
    block.truncate(read);
    block
}

#[test]
fn blocks_can_be_read_at_any_offset() {
    let scratch = TestDir::new();
    let path = scratch.file(odd_name(), "0123456789");
    let file = open(&path, OpenMode::Read).unwrap();
    assert_eq!(block(&file, 7, 2), b"78");
    assert_eq!(block(&file, 0, 10), b"0123456789");
    assert_eq!(block(&file, 8, 1 << 20), b"89");
    assert_eq!(block(&file, 10, 1), b"");
    assert_eq!(block(&file, 1 << 40, 1), b"");
    assert_eq!(block(&file, i64::MAX as u64 - 1, 1), b"");
}

#[test]
fn blocks_can_be_written_at_any_offset() {
    let scratch = TestDir::new();
    let path = scratch.file("file", "old content that is long");
    let file = open(&path, OpenMode::Replace).unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"");
    file.write_block(3, b"cd").unwrap();
    file.write_block(0, b"ab").unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"ab\0cd");
    let created = scratch.path("created");
    open(&created, OpenMode::Replace).unwrap();
    assert_eq!(fs::read(created).unwrap(), b"");
}

#[test]
fn update_keeps_unwritten_content() {
    let scratch = TestDir::new();
    let path = scratch.file("file", "content");
    let file = open(&path, OpenMode::Update).unwrap();
    file.write_block(5, b"NT and more").unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"conteNT and more");
    let created = scratch.path("created");
    open(&created, OpenMode::Update).unwrap();
    assert_eq!(fs::read(created).unwrap(), b"");
}

#[test]
fn block_beyond_the_largest_file_is_rejected() {
    let scratch = TestDir::new();
    let path = scratch.file("file", "content");
    let most = limits::MAX_BLOCK_BYTES;
    let read = open(&path, OpenMode::Read).unwrap();
    let length = "file read block length must be between 1 and 1048576";
    assert_eq!(text(read.read_block(0, &mut [])), length);
    assert_eq!(text(read.read_block(0, &mut vec![0; most + 1])), length);
    assert_eq!(text(BlockFile::check_read(0, u64::MAX)), length);
    assert_eq!(BlockFile::check_read(0, most as u64), Ok(most));
    assert_eq!(BlockFile::check_read(i64::MAX as u64 - 1, 1), Ok(1));
    for offset in [i64::MAX as u64, u64::MAX] {
        let refused = BlockFile::check_read(offset, 1);
        assert_eq!(outcome(refused), Outcome::Invalid);
    }

    let write = open(&path, OpenMode::Replace).unwrap();
    let length = "file write block length must be between 1 and 1048576";
    assert_eq!(text(write.write_block(0, &[])), length);
    assert_eq!(text(write.write_block(0, &vec![0; most + 1])), length);
    for offset in [i64::MAX as u64, u64::MAX] {
        let refused = write.write_block(offset, b"x");
        assert_eq!(outcome(refused), Outcome::Invalid);
    }
    write.write_block(0, &vec![1; most]).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().len(), most as u64);
}

#[test]
fn file_is_open_for_reading_or_writing_only() {
    let scratch = TestDir::new();
    let path = scratch.file("file", "content");
    let read = open(&path, OpenMode::Read).unwrap();
    assert_eq!(outcome(read.write_block(0, b"x")), Outcome::Host);
    assert_eq!(fs::read(&path).unwrap(), b"content");
    let write = open(&path, OpenMode::Replace).unwrap();
    assert_eq!(outcome(write.read_block(0, &mut [0])), Outcome::Host);
}

#[test]
fn open_file_survives_removal_of_its_name() {
    let scratch = TestDir::new();
    let path = scratch.file("file", "content");
    let file = open(&path, OpenMode::Read).unwrap();
    fs::remove_file(path).unwrap();
    assert_eq!(block(&file, 0, 7), b"content");
}

#[test]
fn links_are_followed() {
    let scratch = TestDir::new();
    scratch.file("file", "content");
    let link = scratch.link("link", "file");
    assert_eq!(
        block(&open(&link, OpenMode::Read).unwrap(), 0, 7),
        b"content"
    );
    open(&link, OpenMode::Replace).unwrap();
    assert_eq!(fs::read(scratch.path("file")).unwrap(), b"");
}

#[test]
fn only_regular_files_are_opened() {
    let scratch = TestDir::new();
    let directory = scratch.directory("directory");
    assert_eq!(outcome(open(&directory, OpenMode::Read)), Outcome::Invalid);
    assert_eq!(outcome(open(&directory, OpenMode::Replace)), Outcome::Host);
    for mode in [OpenMode::Read, OpenMode::Replace, OpenMode::Update] {
        let device = open(Path::new("/dev/null"), mode);
        assert_eq!(outcome(device), Outcome::Invalid);
        let deeper = open(&scratch.path("none/file"), mode);
        assert_eq!(outcome(deeper), Outcome::NotFound);
    }
    let missing = open(&scratch.path("none"), OpenMode::Read);
    assert_eq!(outcome(missing), Outcome::NotFound);
}

#[test]
fn fifo_is_rejected_without_blocking() {
    let scratch = TestDir::new();
    let fifo = scratch.fifo("fifo");
    for (mode, refused) in [
        (OpenMode::Read, Outcome::Invalid),
        // The FIFO has no reader.
        (OpenMode::Replace, Outcome::Host),
    ] {
        let fifo = fifo.clone();
        let opened = within_seconds(move || outcome(open(&fifo, mode)));
        assert_eq!(opened, refused);
    }
}

#[test]
fn file_opened_by_another_process_is_checked_again() {
    let scratch = TestDir::new();
    let path = scratch.file("file", "content");
    let opened = open(&path, OpenMode::Read).unwrap().into_file();
    let received = BlockFile::from_file(opened, &uri(&path)).unwrap();
    assert_eq!(block(&received, 3, 4), b"tent");
    let directory = fs::File::open(path.parent().unwrap()).unwrap();
    let refused = BlockFile::from_file(directory.into(), &uri(&path));
    assert_eq!(outcome(refused), Outcome::Invalid);
}
