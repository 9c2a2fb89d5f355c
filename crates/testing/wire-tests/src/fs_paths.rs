//! Paths are `file:` URIs; every other text has its code.

use std::{ffi::OsStr, fs, os::unix::ffi::OsStrExt};

use serde_json::{Value, json};

use crate::{
    over_every_transport, over_one_transport, params::without, scene::Scene, server::Transport,
};

over_every_transport!(texts_that_are_no_path_are_refused_by_every_method);

over_one_transport!(
    spellings_of_one_path_name_one_file,
    foreign_paths_are_invalid_requests,
    opaque_paths_are_for_what_has_no_other_spelling,
    names_of_all_bytes_work_with_every_method,
    answers_are_canonical,
    an_encoded_slash_is_a_slash,
    dots_are_resolved_before_links,
);

/// Every method with a path, its params, and the members that are paths.
fn methods(scene: &Scene) -> Vec<(&'static str, Value, &'static [&'static str])> {
    let path = scene.uri("none");
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

async fn texts_that_are_no_path_are_refused_by_every_method(transport: Transport) {
    let mut scene = Scene::new(transport).await;
    let native = scene.path("file").display().to_string();
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
    for (method, params, members) in methods(&scene) {
        for member in members {
            for value in &bad {
                let mut params = params.clone();
                params[member] = value.clone();
                let message = scene.client.expect_error(-32602, method, params).await;
                assert!(message.contains(member), "{method} {value}: {message}");
            }
            let params = without(params.clone(), member);
            let message = scene.client.expect_error(-32602, method, params).await;
            assert!(message.contains(member), "{method}: {message}");
        }
    }
}

async fn foreign_paths_are_invalid_requests(transport: Transport) {
    let mut scene = Scene::new(transport).await;
    for (method, params, members) in methods(&scene) {
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
                scene.client.expect_error(-32600, method, params).await;
            }
        }
    }
    assert!(!scene.path("none").exists());
}

async fn opaque_paths_are_for_what_has_no_other_spelling(transport: Transport) {
    let mut scene = Scene::new(transport).await;
    // `/C:/d/f` looks like another host's path, but can be named.
    let opaque = "file:///%00/bad/path/L0M6L2QvZg";
    scene
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
        scene
            .refused(-32602, "fs/getMetadata", broken, json!({}))
            .await;
    }
    // Three letters are no drive.
    scene
        .refused(-32004, "fs/getMetadata", "file:///CC:/x", json!({}))
        .await;
}

async fn spellings_of_one_path_name_one_file(transport: Transport) {
    let mut scene = Scene::new(transport).await;
    let native = scene.path("file").display().to_string();
    let root = scene.path("").display().to_string();
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
        let read = scene.client.call("fs/readFile", params).await;
        assert_eq!(read, json!({"dataBase64": "aGVsbG8="}), "{uri}");
    }
}

async fn names_of_all_bytes_work_with_every_method(transport: Transport) {
    let mut scene = Scene::new(transport).await;
    let all: Vec<u8> = (1..=255).filter(|byte| *byte != b'/').collect();
    for part in all.chunks(40) {
        let native = scene.path("").join(OsStr::from_bytes(part));
        let name: String = part.iter().map(|byte| format!("%{byte:02X}")).collect();
        scene.write(&name, part).await;
        assert_eq!(fs::read(&native).unwrap(), part);
        assert_eq!(scene.read(&name).await, part);
        let canonical = scene.call("fs/canonicalize", &name, json!({})).await;
        let canonical = canonical["path"].as_str().unwrap().to_owned();
        assert_eq!(
            scene.read(&canonical).await,
            part,
            "what is answered can be asked"
        );
        let to = json!({
            "sourcePath": scene.uri(&name), "destinationPath": scene.uri("dir/copy"),
            "recursive": false,
        });
        scene.client.call("fs/copy", to).await;
        assert_eq!(fs::read(scene.path("dir/copy")).unwrap(), part);
        let to = json!({
            "sourcePath": scene.uri(&name), "destinationPath": scene.uri(&format!("dir/{name}")),
        });
        scene.client.call("fs/rename", to).await;
        scene
            .done("fs/remove", &format!("dir/{name}"), json!({"force": false}))
            .await;
        assert!(!native.exists());
    }
}

async fn answers_are_canonical(transport: Transport) {
    let mut scene = Scene::new(transport).await;
    let name = "sp ace%#?\u{e9}{}<>`\"~+,;=@&$!'()*[]|^";
    fs::write(scene.path("dir/sub").join(name), "").unwrap();
    let walk = json!({"options": {
        "maxDepth": 0, "maxDirectories": 1, "maxEntries": 10, "followDirectorySymlinks": false,
    }});
    let walked = scene.call("fs/walk", "dir/sub", walk).await;
    let path = walked["entries"][0]["path"].as_str().unwrap().to_owned();
    let tail = path.strip_prefix(&scene.uri("dir/sub/")).unwrap();
    assert!(
        tail.starts_with("sp%20ace%25%23%3F%C3%A9%7B%7D%3C%3E%60%22"),
        "{tail}"
    );
    assert!(tail.is_ascii());
    let canonical = scene.call("fs/canonicalize", &path, json!({})).await;
    assert_eq!(canonical, json!({"path": path}), "one spelling everywhere");
    let found = scene
        .call("fs/find", "dir/sub", json!({"query": "space"}))
        .await;
    assert_eq!(found["paths"], json!([path]));
}

async fn an_encoded_slash_is_a_slash(transport: Transport) {
    let mut scene = Scene::new(transport).await;
    assert_eq!(scene.read("dir%2Finner").await, b"x");
    assert_eq!(scene.read("dir%2F..%2Ffile").await, b"hello");
    let path = scene.call("fs/canonicalize", "dir%2Fsub", json!({})).await;
    assert_eq!(path, json!({"path": scene.uri("dir/sub")}));
}

async fn dots_are_resolved_before_links(transport: Transport) {
    let mut scene = Scene::new(transport).await;
    std::os::unix::fs::symlink("dir/sub", scene.path("down")).unwrap();
    // Not `dir/inner`, which is where the link's parent is.
    scene
        .refused(-32004, "fs/readFile", "down/../inner", json!({}))
        .await;
    assert_eq!(scene.read("down/../file").await, b"hello");
    assert_eq!(scene.read("down%2F..%2Ffile").await, b"hello");
}
