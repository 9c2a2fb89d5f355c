//! `fs/readFile`.

use std::{
    fs::{self, File},
    io::{Seek, SeekFrom, Write},
    time::Duration,
};

use bytes::Bytes;
use exec_env::filesystem::FileError;
use exec_wire::limits;
use tokio::time::timeout;

use crate::{
    bounded_wait::within,
    bounded_wait::{done, host_fails, invalid, not_found},
    difference::Difference,
    pattern,
    request::{metadata, read, write},
    scratch_dir::{ScratchDir, set_mode},
    subject::Subject,
};

/// Writes through the subject, then reads back through the subject and directly.
async fn round_trip(subject: &Subject, data: Vec<u8>) {
    let scratch = ScratchDir::new();
    let path = scratch.path("file");
    let data = Bytes::from(data);
    done(subject.files.write_file(write(&path), data.clone())).await;
    pattern::assert_same(&fs::read(&path).unwrap(), &data);
    pattern::assert_same(&done(subject.files.read_file(read(&path))).await, &data);
}

pub async fn file_round_trip_preserves_every_byte_value(subject: &Subject) {
    round_trip(subject, (0..=255).collect()).await;
    round_trip(subject, (0..=255).rev().collect()).await;
}

pub async fn file_round_trip_preserves_an_empty_file(subject: &Subject) {
    round_trip(subject, Vec::new()).await;
}

pub async fn file_round_trip_preserves_three_mebibytes(subject: &Subject) {
    round_trip(subject, pattern::bytes(3 << 20)).await;
}

/// How long a case waits for a response that must not arrive.
const OBSERVATION_TIME: Duration = Duration::from_secs(3);

pub async fn file_larger_than_a_message_is_read_completely(subject: &Subject) {
    let scratch = ScratchDir::new();
    let length = limits::MAX_MESSAGE_BYTES + 5;
    let path = scratch.sparse("large", length as u64);
    let mut file = File::options().write(true).open(&path).unwrap();
    file.seek(SeekFrom::End(-4)).unwrap();
    file.write_all(b"last").unwrap();
    if subject.differs(Difference::AnswersAreBounded) {
        let text = invalid(subject.files.read_file(read(&path))).await;
        assert!(text.contains("limit of 67108864"), "{text}");
        return;
    }
    if subject.differs(Difference::LongAnswersAreLost) {
        let answer = timeout(OBSERVATION_TIME, subject.files.read_file(read(&path))).await;
        return assert!(!matches!(answer, Ok(Ok(_))), "the answer came");
    }
    let content = done(subject.files.read_file(read(&path))).await;
    assert_eq!(content.len(), length);
    assert!(content[..length - 4].iter().all(|byte| *byte == 0));
    assert_eq!(&content[length - 4..], b"last");
}

pub async fn missing_file_is_not_found(subject: &Subject) {
    let scratch = ScratchDir::new();
    let path = scratch.path("none");
    let text = not_found(subject.files.read_file(read(&path))).await;
    subject.assert_names(&text, path.to_str().unwrap());
    not_found(subject.files.read_file(read(&scratch.path("no/such/file")))).await;
    let dangling = scratch.link("dangling", "none");
    not_found(subject.files.read_file(read(&dangling))).await;
}

pub async fn only_regular_files_are_read(subject: &Subject) {
    let scratch = ScratchDir::new();
    let pipe = scratch.fifo("pipe");
    let text = invalid(subject.files.read_file(read(&pipe))).await;
    assert!(text.contains(pipe.to_str().unwrap()), "{text}");
    invalid(subject.files.read_file(read(scratch.root()))).await;
    let device = scratch.link("device", "/dev/zero");
    invalid(subject.files.read_file(read(&device))).await;
    let linked = scratch.link("linked", "pipe");
    invalid(subject.files.read_file(read(&linked))).await;
}

pub async fn file_above_the_size_limit_is_refused(subject: &Subject) {
    let scratch = ScratchDir::new();
    let path = scratch.sparse("huge", limits::MAX_READ_FILE_BYTES + 1);
    let text = invalid(subject.files.read_file(read(&path))).await;
    let limit = limits::MAX_READ_FILE_BYTES.to_string();
    assert!(text.contains(&limit), "{text}");
}

pub async fn file_used_as_a_directory_is_an_error(subject: &Subject) {
    let scratch = ScratchDir::new();
    scratch.file("file", "content");
    let below = scratch.path("file/below");
    host_fails(subject.files.read_file(read(&below))).await;
    host_fails(subject.files.write_file(write(&below), Bytes::new())).await;
    host_fails(subject.files.metadata(metadata(&below))).await;
}

pub async fn symlink_is_followed_when_reading(subject: &Subject) {
    let scratch = ScratchDir::new();
    scratch.file("directory/file", "content");
    scratch.link("way", "directory");
    let link = scratch.link("link", "way/file");
    let content = done(subject.files.read_file(read(&link))).await;
    assert_eq!(content, "content");
    let turn = scratch.link("turn", "turn");
    host_fails(subject.files.read_file(read(&turn))).await;
}

pub async fn unreadable_file_is_invalid(subject: &Subject) {
    let scratch = ScratchDir::new();
    let path = scratch.file("file", "content");
    set_mode(&path, 0o000);
    // Root may read it.
    let expected = fs::read(&path).ok();
    let content = within("response arrives", subject.files.read_file(read(&path))).await;
    match (expected, content) {
        (Some(expected), Ok(content)) => assert_eq!(content, expected),
        (None, Err(FileError::Invalid(_))) => {}
        other => panic!("expected what the host lets its user do: {other:?}"),
    }
}

pub async fn files_are_read_concurrently(subject: &Subject) {
    let scratch = ScratchDir::new();
    let paths: Vec<_> = (0..64)
        .map(|number| scratch.file(format!("{number}"), number.to_string().repeat(10_000)))
        .collect();
    let reads: Vec<_> = paths
        .iter()
        .map(|path| subject.files.read_file(read(path)))
        .collect();
    for (number, content) in reads.into_iter().enumerate().rev() {
        pattern::assert_same(
            &done(content).await,
            number.to_string().repeat(10_000).as_bytes(),
        );
    }
}

pub async fn content_of_several_reads_can_be_held(subject: &Subject) {
    let scratch = ScratchDir::new();
    let content = pattern::bytes(3 << 20);
    let path = scratch.file("file", &content);
    let mut kept = Vec::new();
    for _ in 0..5 {
        kept.push(done(subject.files.read_file(read(&path))).await);
    }
    for found in kept {
        pattern::assert_same(&found, &content);
    }
}
