//! What may be watched, and how a watch ends.

use super::*;

fn file_root() -> Watched {
    let mut watched = Watched::tree();
    fs::write(watched.path("file"), "1").unwrap();
    watched.watcher = start(&watched.path("file"), WatchDepth::Tree).unwrap();
    watched
}

async fn next(watched: &mut Watched) -> BTreeMap<String, ChangeKind> {
    let batch = watched.batch().await.unwrap();
    assert!(!batch.overflow);
    watched.by_name(batch)
}

#[tokio::test]
async fn a_file_is_told_alone() {
    let mut watched = file_root();
    fs::write(watched.path("other"), "1").unwrap();
    fs::write(watched.path("file"), "2").unwrap();
    assert_eq!(next(&mut watched).await, expected([("file", Modified)]));
}

#[tokio::test]
async fn a_file_that_is_replaced_stays_watched() {
    let mut watched = file_root();
    for text in ["2", "3"] {
        fs::write(watched.path("file.tmp"), text).unwrap();
        fs::rename(watched.path("file.tmp"), watched.path("file")).unwrap();
        assert_eq!(next(&mut watched).await, expected([("file", Modified)]));
    }
}

#[tokio::test]
async fn a_file_that_comes_back_is_told() {
    let mut watched = file_root();
    fs::remove_file(watched.path("file")).unwrap();
    assert_eq!(next(&mut watched).await, expected([("file", Removed)]));
    fs::write(watched.path("file"), "2").unwrap();
    assert_eq!(next(&mut watched).await, expected([("file", Created)]));
}

#[tokio::test]
async fn a_link_is_followed_to_the_root() {
    let mut watched = Watched::tree();
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
async fn a_missing_path_is_refused() {
    let watched = Watched::tree();
    let refused = start(&watched.path("missing"), WatchDepth::Tree);
    assert!(matches!(refused, Err(FileError::NotFound(_))));
}

/// Asserts that the last that is told is that the root is gone.
async fn assert_ends(mut watched: Watched) {
    let mut last = BTreeMap::new();
    while let Some(batch) = watched.batch().await {
        last = watched.by_name(batch);
    }
    assert_eq!(last.get(""), Some(&Removed));
}

#[tokio::test]
async fn the_changes_end_when_the_root_is_removed() {
    let watched = Watched::tree();
    fs::write(watched.path("file"), "1").unwrap();
    fs::remove_dir_all(&watched.root).unwrap();
    assert_ends(watched).await;
}

#[tokio::test]
async fn the_changes_end_when_a_root_in_use_is_removed() {
    let watched = Watched::tree();
    let in_use = fs::File::open(&watched.root).unwrap();
    fs::remove_dir(&watched.root).unwrap();
    assert_ends(watched).await;
    drop(in_use);
}

#[tokio::test]
async fn the_changes_end_when_the_root_is_moved_away() {
    let watched = Watched::tree();
    fs::rename(&watched.root, watched.outside.join("root")).unwrap();
    assert_ends(watched).await;
}

#[tokio::test]
async fn the_changes_end_when_a_directory_above_is_moved_away() {
    let mut watched = Watched::tree();
    let root = watched.path("above/root");
    fs::create_dir_all(&root).unwrap();
    watched.watcher = start(&root, WatchDepth::Tree).unwrap();
    fs::rename(watched.path("above"), watched.path("elsewhere")).unwrap();
    watched.root = root;
    assert_ends(watched).await;
}

#[tokio::test]
async fn the_changes_of_a_file_end_with_its_directory() {
    let watched = file_root();
    fs::rename(&watched.root, watched.outside.join("root")).unwrap();
    let mut watched = watched;
    assert_eq!(next(&mut watched).await, expected([("file", Removed)]));
    assert_eq!(watched.batch().await, None);
}
