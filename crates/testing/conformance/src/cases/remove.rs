//! `fs/remove` of files, symlinks and trees.

use std::{fs, path::PathBuf};

use exec_wire::fs::RemovePath;

use crate::{
    bounded_wait::{done, host_fails, not_found},
    request::remove,
    scratch_dir::{ScratchDir, names},
    subject::Subject,
};

pub async fn remove_works_for_every_file_type(subject: &Subject) {
    let scratch = ScratchDir::new();
    scratch.file("tree/a/b/file", "");
    scratch.fifo("tree/pipe");
    scratch.link("tree/dangling", "none");
    scratch.directory("tree/empty");
    let paths = [
        scratch.file("file", ""),
        scratch.directory("empty"),
        scratch.fifo("pipe"),
        scratch.path("tree"),
    ];
    for path in paths {
        done(subject.files.remove(remove(&path))).await;
        assert!(!path.exists(), "{path:?}");
    }
    assert!(names(scratch.root()).is_empty());
}

pub async fn remove_does_not_touch_a_symlink_target(subject: &Subject) {
    let scratch = ScratchDir::new();
    scratch.file("kept/file", "content");
    scratch.directory("tree");
    let links = [
        scratch.link("to a file", "kept/file"),
        scratch.link("to a directory", "kept"),
        scratch.link("dangling", "none"),
    ];
    for link in links {
        done(subject.files.remove(remove(&link))).await;
        assert!(!link.is_symlink(), "{link:?}");
    }
    scratch.link("tree/way", scratch.path("kept"));
    scratch.link("tree/up", "..");
    done(subject.files.remove(remove(&scratch.path("tree")))).await;
    assert_eq!(names(scratch.root()), ["kept"]);
    let content = fs::read_to_string(scratch.path("kept/file"));
    assert_eq!(content.unwrap(), "content");
}

pub async fn removing_a_missing_path_succeeds_unless_force_is_false(subject: &Subject) {
    let scratch = ScratchDir::new();
    for path in [scratch.path("none"), scratch.path("no/such")] {
        for recursive in [None, Some(false)] {
            let request = RemovePath {
                recursive,
                ..remove(&path)
            };
            done(subject.files.remove(request.clone())).await;
            let request = RemovePath {
                force: Some(false),
                ..request
            };
            let text = not_found(subject.files.remove(request)).await;
            subject.assert_names(&text, path.to_str().unwrap());
        }
    }
    let below = scratch.file("file", "").join("below");
    host_fails(subject.files.remove(remove(&below))).await;
}

pub async fn non_recursive_remove_needs_an_empty_directory(subject: &Subject) {
    let scratch = ScratchDir::new();
    let alone = |path: &PathBuf| RemovePath {
        recursive: Some(false),
        ..remove(path)
    };
    let file = scratch.file("directory/file", "");
    let directory = scratch.path("directory");
    host_fails(subject.files.remove(alone(&directory))).await;
    assert!(file.exists());
    done(subject.files.remove(alone(&file))).await;
    done(subject.files.remove(alone(&directory))).await;
    assert!(names(scratch.root()).is_empty());
}

pub async fn deep_tree_is_removed(subject: &Subject) {
    let scratch = ScratchDir::new();
    let mut path = scratch.path("tree");
    path.extend(std::iter::repeat_n("deeper", 500));
    fs::create_dir_all(path).unwrap();
    done(subject.files.remove(remove(&scratch.path("tree")))).await;
    assert!(names(scratch.root()).is_empty());
}
