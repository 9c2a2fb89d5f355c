//! Watching: every change is told, to whom asked, until unwatched.

use std::{fs, os::unix::fs::symlink};

use serde_json::{Value, json};

use crate::{
    client::Client,
    over_every_transport, over_one_transport,
    scene::Scene,
    server::{Transport, until},
};

over_every_transport!(
    changes_below_a_directory_are_told,
    an_unwatched_path_is_silent
);

over_one_transport!(
    watches_belong_to_their_connection,
    watches_end_with_their_connection,
    without_recursive_only_own_entries_are_told,
    new_directories_are_watched_too,
    a_rename_inside_tells_both_names,
    what_comes_and_goes_is_created_and_removed,
    one_file_can_be_watched,
    a_watched_file_may_be_replaced_and_come_back,
    a_link_is_watched_where_it_leads,
    a_watched_directory_that_is_removed_is_told,
    a_name_is_used_once_and_is_free_afterwards,
    a_connection_has_at_most_64_watches,
    what_cannot_be_watched_is_refused,
    members_are_checked,
    what_the_client_writes_itself_is_told,
    many_changes_are_told_or_said_to_overflow,
    names_that_are_not_utf_8_are_told,
    directories_that_are_new_at_every_look_are_answered,
);

async fn watch(scene: &mut Scene, id: &str, name: &str, more: Value) {
    let expected = json!({"path": scene.uri(name)});
    let mut params = scene.params(name, more);
    params["watchId"] = id.into();
    assert_eq!(scene.client.call("fs/watch", params).await, expected);
}

/// Collects what a watch tells until it has told all of these, as path below the scene and kind;
/// returns everything.
async fn told(scene: &mut Scene, id: &str, wanted: &[(&str, &str)]) -> Vec<(String, String)> {
    let root = scene.uri("");
    let mut told: Vec<(String, String)> = Vec::new();
    let has = |told: &[(String, String)], wanted: &(&str, &str)| {
        told.iter()
            .any(|(path, kind)| (path.as_str(), kind.as_str()) == *wanted)
    };
    while !wanted.iter().all(|wanted| has(&told, wanted)) {
        let note = scene.client.note("fs/changed").await;
        assert_eq!(note.as_object().unwrap().len(), 3, "{note}");
        assert_eq!(note["watchId"], id, "{note}");
        assert_eq!(note["overflow"], false, "{note}");
        let changes = note["changes"].as_array().unwrap();
        let mut paths = Vec::new();
        for change in changes {
            assert_eq!(change.as_object().unwrap().len(), 2, "{change}");
            let path = change["path"].as_str().unwrap();
            paths.push(path);
            let path = path.strip_prefix(&root).expect(path);
            let path = path.trim_start_matches('/').to_owned();
            told.push((path, change["kind"].as_str().unwrap().to_owned()));
        }
        let count = paths.len();
        paths.sort_unstable();
        paths.dedup();
        assert_eq!(paths.len(), count, "each path once: {note}");
    }
    told
}

fn names(told: &[(String, String)]) -> Vec<&str> {
    told.iter().map(|(path, _)| path.as_str()).collect()
}

async fn changes_below_a_directory_are_told(transport: Transport) {
    let mut scene = Scene::new(transport).await;
    watch(&mut scene, "w", "", json!({})).await;
    fs::write(scene.path("dir/sub/new"), "x").unwrap();
    told(&mut scene, "w", &[("dir/sub/new", "created")]).await;
    fs::write(scene.path("dir/inner"), "changed").unwrap();
    told(&mut scene, "w", &[("dir/inner", "modified")]).await;
    fs::remove_file(scene.path("file")).unwrap();
    told(&mut scene, "w", &[("file", "removed")]).await;
}

async fn an_unwatched_path_is_silent(transport: Transport) {
    let mut scene = Scene::new(transport).await;
    watch(&mut scene, "a", "dir", json!({})).await;
    watch(&mut scene, "b", "dir", json!({})).await;
    let unwatch = scene
        .client
        .call("fs/unwatch", json!({"watchId": "a"}))
        .await;
    assert_eq!(unwatch, json!({}));
    fs::write(scene.path("dir/new"), "x").unwrap();
    // Only the other tells.
    told(&mut scene, "b", &[("dir/new", "created")]).await;
    for id in ["a", "never", ""] {
        let unwatch = scene
            .client
            .call("fs/unwatch", json!({"watchId": id}))
            .await;
        assert_eq!(unwatch, json!({}), "an unknown one is fine");
    }
}

async fn without_recursive_only_own_entries_are_told(transport: Transport) {
    let mut scene = Scene::new(transport).await;
    watch(&mut scene, "w", "dir", json!({"recursive": false})).await;
    fs::write(scene.path("dir/sub/deep"), "x").unwrap();
    fs::write(scene.path("file"), "beside").unwrap();
    fs::write(scene.path("dir/own"), "x").unwrap();
    let told = told(&mut scene, "w", &[("dir/own", "created")]).await;
    assert!(!names(&told).contains(&"dir/sub/deep"), "{told:?}");
    assert!(!names(&told).contains(&"file"), "{told:?}");
}

async fn new_directories_are_watched_too(transport: Transport) {
    let mut scene = Scene::new(transport).await;
    watch(&mut scene, "w", "dir", json!({"recursive": true})).await;
    // The file is there before anybody can watch its directory.
    fs::create_dir_all(scene.path("dir/a/b/c")).unwrap();
    fs::write(scene.path("dir/a/b/c/file"), "x").unwrap();
    told(
        &mut scene,
        "w",
        &[("dir/a", "created"), ("dir/a/b/c/file", "created")],
    )
    .await;
    fs::remove_file(scene.path("dir/a/b/c/file")).unwrap();
    told(&mut scene, "w", &[("dir/a/b/c/file", "removed")]).await;
}

async fn a_rename_inside_tells_both_names(transport: Transport) {
    let mut scene = Scene::new(transport).await;
    watch(&mut scene, "w", "", json!({})).await;
    fs::rename(scene.path("file"), scene.path("dir/moved")).unwrap();
    told(
        &mut scene,
        "w",
        &[("file", "renamed"), ("dir/moved", "renamed")],
    )
    .await;
    let params = json!({
        "sourcePath": scene.uri("dir/moved"), "destinationPath": scene.uri("back"),
    });
    scene.client.call("fs/rename", params).await;
    told(
        &mut scene,
        "w",
        &[("dir/moved", "renamed"), ("back", "renamed")],
    )
    .await;
}

async fn what_comes_and_goes_is_created_and_removed(transport: Transport) {
    let mut scene = Scene::new(transport).await;
    watch(&mut scene, "w", "dir", json!({})).await;
    fs::rename(scene.path("file"), scene.path("dir/came")).unwrap();
    told(&mut scene, "w", &[("dir/came", "created")]).await;
    fs::rename(scene.path("dir/inner"), scene.path("went")).unwrap();
    told(&mut scene, "w", &[("dir/inner", "removed")]).await;
}

async fn one_file_can_be_watched(transport: Transport) {
    let mut scene = Scene::new(transport).await;
    watch(&mut scene, "w", "file", json!({})).await;
    fs::write(scene.path("dir/inner"), "other").unwrap();
    fs::write(scene.path("beside"), "other").unwrap();
    fs::write(scene.path("file"), "changed").unwrap();
    let told = told(&mut scene, "w", &[("file", "modified")]).await;
    assert!(told.iter().all(|(path, _)| path == "file"), "{told:?}");
}

async fn a_watched_file_may_be_replaced_and_come_back(transport: Transport) {
    let mut scene = Scene::new(transport).await;
    watch(&mut scene, "w", "file", json!({})).await;
    let atomic = json!({"dataBase64": "eA==", "atomic": true});
    scene.done("fs/writeFile", "file", atomic).await;
    told(&mut scene, "w", &[("file", "modified")]).await;
    fs::remove_file(scene.path("file")).unwrap();
    told(&mut scene, "w", &[("file", "removed")]).await;
    fs::write(scene.path("file"), "back").unwrap();
    told(&mut scene, "w", &[("file", "created")]).await;
    // Looking is no change.
    assert_eq!(scene.read("file").await, b"back");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    fs::set_permissions(scene.path("file"), mode).unwrap();
    let told = told(&mut scene, "w", &[("file", "modified")]).await;
    assert_eq!(told.len(), 1, "{told:?}");
}

async fn a_link_is_watched_where_it_leads(transport: Transport) {
    let mut scene = Scene::new(transport).await;
    let params = scene.params("to-dir", json!({"watchId": "w"}));
    let watched = scene.client.call("fs/watch", params).await;
    assert_eq!(watched, json!({"path": scene.uri("dir")}));
    fs::write(scene.path("dir/new"), "x").unwrap();
    told(&mut scene, "w", &[("dir/new", "created")]).await;
}

async fn a_watched_directory_that_is_removed_is_told(transport: Transport) {
    let mut scene = Scene::new(transport).await;
    watch(&mut scene, "w", "dir", json!({})).await;
    fs::remove_dir_all(scene.path("dir")).unwrap();
    told(&mut scene, "w", &[("dir", "removed")]).await;
    // Nothing follows, and the name is free.
    let last = scene.client.note("fs/changed").await;
    assert_eq!(
        last,
        json!({"watchId": "w", "changes": [], "overflow": false, "ended": true})
    );
    watch(&mut scene, "w", "", json!({})).await;
}

async fn a_name_is_used_once_and_is_free_afterwards(transport: Transport) {
    let mut scene = Scene::new(transport).await;
    watch(&mut scene, "w", "dir", json!({})).await;
    for name in ["dir", "file", "none"] {
        let message = scene
            .refused(-32600, "fs/watch", name, json!({"watchId": "w"}))
            .await;
        assert!(message.contains('w'), "{message}");
    }
    fs::write(scene.path("dir/new"), "x").unwrap();
    told(&mut scene, "w", &[("dir/new", "created")]).await;
    scene
        .client
        .call("fs/unwatch", json!({"watchId": "w"}))
        .await;
    watch(&mut scene, "w", "file", json!({})).await;
    // One that fails frees its name, too.
    let more = json!({"watchId": "v"});
    scene.refused(-32004, "fs/watch", "none", more).await;
    watch(&mut scene, "v", "dir", json!({})).await;
}

async fn a_connection_has_at_most_64_watches(transport: Transport) {
    let mut scene = Scene::new(transport).await;
    for number in 0..64 {
        watch(&mut scene, &number.to_string(), "dir", json!({})).await;
    }
    let more = json!({"watchId": "64"});
    let message = scene.refused(-32600, "fs/watch", "dir", more).await;
    assert!(message.contains("64"), "{message}");
    scene
        .client
        .call("fs/unwatch", json!({"watchId": "7"}))
        .await;
    watch(&mut scene, "64", "dir", json!({})).await;
    let mut other = scene.server.ready().await;
    let params = scene.params("dir", json!({"watchId": "0"}));
    other.call("fs/watch", params).await;
    // Each of them tells.
    fs::write(scene.path("dir/new"), "x").unwrap();
    let mut silent: Vec<String> = (0..=64)
        .filter(|number| *number != 7)
        .map(|number| number.to_string())
        .collect();
    while !silent.is_empty() {
        let note = scene.client.note("fs/changed").await;
        assert_ne!(note["watchId"], "7", "{note}");
        silent.retain(|id| note["watchId"] != id.as_str());
    }
}

async fn what_cannot_be_watched_is_refused(transport: Transport) {
    let mut scene = Scene::new(transport).await;
    for (name, code) in [
        ("none", -32004),
        ("to-none", -32004),
        ("file/x", -32603),
        ("to-itself", -32603),
        ("file:///C:/x", -32600),
    ] {
        let more = json!({"watchId": "w"});
        scene.refused(code, "fs/watch", name, more).await;
    }
}

async fn members_are_checked(transport: Transport) {
    let mut scene = Scene::new(transport).await;
    for (more, member) in [
        (json!({}), "watchId"),
        (json!({"watchId": null}), "watchId"),
        (json!({"watchId": 1}), "watchId"),
        (json!({"watchId": "x".repeat(257)}), "watchId"),
        (json!({"watchId": "w", "recursive": null}), "recursive"),
        (json!({"watchId": "w", "recursive": 1}), "recursive"),
    ] {
        let message = scene.refused(-32602, "fs/watch", "dir", more).await;
        assert!(message.contains(member), "{message}");
    }
    for params in [json!({}), json!({"watchId": null}), json!({"watchId": 1})] {
        let message = scene
            .client
            .expect_error(-32602, "fs/unwatch", params)
            .await;
        assert!(message.contains("watchId"), "{message}");
    }
    let longest = "x".repeat(256);
    watch(&mut scene, &longest, "dir", json!({"sandbox": null})).await;
    watch(&mut scene, "", "dir", json!({})).await;
}

async fn what_the_client_writes_itself_is_told(transport: Transport) {
    let mut scene = Scene::new(transport).await;
    // Pipelined: the watch begins before the write.
    let params = scene.params("", json!({"watchId": "w"}));
    let watch = scene.client.request("fs/watch", params).await;
    let params = scene.params("new", json!({"dataBase64": "eA==", "atomic": true}));
    let write = scene.client.request("fs/writeFile", params).await;
    assert_eq!(
        scene.client.answer(watch).await["result"],
        json!({"path": scene.uri("")})
    );
    assert_eq!(scene.client.answer(write).await["result"], json!({}));
    loop {
        let note = scene.client.note("fs/changed").await;
        let path = scene.uri("new");
        let changes = note["changes"].as_array().unwrap();
        if changes.iter().any(|change| change["path"] == path.as_str()) {
            break;
        }
    }
}

async fn many_changes_are_told_or_said_to_overflow(transport: Transport) {
    let mut scene = Scene::new(transport).await;
    watch(&mut scene, "w", "dir", json!({})).await;
    // Nobody reads meanwhile.
    for number in 0..30_000 {
        symlink(".", scene.path(&format!("dir/sub/{number}"))).unwrap();
    }
    fs::write(scene.path("dir/last"), "x").unwrap();
    let last = scene.uri("dir/last");
    let (mut count, mut overflow) = (0, false);
    loop {
        let note = scene.client.note("fs/changed").await;
        let changes = note["changes"].as_array().unwrap();
        count += changes.len();
        overflow |= note["overflow"].as_bool().unwrap();
        if overflow || changes.iter().any(|change| change["path"] == last.as_str()) {
            break;
        }
    }
    assert!(
        overflow || count > 30_000,
        "{count} changes without overflow"
    );
    scene.client.expect_alive().await;
}

async fn names_that_are_not_utf_8_are_told(transport: Transport) {
    use std::os::unix::ffi::OsStrExt;
    let mut scene = Scene::new(transport).await;
    watch(&mut scene, "w", "dir", json!({})).await;
    let name = std::ffi::OsStr::from_bytes(b"n\xff ?");
    fs::write(scene.path("dir").join(name), "x").unwrap();
    told(&mut scene, "w", &[("dir/n%FF%20%3F", "created")]).await;
}

async fn directories_that_are_new_at_every_look_are_answered(transport: Transport) {
    let mut scene = Scene::new(transport).await;
    // The kernel makes these up whenever they are looked up: none is ever met again.
    let params = json!({"watchId": "w", "path": "file:///proc/self/net"});
    let watch = scene.client.request("fs/watch", params).await;
    let answer = scene.client.answer(watch).await;
    assert!(answer["result"].is_object() || answer["error"].is_object());
    scene
        .client
        .call("fs/unwatch", json!({"watchId": "w"}))
        .await;
    assert_eq!(scene.read("file").await, b"hello");
}

async fn watches_belong_to_their_connection(transport: Transport) {
    let mut scene = Scene::new(transport).await;
    let mut other = scene.server.ready().await;
    let params = scene.params("dir", json!({"watchId": "w"}));
    other.call("fs/watch", params).await;
    watch(&mut scene, "w", "dir", json!({})).await;
    scene
        .client
        .call("fs/unwatch", json!({"watchId": "w"}))
        .await;
    fs::write(scene.path("dir/new"), "x").unwrap();
    let note = other.note("fs/changed").await;
    assert_eq!(note["watchId"], "w");
    silent(&mut scene.client).await;
}

/// Checks that nothing was told: the next message is the answer.
async fn silent(client: &mut Client) {
    let id = client.request("environment/status", json!({})).await;
    assert_eq!(client.recv().await["id"], id);
}

/// Counts the watches that the kernel keeps for a process.
fn kernel_watches(pid: u32) -> usize {
    let files = fs::read_dir(format!("/proc/{pid}/fdinfo")).unwrap();
    let infos = files.filter_map(|file| fs::read_to_string(file.ok()?.path()).ok());
    infos
        .map(|info| {
            info.lines()
                .filter(|line| line.starts_with("inotify"))
                .count()
        })
        .sum()
}

async fn watches_end_with_their_connection(transport: Transport) {
    let mut scene = Scene::new(transport).await;
    let pid = scene.server.pid();
    assert_eq!(kernel_watches(pid), 0);
    let missing = json!({"watchId": 1, "missing": [scene.uri("none/x")]});
    let directory = scene.params("", json!({"watchId": "w"}));
    for (method, params) in [("fs/watchMissing", missing), ("fs/watch", directory)] {
        let mut other = scene.server.ready().await;
        other.call(method, params).await;
        assert!(kernel_watches(pid) > 0, "{method}");
        drop(other);
        until(&format!("end of {method}"), || kernel_watches(pid) == 0).await;
    }
}
