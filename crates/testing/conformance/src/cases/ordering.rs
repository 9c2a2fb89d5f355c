//! Changes are applied in call order.

use std::fs;

use bytes::Bytes;
use exec_env::filesystem::FileFuture;
use exec_wire::fs::OpenMode;

use crate::{
    bounded_wait::{done, not_found},
    difference::Difference,
    request::{copy, create, open, read, remove, rename, write},
    scratch_dir::{ScratchDir, names},
    subject::Subject,
};

pub async fn the_last_of_many_writes_wins(subject: &Subject) {
    let scratch = ScratchDir::new();
    let path = scratch.path("file");
    let writes: Vec<_> = (0..50)
        .map(|number| {
            // Very different lengths, so that a short write could overtake a long one.
            let content = number.to_string().repeat((50 - number) * 1000);
            subject.files.write_file(write(&path), content.into())
        })
        .collect();
    for written in writes {
        done(written).await;
    }
    assert_eq!(fs::read_to_string(path).unwrap(), "49".repeat(1000));
}

pub async fn await_order_does_not_change_write_order(subject: &Subject) {
    let scratch = ScratchDir::new();
    let path = scratch.path("file");
    let writes: Vec<_> = (0..50)
        .map(|number| {
            let content = Bytes::from(number.to_string());
            subject.files.write_file(write(&path), content)
        })
        .collect();
    for written in writes.into_iter().rev() {
        done(written).await;
    }
    assert_eq!(fs::read_to_string(path).unwrap(), "49");
}

pub async fn mixed_changes_apply_in_call_order(subject: &Subject) {
    let scratch = ScratchDir::new();
    let files = &subject.files;
    let directory = scratch.path("directory");
    let (one, two, three) = (
        directory.join("one"),
        directory.join("two"),
        directory.join("three"),
    );
    let content = Bytes::from_static(b"content");
    let changes: [FileFuture<()>; 6] = [
        files.create_directory(create(&directory)),
        files.write_file(write(&one), content),
        files.copy(copy(&one, &two)),
        if subject.differs(Difference::NoRename) {
            files.copy(copy(&two, &three))
        } else {
            files.rename(rename(&two, &three))
        },
        files.remove(remove(&one)),
        files.write_file(write(&two), Bytes::from_static(b"again")),
    ];
    for change in changes {
        done(change).await;
    }
    assert_eq!(names(&directory), ["three", "two"]);
    assert_eq!(fs::read_to_string(three).unwrap(), "content");
    assert_eq!(fs::read_to_string(two).unwrap(), "again");
}

pub async fn reads_see_changes_answered_before(subject: &Subject) {
    let scratch = ScratchDir::new();
    let path = scratch.path("file");
    for number in 0..20 {
        let content = Bytes::from(number.to_string());
        done(subject.files.write_file(write(&path), content.clone())).await;
        assert_eq!(done(subject.files.read_file(read(&path))).await, content);
        done(subject.files.remove(remove(&path))).await;
        not_found(subject.files.read_file(read(&path))).await;
    }
}

pub async fn unawaited_change_does_not_block_later_calls(subject: &Subject) {
    let scratch = ScratchDir::new();
    let (one, two) = (scratch.path("one"), scratch.path("two"));
    let content = Bytes::from_static(b"content");
    let first = subject.files.write_file(write(&one), content.clone());
    let opening = subject.files.open(open(&one, OpenMode::Read));
    let second = subject.files.write_file(write(&two), content.clone());
    drop(
        subject
            .files
            .write_file(write(&scratch.path("three")), content),
    );
    done(second).await;
    assert_eq!(fs::read_to_string(two).unwrap(), "content");
    done(first).await;
    drop(done(opening).await);
    assert_eq!(fs::read_to_string(one).unwrap(), "content");
}
