//! Walking a tree: order, limits, links.

use std::{
    ffi::OsStr,
    fs,
    os::unix::{ffi::OsStrExt, fs::symlink},
};

use serde_json::{Value, json};

use crate::{
    client::{merge, with},
    over_every_transport, over_one_transport,
    params::without,
    scene::{Scene, in_memory, uri},
    server::Transport,
};

over_every_transport!(a_tree_is_listed_breadth_first_and_by_name);

over_one_transport!(
    links_to_directories_are_entered_once_if_followed,
    hidden_directories_are_listed_but_not_entered_if_pruned,
    depth_is_not_truncation,
    directories_beyond_the_limit_truncate_but_are_listed,
    entries_are_counted_as_they_are_looked_at,
    limits_have_limits,
    options_are_required_and_checked,
    roots_of_other_kinds_are_empty,
    names_are_encoded,
    an_answer_has_at_most_4_mib,
    ten_thousand_directories_are_walked,
);

fn options(change: Value) -> Value {
    let mut options = json!({
        "maxDepth": 64, "maxDirectories": 10_000, "maxEntries": 50_000,
        "followDirectorySymlinks": false,
    });
    merge(&mut options, change);
    json!({ "options": options })
}

/// Walks, and returns the paths below the scene, those of directories with a slash; and whether
/// there is more. There must be no errors.
async fn walk(scene: &mut Scene, name: &str, change: Value) -> (Vec<String>, bool) {
    let result = scene.call("fs/walk", name, options(change)).await;
    assert_eq!(result.as_object().unwrap().len(), 3, "{result}");
    assert_eq!(result["errors"], json!([]));
    let root = scene.uri("");
    let entries = result["entries"].as_array().unwrap().iter();
    let entries = entries.map(|entry| {
        assert_eq!(entry.as_object().unwrap().len(), 2, "{entry}");
        let path = entry["path"].as_str().unwrap();
        let path = path.strip_prefix(&root).expect(path);
        match entry["kind"].as_str().unwrap() {
            "file" => path.to_owned(),
            "directory" => format!("{path}/"),
            other => panic!("{other} {path}"),
        }
    });
    (entries.collect(), result["truncated"].as_bool().unwrap())
}

fn expect((paths, truncated): (Vec<String>, bool), expected: &[&str]) {
    assert_eq!(paths, expected);
    assert!(!truncated);
}

async fn a_tree_is_listed_breadth_first_and_by_name(transport: Transport) {
    let mut scene = Scene::new(transport).await;
    for name in ["a/z/deep", "a/b", ".hidden/in", "Z"] {
        fs::create_dir_all(scene.path(name)).unwrap();
    }
    fs::write(scene.path("a/B"), "").unwrap();
    expect(
        walk(&mut scene, "", json!({})).await,
        &[
            "/.hidden/",
            "/Z/",
            "/a/",
            "/dir/",
            "/file",
            "/.hidden/in/",
            "/a/B",
            "/a/b/",
            "/a/z/",
            "/dir/inner",
            "/dir/sub/",
            "/a/z/deep/",
        ],
    );
    expect(
        walk(&mut scene, "dir/", json!({})).await,
        &["/dir/inner", "/dir/sub/"],
    );
}

async fn links_to_directories_are_entered_once_if_followed(transport: Transport) {
    let mut scene = Scene::new(transport).await;
    symlink("..", scene.path("dir/up")).unwrap();
    symlink("../file", scene.path("dir/link")).unwrap();
    let follow = json!({"followDirectorySymlinks": true});
    expect(
        walk(&mut scene, "", follow.clone()).await,
        &[
            "/dir/",
            "/file",
            "/to-dir/",
            "/dir/inner",
            "/dir/sub/",
            "/dir/up/",
        ],
    );
    expect(
        walk(&mut scene, "to-dir", follow).await,
        &[
            "/to-dir/inner",
            "/to-dir/sub/",
            "/to-dir/up/",
            "/to-dir/up/dir/",
            "/to-dir/up/file",
            "/to-dir/up/to-dir/",
        ],
    );
    expect(
        walk(&mut scene, "", json!({})).await,
        &["/dir/", "/file", "/dir/inner", "/dir/sub/"],
    );
}

async fn hidden_directories_are_listed_but_not_entered_if_pruned(transport: Transport) {
    let mut scene = Scene::new(transport).await;
    fs::create_dir_all(scene.path(".hidden/in")).unwrap();
    fs::create_dir_all(scene.path("dir/sub/.h/in")).unwrap();
    fs::write(scene.path(".file"), "").unwrap();
    expect(
        walk(&mut scene, "", json!({"pruneHiddenDirectories": true})).await,
        &[
            "/.file",
            "/.hidden/",
            "/dir/",
            "/file",
            "/dir/inner",
            "/dir/sub/",
            "/dir/sub/.h/",
        ],
    );
    // The root may be hidden.
    expect(
        walk(
            &mut scene,
            ".hidden",
            json!({"pruneHiddenDirectories": true}),
        )
        .await,
        &["/.hidden/in/"],
    );
    let (all, _) = walk(&mut scene, "", json!({"pruneHiddenDirectories": false})).await;
    assert_eq!(all.len(), 9, "{all:?}");
}

async fn depth_is_not_truncation(transport: Transport) {
    let mut scene = Scene::new(transport).await;
    let deep = "d/".repeat(70);
    fs::create_dir_all(scene.path("dir/sub").join(&deep)).unwrap();
    for depth in [0, 1, 2, 64] {
        let walked = walk(&mut scene, "dir/sub", json!({"maxDepth": depth})).await;
        assert_eq!((walked.0.len(), walked.1), (depth + 1, false));
    }
    expect(
        walk(&mut scene, "", json!({"maxDepth": 0})).await,
        &["/dir/", "/file"],
    );
}

async fn directories_beyond_the_limit_truncate_but_are_listed(transport: Transport) {
    let mut scene = Scene::new(transport).await;
    fs::create_dir_all(scene.path("a/b")).unwrap();
    let walked = walk(&mut scene, "", json!({"maxDirectories": 1})).await;
    assert_eq!(walked.0, ["/a/", "/dir/", "/file"]);
    assert!(walked.1);
    let walked = walk(&mut scene, "", json!({"maxDirectories": 2})).await;
    assert_eq!(walked.0, ["/a/", "/dir/", "/file", "/a/b/"]);
    assert!(walked.1);
    let walked = walk(&mut scene, "", json!({"maxDirectories": 5})).await;
    assert_eq!((walked.0.len(), walked.1), (6, false), "five are enough");
}

async fn entries_are_counted_as_they_are_looked_at(transport: Transport) {
    let mut scene = Scene::new(transport).await;
    // Looked at are dir, fifo, file, socket, to-dir, to-file, inner and sub, but not the links that
    // lead nowhere.
    for (most, listed, truncated) in [
        (1, 1, true),
        (2, 1, true),
        (3, 2, true),
        (6, 2, true),
        (7, 3, true),
        (8, 4, false),
        (50_000, 4, false),
    ] {
        let walked = walk(&mut scene, "", json!({"maxEntries": most})).await;
        assert_eq!((walked.0.len(), walked.1), (listed, truncated), "{most}");
    }
}

async fn limits_have_limits(transport: Transport) {
    let mut scene = Scene::new(transport).await;
    for change in [
        json!({"maxDepth": 65}),
        json!({"maxDepth": u64::MAX}),
        json!({"maxDirectories": 0}),
        json!({"maxDirectories": 10_001}),
        json!({"maxEntries": 0}),
        json!({"maxEntries": 50_001}),
    ] {
        for name in ["", "none", "file"] {
            let message = scene
                .refused(-32600, "fs/walk", name, options(change.clone()))
                .await;
            assert!(message.contains("limits"), "{message}");
        }
    }
}

async fn options_are_required_and_checked(transport: Transport) {
    let mut scene = Scene::new(transport).await;
    let whole = options(json!({}))["options"].take();
    for member in [
        "maxDepth",
        "maxDirectories",
        "maxEntries",
        "followDirectorySymlinks",
    ] {
        let bad = [json!(null), json!("1"), json!([]), json!(-1), json!(1.0)];
        for value in bad {
            let options = json!({"options": with(whole.clone(), json!({member: value}))});
            let message = scene.refused(-32602, "fs/walk", "", options).await;
            assert!(message.contains(member), "{message}");
        }
        let options = json!({"options": without(whole.clone(), member)});
        let message = scene.refused(-32602, "fs/walk", "", options).await;
        assert!(message.contains(member), "{message}");
    }
    for value in [json!(null), json!(0)] {
        let options = options(json!({"pruneHiddenDirectories": value}));
        scene.refused(-32602, "fs/walk", "", options).await;
    }
    for params in [json!({}), json!({"options": null}), json!({"options": 1})] {
        let message = scene.refused(-32602, "fs/walk", "", params).await;
        assert!(message.contains("options"), "{message}");
    }
}

async fn roots_of_other_kinds_are_empty(transport: Transport) {
    let mut scene = Scene::new(transport).await;
    for follow in [false, true] {
        let change = json!({"followDirectorySymlinks": follow});
        for name in ["file", "to-file", "fifo", "socket"] {
            expect(walk(&mut scene, name, change.clone()).await, &[]);
        }
        let rows: &[(&str, i64)] = &[
            ("none", -32004),
            ("to-none", -32004),
            ("to-itself", -32603),
            ("file/x", -32603),
        ];
        scene.table("fs/walk", &options(change), rows).await;
    }
    expect(walk(&mut scene, "to-dir", json!({})).await, &[]);
    let follow = json!({"followDirectorySymlinks": true});
    expect(
        walk(&mut scene, "to-dir", follow).await,
        &["/to-dir/inner", "/to-dir/sub/"],
    );
}

async fn names_are_encoded(transport: Transport) {
    let mut scene = Scene::new(transport).await;
    let sub = scene.path("dir/sub");
    fs::write(sub.join("sp ace%#?\u{e9}"), "").unwrap();
    fs::write(sub.join(OsStr::from_bytes(b"n\xff")), "found").unwrap();
    fs::create_dir_all(sub.join("C:/d")).unwrap();
    expect(
        walk(&mut scene, "dir/sub", json!({})).await,
        &[
            "/dir/sub/C:/",
            "/dir/sub/n%FF",
            "/dir/sub/sp%20ace%25%23%3F%C3%A9",
            "/dir/sub/C:/d/",
        ],
    );
    // What is listed can be read.
    assert_eq!(scene.read("dir/sub/n%FF").await, b"found");
}

async fn an_answer_has_at_most_4_mib(transport: Transport) {
    let mut scene = Scene::new(transport).await;
    let many = in_memory();
    let stem = "n".repeat(200);
    for number in 0..20_000 {
        fs::write(many.path().join(format!("{stem}{number:05}")), "").unwrap();
    }
    let root = uri(many.path());
    let each = root.len() + 1 + 205 + 64;
    let result = scene.call("fs/walk", &root, options(json!({}))).await;
    let entries = result["entries"].as_array().unwrap();
    assert_eq!(entries.len(), (4 << 20) / each);
    assert_eq!(result["truncated"], true);
}

async fn ten_thousand_directories_are_walked(transport: Transport) {
    let mut scene = Scene::new(transport).await;
    let many = in_memory();
    for number in 0..10_000 {
        fs::create_dir(many.path().join(number.to_string())).unwrap();
    }
    let root = uri(many.path());
    for (count, truncated) in [(10_000, true), (9999, false)] {
        let result = scene.call("fs/walk", &root, options(json!({}))).await;
        let entries = result["entries"].as_array().unwrap();
        assert_eq!(entries.len(), count);
        assert_eq!(result["truncated"], truncated, "the root counts");
        fs::remove_dir(many.path().join("0")).ok();
    }
}
