//! `fs/walk`: order, limits and symlinks.

use std::{
    ffi::OsStr,
    fs,
    os::unix::{ffi::OsStrExt, fs::symlink},
};

use serde_json::{Value, json};

use crate::{
    client::{merge, with},
    fs_fixture::{FsFixture, in_memory, uri},
    over_every_transport, over_one_transport,
    params::without,
    server::Transport,
};

over_every_transport!(walk_is_breadth_first_and_sorted_by_name);

over_one_transport!(
    followed_directory_symlinks_are_entered_once,
    hidden_directories_are_listed_but_not_entered_if_pruned,
    depth_is_not_truncation,
    directories_beyond_the_limit_truncate_but_are_listed,
    entry_limit_counts_every_inspected_entry,
    walk_limits_have_maximums,
    walk_options_are_required_and_validated,
    walk_of_a_non_directory_is_empty,
    walk_paths_are_percent_encoded,
    walk_response_has_at_most_4_mib,
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

/// Walks and returns the relative paths, those of directories with a slash, and whether the result
/// is truncated. There must be no errors.
async fn walk(fixture: &mut FsFixture, name: &str, change: Value) -> (Vec<String>, bool) {
    let result = fixture.call("fs/walk", name, options(change)).await;
    assert_eq!(result.as_object().unwrap().len(), 3, "{result}");
    assert_eq!(result["errors"], json!([]));
    let root = fixture.uri("");
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

async fn walk_is_breadth_first_and_sorted_by_name(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    for name in ["a/z/deep", "a/b", ".hidden/in", "Z"] {
        fs::create_dir_all(fixture.path(name)).unwrap();
    }
    fs::write(fixture.path("a/B"), "").unwrap();
    expect(
        walk(&mut fixture, "", json!({})).await,
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
        walk(&mut fixture, "dir/", json!({})).await,
        &["/dir/inner", "/dir/sub/"],
    );
}

async fn followed_directory_symlinks_are_entered_once(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    symlink("..", fixture.path("dir/up")).unwrap();
    symlink("../file", fixture.path("dir/link")).unwrap();
    let follow = json!({"followDirectorySymlinks": true});
    expect(
        walk(&mut fixture, "", follow.clone()).await,
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
        walk(&mut fixture, "to-dir", follow).await,
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
        walk(&mut fixture, "", json!({})).await,
        &["/dir/", "/file", "/dir/inner", "/dir/sub/"],
    );
}

async fn hidden_directories_are_listed_but_not_entered_if_pruned(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    fs::create_dir_all(fixture.path(".hidden/in")).unwrap();
    fs::create_dir_all(fixture.path("dir/sub/.h/in")).unwrap();
    fs::write(fixture.path(".file"), "").unwrap();
    expect(
        walk(&mut fixture, "", json!({"pruneHiddenDirectories": true})).await,
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
    // The root itself may be hidden.
    expect(
        walk(
            &mut fixture,
            ".hidden",
            json!({"pruneHiddenDirectories": true}),
        )
        .await,
        &["/.hidden/in/"],
    );
    let (all, _) = walk(&mut fixture, "", json!({"pruneHiddenDirectories": false})).await;
    assert_eq!(all.len(), 9, "{all:?}");
}

async fn depth_is_not_truncation(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    let deep = "d/".repeat(70);
    fs::create_dir_all(fixture.path("dir/sub").join(&deep)).unwrap();
    for depth in [0, 1, 2, 64] {
        let walked = walk(&mut fixture, "dir/sub", json!({"maxDepth": depth})).await;
        assert_eq!((walked.0.len(), walked.1), (depth + 1, false));
    }
    expect(
        walk(&mut fixture, "", json!({"maxDepth": 0})).await,
        &["/dir/", "/file"],
    );
}

async fn directories_beyond_the_limit_truncate_but_are_listed(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    fs::create_dir_all(fixture.path("a/b")).unwrap();
    let walked = walk(&mut fixture, "", json!({"maxDirectories": 1})).await;
    assert_eq!(walked.0, ["/a/", "/dir/", "/file"]);
    assert!(walked.1);
    let walked = walk(&mut fixture, "", json!({"maxDirectories": 2})).await;
    assert_eq!(walked.0, ["/a/", "/dir/", "/file", "/a/b/"]);
    assert!(walked.1);
    let walked = walk(&mut fixture, "", json!({"maxDirectories": 5})).await;
    assert_eq!((walked.0.len(), walked.1), (6, false), "five are enough");
}

async fn entry_limit_counts_every_inspected_entry(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    // The walk inspects dir, fifo, file, socket, to-dir, to-file, inner and sub, but not the
    // dangling symlinks.
    for (most, listed, truncated) in [
        (1, 1, true),
        (2, 1, true),
        (3, 2, true),
        (6, 2, true),
        (7, 3, true),
        (8, 4, false),
        (50_000, 4, false),
    ] {
        let walked = walk(&mut fixture, "", json!({"maxEntries": most})).await;
        assert_eq!((walked.0.len(), walked.1), (listed, truncated), "{most}");
    }
}

async fn walk_limits_have_maximums(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    for change in [
        json!({"maxDepth": 65}),
        json!({"maxDepth": u64::MAX}),
        json!({"maxDirectories": 0}),
        json!({"maxDirectories": 10_001}),
        json!({"maxEntries": 0}),
        json!({"maxEntries": 50_001}),
    ] {
        for name in ["", "none", "file"] {
            let message = fixture
                .refused(-32600, "fs/walk", name, options(change.clone()))
                .await;
            assert!(message.contains("limits"), "{message}");
        }
    }
}

async fn walk_options_are_required_and_validated(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    let complete = options(json!({}))["options"].take();
    for member in [
        "maxDepth",
        "maxDirectories",
        "maxEntries",
        "followDirectorySymlinks",
    ] {
        let bad = [json!(null), json!("1"), json!([]), json!(-1), json!(1.0)];
        for value in bad {
            let options = json!({"options": with(complete.clone(), json!({member: value}))});
            let message = fixture.refused(-32602, "fs/walk", "", options).await;
            assert!(message.contains(member), "{message}");
        }
        let options = json!({"options": without(complete.clone(), member)});
        let message = fixture.refused(-32602, "fs/walk", "", options).await;
        assert!(message.contains(member), "{message}");
    }
    for value in [json!(null), json!(0)] {
        let options = options(json!({"pruneHiddenDirectories": value}));
        fixture.refused(-32602, "fs/walk", "", options).await;
    }
    for params in [json!({}), json!({"options": null}), json!({"options": 1})] {
        let message = fixture.refused(-32602, "fs/walk", "", params).await;
        assert!(message.contains("options"), "{message}");
    }
}

async fn walk_of_a_non_directory_is_empty(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    for follow in [false, true] {
        let change = json!({"followDirectorySymlinks": follow});
        for name in ["file", "to-file", "fifo", "socket"] {
            expect(walk(&mut fixture, name, change.clone()).await, &[]);
        }
        let rows: &[(&str, i64)] = &[
            ("none", -32004),
            ("to-none", -32004),
            ("to-itself", -32603),
            ("file/x", -32603),
        ];
        fixture.table("fs/walk", &options(change), rows).await;
    }
    expect(walk(&mut fixture, "to-dir", json!({})).await, &[]);
    let follow = json!({"followDirectorySymlinks": true});
    expect(
        walk(&mut fixture, "to-dir", follow).await,
        &["/to-dir/inner", "/to-dir/sub/"],
    );
}

async fn walk_paths_are_percent_encoded(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    let sub = fixture.path("dir/sub");
    fs::write(sub.join("sp ace%#?\u{e9}"), "").unwrap();
    fs::write(sub.join(OsStr::from_bytes(b"n\xff")), "found").unwrap();
    fs::create_dir_all(sub.join("C:/d")).unwrap();
    expect(
        walk(&mut fixture, "dir/sub", json!({})).await,
        &[
            "/dir/sub/C:/",
            "/dir/sub/n%FF",
            "/dir/sub/sp%20ace%25%23%3F%C3%A9",
            "/dir/sub/C:/d/",
        ],
    );
    // Listed paths can be read.
    assert_eq!(fixture.read("dir/sub/n%FF").await, b"found");
}

async fn walk_response_has_at_most_4_mib(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    let many = in_memory();
    let stem = "n".repeat(200);
    for number in 0..20_000 {
        fs::write(many.path().join(format!("{stem}{number:05}")), "").unwrap();
    }
    let root = uri(many.path());
    let each = root.len() + 1 + 205 + 64;
    let result = fixture.call("fs/walk", &root, options(json!({}))).await;
    let entries = result["entries"].as_array().unwrap();
    assert_eq!(entries.len(), (4 << 20) / each);
    assert_eq!(result["truncated"], true);
}

async fn ten_thousand_directories_are_walked(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    let many = in_memory();
    for number in 0..10_000 {
        fs::create_dir(many.path().join(number.to_string())).unwrap();
    }
    let root = uri(many.path());
    for (count, truncated) in [(10_000, true), (9999, false)] {
        let result = fixture.call("fs/walk", &root, options(json!({}))).await;
        let entries = result["entries"].as_array().unwrap();
        assert_eq!(entries.len(), count);
        assert_eq!(result["truncated"], truncated, "the root counts");
        fs::remove_dir(many.path().join("0")).ok();
    }
}
