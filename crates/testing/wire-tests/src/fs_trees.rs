//! Whatever a path names: removed and copied.

use std::{
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt, symlink},
};

use rustix::fs::{CWD, Mode, OFlags, mkdirat, openat};
use serde_json::{Value, json};

use crate::{over_every_transport, over_one_transport, scene::Scene, server::Transport};

over_every_transport!(
    trees_are_copied_and_removed,
    a_file_copied_onto_itself_keeps_its_content
);

over_one_transport!(
    removal_takes_everything_by_default,
    without_recursive_only_what_is_empty_is_removed,
    without_force_something_must_be_there,
    without_links_only_single_names_are_removed,
    a_link_is_removed_and_never_its_target,
    the_root_is_not_removed,
    a_deep_tree_is_removed,
    each_kind_is_copied_in_its_way,
    a_copy_has_the_permission_bits_and_replaces_content,
    a_link_is_copied_as_a_link,
    a_tree_is_merged_into_another,
    a_tree_is_not_copied_into_itself,
    copy_requires_every_member,
);

fn copy(scene: &Scene, from: &str, to: &str, recursive: impl Into<Value>) -> Value {
    json!({
        "sourcePath": scene.uri(from), "destinationPath": scene.uri(to),
        "recursive": recursive.into(),
    })
}

async fn copied(scene: &mut Scene, from: &str, to: &str, recursive: bool) {
    let params = copy(scene, from, to, recursive);
    assert_eq!(scene.client.call("fs/copy", params).await, json!({}));
}

async fn trees_are_copied_and_removed(transport: Transport) {
    let mut scene = Scene::new(transport).await;
    copied(&mut scene, "dir", "new/copy", true).await;
    assert_eq!(scene.names("new/copy"), ["inner", "sub"]);
    assert_eq!(scene.content("new/copy/inner"), "x");
    scene.done("fs/remove", "new", json!({})).await;
    assert!(!scene.path("new").exists());
    copied(&mut scene, "file", "other", false).await;
    assert_eq!(scene.content("other"), "hello");
    scene.done("fs/remove", "other", json!({})).await;
    assert!(!scene.path("other").exists());
}

async fn removal_takes_everything_by_default(transport: Transport) {
    let mut scene = Scene::new(transport).await;
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
    for more in [
        json!({}),
        json!({"recursive": null, "force": null, "followSymlinks": null}),
        json!({"recursive": true, "force": true, "followSymlinks": true}),
    ] {
        scene.table("fs/remove", &more, rows).await;
    }
    scene.reset();
    for name in ["file", "dir", "fifo", "socket"] {
        scene.done("fs/remove", name, json!({})).await;
    }
    assert_eq!(
        scene.names(""),
        ["to-dir", "to-file", "to-itself", "to-none"]
    );
}

async fn without_recursive_only_what_is_empty_is_removed(transport: Transport) {
    let mut scene = Scene::new(transport).await;
    let rows: &[(&str, i64)] = &[
        ("file", 0),
        ("dir/sub", 0),
        ("fifo", 0),
        ("to-dir", 0),
        ("none", 0),
        ("dir", -32603),
        ("file/x", -32603),
    ];
    let more = json!({"recursive": false});
    scene.table("fs/remove", &more, rows).await;
    assert_eq!(scene.names("dir"), ["inner", "sub"]);
}

async fn without_force_something_must_be_there(transport: Transport) {
    let mut scene = Scene::new(transport).await;
    let rows: &[(&str, i64)] = &[
        ("file", 0),
        ("to-none", 0),
        ("none", -32004),
        ("none/x", -32004),
        ("to-none/x", -32004),
        ("file/x", -32603),
    ];
    for more in [
        json!({"force": false}),
        json!({"force": false, "recursive": false}),
    ] {
        scene.table("fs/remove", &more, rows).await;
    }
}

async fn without_links_only_single_names_are_removed(transport: Transport) {
    let mut scene = Scene::new(transport).await;
    let more = json!({"followSymlinks": false});
    for name in ["file", "dir", "to-file", "none"] {
        scene.refused(-32603, "fs/remove", name, more.clone()).await;
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
    let more = json!({"followSymlinks": false, "recursive": false});
    scene.table("fs/remove", &more, rows).await;
    let rows: &[(&str, i64)] = &[("none", -32004), ("none/x", -32004), ("file", 0)];
    let more = json!({"followSymlinks": false, "recursive": false, "force": false});
    scene.table("fs/remove", &more, rows).await;
}

async fn a_link_is_removed_and_never_its_target(transport: Transport) {
    let mut scene = Scene::new(transport).await;
    symlink("../dir", scene.path("dir/sub/up")).unwrap();
    fs::create_dir(scene.path("other")).unwrap();
    symlink("../dir", scene.path("other/out")).unwrap();
    for name in ["to-file", "to-dir", "to-none", "other"] {
        scene.done("fs/remove", name, json!({})).await;
        assert!(!scene.path(name).is_symlink());
    }
    assert_eq!(scene.content("file"), "hello");
    assert_eq!(scene.names("dir"), ["inner", "sub"]);
}

async fn the_root_is_not_removed(transport: Transport) {
    let mut scene = Scene::new(transport).await;
    for name in ["file:///", "file:///..", "file:////", "file:///%2F"] {
        let more = json!({"recursive": false});
        let params = scene.params(name, more);
        let id = scene.client.request("fs/remove", params).await;
        let answer = scene.client.answer(id).await;
        assert!(answer["error"].is_object(), "{name}: {answer}");
    }
}

async fn a_deep_tree_is_removed(transport: Transport) {
    let mut scene = Scene::new(transport).await;
    // Deeper than the server could hold open, and than a path can be long.
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut directory = openat(CWD, scene.path("dir/sub"), flags, Mode::empty()).unwrap();
    for _ in 0..3000 {
        mkdirat(&directory, "d", Mode::RWXU).unwrap();
        directory = openat(&directory, "d", flags, Mode::empty()).unwrap();
    }
    scene.done("fs/remove", "dir", json!({})).await;
    assert!(!scene.path("dir").exists());
}

async fn each_kind_is_copied_in_its_way(transport: Transport) {
    let mut scene = Scene::new(transport).await;
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
        scene.reset();
        let params = copy(&scene, from, to, recursive);
        let id = scene.client.request("fs/copy", params).await;
        let answer = scene.client.answer(id).await;
        let found = answer["error"]["code"].as_i64().unwrap_or(0);
        assert_eq!(found, code, "{from} to {to}: {answer}");
        assert_eq!(scene.content("file"), "hello", "{from} to {to}");
    }
}

async fn a_copy_has_the_permission_bits_and_replaces_content(transport: Transport) {
    let mut scene = Scene::new(transport).await;
    let mode = fs::Permissions::from_mode(0o751);
    fs::set_permissions(scene.path("file"), mode).unwrap();
    fs::write(scene.path("longer"), "x".repeat(1000)).unwrap();
    for to in ["longer", "new"] {
        copied(&mut scene, "file", to, false).await;
        assert_eq!(scene.content(to), "hello");
        let mode = fs::metadata(scene.path(to)).unwrap().mode();
        assert_eq!(mode & 0o7777, 0o751, "{to}");
    }
    let large: Vec<u8> = (0..2_000_000_u32).flat_map(u32::to_le_bytes).collect();
    fs::write(scene.path("large"), &large).unwrap();
    copied(&mut scene, "large", "longer", false).await;
    assert!(fs::read(scene.path("longer")).unwrap() == large);
}

async fn a_file_copied_onto_itself_keeps_its_content(transport: Transport) {
    let mut scene = Scene::new(transport).await;
    fs::hard_link(scene.path("file"), scene.path("other-name")).unwrap();
    for to in [
        "file",
        "to-file",
        "other-name",
        "dir/../file",
        "to-dir/../file",
    ] {
        let params = copy(&scene, "file", to, false);
        scene.client.expect_error(-32600, "fs/copy", params).await;
        assert_eq!(scene.content("file"), "hello", "{to}");
    }
}

async fn a_link_is_copied_as_a_link(transport: Transport) {
    let mut scene = Scene::new(transport).await;
    for (link, target) in [
        ("to-file", "file"),
        ("to-dir", "dir"),
        ("to-none", "nothing"),
        ("to-itself", "to-itself"),
    ] {
        for recursive in [false, true] {
            let to = format!("dir/{link}-{recursive}");
            copied(&mut scene, link, &to, recursive).await;
            let found = fs::read_link(scene.path(&to)).unwrap();
            assert_eq!(found.to_str(), Some(target));
        }
    }
}

async fn a_tree_is_merged_into_another(transport: Transport) {
    let mut scene = Scene::new(transport).await;
    for name in ["from/s", "to/s"] {
        fs::create_dir_all(scene.path(name)).unwrap();
    }
    for (name, content) in [("from/s/f", "new"), ("to/s/f", "old"), ("to/s/g", "kept")] {
        fs::write(scene.path(name), content).unwrap();
    }
    symlink("f", scene.path("from/s/l")).unwrap();
    fs::rename(scene.path("fifo"), scene.path("from/fifo")).unwrap();
    copied(&mut scene, "from", "to", true).await;
    assert_eq!(scene.names("to"), ["s"], "special files are skipped");
    assert_eq!(scene.names("to/s"), ["f", "g", "l"]);
    assert_eq!(scene.content("to/s/f"), "new");
    assert_eq!(scene.content("to/s/g"), "kept");
    assert_eq!(
        fs::read_link(scene.path("to/s/l")).unwrap().to_str(),
        Some("f")
    );
    // A link that is there already is in the way.
    let again = copy(&scene, "from", "to", true);
    scene.client.expect_error(-32603, "fs/copy", again).await;
}

async fn a_tree_is_not_copied_into_itself(transport: Transport) {
    let mut scene = Scene::new(transport).await;
    symlink("dir/sub", scene.path("way-in")).unwrap();
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
        let params = copy(&scene, "dir", to, true);
        scene.client.expect_error(-32600, "fs/copy", params).await;
    }
    let params = copy(&scene, "", "dir/x", true);
    scene.client.expect_error(-32600, "fs/copy", params).await;
    assert_eq!(scene.names("dir"), ["inner", "sub"]);
    assert!(scene.names("dir/sub").is_empty());
    // A name that only begins like it is another.
    copied(&mut scene, "dir", "dir2", true).await;
}

async fn copy_requires_every_member(transport: Transport) {
    let mut scene = Scene::new(transport).await;
    for member in ["sourcePath", "destinationPath", "recursive"] {
        let params = crate::params::without(copy(&scene, "file", "new", false), member);
        let message = scene.client.expect_error(-32602, "fs/copy", params).await;
        assert!(message.contains(member), "{message}");
    }
    for recursive in [json!(null), json!(1), json!("true"), json!({})] {
        let params = copy(&scene, "file", "new", recursive);
        let message = scene.client.expect_error(-32602, "fs/copy", params).await;
        assert!(message.contains("recursive"), "{message}");
    }
    for (from, to) in [("file:///C:/x", "new"), ("file", "file:///C:/x")] {
        let params = copy(&scene, from, to, false);
        scene.client.expect_error(-32600, "fs/copy", params).await;
    }
    assert!(!scene.path("new").exists());
}
