//! Paths and globs, as agents write them.

use serde_json::json;

use super::stage::Stage;

#[tokio::test]
async fn a_path_may_be_a_uri_and_is_never_taken_for_a_name() {
    let stage = Stage::new();
    stage.put("a b.txt", "here\n");
    let root = stage.directory.path().display().to_string();
    let uri = format!("file://{root}/a%20b.txt");
    assert_eq!(
        stage.told("read_file", json!({"path": uri})).await,
        "here\n"
    );
    let refused = stage.refused("write_file", json!({"path": "file://", "content": ""}));
    assert!(refused.await.contains("file://"));
    let refused = stage.refused("write_file", json!({"path": "https://x/y", "content": ""}));
    assert!(refused.await.contains("not a path"));
    assert!(stage.text("https:/x/y").is_none());
}

#[tokio::test]
async fn the_home_directory_is_told_or_refused() {
    let stage = Stage::new();
    let refused = stage.refused("write_file", json!({"path": "~/x", "content": ""}));
    let refused = refused.await;
    assert!(refused.contains("home directory is not known"), "{refused}");
    let refused = stage.refused("write_file", json!({"path": "~other/x", "content": ""}));
    let refused = refused.await;
    assert!(refused.contains("`~other`"), "{refused}");
    assert!(!stage.directory.path().join("~").exists());
    stage.put("~kept", "x\n");
    assert_eq!(
        stage.told("read_file", json!({"path": "./~kept"})).await,
        "x\n"
    );
}

#[tokio::test]
async fn a_directory_is_not_written_as_a_file() {
    let stage = Stage::new();
    for path in ["new/", "new/.", "new/.."] {
        let refused = stage.refused("write_file", json!({"path": path, "content": ""}));
        let refused = refused.await;
        assert!(refused.contains("names a directory"), "{refused}");
    }
    let patch = "*** Begin Patch\n*** Add File: new/\n+x\n*** End Patch\n";
    let refused = stage.refused("apply_patch", json!({"patch": patch})).await;
    assert!(refused.contains("names a directory"), "{refused}");
    assert!(!stage.directory.path().join("new").exists());
}

#[tokio::test]
async fn globs_are_understood_as_they_are_typed() {
    let stage = Stage::new();
    stage.put("src/a.rs", "needle\n");
    stage.put("src/deep/b.rs", "needle\n");
    let root = stage.directory.path().display().to_string();
    for (glob, found) in [
        ("./src/*.rs", "src/a.rs"),
        (&*format!("{root}/src/*.rs"), "src/a.rs"),
        ("src//*.rs", "src/a.rs"),
    ] {
        let told = stage.told("find_files", json!({"glob": glob})).await;
        assert_eq!(told, found, "{glob}");
        let search = json!({"pattern": "needle", "glob": glob});
        let told = stage.told("search_files", search).await;
        assert_eq!(told, format!("{found}:1:needle\n"), "{glob}");
    }
    let below = json!({"path": "src", "glob": format!("{root}/src/deep/*.rs")});
    assert_eq!(stage.told("find_files", below).await, "src/deep/b.rs");
    for glob in ["!*.rs", "/nowhere/*.rs", "../*.rs"] {
        let refused = stage.refused("find_files", json!({"glob": glob})).await;
        assert!(refused.contains("`glob`"), "{glob}: {refused}");
    }
}
