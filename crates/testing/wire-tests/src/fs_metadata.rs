//! `fs/setMetadata`, `fs/createSymlink`, and the details of `fs/getMetadata`.

use std::{
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt},
};

use serde_json::json;

use crate::{
    client::encode,
    fs_fixture::FsFixture,
    over_every_transport, over_one_transport,
    server::{Server, Transport},
};

over_every_transport!(mode_and_time_are_set);

over_one_transport!(
    set_metadata_follows_links_unless_told_otherwise,
    invalid_metadata_is_refused,
    links_are_created_and_replaced_on_request,
    impossible_links_are_refused,
    metadata_has_a_link_target_on_request,
    extension_is_granted_on_request,
);

async fn mode_and_time_are_set(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    for (name, mode) in [("file", 0o640), ("dir", 0o1750), ("fifo", 0o600)] {
        let params = json!({"mode": mode, "modifiedAtMs": 1_234_567_890_123_i64});
        fixture.done("fs/setMetadata", name, params).await;
        let found = fs::metadata(fixture.path(name)).unwrap();
        assert_eq!(found.permissions().mode() & 0o7777, mode, "{name}");
        assert_eq!(
            (found.mtime(), found.mtime_nsec()),
            (1_234_567_890, 123_000_000)
        );
    }
    let before = fs::metadata(fixture.path("file")).unwrap();
    let params = json!({"modifiedAtMs": -1500});
    fixture.done("fs/setMetadata", "file", params).await;
    let found = fs::metadata(fixture.path("file")).unwrap();
    assert_eq!((found.mtime(), found.mtime_nsec()), (-2, 500_000_000));
    assert_eq!(
        (found.mode(), found.atime()),
        (before.mode(), before.atime())
    );
}

async fn set_metadata_follows_links_unless_told_otherwise(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    let mode =
        |fixture: &FsFixture, name: &str| fs::metadata(fixture.path(name)).unwrap().mode() & 0o7777;
    let rows = [
        ("to-file", 0),
        ("to-dir/inner", 0),
        ("to-none", -32004),
        ("to-itself", -32603),
    ];
    fixture
        .table("fs/setMetadata", &json!({"mode": 0o600}), &rows)
        .await;
    let strict = json!({"mode": 0o600, "modifiedAtMs": 0, "followSymlinks": false});
    let rows = [
        ("file", 0),
        ("dir", 0),
        ("fifo", 0),
        ("to-file", -32600),
        ("to-none", -32600),
        ("to-dir/inner", -32603),
        ("none", -32004),
    ];
    fixture.table("fs/setMetadata", &strict, &rows).await;
    fixture.reset();
    let before = mode(&fixture, "file");
    fixture
        .refused(-32600, "fs/setMetadata", "to-file", strict)
        .await;
    assert_eq!(mode(&fixture, "file"), before);
    let params = json!({"mode": 0o604});
    fixture.done("fs/setMetadata", "to-file", params).await;
    assert_eq!(mode(&fixture, "file"), 0o604);
}

async fn invalid_metadata_is_refused(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    for (code, name, params) in [
        (-32004, "none", json!({"mode": 0o600})),
        (-32004, "none", json!({"modifiedAtMs": 0})),
        (-32603, "file/x", json!({"mode": 0o600})),
        (-32602, "file", json!({})),
        (-32602, "file", json!({"mode": null})),
        (-32600, "file", json!({"mode": 0o10000})),
        (-32602, "file", json!({"mode": -1})),
        (-32602, "file", json!({"mode": "0600"})),
        (-32602, "file", json!({"modifiedAtMs": 1.5})),
        (-32602, "file", json!({"modifiedAtMs": u64::MAX})),
    ] {
        fixture.refused(code, "fs/setMetadata", name, params).await;
    }
}

async fn links_are_created_and_replaced_on_request(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    let leads_to = |fixture: &FsFixture, name: &str| fs::read_link(fixture.path(name)).unwrap();
    let new = json!({"target": "../odd \n target"});
    fixture.done("fs/createSymlink", "dir/new", new).await;
    assert_eq!(
        leads_to(&fixture, "dir/new").as_os_str(),
        "../odd \n target"
    );
    for name in ["file", "to-none", "dir", "fifo"] {
        let params = json!({"target": "x"});
        fixture
            .refused(-32603, "fs/createSymlink", name, params)
            .await;
    }
    for name in ["file", "to-none", "to-dir", "fifo"] {
        let params = json!({"target": "x", "overwrite": true});
        fixture.done("fs/createSymlink", name, params).await;
        assert_eq!(leads_to(&fixture, name).as_os_str(), "x");
    }
    assert!(fixture.path("dir/inner").exists(), "the link was replaced");
    let bytes = json!({"target": "?", "targetBase64": encode(b"not \xff text")});
    fixture.done("fs/createSymlink", "bytes", bytes).await;
    assert_eq!(
        leads_to(&fixture, "bytes").as_os_str().as_encoded_bytes(),
        b"not \xff text"
    );
}

async fn impossible_links_are_refused(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    for (code, name, params) in [
        (-32603, "dir", json!({"target": "x", "overwrite": true})),
        (-32004, "none/x", json!({"target": "x"})),
        (-32603, "file/x", json!({"target": "x"})),
        (-32602, "new", json!({"target": ""})),
        (-32602, "new", json!({})),
        (-32602, "new", json!({"target": 7})),
        (-32602, "new", json!({"target": "x", "targetBase64": "%"})),
        (-32600, "new", json!({"target": "a\u{0}b"})),
        (-32603, "new", json!({"target": "x".repeat(5000)})),
    ] {
        fixture
            .refused(code, "fs/createSymlink", name, params)
            .await;
    }
    assert!(!fixture.path("new").is_symlink());
}

async fn metadata_has_a_link_target_on_request(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    for (name, target) in [("to-file", "file"), ("to-dir", "dir")] {
        let plain = fixture.call("fs/getMetadata", name, json!({})).await;
        assert!(plain.get("linkTarget").is_none(), "{plain}");
        let details = json!({"details": true});
        let mut found = fixture.call("fs/getMetadata", name, details).await;
        assert_eq!(found["linkTarget"], target);
        found.as_object_mut().unwrap().remove("linkTarget");
        assert_eq!(found, plain);
    }
    for (name, target) in [("to-none", "nothing"), ("to-itself", "to-itself")] {
        let details = json!({"details": true});
        let found = fixture.call("fs/getMetadata", name, details).await;
        assert_eq!(found["linkTarget"], target);
        assert_eq!(found["isSymlink"], true);
        assert_eq!(
            (&found["isFile"], &found["isDirectory"]),
            (&json!(false), &json!(false))
        );
        assert!(found.get("mode").is_none(), "{found}");
    }
    fixture
        .refused(-32004, "fs/getMetadata", "to-none", json!({}))
        .await;
    let strict = json!({"details": true, "followSymlinks": false});
    fixture
        .refused(-32600, "fs/getMetadata", "to-file", strict)
        .await;
    let found = fixture
        .call("fs/getMetadata", "file", json!({"details": true}))
        .await;
    assert!(found.get("linkTarget").is_none(), "{found}");
}

async fn extension_is_granted_on_request(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    let mut client = server.connect().await;
    let params = json!({"extensions": ["fileDetails"]});
    let granted = client.initialize(params).await;
    assert_eq!(granted["extensions"], json!(["fileDetails"]));
    let mut client = server.connect().await;
    let granted = client.initialize(json!({})).await;
    assert_eq!(granted["extensions"], json!([]));
}
