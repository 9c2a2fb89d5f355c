//! What is listed, found and searched, and what is said of the rest.

use std::{os::unix::fs::symlink, time::Duration};

use serde_json::json;
use tokio::time::timeout;

use super::stage::Stage;

#[tokio::test]
async fn a_search_that_gave_up_does_not_say_that_there_is_nothing() {
    let stage = Stage::new();
    stage.put("wide.json", "x".repeat(9 << 20));
    let told = stage
        .told("search_files", json!({"pattern": "needle"}))
        .await;
    assert!(told.contains("not everything could be searched"), "{told}");
}

#[tokio::test]
async fn a_binary_file_that_was_named_is_said_to_be_binary() {
    let stage = Stage::new();
    stage.put("b", b"a\0needle\n");
    stage.put("t", b"hay\n");
    let search = json!({"pattern": "needle", "path": "b"});
    let told = stage.told("search_files", search).await;
    assert!(told.contains("`b` is a binary file"), "{told}");
    let search = json!({"pattern": "needle", "path": "t"});
    assert_eq!(
        stage.told("search_files", search).await,
        "Nothing was found."
    );
}

#[tokio::test(start_paused = true)]
async fn a_watch_does_not_outlast_the_patience_of_its_client() {
    let stage = Stage::new();
    let watch = stage.told("watch_files", json!({"timeout_ms": 120_000}));
    let told = timeout(Duration::from_secs(60), watch).await.unwrap();
    assert_eq!(told, "Nothing has changed for 50.0 seconds.");
}

#[tokio::test]
async fn links_are_listed_and_names_begin_where_the_listing_does() {
    let stage = Stage::new();
    stage.put("top/dir/file", "");
    stage.put("top/plain", "");
    let at = |name: &str| stage.directory.path().join(name);
    symlink("plain", at("top/link")).unwrap();
    symlink("dir", at("top/ways")).unwrap();
    symlink("../plain", at("top/dir/back")).unwrap();
    assert_eq!(
        stage.told("list_directory", json!({"path": "top"})).await,
        "dir/\nlink@\nplain\nways@/"
    );
    assert_eq!(
        stage
            .told("list_directory", json!({"path": "top", "depth": 3}))
            .await,
        "dir/\ndir/back@\ndir/file\nlink@\nplain\nways@/"
    );
}
