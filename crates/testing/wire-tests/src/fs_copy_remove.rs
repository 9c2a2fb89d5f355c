//! `fs/remove` and `fs/copy`.

use std::{
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt, symlink},
};

use rustix::fs::{CWD, Mode, OFlags, mkdirat, openat};
use serde_json::{Value, json};

use crate::{fs_fixture::FsFixture, over_every_transport, over_one_transport, server::Transport};

over_every_transport!(
    trees_are_copied_and_removed,
    file_copied_onto_itself_keeps_its_content
);

over_one_transport!(
    remove_is_recursive_and_forced_by_default,
    non_recursive_remove_needs_an_empty_directory,
    remove_without_force_needs_an_existing_path,
    remove_without_following_refuses_trees,
    remove_deletes_a_symlink_and_not_its_target,
    root_directory_cannot_be_removed,
    deep_tree_is_removed,
    copy_outcome_of_each_file_type,
    copy_preserves_permission_bits_and_replaces_content,
    symlink_is_copied_as_a_symlink,
    tree_copy_merges_into_an_existing_tree,
    tree_is_not_copied_into_itself,
    copy_requires_every_field,
);

fn copy(fixture: &FsFixture, from: &str, to: &str, recursive: impl Into<Value>) -> Value {
    json!({
        "sourcePath": fixture.uri(from), "destinationPath": fixture.uri(to),
        "recursive": recursive.into(),
    })
}

async fn copied(fixture: &mut FsFixture, from: &str, to: &str, recursive: bool) {
    let params = copy(fixture, from, to, recursive);
    assert_eq!(fixture.client.call("fs/copy", params).await, json!({}));
}

async fn trees_are_copied_and_removed(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    copied(&mut fixture, "dir", "new/copy", true).await;
    assert_eq!(fixture.names("new/copy"), ["inner", "sub"]);
    assert_eq!(fixture.content("new/copy/inner"), "x");
    fixture.done("fs/remove", "new", json!({})).await;
    assert!(!fixture.path("new").exists());
    copied(&mut fixture, "file", "other", false).await;
    assert_eq!(fixture.content("other"), "hello");
    fixture.done("fs/remove", "other", json!({})).await;
    assert!(!fixture.path("other").exists());
}

async fn remove_is_recursive_and_forced_by_default(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    let rows: &[(&str, i64)] = &[
        ("file", 0),
        ("dir", 0),
        ("dir/", 0),
        ("dir/sub", 0),
        ("to-dir/inner", 0),
        ("fifo", 0),
        ("socket", 0),
        ("to-itself", 0),
        ("none", 0),
        ("none/x", 0),
        ("to-none/x", 0),
        ("file/x", -32603),
    ];
    for extra in [
        json!({}),
        json!({"recursive": null, "force": null, "followSymlinks": null}),
        json!({"recursive": true, "force": true, "followSymlinks": true}),
    ] {
        fixture.table("fs/remove", &extra, rows).await;
    }
    fixture.reset();
    for name in ["file", "dir", "fifo", "socket"] {
        fixture.done("fs/remove", name, json!({})).await;
    }
    assert_eq!(
        fixture.names(""),
        ["to-dir", "to-file", "to-itself", "to-none"]
    );
}

async fn non_recursive_remove_needs_an_empty_directory(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    let rows: &[(&str, i64)] = &[
        ("file", 0),
        ("dir/sub", 0),
        ("fifo", 0),
        ("to-dir", 0),
        ("none", 0),
        ("dir", -32603),
        ("file/x", -32603),
    ];
    let extra = json!({"recursive": false});
    fixture.table("fs/remove", &extra, rows).await;
    assert_eq!(fixture.names("dir"), ["inner", "sub"]);
}

async fn remove_without_force_needs_an_existing_path(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    let rows: &[(&str, i64)] = &[
        ("file", 0),
        ("to-none", 0),
        ("none", -32004),
        ("none/x", -32004),
        ("to-none/x", -32004),
        ("file/x", -32603),
    ];
    for extra in [
        json!({"force": false}),
        json!({"force": false, "recursive": false}),
    ] {
        fixture.table("fs/remove", &extra, rows).await;
    }
}

async fn remove_without_following_refuses_trees(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    let extra = json!({"followSymlinks": false});
    for name in ["file", "dir", "to-file", "none"] {
        fixture
            .refused(-32603, "fs/remove", name, extra.clone())
            .await;
    }
    let rows: &[(&str, i64)] = &[
        ("file", 0),
        ("dir/inner", 0),
        ("dir/sub", 0),
        ("fifo", 0),
        ("none", 0),
        ("none/x", 0),
        ("dir", -32603),
        ("to-file", -32600),
        ("to-dir", -32600),
        ("to-none", -32600),
        ("to-itself", -32600),
        ("to-dir/inner", -32603),
    ];
    let extra = json!({"followSymlinks": false, "recursive": false});
    fixture.table("fs/remove", &extra, rows).await;
    let rows: &[(&str, i64)] = &[("none", -32004), ("none/x", -32004), ("file", 0)];
    let extra = json!({"followSymlinks": false, "recursive": false, "force": false});
    fixture.table("fs/remove", &extra, rows).await;
}

async fn remove_deletes_a_symlink_and_not_its_target(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    symlink("../dir", fixture.path("dir/sub/up")).unwrap();
    fs::create_dir(fixture.path("other")).unwrap();
    symlink("../dir", fixture.path("other/out")).unwrap();
    for name in ["to-file", "to-dir", "to-none", "other"] {
        fixture.done("fs/remove", name, json!({})).await;
        assert!(!fixture.path(name).is_symlink());
    }
    assert_eq!(fixture.content("file"), "hello");
    assert_eq!(fixture.names("dir"), ["inner", "sub"]);
}

async fn root_directory_cannot_be_removed(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    for name in ["file:///", "file:///..", "file:////", "file:///%2F"] {
        let extra = json!({"recursive": false});
        let params = fixture.params(name, extra);
        let id = fixture.client.request("fs/remove", params).await;
        let answer = fixture.client.answer(id).await;
        assert!(answer["error"].is_object(), "{name}: {answer}");
    }
}

async fn deep_tree_is_removed(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    // Deeper than the descriptor limit and the maximum path length.
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut directory = openat(CWD, fixture.path("dir/sub"), flags, Mode::empty()).unwrap();
    for _ in 0..3000 {
        mkdirat(&directory, "d", Mode::RWXU).unwrap();
        directory = openat(&directory, "d", flags, Mode::empty()).unwrap();
    }
    fixture.done("fs/remove", "dir", json!({})).await;
    assert!(!fixture.path("dir").exists());
}

async fn copy_outcome_of_each_file_type(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    for (from, to, recursive, code) in [
        ("file", "new", false, 0),
        ("file", "new", true, 0),
        ("file", "to-none", false, 0),
        ("dir", "new", true, 0),
        ("dir", "new/below", true, 0),
        ("to-none", "new", false, 0),
        ("to-itself", "new", true, 0),
        ("dir", "new", false, -32600),
        ("dir", "dir", true, -32600),
        ("dir", "dir/sub/new", true, -32600),
        ("dir", "to-dir/new", true, -32600),
        ("fifo", "new", false, -32600),
        ("socket", "new", true, -32600),
        ("none", "new", true, -32004),
        ("file", "none/new", false, -32004),
        ("file", "dir", true, -32603),
        ("file", "file/x", true, -32603),
        ("file/x", "new", true, -32603),
        ("file", "to-itself", false, -32603),
        ("dir", "file", true, -32603),
        ("dir", "to-file", true, -32603),
        ("to-file", "file", false, -32603),
        ("to-file", "to-dir", false, -32603),
    ] {
        fixture.reset();
        let params = copy(&fixture, from, to, recursive);
        let id = fixture.client.request("fs/copy", params).await;
        let answer = fixture.client.answer(id).await;
        let found = answer["error"]["code"].as_i64().unwrap_or(0);
        assert_eq!(found, code, "{from} to {to}: {answer}");
        assert_eq!(fixture.content("file"), "hello", "{from} to {to}");
    }
}

async fn copy_preserves_permission_bits_and_replaces_content(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    let mode = fs::Permissions::from_mode(0o751);
    fs::set_permissions(fixture.path("file"), mode).unwrap();
    fs::write(fixture.path("longer"), "x".repeat(1000)).unwrap();
    for to in ["longer", "new"] {
        copied(&mut fixture, "file", to, false).await;
        assert_eq!(fixture.content(to), "hello");
        let mode = fs::metadata(fixture.path(to)).unwrap().mode();
        assert_eq!(mode & 0o7777, 0o751, "{to}");
    }
    let large: Vec<u8> = (0..2_000_000_u32).flat_map(u32::to_le_bytes).collect();
    fs::write(fixture.path("large"), &large).unwrap();
    copied(&mut fixture, "large", "longer", false).await;
    assert!(fs::read(fixture.path("longer")).unwrap() == large);
}

async fn file_copied_onto_itself_keeps_its_content(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    fs::hard_link(fixture.path("file"), fixture.path("other-name")).unwrap();
    for to in [
        "file",
        "to-file",
        "other-name",
        "dir/../file",
        "to-dir/../file",
    ] {
        let params = copy(&fixture, "file", to, false);
        fixture.client.expect_error(-32600, "fs/copy", params).await;
        assert_eq!(fixture.content("file"), "hello", "{to}");
    }
}

async fn symlink_is_copied_as_a_symlink(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    for (link, target) in [
        ("to-file", "file"),
        ("to-dir", "dir"),
        ("to-none", "nothing"),
        ("to-itself", "to-itself"),
    ] {
        for recursive in [false, true] {
            let to = format!("dir/{link}-{recursive}");
            copied(&mut fixture, link, &to, recursive).await;
            let found = fs::read_link(fixture.path(&to)).unwrap();
            assert_eq!(found.to_str(), Some(target));
        }
    }
}

async fn tree_copy_merges_into_an_existing_tree(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    for name in ["from/s", "to/s"] {
        fs::create_dir_all(fixture.path(name)).unwrap();
    }
    for (name, content) in [("from/s/f", "new"), ("to/s/f", "old"), ("to/s/g", "kept")] {
        fs::write(fixture.path(name), content).unwrap();
    }
    symlink("f", fixture.path("from/s/l")).unwrap();
    fs::rename(fixture.path("fifo"), fixture.path("from/fifo")).unwrap();
    copied(&mut fixture, "from", "to", true).await;
    assert_eq!(fixture.names("to"), ["s"], "special files are skipped");
    assert_eq!(fixture.names("to/s"), ["f", "g", "l"]);
    assert_eq!(fixture.content("to/s/f"), "new");
    assert_eq!(fixture.content("to/s/g"), "kept");
    assert_eq!(
        fs::read_link(fixture.path("to/s/l")).unwrap().to_str(),
        Some("f")
    );
    // An existing symlink blocks the copy.
    let second = copy(&fixture, "from", "to", true);
    fixture.client.expect_error(-32603, "fs/copy", second).await;
}

async fn tree_is_not_copied_into_itself(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    symlink("dir/sub", fixture.path("way-in")).unwrap();
    for to in [
        "dir",
        "dir/",
        "to-dir",
        "dir/sub",
        "dir/a/b/c",
        "way-in",
        "way-in/x",
        "dir/sub/../z",
    ] {
        let params = copy(&fixture, "dir", to, true);
        fixture.client.expect_error(-32600, "fs/copy", params).await;
    }
    let params = copy(&fixture, "", "dir/x", true);
    fixture.client.expect_error(-32600, "fs/copy", params).await;
    assert_eq!(fixture.names("dir"), ["inner", "sub"]);
    assert!(fixture.names("dir/sub").is_empty());
    // A sibling with the same name prefix is not inside the source.
    copied(&mut fixture, "dir", "dir2", true).await;
}

async fn copy_requires_every_field(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    for member in ["sourcePath", "destinationPath", "recursive"] {
        let params = crate::params::without(copy(&fixture, "file", "new", false), member);
        let message = fixture.client.expect_error(-32602, "fs/copy", params).await;
        assert!(message.contains(member), "{message}");
    }
    for recursive in [json!(null), json!(1), json!("true"), json!({})] {
        let params = copy(&fixture, "file", "new", recursive);
        let message = fixture.client.expect_error(-32602, "fs/copy", params).await;
        assert!(message.contains("recursive"), "{message}");
    }
    for (from, to) in [("file:///C:/x", "new"), ("file", "file:///C:/x")] {
        let params = copy(&fixture, from, to, false);
        fixture.client.expect_error(-32600, "fs/copy", params).await;
    }
    assert!(!fixture.path("new").exists());
}
