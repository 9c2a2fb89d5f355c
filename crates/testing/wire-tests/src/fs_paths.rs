//! Paths are `file:` URIs; other texts are refused.

use std::{ffi::OsStr, fs, os::unix::ffi::OsStrExt};

use serde_json::{Value, json};

use crate::{
    fs_fixture::FsFixture, over_every_transport, over_one_transport, params::without,
    server::Transport,
};

over_every_transport!(invalid_path_uris_are_refused_by_every_method);

over_one_transport!(
    different_spellings_of_a_path_name_one_file,
    foreign_paths_are_invalid_requests,
    opaque_paths_are_only_for_otherwise_unspellable_paths,
    names_with_any_byte_work_with_every_method,
    returned_paths_are_canonical,
    an_encoded_slash_is_a_slash,
    dot_segments_are_resolved_before_symlinks,
);

/// Returns every method with a path, its params, and its path fields.
fn methods(fixture: &FsFixture) -> Vec<(&'static str, Value, &'static [&'static str])> {
    let path = fixture.uri("none");
    let walk = json!({
        "maxDepth": 1, "maxDirectories": 1, "maxEntries": 1, "followDirectorySymlinks": false,
    });
    let pair = json!({"sourcePath": path, "destinationPath": path, "recursive": false});
    vec![
        ("fs/readFile", json!({"path": path}), &["path"]),
        (
            "fs/writeFile",
            json!({"path": path, "dataBase64": ""}),
            &["path"],
        ),
        ("fs/createDirectory", json!({"path": path}), &["path"]),
        ("fs/getMetadata", json!({"path": path}), &["path"]),
        ("fs/canonicalize", json!({"path": path}), &["path"]),
        ("fs/readDirectory", json!({"path": path}), &["path"]),
        ("fs/walk", json!({"path": path, "options": walk}), &["path"]),
        ("fs/remove", json!({"path": path}), &["path"]),
        ("fs/copy", pair.clone(), &["sourcePath", "destinationPath"]),
        ("fs/rename", pair, &["sourcePath", "destinationPath"]),
        ("fs/open", json!({"path": path, "handleId": "h"}), &["path"]),
        ("fs/watch", json!({"path": path, "watchId": "w"}), &["path"]),
        (
            "fs/search",
            json!({"path": path, "pattern": "x"}),
            &["path"],
        ),
        ("fs/find", json!({"path": path, "glob": "x"}), &["path"]),
    ]
}

async fn invalid_path_uris_are_refused_by_every_method(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    let native = fixture.path("file").display().to_string();
    let bad = [
        json!(null),
        json!(1),
        json!([]),
        json!({}),
        json!(""),
        json!("file"),
        json!(native),
        json!("http://host/x"),
        json!("file:///a?q"),
        json!("file:///a#f"),
        json!("file:///a%00b"),
    ];
    for (method, params, members) in methods(&fixture) {
        for member in members {
            for value in &bad {
                let mut params = params.clone();
                params[member] = value.clone();
                let message = fixture.client.expect_error(-32602, method, params).await;
                assert!(message.contains(member), "{method} {value}: {message}");
            }
            let params = without(params.clone(), member);
            let message = fixture.client.expect_error(-32602, method, params).await;
            assert!(message.contains(member), "{method}: {message}");
        }
    }
}

async fn foreign_paths_are_invalid_requests(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    for (method, params, members) in methods(&fixture) {
        for member in members {
            for uri in [
                "file:///C:/x",
                "file:///c:/x",
                "file:///C%3A/x",
                "file:///C:",
                "file://host/share/x",
                "file:///%00/bad/path/L3g",
                "file:///%00/bad/path/eA",
                "file:///%00/bad/path/L2EAYg",
            ] {
                let mut params = params.clone();
                params[member] = uri.into();
                fixture.client.expect_error(-32600, method, params).await;
            }
        }
    }
    assert!(!fixture.path("none").exists());
}

async fn opaque_paths_are_only_for_otherwise_unspellable_paths(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    // `/C:/d/f` looks like a Windows path, but is a valid local path.
    let opaque = "file:///%00/bad/path/L0M6L2QvZg";
    fixture
        .refused(-32004, "fs/getMetadata", opaque, json!({}))
        .await;
    for broken in [
        "file:///%00/bad/path/L0M6L2QvZg==",
        "file:///%00/bad/path/",
        "file:///%00/bad/path/!!",
        "file:///%00/bad/path/Y",
        "file:///%00/bad/L0M6L2QvZg",
        "file:///%00",
    ] {
        fixture
            .refused(-32602, "fs/getMetadata", broken, json!({}))
            .await;
    }
    // Three letters are not a drive.
    fixture
        .refused(-32004, "fs/getMetadata", "file:///CC:/x", json!({}))
        .await;
}

async fn different_spellings_of_a_path_name_one_file(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    let native = fixture.path("file").display().to_string();
    let root = fixture.path("").display().to_string();
    for uri in [
        format!("file:{native}"),
        format!("FILE://{native}"),
        format!("file://localhost{native}"),
        format!("file://LocalHost{native}"),
        format!("  file://{native} "),
        format!("file://{root}/fi\n\tle"),
        format!("file://{root}//file"),
        format!("file://{root}///./file/"),
        format!("file://{root}/nowhere/../file"),
        format!("file://{root}/%2e%2E/scene/file"),
        format!("file://{root}\\file"),
        format!("file://{root}/%66ile"),
        format!("file://{root}/dir/%2E./file"),
    ] {
        let params = json!({"path": uri});
        let read = fixture.client.call("fs/readFile", params).await;
        assert_eq!(read, json!({"dataBase64": "aGVsbG8="}), "{uri}");
    }
}

async fn names_with_any_byte_work_with_every_method(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    let all: Vec<u8> = (1..=255).filter(|byte| *byte != b'/').collect();
    for part in all.chunks(40) {
        let native = fixture.path("").join(OsStr::from_bytes(part));
        let name: String = part.iter().map(|byte| format!("%{byte:02X}")).collect();
        fixture.write(&name, part).await;
        assert_eq!(fs::read(&native).unwrap(), part);
        assert_eq!(fixture.read(&name).await, part);
        let canonical = fixture.call("fs/canonicalize", &name, json!({})).await;
        let canonical = canonical["path"].as_str().unwrap().to_owned();
        assert_eq!(
            fixture.read(&canonical).await,
            part,
            "returned path is not accepted as input"
        );
        let to = json!({
            "sourcePath": fixture.uri(&name), "destinationPath": fixture.uri("dir/copy"),
            "recursive": false,
        });
        fixture.client.call("fs/copy", to).await;
        assert_eq!(fs::read(fixture.path("dir/copy")).unwrap(), part);
        let to = json!({
            "sourcePath": fixture.uri(&name), "destinationPath": fixture.uri(&format!("dir/{name}")),
        });
        fixture.client.call("fs/rename", to).await;
        fixture
            .done("fs/remove", &format!("dir/{name}"), json!({"force": false}))
            .await;
        assert!(!native.exists());
    }
}

async fn returned_paths_are_canonical(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    let name = "sp ace%#?\u{e9}{}<>`\"~+,;=@&$!'()*[]|^";
    fs::write(fixture.path("dir/sub").join(name), "").unwrap();
    let walk = json!({"options": {
        "maxDepth": 0, "maxDirectories": 1, "maxEntries": 10, "followDirectorySymlinks": false,
    }});
    let walked = fixture.call("fs/walk", "dir/sub", walk).await;
    let path = walked["entries"][0]["path"].as_str().unwrap().to_owned();
    let tail = path.strip_prefix(&fixture.uri("dir/sub/")).unwrap();
    assert!(
        tail.starts_with("sp%20ace%25%23%3F%C3%A9%7B%7D%3C%3E%60%22"),
        "{tail}"
    );
    assert!(tail.is_ascii());
    let canonical = fixture.call("fs/canonicalize", &path, json!({})).await;
    assert_eq!(canonical, json!({"path": path}), "one spelling everywhere");
    let found = fixture
        .call("fs/find", "dir/sub", json!({"query": "space"}))
        .await;
    assert_eq!(found["paths"], json!([path]));
}

async fn an_encoded_slash_is_a_slash(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    assert_eq!(fixture.read("dir%2Finner").await, b"x");
    assert_eq!(fixture.read("dir%2F..%2Ffile").await, b"hello");
    let path = fixture
        .call("fs/canonicalize", "dir%2Fsub", json!({}))
        .await;
    assert_eq!(path, json!({"path": fixture.uri("dir/sub")}));
}

async fn dot_segments_are_resolved_before_symlinks(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    std::os::unix::fs::symlink("dir/sub", fixture.path("down")).unwrap();
    // Not `dir/inner`, which is relative to the symlink's target.
    fixture
        .refused(-32004, "fs/readFile", "down/../inner", json!({}))
        .await;
    assert_eq!(fixture.read("down/../file").await, b"hello");
    assert_eq!(fixture.read("down%2F..%2Ffile").await, b"hello");
}
