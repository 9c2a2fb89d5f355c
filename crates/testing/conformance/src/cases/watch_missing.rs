//! Watches on missing paths.

use std::{fs, path::Path};

use exec_env::filesystem::MissingPathsWatch;
use exec_wire::limits;

use crate::{
    bounded_wait::done, bounded_wait::within, request::missing, scratch_dir::ScratchDir,
    subject::Subject,
};

async fn watched(subject: &Subject, paths: &[&Path], present: Option<&Path>) -> MissingPathsWatch {
    let watch = done(subject.files.watch_missing(missing(paths, present))).await;
    watch.expect("paths are not in the stated condition")
}

async fn refused(subject: &Subject, paths: &[&Path], present: Option<&Path>) {
    let watch = done(subject.files.watch_missing(missing(paths, present))).await;
    assert!(watch.is_none(), "{paths:?}, {present:?}");
}

async fn fires(watch: MissingPathsWatch) {
    within("missing-path watch fires", watch).await;
}

pub async fn missing_watch_fires_when_the_path_appears(subject: &Subject) {
    let scratch = ScratchDir::new();
    let (one, two) = (scratch.path("one"), scratch.path("two"));
    let watch = watched(subject, &[&one, &two], None).await;
    fs::write(&two, "").unwrap();
    fires(watch).await;
    let watch = watched(subject, &[&one], None).await;
    fs::create_dir(&one).unwrap();
    fires(watch).await;
}

pub async fn missing_watch_fires_on_a_rename_into_place(subject: &Subject) {
    let scratch = ScratchDir::new();
    let other = scratch.file("elsewhere/file", "");
    let path = scratch.path("file");
    let watch = watched(subject, &[&path], None).await;
    fs::rename(other, path).unwrap();
    fires(watch).await;
}

pub async fn missing_watch_fires_when_an_ancestor_appears(subject: &Subject) {
    let scratch = ScratchDir::new();
    let path = scratch.path("a/b/c/file");
    let watch = watched(subject, &[&path], None).await;
    fs::create_dir(scratch.path("a")).unwrap();
    fires(watch).await;
    let watch = watched(subject, &[&path], None).await;
    fs::create_dir_all(scratch.path("a/b/c")).unwrap();
    fires(watch).await;
    let watch = watched(subject, &[&path], None).await;
    fs::write(&path, "").unwrap();
    fires(watch).await;
}

pub async fn missing_watch_fires_for_a_change_before_waiting(subject: &Subject) {
    let scratch = ScratchDir::new();
    let path = scratch.path("file");
    for _ in 0..20 {
        let watch = watched(subject, &[&path], None).await;
        fs::write(&path, "").unwrap();
        fs::remove_file(&path).unwrap();
        fires(watch).await;
    }
}

pub async fn missing_watch_fires_when_a_present_path_is_removed(subject: &Subject) {
    let scratch = ScratchDir::new();
    let missing = scratch.path("missing");
    let present = scratch.file("present", "");
    let watch = watched(subject, &[&missing], Some(&present)).await;
    fs::remove_file(&present).unwrap();
    fires(watch).await;
    let present = scratch.directory("directory");
    let watch = watched(subject, &[&missing], Some(&present)).await;
    fs::rename(&present, scratch.path("renamed")).unwrap();
    fires(watch).await;
}

pub async fn missing_watch_refuses_paths_in_another_state(subject: &Subject) {
    let scratch = ScratchDir::new();
    let (file, none) = (scratch.file("file", ""), scratch.path("none"));
    refused(subject, &[&file], None).await;
    refused(subject, &[&none, &file], None).await;
    refused(subject, &[&none, scratch.root()], None).await;
    refused(subject, &[&none], Some(&scratch.path("other"))).await;
    refused(subject, &[], None).await;
    refused(subject, &[], Some(&file)).await;
    let many: Vec<_> = (0..=limits::MAX_MISSING_PATHS)
        .map(|number| scratch.path(format!("missing {number}")))
        .collect();
    let mut many: Vec<&Path> = many.iter().map(|path| path.as_path()).collect();
    refused(subject, &many, None).await;
    let last = many.pop().unwrap();
    let watch = watched(subject, &many, Some(&file)).await;
    fs::write(last, "").unwrap();
    fs::write(many[many.len() - 1], "").unwrap();
    fires(watch).await;
}

pub async fn replaced_missing_watch_does_not_wait_forever(subject: &Subject) {
    let scratch = ScratchDir::new();
    let (one, two) = (scratch.path("one"), scratch.path("two"));
    let first = watched(subject, &[&one], None).await;
    let second = watched(subject, &[&two], None).await;
    fs::write(one, "").unwrap();
    fires(first).await;
    fs::write(two, "").unwrap();
    fires(second).await;
}

pub async fn dropped_missing_watch_frees_its_slot(subject: &Subject) {
    let scratch = ScratchDir::new();
    let path = scratch.path("file");
    for _ in 0..100 {
        drop(watched(subject, &[&path], None).await);
    }
    let watch = watched(subject, &[&path], None).await;
    fs::write(path, "").unwrap();
    fires(watch).await;
}
