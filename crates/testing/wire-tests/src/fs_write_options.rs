//! Options of `fs/writeFile` beyond the stock server's: parents, atomic, mode.

use std::{
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt},
};

use serde_json::{Value, json};

use crate::{
    client::{decode_text, encode, merge},
    fs_fixture::FsFixture,
    over_every_transport, over_one_transport,
    server::{Server, Transport},
};

over_every_transport!(
    parents_are_created_on_request,
    atomic_write_replaces_in_one_step
);

over_one_transport!(
    parents_are_not_created_by_default,
    impossible_parents_are_refused,
    parents_are_not_created_through_unfollowed_symlinks,
    atomic_write_leaves_no_temporary_file,
    atomic_write_keeps_the_permission_bits,
    atomic_write_through_a_symlink_replaces_its_target,
    failed_atomic_write_keeps_the_old_content,
    atomic_write_shows_readers_old_or_new_content,
    requested_mode_ignores_the_umask,
    requested_mode_applies_to_existing_files,
    mode_must_be_permission_bits,
    all_write_options_work_together,
);

fn data(text: &str, extra: Value) -> Value {
    let mut data = json!({"dataBase64": encode(text.as_bytes())});
    merge(&mut data, extra);
    data
}

fn mode_of(fixture: &FsFixture, name: &str) -> u32 {
    fs::metadata(fixture.path(name)).unwrap().mode() & 0o7777
}

async fn parents_are_created_on_request(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    for (name, found) in [
        ("a/b/c/new", "a/b/c/new"),
        ("a/b/other", "a/b/other"),
        ("plain", "plain"),
        ("file", "file"),
        ("to-dir/deep/new", "dir/deep/new"),
    ] {
        let write = data(name, json!({"createParents": true}));
        fixture.done("fs/writeFile", name, write).await;
        assert_eq!(fixture.content(found), name);
    }
}

async fn parents_are_not_created_by_default(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    for extra in [json!({}), json!({"createParents": false})] {
        let write = data("x", extra);
        fixture
            .refused(-32004, "fs/writeFile", "a/b/new", write)
            .await;
    }
    let write = data("x", json!({"atomic": true}));
    fixture
        .refused(-32004, "fs/writeFile", "a/b/new", write)
        .await;
    assert!(!fixture.path("a").exists());
}

async fn impossible_parents_are_refused(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    for atomic in [false, true] {
        let write = data("x", json!({"createParents": true, "atomic": atomic}));
        for name in [
            "file/new",
            "file/a/new",
            "to-file/new",
            "to-itself/new",
            "fifo/new",
        ] {
            fixture
                .refused(-32603, "fs/writeFile", name, write.clone())
                .await;
        }
    }
    assert_eq!(fixture.content("file"), "hello");
}

async fn parents_are_not_created_through_unfollowed_symlinks(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    for atomic in [false, true] {
        let extra = json!({"createParents": true, "followSymlinks": false, "atomic": atomic});
        let write = data("x", extra);
        for name in ["to-dir/new", "to-dir/deep/new", "to-none/new"] {
            fixture
                .refused(-32603, "fs/writeFile", name, write.clone())
                .await;
        }
        let name = format!("a{atomic}/b/new");
        fixture.done("fs/writeFile", &name, write).await;
        assert_eq!(fixture.content(&name), "x");
    }
    assert_eq!(fixture.names("dir"), ["inner", "sub"]);
    assert!(!fixture.path("nothing").exists());
}

async fn atomic_write_replaces_in_one_step(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    fs::hard_link(fixture.path("file"), fixture.path("other-name")).unwrap();
    let opened = fixture
        .call("fs/open", "file", json!({"handleId": "h"}))
        .await;
    assert_eq!(opened, json!({"handleId": "h"}));
    let write = data("new content", json!({"atomic": true}));
    fixture.done("fs/writeFile", "file", write).await;
    assert_eq!(fixture.content("file"), "new content");
    // Open handles still read the old file.
    assert_eq!(fixture.content("other-name"), "hello");
    let block = json!({"handleId": "h", "offset": 0, "len": 100});
    let block = fixture.client.call("fs/readBlock", block).await;
    assert_eq!(decode_text(&block["chunk"]), "hello");
    let write = data("made", json!({"atomic": true}));
    fixture.done("fs/writeFile", "new", write).await;
    assert_eq!(fixture.read("new").await, b"made");
}

async fn atomic_write_leaves_no_temporary_file(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    let before = fixture.names("");
    let write = data("x", json!({"atomic": true}));
    for _ in 0..20 {
        fixture.done("fs/writeFile", "file", write.clone()).await;
    }
    for (name, code) in [("dir", -32603), ("fifo", -32600), ("socket", -32600)] {
        fixture
            .refused(code, "fs/writeFile", name, write.clone())
            .await;
    }
    let broken = json!({"dataBase64": "!", "atomic": true});
    fixture
        .refused(-32600, "fs/writeFile", "file", broken)
        .await;
    assert_eq!(fixture.names(""), before);
}

async fn atomic_write_keeps_the_permission_bits(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    let write = data("x", json!({"atomic": true}));
    for mode in [0o751, 0o600, 0o666] {
        let file = fixture.path("file");
        fs::set_permissions(file, fs::Permissions::from_mode(mode)).unwrap();
        fixture.done("fs/writeFile", "file", write.clone()).await;
        assert_eq!(mode_of(&fixture, "file"), mode);
    }
}

async fn atomic_write_through_a_symlink_replaces_its_target(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    let write = data("x", json!({"atomic": true}));
    for (link, target) in [("to-file", "file"), ("to-none", "nothing")] {
        fixture.done("fs/writeFile", link, write.clone()).await;
        assert!(fixture.path(link).is_symlink());
        assert_eq!(fixture.content(target), "x");
    }
    let write = data("y", json!({"atomic": true, "followSymlinks": false}));
    for link in ["to-file", "to-none", "to-itself", "to-dir/inner"] {
        fixture
            .refused(-32603, "fs/writeFile", link, write.clone())
            .await;
    }
    assert_eq!(fixture.content("file"), "x");
    assert_eq!(fixture.content("dir/inner"), "x");
}

async fn failed_atomic_write_keeps_the_old_content(transport: Transport) {
    // The server's file size limit is 64 KiB.
    let script = "trap '' XFSZ; ulimit -f 128; exec \"$0\" \"$@\"";
    let mut fixture = FsFixture::on(Server::start_by(script, transport, &[]).await).await;
    let before = fixture.names("");
    let large = "x".repeat(1 << 20);
    let write = data(&large, json!({"atomic": true}));
    fixture.refused(-32603, "fs/writeFile", "file", write).await;
    assert_eq!(fixture.content("file"), "hello");
    assert_eq!(fixture.names(""), before);
    fixture.client.expect_alive().await;
}

async fn atomic_write_shows_readers_old_or_new_content(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    let mut reader = fixture.server.ready().await;
    let contents = ["a".repeat(200_000), "b".repeat(100_000)];
    fixture.write("file", contents[0].as_bytes()).await;
    let mut writes = Vec::new();
    for round in 0..40 {
        let params = data(&contents[round % 2], json!({"atomic": true}));
        let params = fixture.params("file", params);
        writes.push(fixture.client.request("fs/writeFile", params).await);
        let params = fixture.params("file", json!({}));
        let read = reader.call("fs/readFile", params).await;
        let read = decode_text(&read["dataBase64"]);
        assert!(contents.contains(&read), "{} bytes", read.len());
    }
    for write in writes {
        assert_eq!(fixture.client.answer(write).await["result"], json!({}));
    }
}

async fn requested_mode_ignores_the_umask(transport: Transport) {
    let script = "umask 077; exec \"$0\" \"$@\"";
    let mut fixture = FsFixture::on(Server::start_by(script, transport, &[]).await).await;
    for (number, mode) in [0o777, 0o644, 0o600, 0o400, 0, 0o7755]
        .into_iter()
        .enumerate()
    {
        for atomic in [false, true] {
            let name = format!("new-{number}-{atomic}");
            let write = data("x", json!({"mode": mode, "atomic": atomic}));
            fixture.done("fs/writeFile", &name, write).await;
            let found = mode_of(&fixture, &name);
            assert_eq!(found, mode, "{name}: {found:o} is not {mode:o}");
            assert_eq!(fs::metadata(fixture.path(&name)).unwrap().len(), 1);
        }
    }
}

async fn requested_mode_applies_to_existing_files(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    for (atomic, mode) in [(false, 0o711), (true, 0o722), (false, 0o600)] {
        let write = data("x", json!({"mode": mode, "atomic": atomic}));
        fixture.done("fs/writeFile", "file", write).await;
        assert_eq!(mode_of(&fixture, "file"), mode);
    }
    let write = data("x", json!({"mode": null}));
    fixture.done("fs/writeFile", "file", write).await;
    assert_eq!(mode_of(&fixture, "file"), 0o600, "null is absent");
}

async fn mode_must_be_permission_bits(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    for mode in [0o10000, 0o100_644, u32::MAX] {
        let write = data("x", json!({"mode": mode}));
        let message = fixture.refused(-32600, "fs/writeFile", "new", write).await;
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
        let message = fixture.refused(-32602, "fs/writeFile", "new", write).await;
        assert!(message.contains("mode"), "{message}");
    }
    assert!(!fixture.path("new").exists());
}

async fn all_write_options_work_together(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    let extra = json!({
        "createParents": true, "atomic": true, "mode": 0o640, "followSymlinks": false,
        "sandbox": null, "later": 1,
    });
    fixture
        .done("fs/writeFile", "a/b/new", data("x", extra))
        .await;
    assert_eq!(mode_of(&fixture, "a/b/new"), 0o640);
    assert_eq!(fixture.names("a/b"), ["new"]);
}
