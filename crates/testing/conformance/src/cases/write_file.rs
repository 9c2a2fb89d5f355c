//! `fs/writeFile`.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use bytes::Bytes;
use exec_env::filesystem::{FileError, FileFuture};
use exec_wire::{base64_bytes::UncheckedBase64, fs::WriteFile};
use tokio::time::timeout;

use crate::{
    bounded_wait::within,
    bounded_wait::{done, host_fails, invalid_or_host_fails, not_found, refused},
    difference::Difference,
    request::write,
    scratch_dir::{ScratchDir, mode, names, set_mode},
    subject::Subject,
};

/// How long a case waits for something that must not happen.
const OBSERVATION_TIME: Duration = Duration::from_millis(700);

fn put(subject: &Subject, write: WriteFile, content: &'static str) -> FileFuture<()> {
    subject
        .files
        .write_file(write, Bytes::from_static(content.as_bytes()))
}

fn atomic(path: &Path) -> WriteFile {
    WriteFile {
        atomic: true,
        ..write(path)
    }
}

/// Asserts that extended write options are refused and returns true if the subject does not support
/// them.
async fn assert_unsupported(subject: &Subject) -> bool {
    let assert_unsupported = subject.differs(Difference::PlainWrites);
    if assert_unsupported {
        let scratch = ScratchDir::new();
        let path = scratch.path("file");
        let parents = WriteFile {
            create_parents: true,
            ..write(&path)
        };
        let mode = WriteFile {
            mode: Some(0o600),
            ..write(&path)
        };
        for (member, request) in [
            ("createParents", parents),
            ("atomic", atomic(&path)),
            ("mode", mode),
        ] {
            let text = refused(put(subject, request, "x")).await;
            assert!(text.contains(member), "{text}");
        }
        assert!(names(scratch.root()).is_empty());
    }
    assert_unsupported
}

/// Returns a plain and an atomic request.
async fn ways(subject: &Subject) -> Vec<(&'static str, bool)> {
    let plain = ("plain", false);
    if assert_unsupported(subject).await {
        vec![plain]
    } else {
        vec![plain, ("atomic", true)]
    }
}

fn text(path: &Path) -> String {
    fs::read_to_string(path).unwrap()
}

pub async fn write_creates_and_truncates(subject: &Subject) {
    let scratch = ScratchDir::new();
    let path = scratch.path("file");
    for content in ["a long content", "short", ""] {
        done(put(subject, write(&path), content)).await;
        assert_eq!(text(&path), content);
    }
}

pub async fn parents_are_created_only_on_request(subject: &Subject) {
    let scratch = ScratchDir::new();
    let path = scratch.path("a/b/file");
    not_found(put(subject, write(&path), "x")).await;
    if assert_unsupported(subject).await {
        return;
    }
    not_found(put(subject, atomic(&path), "x")).await;
    assert!(names(scratch.root()).is_empty());
    for request in [write(&path), atomic(&path)] {
        let request = WriteFile {
            create_parents: true,
            ..request
        };
        // Again, now that the parents exist.
        done(put(subject, request.clone(), "once")).await;
        done(put(subject, request, "twice")).await;
        assert_eq!(text(&path), "twice");
        fs::remove_dir_all(scratch.path("a")).unwrap();
    }
}

pub async fn directory_cannot_be_written(subject: &Subject) {
    let scratch = ScratchDir::new();
    let path = scratch.directory("directory");
    scratch.file("directory/inside", "content");
    host_fails(put(subject, write(&path), "x")).await;
    if !assert_unsupported(subject).await {
        host_fails(put(subject, atomic(&path), "x")).await;
    }
    assert_eq!(text(&path.join("inside")), "content");
    assert_eq!(names(scratch.root()), ["directory"]);
    assert_eq!(names(&path), ["inside"]);
}

pub async fn write_to_a_fifo_does_not_block(subject: &Subject) {
    let scratch = ScratchDir::new();
    let pipe = scratch.fifo("pipe");
    if subject.differs(Difference::PipesAreWaitedFor) {
        let mut written = put(subject, write(&pipe), "x");
        let waited = timeout(OBSERVATION_TIME, &mut written).await;
        assert!(
            waited.is_err(),
            "write finished although the FIFO has no reader"
        );
        // Opening the FIFO for reading and writing does not block, and unblocks the writer.
        let both = fs::File::options().read(true).write(true).open(&pipe);
        done(written).await;
        return drop(both.unwrap());
    }
    invalid_or_host_fails(put(subject, write(&pipe), "x")).await;
}

pub async fn symlink_is_followed_when_writing(subject: &Subject) {
    let scratch = ScratchDir::new();
    let file = scratch.file("file", "old");
    let link = scratch.link("link", "file");
    done(put(subject, write(&link), "new")).await;
    assert_eq!(text(&file), "new");
    let dangling = scratch.link("dangling", "created");
    done(put(subject, write(&dangling), "there")).await;
    assert_eq!(text(&scratch.path("created")), "there");
    assert!(link.is_symlink() && dangling.is_symlink());
}

pub async fn new_file_mode_follows_the_umask(subject: &Subject) {
    let scratch = ScratchDir::new();
    let model = scratch.file("model", "");
    for (name, atomic) in ways(subject).await {
        let path = scratch.path(name);
        let request = WriteFile {
            atomic,
            ..write(&path)
        };
        done(put(subject, request, "x")).await;
        assert_eq!(mode(&path), mode(&model), "{name}");
    }
}

pub async fn requested_mode_ignores_the_umask(subject: &Subject) {
    if assert_unsupported(subject).await {
        return;
    }
    let scratch = ScratchDir::new();
    for (name, atomic) in ways(subject).await {
        let path = scratch.path(name);
        for bits in [0o777, 0o600] {
            let request = WriteFile {
                atomic,
                mode: Some(bits),
                ..write(&path)
            };
            done(put(subject, request, "x")).await;
            assert_eq!(mode(&path), bits, "{name}");
        }
    }
}

pub async fn rewriting_a_file_keeps_its_mode(subject: &Subject) {
    let scratch = ScratchDir::new();
    for (name, atomic) in ways(subject).await {
        let path = scratch.file(name, "old");
        set_mode(&path, 0o751);
        let request = WriteFile {
            atomic,
            ..write(&path)
        };
        done(put(subject, request, "new")).await;
        assert_eq!(
            (mode(&path), text(&path).as_str()),
            (0o751, "new"),
            "{name}"
        );
    }
}

pub async fn atomic_write_keeps_old_content_for_open_handles(subject: &Subject) {
    if assert_unsupported(subject).await {
        return;
    }
    let scratch = ScratchDir::new();
    let file = scratch.file("file", "old");
    let other = scratch.path("other");
    fs::hard_link(&file, &other).unwrap();
    done(put(subject, atomic(&file), "new")).await;
    assert_eq!((text(&file), text(&other)), ("new".into(), "old".into()));
    done(put(subject, write(&file), "newer")).await;
    assert_eq!((text(&file), text(&other)), ("newer".into(), "old".into()));
    assert_eq!(names(scratch.root()), ["file", "other"]);
}

pub async fn atomic_write_follows_a_symlink(subject: &Subject) {
    if assert_unsupported(subject).await {
        return;
    }
    let scratch = ScratchDir::new();
    let file = scratch.file("directory/file", "old");
    let link = scratch.link("link", "directory/file");
    done(put(subject, atomic(&link), "new")).await;
    assert!(link.is_symlink());
    assert_eq!(text(&file), "new");
    assert_eq!(names(&scratch.path("directory")), ["file"]);
}

pub async fn failed_atomic_write_changes_nothing(subject: &Subject) {
    if assert_unsupported(subject).await {
        return;
    }
    let scratch = ScratchDir::new();
    let file = scratch.file("directory/file", "old");
    set_mode(&file, 0o640);
    let link = scratch.link("link", "directory/file");
    let request = WriteFile {
        follow_symlinks: Some(false),
        ..atomic(&link)
    };
    host_fails(put(subject, request, "new")).await;
    assert_eq!((text(&file).as_str(), mode(&file)), ("old", 0o640));
    // Root may write it.
    let directory = scratch.path("directory");
    set_mode(&directory, 0o555);
    let allowed = fs::write(directory.join("probe"), "").is_ok();
    let written = within("response arrives", put(subject, atomic(&file), "new")).await;
    set_mode(&directory, 0o755);
    match written {
        Ok(()) if allowed => assert_eq!(text(&file), "new"),
        Err(FileError::Invalid(_)) if !allowed => assert_eq!(text(&file), "old"),
        other => panic!("expected what the host lets its user do: {other:?}"),
    }
    assert_eq!(mode(&file), 0o640);
    let mut left = names(&directory);
    left.retain(|name| name != "probe");
    assert_eq!(left, ["file"]);
}

pub async fn atomic_write_shows_readers_old_or_new_content(subject: &Subject) {
    if assert_unsupported(subject).await {
        return;
    }
    let scratch = ScratchDir::new();
    let path = scratch.file("file", "a".repeat(100_000));
    let contents = ["b", "a"].map(|letter| Bytes::from(letter.repeat(100_000)));
    let reader = std::thread::spawn({
        let path: PathBuf = path.clone();
        move || {
            for _ in 0..200 {
                let content = fs::read(&path).unwrap();
                assert_eq!(content.len(), 100_000);
                assert!(content.iter().all(|byte| *byte == content[0]));
            }
        }
    });
    for content in contents.iter().cycle().take(40) {
        done(subject.files.write_file(atomic(&path), content.clone())).await;
    }
    reader.join().unwrap();
}

pub async fn write_ignores_the_data_field_of_the_request(subject: &Subject) {
    let scratch = ScratchDir::new();
    let path = scratch.path("file");
    let request = WriteFile {
        data_base64: Some(UncheckedBase64(Ok(Bytes::from_static(b"another")))),
        ..write(&path)
    };
    done(put(subject, request, "content")).await;
    assert_eq!(text(&path), "content");
}
