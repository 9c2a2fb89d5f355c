//! `fs/watch`: every change is reported to its watcher until unwatched.

use std::{fs, os::unix::fs::symlink};

use serde_json::{Value, json};

use crate::{
    client::Client,
    fs_fixture::FsFixture,
    over_every_transport, over_one_transport,
    server::{Transport, until},
};

over_every_transport!(
    changes_below_a_directory_are_reported,
    unwatched_path_reports_nothing
);

over_one_transport!(
    watches_belong_to_their_connection,
    watches_end_with_their_connection,
    non_recursive_watch_reports_only_direct_entries,
    new_directories_are_watched_too,
    rename_inside_reports_both_names,
    moves_across_the_root_are_created_and_removed,
    one_file_can_be_watched,
    watched_file_may_be_replaced_or_recreated,
    watch_on_a_symlink_watches_its_target,
    removal_of_a_watched_directory_is_reported,
    watch_id_in_use_is_refused_and_free_after_unwatch,
    connection_has_at_most_64_watches,
    unwatchable_path_is_refused,
    request_fields_are_validated,
    the_clients_own_writes_are_reported,
    many_changes_are_reported_or_overflow,
    non_utf8_names_are_reported,
    watch_of_procfs_directories_is_answered,
);

async fn watch(fixture: &mut FsFixture, id: &str, name: &str, extra: Value) {
    let expected = json!({"path": fixture.uri(name)});
    let mut params = fixture.params(name, extra);
    params["watchId"] = id.into();
    assert_eq!(fixture.client.call("fs/watch", params).await, expected);
}

/// Collects the changes of a watch, as relative path and kind, until it has reported all of these.
/// Returns everything.
async fn wait_for_changes(
    fixture: &mut FsFixture,
    id: &str,
    expected: &[(&str, &str)],
) -> Vec<(String, String)> {
    let root = fixture.uri("");
    let mut reported: Vec<(String, String)> = Vec::new();
    let has = |reported: &[(String, String)], expected: &(&str, &str)| {
        reported
            .iter()
            .any(|(path, kind)| (path.as_str(), kind.as_str()) == *expected)
    };
    while !expected.iter().all(|expected| has(&reported, expected)) {
        let note = fixture.client.note("fs/changed").await;
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
            reported.push((path, change["kind"].as_str().unwrap().to_owned()));
        }
        let count = paths.len();
        paths.sort_unstable();
        paths.dedup();
        assert_eq!(paths.len(), count, "each path once: {note}");
    }
    reported
}

fn names(reported: &[(String, String)]) -> Vec<&str> {
    reported.iter().map(|(path, _)| path.as_str()).collect()
}

async fn changes_below_a_directory_are_reported(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    watch(&mut fixture, "w", "", json!({})).await;
    fs::write(fixture.path("dir/sub/new"), "x").unwrap();
    wait_for_changes(&mut fixture, "w", &[("dir/sub/new", "created")]).await;
    fs::write(fixture.path("dir/inner"), "changed").unwrap();
    wait_for_changes(&mut fixture, "w", &[("dir/inner", "modified")]).await;
    fs::remove_file(fixture.path("file")).unwrap();
    wait_for_changes(&mut fixture, "w", &[("file", "removed")]).await;
}

async fn unwatched_path_reports_nothing(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    watch(&mut fixture, "a", "dir", json!({})).await;
    watch(&mut fixture, "b", "dir", json!({})).await;
    let unwatch = fixture
        .client
        .call("fs/unwatch", json!({"watchId": "a"}))
        .await;
    assert_eq!(unwatch, json!({}));
    fs::write(fixture.path("dir/new"), "x").unwrap();
    // Only the other watch reports.
    wait_for_changes(&mut fixture, "b", &[("dir/new", "created")]).await;
    for id in ["a", "never", ""] {
        let unwatch = fixture
            .client
            .call("fs/unwatch", json!({"watchId": id}))
            .await;
        assert_eq!(unwatch, json!({}), "an unknown one is fine");
    }
}

async fn non_recursive_watch_reports_only_direct_entries(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    watch(&mut fixture, "w", "dir", json!({"recursive": false})).await;
    fs::write(fixture.path("dir/sub/deep"), "x").unwrap();
    fs::write(fixture.path("file"), "beside").unwrap();
    fs::write(fixture.path("dir/own"), "x").unwrap();
    let reported = wait_for_changes(&mut fixture, "w", &[("dir/own", "created")]).await;
    assert!(!names(&reported).contains(&"dir/sub/deep"), "{reported:?}");
    assert!(!names(&reported).contains(&"file"), "{reported:?}");
}

async fn new_directories_are_watched_too(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    watch(&mut fixture, "w", "dir", json!({"recursive": true})).await;
    // The file exists before its directory can be watched.
    fs::create_dir_all(fixture.path("dir/a/b/c")).unwrap();
    fs::write(fixture.path("dir/a/b/c/file"), "x").unwrap();
    wait_for_changes(
        &mut fixture,
        "w",
        &[("dir/a", "created"), ("dir/a/b/c/file", "created")],
    )
    .await;
    fs::remove_file(fixture.path("dir/a/b/c/file")).unwrap();
    wait_for_changes(&mut fixture, "w", &[("dir/a/b/c/file", "removed")]).await;
}

async fn rename_inside_reports_both_names(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    watch(&mut fixture, "w", "", json!({})).await;
    fs::rename(fixture.path("file"), fixture.path("dir/moved")).unwrap();
    wait_for_changes(
        &mut fixture,
        "w",
        &[("file", "renamed"), ("dir/moved", "renamed")],
    )
    .await;
    let params = json!({
        "sourcePath": fixture.uri("dir/moved"), "destinationPath": fixture.uri("back"),
    });
    fixture.client.call("fs/rename", params).await;
    wait_for_changes(
        &mut fixture,
        "w",
        &[("dir/moved", "renamed"), ("back", "renamed")],
    )
    .await;
}

async fn moves_across_the_root_are_created_and_removed(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    watch(&mut fixture, "w", "dir", json!({})).await;
    fs::rename(fixture.path("file"), fixture.path("dir/came")).unwrap();
    wait_for_changes(&mut fixture, "w", &[("dir/came", "created")]).await;
    fs::rename(fixture.path("dir/inner"), fixture.path("went")).unwrap();
    wait_for_changes(&mut fixture, "w", &[("dir/inner", "removed")]).await;
}

async fn one_file_can_be_watched(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    watch(&mut fixture, "w", "file", json!({})).await;
    fs::write(fixture.path("dir/inner"), "other").unwrap();
    fs::write(fixture.path("beside"), "other").unwrap();
    fs::write(fixture.path("file"), "changed").unwrap();
    let reported = wait_for_changes(&mut fixture, "w", &[("file", "modified")]).await;
    assert!(
        reported.iter().all(|(path, _)| path == "file"),
        "{reported:?}"
    );
}

async fn watched_file_may_be_replaced_or_recreated(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    watch(&mut fixture, "w", "file", json!({})).await;
    let atomic = json!({"dataBase64": "eA==", "atomic": true});
    fixture.done("fs/writeFile", "file", atomic).await;
    wait_for_changes(&mut fixture, "w", &[("file", "modified")]).await;
    fs::remove_file(fixture.path("file")).unwrap();
    wait_for_changes(&mut fixture, "w", &[("file", "removed")]).await;
    fs::write(fixture.path("file"), "back").unwrap();
    wait_for_changes(&mut fixture, "w", &[("file", "created")]).await;
    // Reading is not a change.
    assert_eq!(fixture.read("file").await, b"back");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    fs::set_permissions(fixture.path("file"), mode).unwrap();
    let reported = wait_for_changes(&mut fixture, "w", &[("file", "modified")]).await;
    assert_eq!(reported.len(), 1, "{reported:?}");
}

async fn watch_on_a_symlink_watches_its_target(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    let params = fixture.params("to-dir", json!({"watchId": "w"}));
    let watched = fixture.client.call("fs/watch", params).await;
    assert_eq!(watched, json!({"path": fixture.uri("dir")}));
    fs::write(fixture.path("dir/new"), "x").unwrap();
    wait_for_changes(&mut fixture, "w", &[("dir/new", "created")]).await;
}

async fn removal_of_a_watched_directory_is_reported(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    watch(&mut fixture, "w", "dir", json!({})).await;
    fs::remove_dir_all(fixture.path("dir")).unwrap();
    wait_for_changes(&mut fixture, "w", &[("dir", "removed")]).await;
    // Nothing follows, and the id is free.
    let last = fixture.client.note("fs/changed").await;
    assert_eq!(
        last,
        json!({"watchId": "w", "changes": [], "overflow": false, "ended": true})
    );
    watch(&mut fixture, "w", "", json!({})).await;
}

async fn watch_id_in_use_is_refused_and_free_after_unwatch(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    watch(&mut fixture, "w", "dir", json!({})).await;
    for name in ["dir", "file", "none"] {
        let message = fixture
            .refused(-32600, "fs/watch", name, json!({"watchId": "w"}))
            .await;
        assert!(message.contains('w'), "{message}");
    }
    fs::write(fixture.path("dir/new"), "x").unwrap();
    wait_for_changes(&mut fixture, "w", &[("dir/new", "created")]).await;
    fixture
        .client
        .call("fs/unwatch", json!({"watchId": "w"}))
        .await;
    watch(&mut fixture, "w", "file", json!({})).await;
    // A failed watch frees its id as well.
    let extra = json!({"watchId": "v"});
    fixture.refused(-32004, "fs/watch", "none", extra).await;
    watch(&mut fixture, "v", "dir", json!({})).await;
}

async fn connection_has_at_most_64_watches(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    for number in 0..64 {
        watch(&mut fixture, &number.to_string(), "dir", json!({})).await;
    }
    let extra = json!({"watchId": "64"});
    let message = fixture.refused(-32600, "fs/watch", "dir", extra).await;
    assert!(message.contains("64"), "{message}");
    fixture
        .client
        .call("fs/unwatch", json!({"watchId": "7"}))
        .await;
    watch(&mut fixture, "64", "dir", json!({})).await;
    let mut other = fixture.server.ready().await;
    let params = fixture.params("dir", json!({"watchId": "0"}));
    other.call("fs/watch", params).await;
    // Each of them reports.
    fs::write(fixture.path("dir/new"), "x").unwrap();
    let mut assert_no_change_reported: Vec<String> = (0..=64)
        .filter(|number| *number != 7)
        .map(|number| number.to_string())
        .collect();
    while !assert_no_change_reported.is_empty() {
        let note = fixture.client.note("fs/changed").await;
        assert_ne!(note["watchId"], "7", "{note}");
        assert_no_change_reported.retain(|id| note["watchId"] != id.as_str());
    }
}

async fn unwatchable_path_is_refused(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    for (name, code) in [
        ("none", -32004),
        ("to-none", -32004),
        ("file/x", -32603),
        ("to-itself", -32603),
        ("file:///C:/x", -32600),
    ] {
        let extra = json!({"watchId": "w"});
        fixture.refused(code, "fs/watch", name, extra).await;
    }
}

async fn request_fields_are_validated(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    for (extra, member) in [
        (json!({}), "watchId"),
        (json!({"watchId": null}), "watchId"),
        (json!({"watchId": 1}), "watchId"),
        (json!({"watchId": "x".repeat(257)}), "watchId"),
        (json!({"watchId": "w", "recursive": null}), "recursive"),
        (json!({"watchId": "w", "recursive": 1}), "recursive"),
    ] {
        let message = fixture.refused(-32602, "fs/watch", "dir", extra).await;
        assert!(message.contains(member), "{message}");
    }
    for params in [json!({}), json!({"watchId": null}), json!({"watchId": 1})] {
        let message = fixture
            .client
            .expect_error(-32602, "fs/unwatch", params)
            .await;
        assert!(message.contains("watchId"), "{message}");
    }
    let longest = "x".repeat(256);
    watch(&mut fixture, &longest, "dir", json!({"sandbox": null})).await;
    watch(&mut fixture, "", "dir", json!({})).await;
}

async fn the_clients_own_writes_are_reported(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    // Pipelined: the watch starts before the write.
    let params = fixture.params("", json!({"watchId": "w"}));
    let watch = fixture.client.request("fs/watch", params).await;
    let params = fixture.params("new", json!({"dataBase64": "eA==", "atomic": true}));
    let write = fixture.client.request("fs/writeFile", params).await;
    assert_eq!(
        fixture.client.answer(watch).await["result"],
        json!({"path": fixture.uri("")})
    );
    assert_eq!(fixture.client.answer(write).await["result"], json!({}));
    loop {
        let note = fixture.client.note("fs/changed").await;
        let path = fixture.uri("new");
        let changes = note["changes"].as_array().unwrap();
        if changes.iter().any(|change| change["path"] == path.as_str()) {
            break;
        }
    }
}

async fn many_changes_are_reported_or_overflow(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    watch(&mut fixture, "w", "dir", json!({})).await;
    // The client does not read meanwhile.
    for number in 0..30_000 {
        symlink(".", fixture.path(&format!("dir/sub/{number}"))).unwrap();
    }
    fs::write(fixture.path("dir/last"), "x").unwrap();
    let last = fixture.uri("dir/last");
    let (mut count, mut overflow) = (0, false);
    loop {
        let note = fixture.client.note("fs/changed").await;
        let changes = note["changes"].as_array().unwrap();
        count += changes.len();
        overflow |= note["overflow"].as_bool().unwrap();
        if overflow || changes.iter().any(|change| change["path"] == last.as_str()) {
            break;
        }
    }
    assert!(
        overflow || count > 30_000,
        "{count} changes were reported without overflow"
    );
    fixture.client.expect_alive().await;
}

async fn non_utf8_names_are_reported(transport: Transport) {
    use std::os::unix::ffi::OsStrExt;
    let mut fixture = FsFixture::new(transport).await;
    watch(&mut fixture, "w", "dir", json!({})).await;
    let name = std::ffi::OsStr::from_bytes(b"n\xff ?");
    fs::write(fixture.path("dir").join(name), "x").unwrap();
    wait_for_changes(&mut fixture, "w", &[("dir/n%FF%20%3F", "created")]).await;
}

async fn watch_of_procfs_directories_is_answered(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    // The kernel creates these directories on each lookup, so none is ever seen twice.
    let params = json!({"watchId": "w", "path": "file:///proc/self/net"});
    let watch = fixture.client.request("fs/watch", params).await;
    let answer = fixture.client.answer(watch).await;
    assert!(answer["result"].is_object() || answer["error"].is_object());
    fixture
        .client
        .call("fs/unwatch", json!({"watchId": "w"}))
        .await;
    assert_eq!(fixture.read("file").await, b"hello");
}

async fn watches_belong_to_their_connection(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    let mut other = fixture.server.ready().await;
    let params = fixture.params("dir", json!({"watchId": "w"}));
    other.call("fs/watch", params).await;
    watch(&mut fixture, "w", "dir", json!({})).await;
    fixture
        .client
        .call("fs/unwatch", json!({"watchId": "w"}))
        .await;
    fs::write(fixture.path("dir/new"), "x").unwrap();
    let note = other.note("fs/changed").await;
    assert_eq!(note["watchId"], "w");
    assert_no_change_reported(&mut fixture.client).await;
}

/// Asserts that nothing was reported: the next message is the response.
async fn assert_no_change_reported(client: &mut Client) {
    let id = client.request("environment/status", json!({})).await;
    assert_eq!(client.recv().await["id"], id);
}

/// Returns the number of inotify watches of a process.
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
    let mut fixture = FsFixture::new(transport).await;
    let pid = fixture.server.pid();
    assert_eq!(kernel_watches(pid), 0);
    let missing = json!({"watchId": 1, "missing": [fixture.uri("none/x")]});
    let directory = fixture.params("", json!({"watchId": "w"}));
    for (method, params) in [("fs/watchMissing", missing), ("fs/watch", directory)] {
        let mut other = fixture.server.ready().await;
        other.call(method, params).await;
        assert!(kernel_watches(pid) > 0, "{method}");
        drop(other);
        until(&format!("end of {method}"), || kernel_watches(pid) == 0).await;
    }
}
