//! Which paths can be watched, how a watch ends, and directories that are moved.

use rustix::fs::{CWD, RenameFlags, renameat_with};

use super::*;

fn file_root() -> WatchedTree {
    let mut watched = WatchedTree::tree();
    fs::write(watched.path("file"), "1").unwrap();
    watched.watcher = start(&watched.path("file"), WatchDepth::Tree).unwrap();
    watched
}

async fn next(watched: &mut WatchedTree) -> BTreeMap<String, PathChangeKind> {
    let batch = watched.batch().await.unwrap();
    assert!(!batch.overflow);
    watched.by_name(batch)
}

#[tokio::test]
async fn file_watch_reports_only_that_file() {
    let mut watched = file_root();
    fs::write(watched.path("other"), "1").unwrap();
    fs::write(watched.path("file"), "2").unwrap();
    assert_eq!(next(&mut watched).await, expected([("file", Modified)]));
}

#[tokio::test]
async fn replaced_file_stays_watched() {
    let mut watched = file_root();
    for text in ["2", "3"] {
        fs::write(watched.path("file.tmp"), text).unwrap();
        fs::rename(watched.path("file.tmp"), watched.path("file")).unwrap();
        assert_eq!(next(&mut watched).await, expected([("file", Modified)]));
    }
}

#[tokio::test]
async fn reappearing_file_is_reported() {
    let mut watched = file_root();
    fs::remove_file(watched.path("file")).unwrap();
    assert_eq!(next(&mut watched).await, expected([("file", Removed)]));
    fs::write(watched.path("file"), "2").unwrap();
    assert_eq!(next(&mut watched).await, expected([("file", Created)]));
}

#[tokio::test]
async fn link_to_the_root_is_followed() {
    let mut watched = WatchedTree::tree();
    let link = watched.outside.join("link");
    symlink(&watched.root, &link).unwrap();
    watched.watcher = start(&link, WatchDepth::Tree).unwrap();
    assert_eq!(
        watched.watcher.path,
        PathUri::from_native(&watched.root).unwrap()
    );
    fs::write(watched.path("file"), "1").unwrap();
    assert_eq!(next(&mut watched).await, expected([("file", Created)]));
}

#[tokio::test]
async fn missing_path_cannot_be_watched() {
    let watched = WatchedTree::tree();
    let refused = start(&watched.path("missing"), WatchDepth::Tree);
    assert!(matches!(refused, Err(FileError::NotFound(_))));
}

/// Asserts that the removal of the root is reported last.
async fn assert_ends(mut watched: WatchedTree) {
    let mut last = BTreeMap::new();
    while let Some(batch) = watched.batch().await {
        last = watched.by_name(batch);
    }
    assert_eq!(last.get(""), Some(&Removed));
}

#[tokio::test]
async fn stream_ends_when_the_root_is_removed() {
    let watched = WatchedTree::tree();
    fs::write(watched.path("file"), "1").unwrap();
    fs::remove_dir_all(&watched.root).unwrap();
    assert_ends(watched).await;
}

#[tokio::test]
async fn stream_ends_when_an_open_root_is_removed() {
    let watched = WatchedTree::tree();
    let in_use = fs::File::open(&watched.root).unwrap();
    fs::remove_dir(&watched.root).unwrap();
    assert_ends(watched).await;
    drop(in_use);
}

#[tokio::test]
async fn stream_ends_when_the_root_is_moved() {
    let watched = WatchedTree::tree();
    fs::rename(&watched.root, watched.outside.join("root")).unwrap();
    assert_ends(watched).await;
}

#[tokio::test]
async fn stream_ends_when_an_ancestor_is_moved() {
    let mut watched = WatchedTree::tree();
    let root = watched.path("above/root");
    fs::create_dir_all(&root).unwrap();
    watched.watcher = start(&root, WatchDepth::Tree).unwrap();
    fs::rename(watched.path("above"), watched.path("elsewhere")).unwrap();
    watched.root = root;
    assert_ends(watched).await;
}

#[tokio::test]
async fn stream_of_a_file_ends_with_its_directory() {
    let watched = file_root();
    fs::rename(&watched.root, watched.outside.join("root")).unwrap();
    let mut watched = watched;
    assert_eq!(next(&mut watched).await, expected([("file", Removed)]));
    assert_eq!(watched.batch().await, None);
}

fn exchange(one: &Path, other: &Path) {
    renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE).unwrap();
}

#[tokio::test]
async fn renamed_directory_stays_watched() {
    let mut watched = WatchedTree::with(WatchDepth::Tree, |root| {
        fs::create_dir_all(root.join("a/b")).unwrap();
    });
    fs::rename(watched.path("a"), watched.path("z")).unwrap();
    assert_eq!(
        watched.changes().await,
        expected([("a", Renamed), ("z", Renamed)])
    );
    fs::write(watched.path("z/b/file"), "1").unwrap();
    let reported = watched.changes_until("z/b/file").await;
    assert_eq!(reported, expected([("z/b/file", Created)]));
}

#[tokio::test]
async fn directory_moved_in_is_reported_with_its_contents() {
    let mut watched = WatchedTree::tree();
    fs::create_dir_all(watched.outside.join("a/b")).unwrap();
    fs::write(watched.outside.join("a/b/file"), "1").unwrap();
    fs::rename(watched.outside.join("a"), watched.path("a")).unwrap();
    let came = [("a", Created), ("a/b", Created), ("a/b/file", Created)];
    assert_eq!(watched.changes().await, expected(came));
    fs::write(watched.path("a/b/more"), "1").unwrap();
    assert_eq!(watched.changes_until("a/b/more").await["a/b/more"], Created);
}

#[tokio::test]
async fn directory_moved_out_is_no_longer_watched() {
    let mut watched = WatchedTree::with(WatchDepth::Tree, |root| {
        fs::create_dir_all(root.join("a/b")).unwrap();
    });
    fs::rename(watched.path("a"), watched.outside.join("a")).unwrap();
    assert_eq!(watched.changes().await, expected([("a", Removed)]));
    fs::write(watched.outside.join("a/b/file"), "1").unwrap();
    fs::create_dir(watched.path("a")).unwrap();
    assert_eq!(watched.changes_until("a").await, expected([("a", Created)]));
}

#[tokio::test]
async fn repeatedly_renamed_directory_stays_watched() {
    let mut watched = WatchedTree::tree();
    fs::create_dir(watched.path("0")).unwrap();
    for number in 0..50 {
        fs::create_dir(watched.path(&format!("{number}/{number}"))).unwrap();
        let next = watched.path(&format!("{}", number + 1));
        fs::rename(watched.path(&format!("{number}")), next).unwrap();
    }
    watched.changes_until("50").await;
    for number in 0..50 {
        let name = format!("50/{number}/file");
        fs::write(watched.path(&name), "1").unwrap();
        watched.changes_until(&name).await;
    }
}

#[tokio::test]
async fn exchanged_directories_are_distinguished() {
    let mut watched = WatchedTree::with(WatchDepth::Tree, |root| {
        fs::create_dir_all(root.join("a/in_a")).unwrap();
        fs::create_dir_all(root.join("b/in_b")).unwrap();
    });
    exchange(&watched.path("a"), &watched.path("b"));
    assert_eq!(
        watched.changes().await,
        expected([("a", Renamed), ("b", Renamed)])
    );
    fs::write(watched.path("b/in_a/file"), "1").unwrap();
    fs::write(watched.path("a/in_b/file"), "1").unwrap();
    let reported = [("a/in_b/file", Created), ("b/in_a/file", Created)];
    assert_eq!(watched.changes().await, expected(reported));
}

#[tokio::test]
async fn entry_exchanged_with_an_outside_one_exists() {
    let mut watched = WatchedTree::with(WatchDepth::Tree, |root| {
        fs::create_dir(root.join("directory")).unwrap();
        fs::write(root.join("file"), "1").unwrap();
    });
    fs::create_dir(watched.outside.join("directory")).unwrap();
    fs::write(watched.outside.join("directory/below"), "2").unwrap();
    fs::write(watched.outside.join("file"), "2").unwrap();
    for name in ["directory", "file"] {
        exchange(&watched.path(name), &watched.outside.join(name));
    }
    let reported = [
        ("directory", Renamed),
        ("directory/below", Created),
        ("file", Renamed),
    ];
    assert_eq!(watched.changes().await, expected(reported));
}
