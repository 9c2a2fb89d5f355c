//! What `fs/writeFile` can do beside the stock server's: parents, one step, permission bits.

use std::{
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt},
};

use serde_json::{Value, json};

use crate::{
    client::{decode_text, encode, merge},
    over_every_transport, over_one_transport,
    scene::Scene,
    server::{Server, Transport},
};

over_every_transport!(
    parents_are_created_on_demand,
    an_atomic_write_replaces_in_one_step
);

over_one_transport!(
    parents_are_not_created_unless_asked_for,
    parents_that_cannot_be_are_refused,
    parents_are_not_created_through_links_unless_followed,
    an_atomic_write_leaves_nothing_beside_it,
    an_atomic_write_keeps_the_permission_bits,
    an_atomic_write_behind_a_link_replaces_its_target,
    an_atomic_write_that_fails_leaves_the_old_content,
    readers_see_the_old_or_the_new_content,
    the_mode_is_set_whatever_the_umask_is,
    the_mode_is_set_on_existing_files_too,
    a_mode_is_permission_bits,
    everything_at_once,
);

fn data(text: &str, more: Value) -> Value {
    let mut data = json!({"dataBase64": encode(text.as_bytes())});
    merge(&mut data, more);
    data
}

fn mode_of(scene: &Scene, name: &str) -> u32 {
    fs::metadata(scene.path(name)).unwrap().mode() & 0o7777
}

async fn parents_are_created_on_demand(transport: Transport) {
    let mut scene = Scene::new(transport).await;
    for (name, found) in [
        ("a/b/c/new", "a/b/c/new"),
        ("a/b/other", "a/b/other"),
        ("plain", "plain"),
        ("file", "file"),
        ("to-dir/deep/new", "dir/deep/new"),
    ] {
        let write = data(name, json!({"createParents": true}));
        scene.done("fs/writeFile", name, write).await;
        assert_eq!(scene.content(found), name);
    }
}

async fn parents_are_not_created_unless_asked_for(transport: Transport) {
    let mut scene = Scene::new(transport).await;
    for more in [json!({}), json!({"createParents": false})] {
        let write = data("x", more);
        scene
            .refused(-32004, "fs/writeFile", "a/b/new", write)
            .await;
    }
    let write = data("x", json!({"atomic": true}));
    scene
        .refused(-32004, "fs/writeFile", "a/b/new", write)
        .await;
    assert!(!scene.path("a").exists());
}

async fn parents_that_cannot_be_are_refused(transport: Transport) {
    let mut scene = Scene::new(transport).await;
    for atomic in [false, true] {
        let write = data("x", json!({"createParents": true, "atomic": atomic}));
        for name in [
            "file/new",
            "file/a/new",
            "to-file/new",
            "to-itself/new",
            "fifo/new",
        ] {
            scene
                .refused(-32603, "fs/writeFile", name, write.clone())
                .await;
        }
    }
    assert_eq!(scene.content("file"), "hello");
}

async fn parents_are_not_created_through_links_unless_followed(transport: Transport) {
    let mut scene = Scene::new(transport).await;
    for atomic in [false, true] {
        let more = json!({"createParents": true, "followSymlinks": false, "atomic": atomic});
        let write = data("x", more);
        for name in ["to-dir/new", "to-dir/deep/new", "to-none/new"] {
            scene
                .refused(-32603, "fs/writeFile", name, write.clone())
                .await;
        }
        let name = format!("a{atomic}/b/new");
        scene.done("fs/writeFile", &name, write).await;
        assert_eq!(scene.content(&name), "x");
    }
    assert_eq!(scene.names("dir"), ["inner", "sub"]);
    assert!(!scene.path("nothing").exists());
}

async fn an_atomic_write_replaces_in_one_step(transport: Transport) {
    let mut scene = Scene::new(transport).await;
    fs::hard_link(scene.path("file"), scene.path("other-name")).unwrap();
    let opened = scene
        .call("fs/open", "file", json!({"handleId": "h"}))
        .await;
    assert_eq!(opened, json!({"handleId": "h"}));
    let write = data("new content", json!({"atomic": true}));
    scene.done("fs/writeFile", "file", write).await;
    assert_eq!(scene.content("file"), "new content");
    // Whoever had it open still reads the old file.
    assert_eq!(scene.content("other-name"), "hello");
    let block = json!({"handleId": "h", "offset": 0, "len": 100});
    let block = scene.client.call("fs/readBlock", block).await;
    assert_eq!(decode_text(&block["chunk"]), "hello");
    let write = data("made", json!({"atomic": true}));
    scene.done("fs/writeFile", "new", write).await;
    assert_eq!(scene.read("new").await, b"made");
}

async fn an_atomic_write_leaves_nothing_beside_it(transport: Transport) {
    let mut scene = Scene::new(transport).await;
    let before = scene.names("");
    let write = data("x", json!({"atomic": true}));
    for _ in 0..20 {
        scene.done("fs/writeFile", "file", write.clone()).await;
    }
    for (name, code) in [("dir", -32603), ("fifo", -32600), ("socket", -32600)] {
        scene
            .refused(code, "fs/writeFile", name, write.clone())
            .await;
    }
    let broken = json!({"dataBase64": "!", "atomic": true});
    scene.refused(-32600, "fs/writeFile", "file", broken).await;
    assert_eq!(scene.names(""), before);
}

async fn an_atomic_write_keeps_the_permission_bits(transport: Transport) {
    let mut scene = Scene::new(transport).await;
    let write = data("x", json!({"atomic": true}));
    for mode in [0o751, 0o600, 0o666] {
        let file = scene.path("file");
        fs::set_permissions(file, fs::Permissions::from_mode(mode)).unwrap();
        scene.done("fs/writeFile", "file", write.clone()).await;
        assert_eq!(mode_of(&scene, "file"), mode);
    }
}

async fn an_atomic_write_behind_a_link_replaces_its_target(transport: Transport) {
    let mut scene = Scene::new(transport).await;
    let write = data("x", json!({"atomic": true}));
    for (link, target) in [("to-file", "file"), ("to-none", "nothing")] {
        scene.done("fs/writeFile", link, write.clone()).await;
        assert!(scene.path(link).is_symlink());
        assert_eq!(scene.content(target), "x");
    }
    let write = data("y", json!({"atomic": true, "followSymlinks": false}));
    for link in ["to-file", "to-none", "to-itself", "to-dir/inner"] {
        scene
            .refused(-32603, "fs/writeFile", link, write.clone())
            .await;
    }
    assert_eq!(scene.content("file"), "x");
    assert_eq!(scene.content("dir/inner"), "x");
}

async fn an_atomic_write_that_fails_leaves_the_old_content(transport: Transport) {
    // The server may write 64 KiB into a file, and no more.
    let script = "trap '' XFSZ; ulimit -f 128; exec \"$0\" \"$@\"";
    let mut scene = Scene::on(Server::start_by(script, transport, &[]).await).await;
    let before = scene.names("");
    let large = "x".repeat(1 << 20);
    let write = data(&large, json!({"atomic": true}));
    scene.refused(-32603, "fs/writeFile", "file", write).await;
    assert_eq!(scene.content("file"), "hello");
    assert_eq!(scene.names(""), before);
    scene.client.expect_alive().await;
}

async fn readers_see_the_old_or_the_new_content(transport: Transport) {
    let mut scene = Scene::new(transport).await;
    let mut reader = scene.server.ready().await;
    let contents = ["a".repeat(200_000), "b".repeat(100_000)];
    scene.write("file", contents[0].as_bytes()).await;
    let mut writes = Vec::new();
    for round in 0..40 {
        let params = data(&contents[round % 2], json!({"atomic": true}));
        let params = scene.params("file", params);
        writes.push(scene.client.request("fs/writeFile", params).await);
        let params = scene.params("file", json!({}));
        let read = reader.call("fs/readFile", params).await;
        let read = decode_text(&read["dataBase64"]);
        assert!(contents.contains(&read), "{} bytes", read.len());
    }
    for write in writes {
        assert_eq!(scene.client.answer(write).await["result"], json!({}));
    }
}

async fn the_mode_is_set_whatever_the_umask_is(transport: Transport) {
    let script = "umask 077; exec \"$0\" \"$@\"";
    let mut scene = Scene::on(Server::start_by(script, transport, &[]).await).await;
    for (number, mode) in [0o777, 0o644, 0o600, 0o400, 0, 0o7755]
        .into_iter()
        .enumerate()
    {
        for atomic in [false, true] {
            let name = format!("new-{number}-{atomic}");
            let write = data("x", json!({"mode": mode, "atomic": atomic}));
            scene.done("fs/writeFile", &name, write).await;
            let found = mode_of(&scene, &name);
            assert_eq!(found, mode, "{name}: {found:o} is not {mode:o}");
            assert_eq!(fs::metadata(scene.path(&name)).unwrap().len(), 1);
        }
    }
}

async fn the_mode_is_set_on_existing_files_too(transport: Transport) {
    let mut scene = Scene::new(transport).await;
    for (atomic, mode) in [(false, 0o711), (true, 0o722), (false, 0o600)] {
        let write = data("x", json!({"mode": mode, "atomic": atomic}));
        scene.done("fs/writeFile", "file", write).await;
        assert_eq!(mode_of(&scene, "file"), mode);
    }
    let write = data("x", json!({"mode": null}));
    scene.done("fs/writeFile", "file", write).await;
    assert_eq!(mode_of(&scene, "file"), 0o600, "null is absent");
}

async fn a_mode_is_permission_bits(transport: Transport) {
    let mut scene = Scene::new(transport).await;
    for mode in [0o10000, 0o100_644, u32::MAX] {
        let write = data("x", json!({"mode": mode}));
        let message = scene.refused(-32600, "fs/writeFile", "new", write).await;
        assert!(message.contains("mode"), "{message}");
    }
    for mode in [
        json!(-1),
        json!(1_u64 << 32),
        json!(420.0),
        json!("0644"),
        json!([]),
    ] {
        let write = data("x", json!({"mode": mode}));
        let message = scene.refused(-32602, "fs/writeFile", "new", write).await;
        assert!(message.contains("mode"), "{message}");
    }
    assert!(!scene.path("new").exists());
}

async fn everything_at_once(transport: Transport) {
    let mut scene = Scene::new(transport).await;
    let more = json!({
        "createParents": true, "atomic": true, "mode": 0o640, "followSymlinks": false,
        "sandbox": null, "later": 1,
    });
    scene.done("fs/writeFile", "a/b/new", data("x", more)).await;
    assert_eq!(mode_of(&scene, "a/b/new"), 0o640);
    assert_eq!(scene.names("a/b"), ["new"]);
}
