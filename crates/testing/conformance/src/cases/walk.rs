//! `fs/walk`: trees in breadth-first order.

use std::{ffi::OsStr, fs, os::unix::ffi::OsStrExt, path::Path};

use exec_wire::{
    fs::{EntryKind, WalkOptions, WalkResult},
    limits,
};

use crate::{
    bounded_wait::{done, invalid, not_found},
    difference::Difference,
    request::{UNLIMITED_WALK, read, walk},
    scratch_dir::{ScratchDir, set_mode},
    subject::{Subject, uri},
};

async fn walked(subject: &Subject, path: &Path, options: WalkOptions) -> WalkResult {
    done(subject.files.walk(walk(path, options))).await
}

/// Returns the entry names relative to `root`; directory names end in a slash.
fn below(root: &Path, walked: &WalkResult) -> Vec<String> {
    let entry = |entry: &exec_wire::fs::WalkEntry| {
        let path = entry.path.to_native().unwrap();
        let name = path.strip_prefix(root).unwrap().to_str().unwrap();
        match entry.kind {
            EntryKind::File => name.to_owned(),
            EntryKind::Directory => format!("{name}/"),
        }
    };
    walked.entries.iter().map(entry).collect()
}

fn tree() -> ScratchDir {
    let scratch = ScratchDir::new();
    for name in ["b/2", "b/10", "b/c/d/e", "a/x", "Z", "z", ".h/i"] {
        scratch.file(name, "");
    }
    scratch
}

pub async fn walk_is_breadth_first_and_sorted_by_name(subject: &Subject) {
    let scratch = tree();
    let found = walked(subject, scratch.root(), UNLIMITED_WALK).await;
    let expected = [
        ".h/", "Z", "a/", "b/", "z", ".h/i", "a/x", "b/10", "b/2", "b/c/", "b/c/d/", "b/c/d/e",
    ];
    assert_eq!(below(scratch.root(), &found), expected);
    assert_eq!((found.errors.len(), found.truncated), (0, false));
    let empty = scratch.directory("empty");
    assert_eq!(
        walked(subject, &empty, UNLIMITED_WALK).await,
        WalkResult::default()
    );
}

pub async fn walk_respects_the_depth_limit(subject: &Subject) {
    let scratch = tree();
    let top = [".h/", "Z", "a/", "b/", "z"];
    let second = [".h/i", "a/x", "b/10", "b/2", "b/c/"];
    for (max_depth, expected) in [(0, top.to_vec()), (1, [top, second].concat())] {
        let options = WalkOptions {
            max_depth,
            ..UNLIMITED_WALK
        };
        let found = walked(subject, scratch.root(), options).await;
        assert_eq!(below(scratch.root(), &found), expected);
        assert!(!found.truncated);
    }
}

pub async fn walk_respects_the_entry_limit(subject: &Subject) {
    let scratch = tree();
    let options = WalkOptions {
        max_entries: 7,
        ..UNLIMITED_WALK
    };
    let found = walked(subject, scratch.root(), options).await;
    let expected = [".h/", "Z", "a/", "b/", "z", ".h/i", "a/x"];
    assert_eq!(below(scratch.root(), &found), expected);
    assert!(found.truncated);
}

pub async fn walk_respects_the_directory_limit(subject: &Subject) {
    let scratch = tree();
    let options = WalkOptions {
        max_directories: 2,
        ..UNLIMITED_WALK
    };
    let found = walked(subject, scratch.root(), options).await;
    let expected = [".h/", "Z", "a/", "b/", "z", ".h/i"];
    assert_eq!(below(scratch.root(), &found), expected);
    assert!(found.truncated);
}

pub async fn invalid_walk_limits_are_refused(subject: &Subject) {
    let scratch = tree();
    let wrong = [
        WalkOptions {
            max_directories: 0,
            ..UNLIMITED_WALK
        },
        WalkOptions {
            max_entries: 0,
            ..UNLIMITED_WALK
        },
        WalkOptions {
            max_depth: limits::MAX_WALK_DEPTH + 1,
            ..UNLIMITED_WALK
        },
        WalkOptions {
            max_directories: limits::MAX_WALK_DIRECTORIES + 1,
            ..UNLIMITED_WALK
        },
        WalkOptions {
            max_entries: limits::MAX_WALK_ENTRIES + 1,
            ..UNLIMITED_WALK
        },
    ];
    for options in wrong {
        invalid(subject.files.walk(walk(scratch.root(), options))).await;
    }
}

pub async fn walk_can_skip_the_content_of_hidden_directories(subject: &Subject) {
    let scratch = tree();
    let options = WalkOptions {
        prune_hidden_directories: true,
        max_depth: 1,
        ..UNLIMITED_WALK
    };
    let found = walked(subject, scratch.root(), options).await;
    let expected = [".h/", "Z", "a/", "b/", "z", "a/x", "b/10", "b/2", "b/c/"];
    assert_eq!(below(scratch.root(), &found), expected);
    assert!(!found.truncated);
}

pub async fn walk_root_must_be_a_directory(subject: &Subject) {
    let scratch = tree();
    let path = scratch.path("none");
    let text = not_found(subject.files.walk(walk(&path, UNLIMITED_WALK))).await;
    subject.assert_names(&text, path.to_str().unwrap());
    let empty = WalkResult::default();
    assert_eq!(
        walked(subject, &scratch.path("z"), UNLIMITED_WALK).await,
        empty
    );
    let pipe = scratch.fifo("pipe");
    assert_eq!(walked(subject, &pipe, UNLIMITED_WALK).await, empty);
    let link = scratch.link("link", "a");
    assert_eq!(walked(subject, &link, UNLIMITED_WALK).await, empty);
    let follow = WalkOptions {
        follow_directory_symlinks: true,
        ..UNLIMITED_WALK
    };
    let found = walked(subject, &link, follow).await;
    assert_eq!(below(&link, &found), ["x"]);
}

pub async fn walk_skips_symlinks_and_fifos(subject: &Subject) {
    let scratch = ScratchDir::new();
    scratch.file("directory/file", "");
    scratch.link("dangling", "none");
    scratch.link("file", "directory/file");
    scratch.link("way", "directory");
    scratch.fifo("pipe");
    let found = walked(subject, scratch.root(), UNLIMITED_WALK).await;
    let expected = ["directory/", "directory/file"];
    assert_eq!(below(scratch.root(), &found), expected);
    assert_eq!((found.errors.len(), found.truncated), (0, false));
}

pub async fn walk_can_follow_directory_symlinks_once(subject: &Subject) {
    let scratch = ScratchDir::new();
    scratch.file("real/file", "");
    scratch.link("again", "real");
    scratch.link("dangling", "none");
    scratch.link("file", "real/file");
    scratch.link("turn", ".");
    scratch.link("real/up", "..");
    let follow = WalkOptions {
        follow_directory_symlinks: true,
        ..UNLIMITED_WALK
    };
    let found = walked(subject, scratch.root(), follow).await;
    let names = below(scratch.root(), &found);
    let (top, deeper) = names.split_at(3);
    assert_eq!(top, ["again/", "real/", "turn/"]);
    let through = if deeper[0].starts_with("again") {
        ["again/file", "again/up/"]
    } else {
        ["real/file", "real/up/"]
    };
    assert_eq!(deeper, through);
    assert!(!found.truncated);
}

pub async fn walk_reports_unreadable_directories_and_continues(subject: &Subject) {
    let scratch = tree();
    let closed = scratch.path("a");
    set_mode(&closed, 0o000);
    // Root can read it.
    let readable = fs::read_dir(&closed).is_ok();
    let found = walked(subject, scratch.root(), UNLIMITED_WALK).await;
    set_mode(&closed, 0o755);
    let names = below(scratch.root(), &found);
    assert_eq!(names.contains(&"a/x".to_owned()), readable);
    assert!(names.contains(&"b/c/d/e".to_owned()));
    let failed: Vec<_> = found.errors.into_iter().map(|error| error.path).collect();
    let expected = if readable { vec![] } else { vec![uri(&closed)] };
    assert_eq!(failed, expected);
}

pub async fn walk_returns_usable_paths_for_non_utf8_names(subject: &Subject) {
    let scratch = ScratchDir::new();
    let path = scratch.file(OsStr::from_bytes(b"a \xff?%41/\xfe#"), "content");
    let found = walked(subject, scratch.root(), UNLIMITED_WALK).await;
    if subject.differs(Difference::WalksKnowOnlyText) {
        return assert_eq!(found.entries, []);
    }
    assert_eq!(found.entries[1].path, uri(&path));
    let file = read(&found.entries[1].path);
    assert_eq!(done(subject.files.read_file(file)).await, "content");
}

pub async fn walk_response_size_is_bounded(subject: &Subject) {
    let scratch = ScratchDir::new();
    scratch.hard_linked_files((0..16_000).map(|number| format!("{number:0240}")));
    let found = walked(subject, scratch.root(), UNLIMITED_WALK).await;
    assert!(found.truncated);
    let size =
        |entry: &exec_wire::fs::WalkEntry| entry.path.as_str().len() + limits::WALK_ITEM_BYTES;
    let size: usize = found.entries.iter().map(size).sum();
    assert!(size <= limits::MAX_WALK_BYTES, "{size}");
    // Everything that fits is returned.
    assert!(size > limits::MAX_WALK_BYTES - 1024, "{size}");
}
