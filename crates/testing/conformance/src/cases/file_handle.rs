//! File handles: block reads and writes.

use std::{fs, path::Path, sync::Arc};

use bytes::Bytes;
use exec_env::filesystem::{FileBlock, OpenFile};
use exec_wire::{fs::OpenMode, limits};
use futures_util::TryStreamExt;

use crate::{
    bounded_wait::within,
    bounded_wait::{done, host_fails, invalid, invalid_or_host_fails, not_found, refused},
    difference::Difference,
    pattern,
    request::{open, read},
    scratch_dir::ScratchDir,
    subject::Subject,
};

/// Concurrently open handles; below the limit of a connection.
const MANY: usize = 100;

async fn opened(subject: &Subject, path: &Path, mode: OpenMode) -> Arc<dyn OpenFile> {
    done(subject.files.open(open(path, mode))).await
}

async fn block(file: &Arc<dyn OpenFile>, offset: u64, length: usize) -> FileBlock {
    done(file.read_block(offset, length)).await
}

fn found(data: &[u8], eof: bool) -> FileBlock {
    FileBlock {
        data: Bytes::copy_from_slice(data),
        eof,
    }
}

pub async fn blocks_are_read_at_any_offset(subject: &Subject) {
    let scratch = ScratchDir::new();
    let content = pattern::bytes(3 << 20);
    let path = scratch.file("file", &content);
    let file = opened(subject, &path, OpenMode::Read).await;
    for offset in [2 << 20, 0, 1 << 20, 12_345] {
        let found = block(&file, offset as u64, limits::MAX_BLOCK_BYTES).await;
        pattern::assert_same(&found.data, &content[offset..][..limits::MAX_BLOCK_BYTES]);
        assert!(!found.eof);
    }
    let blocks: Vec<_> = (0..64)
        .map(|number| file.read_block(number * 1000, 1000))
        .collect();
    for (number, found) in blocks.into_iter().enumerate() {
        pattern::assert_same(&done(found).await.data, &content[number * 1000..][..1000]);
    }
}

pub async fn short_block_read_reports_end_of_file(subject: &Subject) {
    let scratch = ScratchDir::new();
    let path = scratch.file("file", "0123456789");
    let file = opened(subject, &path, OpenMode::Read).await;
    assert_eq!(block(&file, 0, 4).await, found(b"0123", false));
    assert_eq!(block(&file, 0, 10).await, found(b"0123456789", false));
    assert_eq!(block(&file, 6, 4).await, found(b"6789", false));
    assert_eq!(block(&file, 0, 11).await, found(b"0123456789", true));
    assert_eq!(block(&file, 9, 100).await, found(b"9", true));
    assert_eq!(block(&file, 10, 1).await, found(b"", true));
    assert_eq!(block(&file, 1 << 40, 1).await, found(b"", true));
    let empty = scratch.file("empty", "");
    let empty = opened(subject, &empty, OpenMode::Read).await;
    assert_eq!(block(&empty, 0, 1).await, found(b"", true));
}

pub async fn open_for_replace_creates_or_truncates(subject: &Subject) {
    let scratch = ScratchDir::new();
    let old = scratch.file("old", "content");
    let link = scratch.link("link", "old");
    for (path, real) in [(scratch.path("new"), scratch.path("new")), (link, old)] {
        let file = opened(subject, &path, OpenMode::Replace).await;
        assert_eq!(fs::read_to_string(&real).unwrap(), "");
        done(file.write_block(0, Bytes::from_static(b"block"))).await;
        assert_eq!(fs::read_to_string(&real).unwrap(), "block");
    }
}

pub async fn blocks_are_written_at_any_offset(subject: &Subject) {
    let scratch = ScratchDir::new();
    let path = scratch.path("file");
    let content = pattern::bytes(3 << 20);
    let file = opened(subject, &path, OpenMode::Replace).await;
    let blocks: Vec<_> = content
        .chunks(limits::MAX_BLOCK_BYTES)
        .enumerate()
        .rev()
        .map(|(number, block)| {
            let offset = (number * limits::MAX_BLOCK_BYTES) as u64;
            file.write_block(offset, Bytes::copy_from_slice(block))
        })
        .collect();
    for written in blocks {
        done(written).await;
    }
    pattern::assert_same(&fs::read(&path).unwrap(), &content);
    done(file.write_block(3, Bytes::from_static(b"xyz"))).await;
    assert_eq!(&fs::read(&path).unwrap()[..8], b"000xyz00");
}

pub async fn open_for_update_keeps_unwritten_content(subject: &Subject) {
    let scratch = ScratchDir::new();
    let path = scratch.file("file", "content");
    if subject.differs(Difference::NoUpdate) {
        refused(subject.files.open(open(&path, OpenMode::Update))).await;
        assert_eq!(fs::read(&path).unwrap(), b"content");
        return;
    }
    let file = opened(subject, &path, OpenMode::Update).await;
    done(file.write_block(5, Bytes::from_static(b"NT, more"))).await;
    assert_eq!(fs::read(&path).unwrap(), b"conteNT, more");
    let created = scratch.path("created");
    drop(opened(subject, &created, OpenMode::Update).await);
    assert_eq!(fs::read(created).unwrap(), b"");
}

pub async fn holes_read_as_zeros(subject: &Subject) {
    let scratch = ScratchDir::new();
    let path = scratch.path("file");
    let file = opened(subject, &path, OpenMode::Replace).await;
    done(file.write_block(5000, Bytes::from_static(b"end"))).await;
    let mut expected = vec![0; 5000];
    expected.extend_from_slice(b"end");
    pattern::assert_same(&fs::read(&path).unwrap(), &expected);
    let reader = opened(subject, &path, OpenMode::Read).await;
    let block = block(&reader, 0, 6000).await;
    pattern::assert_same(&block.data, &expected);
    assert!(block.eof);
}

pub async fn invalid_arguments_leave_the_handle_open(subject: &Subject) {
    let scratch = ScratchDir::new();
    let path = scratch.file("read", "content");
    let reader = opened(subject, &path, OpenMode::Read).await;
    invalid(reader.read_block(0, 0)).await;
    invalid(reader.read_block(0, limits::MAX_BLOCK_BYTES + 1)).await;
    assert_eq!(block(&reader, 0, 7).await, found(b"content", false));
    let path = scratch.path("write");
    let writer = opened(subject, &path, OpenMode::Replace).await;
    invalid(writer.write_block(0, Bytes::new())).await;
    let large = Bytes::from(vec![0; limits::MAX_BLOCK_BYTES + 1]);
    invalid(writer.write_block(0, large)).await;
    let last = u64::try_from(i64::MAX).unwrap();
    for offset in [u64::MAX, last] {
        invalid(writer.write_block(offset, Bytes::from_static(b"x"))).await;
    }
    done(writer.write_block(0, Bytes::from_static(b"fine"))).await;
    assert_eq!(fs::read_to_string(path).unwrap(), "fine");
}

pub async fn handle_allows_only_its_open_mode(subject: &Subject) {
    let scratch = ScratchDir::new();
    let path = scratch.file("file", "content");
    let reader = opened(subject, &path, OpenMode::Read).await;
    host_fails(reader.write_block(0, Bytes::from_static(b"x"))).await;
    assert_eq!(block(&reader, 0, 7).await, found(b"content", false));
    let writer = opened(subject, &scratch.path("new"), OpenMode::Replace).await;
    host_fails(writer.read_block(0, 1)).await;
}

pub async fn only_regular_files_are_opened(subject: &Subject) {
    let scratch = ScratchDir::new();
    let (none, pipe) = (scratch.path("none"), scratch.fifo("pipe"));
    let text = not_found(subject.files.open(open(&none, OpenMode::Read))).await;
    subject.assert_names(&text, none.to_str().unwrap());
    let below = none.join("file");
    not_found(subject.files.open(open(&below, OpenMode::Replace))).await;
    invalid(subject.files.open(open(scratch.root(), OpenMode::Read))).await;
    host_fails(subject.files.open(open(scratch.root(), OpenMode::Replace))).await;
    invalid(subject.files.open(open(&pipe, OpenMode::Read))).await;
    invalid_or_host_fails(subject.files.open(open(&pipe, OpenMode::Replace))).await;
}

pub async fn many_handles_are_open_concurrently(subject: &Subject) {
    let scratch = ScratchDir::new();
    let path = |number: usize| scratch.path(number.to_string());
    for number in 0..MANY {
        scratch.file(number.to_string(), number.to_string());
    }
    // More than the limit of a connection, unless handles are closed.
    for _ in 0..3 {
        let opening: Vec<_> = (0..MANY)
            .map(|number| subject.files.open(open(&path(number), OpenMode::Read)))
            .collect();
        let mut files = Vec::new();
        for file in opening {
            files.push(done(file).await);
        }
        for (number, file) in files.iter().enumerate() {
            let expected = number.to_string();
            assert_eq!(block(file, 0, 9).await, found(expected.as_bytes(), true));
        }
    }
}

pub async fn handle_stays_open_until_its_last_clone_is_dropped(subject: &Subject) {
    let scratch = ScratchDir::new();
    let path = scratch.file("file", "content");
    let file = opened(subject, &path, OpenMode::Read).await;
    let clone = Arc::clone(&file);
    drop(file);
    // Renaming or replacing the file does not affect the open handle.
    fs::remove_file(&path).unwrap();
    scratch.file("file", "another");
    assert_eq!(block(&clone, 0, 7).await, found(b"content", false));
}

pub async fn pending_block_operation_keeps_the_handle_open(subject: &Subject) {
    let scratch = ScratchDir::new();
    let path = scratch.path("file");
    let file = opened(subject, &path, OpenMode::Replace).await;
    let written: Vec<_> = (0..10)
        .map(|offset| file.write_block(offset, Bytes::from_static(b"x")))
        .collect();
    drop(file);
    for written in written {
        done(written).await;
    }
    let file = opened(subject, &path, OpenMode::Read).await;
    let read = file.read_block(0, 10);
    drop(file);
    assert_eq!(done(read).await, found(b"xxxxxxxxxx", false));
}

pub async fn cancelled_open_leaves_no_handle_open(subject: &Subject) {
    let scratch = ScratchDir::new();
    let path = scratch.file("file", "content");
    // More than the limit of a connection, unless handles are closed.
    for _ in 0..4 {
        for _ in 0..MANY / 2 {
            let mut opening = subject.files.open(open(&path, OpenMode::Read));
            drop(futures_util::poll!(&mut opening));
        }
        let file = opened(subject, &path, OpenMode::Read).await;
        assert_eq!(block(&file, 0, 7).await, found(b"content", false));
    }
}

pub async fn file_is_streamed_completely(subject: &Subject) {
    let scratch = ScratchDir::new();
    for length in [5 << 20, (5 << 20) + 1, 0] {
        let content = pattern::bytes(length);
        let path = scratch.file("file", &content);
        let stream = within("stream opens", subject.files.read_file_stream(read(&path))).await;
        let blocks: Vec<Bytes> = within("stream is read to the end", stream.unwrap().try_collect())
            .await
            .unwrap();
        pattern::assert_same(&blocks.concat(), &content);
    }
    let none = read(&scratch.path("none"));
    let stream = within("response arrives", subject.files.read_file_stream(none)).await;
    let failure = stream.err().unwrap();
    let missing = matches!(failure, exec_env::filesystem::FileError::NotFound(_));
    assert!(missing, "{failure:?}");
}
