//! Files, links and trees, removed.

use std::{fs, path::PathBuf};

use exec_wire::fs::Remove;

use crate::{
    bounded_wait::{done, host_fails, not_found},
    request::remove,
    scratch_dir::{Scratch, names},
    subject::Subject,
};

pub async fn whatever_is_there_is_removed(subject: &Subject) {
    let scratch = Scratch::new();
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

pub async fn a_links_target_is_not_touched(subject: &Subject) {
    let scratch = Scratch::new();
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

pub async fn what_is_missing_is_removed_unless_it_must_be_there(subject: &Subject) {
    let scratch = Scratch::new();
    for path in [scratch.path("none"), scratch.path("no/such")] {
        for recursive in [None, Some(false)] {
            let request = Remove {
                recursive,
                ..remove(&path)
            };
            done(subject.files.remove(request.clone())).await;
            let request = Remove {
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

pub async fn only_an_empty_directory_is_removed_alone(subject: &Subject) {
    let scratch = Scratch::new();
    let alone = |path: &PathBuf| Remove {
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

pub async fn a_deep_tree_is_removed(subject: &Subject) {
    let scratch = Scratch::new();
    let mut path = scratch.path("tree");
    path.extend(std::iter::repeat_n("deeper", 500));
    fs::create_dir_all(path).unwrap();
    done(subject.files.remove(remove(&scratch.path("tree")))).await;
    assert!(names(scratch.root()).is_empty());
}
