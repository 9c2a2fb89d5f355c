//! `fs/watchMissing`: fires once, and only for the latest watch.

use std::{fs, os::unix::fs::symlink};

use serde_json::{Value, json};

use crate::{fs_fixture::FsFixture, over_every_transport, over_one_transport, server::Transport};

over_every_transport!(appearance_is_reported_once);

over_one_transport!(
    watch_ids_are_per_connection,
    appearance_of_a_missing_parent_is_reported,
    removal_of_a_present_path_is_reported,
    unrelated_changes_are_not_reported,
    watch_ids_must_increase,
    watch_ids_start_at_1,
    stale_id_does_not_affect_the_watch,
    a_new_watch_replaces_the_old,
    refused_call_cancels_the_watch,
    unwatchable_path_is_not_an_error,
    at_most_64_paths_are_watched,
    request_fields_are_validated,
    appearance_by_rename_is_reported,
    one_of_many_paths_triggers_the_watch,
);

async fn watch(fixture: &mut FsFixture, id: u64, missing: &[&str], extra: Value) -> bool {
    let missing: Vec<String> = missing.iter().map(|name| fixture.uri(name)).collect();
    let mut params = json!({"watchId": id, "missing": missing});
    crate::client::merge(&mut params, extra);
    let result = fixture.client.call("fs/watchMissing", params).await;
    assert_eq!(result.as_object().unwrap().len(), 1, "{result}");
    result["watching"].as_bool().unwrap()
}

async fn begin(fixture: &mut FsFixture, id: u64, missing: &[&str]) {
    assert!(watch(fixture, id, missing, json!({})).await, "{id}");
}

async fn wait_for_change(fixture: &mut FsFixture, id: u64) {
    let note = fixture.client.note("fs/missingChanged").await;
    assert_eq!(note, json!({ "watchId": id }));
}

/// Sets a new watch, triggers it, and asserts that nothing else was reported before.
async fn silent_until(fixture: &mut FsFixture, id: u64) {
    let name = format!("fence-{id}");
    begin(fixture, id, &[&name]).await;
    fs::write(fixture.path(&name), "").unwrap();
    wait_for_change(fixture, id).await;
}

async fn appearance_is_reported_once(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    begin(&mut fixture, 5, &["none"]).await;
    fs::write(fixture.path("none"), "").unwrap();
    wait_for_change(&mut fixture, 5).await;
    fs::remove_file(fixture.path("none")).unwrap();
    fs::write(fixture.path("none"), "").unwrap();
    silent_until(&mut fixture, 6).await;
}

async fn appearance_of_a_missing_parent_is_reported(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    begin(&mut fixture, 1, &["a/b/c"]).await;
    fs::create_dir(fixture.path("a")).unwrap();
    wait_for_change(&mut fixture, 1).await;
    begin(&mut fixture, 2, &["a/b/c"]).await;
    fs::create_dir_all(fixture.path("a/b/c")).unwrap();
    wait_for_change(&mut fixture, 2).await;
}

async fn appearance_by_rename_is_reported(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    begin(&mut fixture, 1, &["none"]).await;
    fs::rename(fixture.path("file"), fixture.path("none")).unwrap();
    wait_for_change(&mut fixture, 1).await;
    begin(&mut fixture, 2, &["other/inner"]).await;
    fs::rename(fixture.path("dir"), fixture.path("other")).unwrap();
    wait_for_change(&mut fixture, 2).await;
    begin(&mut fixture, 3, &["link"]).await;
    symlink("other", fixture.path("link")).unwrap();
    wait_for_change(&mut fixture, 3).await;
}

async fn one_of_many_paths_triggers_the_watch(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    begin(&mut fixture, 1, &["n1", "dir/n2", "dir/sub/n3", "n1"]).await;
    fs::write(fixture.path("dir/n2"), "").unwrap();
    wait_for_change(&mut fixture, 1).await;
    fs::write(fixture.path("n1"), "").unwrap();
    silent_until(&mut fixture, 2).await;
}

async fn removal_of_a_present_path_is_reported(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    let present = json!({"present": fixture.uri("dir")});
    assert!(watch(&mut fixture, 1, &["none"], present.clone()).await);
    fs::rename(fixture.path("dir"), fixture.path("elsewhere")).unwrap();
    wait_for_change(&mut fixture, 1).await;
    fs::rename(fixture.path("elsewhere"), fixture.path("dir")).unwrap();
    assert!(watch(&mut fixture, 2, &["none"], present).await);
    fs::remove_dir_all(fixture.path("dir")).unwrap();
    wait_for_change(&mut fixture, 2).await;
    let present = json!({"present": fixture.uri("file")});
    assert!(watch(&mut fixture, 3, &["none"], present).await);
    fs::remove_file(fixture.path("file")).unwrap();
    wait_for_change(&mut fixture, 3).await;
}

async fn unrelated_changes_are_not_reported(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    let present = json!({"present": fixture.uri("dir")});
    assert!(watch(&mut fixture, 1, &["none"], present).await);
    fs::write(fixture.path("sibling"), "").unwrap();
    fs::write(fixture.path("dir/inside"), "").unwrap();
    fs::remove_file(fixture.path("dir/inner")).unwrap();
    fs::write(fixture.path("nonesuch"), "").unwrap();
    silent_until(&mut fixture, 2).await;
}

async fn watch_ids_must_increase(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    begin(&mut fixture, 5, &["none"]).await;
    for id in [5, 4, 1, 0] {
        assert!(!watch(&mut fixture, id, &["none"], json!({})).await, "{id}");
    }
    // A refused watch with a new id consumes the id.
    assert!(!watch(&mut fixture, 9, &["file"], json!({})).await);
    assert!(!watch(&mut fixture, 8, &["none"], json!({})).await);
    begin(&mut fixture, 10, &["none"]).await;
    begin(&mut fixture, u64::MAX, &["none"]).await;
    assert!(!watch(&mut fixture, u64::MAX, &["none"], json!({})).await);
}

async fn watch_ids_start_at_1(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    assert!(!watch(&mut fixture, 0, &["none"], json!({})).await);
    begin(&mut fixture, 1, &["none"]).await;
}

async fn stale_id_does_not_affect_the_watch(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    begin(&mut fixture, 5, &["none"]).await;
    for id in [5, 4] {
        assert!(!watch(&mut fixture, id, &["other"], json!({})).await);
    }
    let bad = json!({"watchId": 6});
    fixture
        .client
        .expect_error(-32602, "fs/watchMissing", bad)
        .await;
    fs::write(fixture.path("none"), "").unwrap();
    wait_for_change(&mut fixture, 5).await;
}

async fn a_new_watch_replaces_the_old(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    begin(&mut fixture, 1, &["none"]).await;
    begin(&mut fixture, 2, &["other"]).await;
    fs::write(fixture.path("none"), "").unwrap();
    fs::write(fixture.path("other"), "").unwrap();
    wait_for_change(&mut fixture, 2).await;
    silent_until(&mut fixture, 3).await;
}

async fn refused_call_cancels_the_watch(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    let many: Vec<String> = (0..65).map(|number| format!("n{number}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let absent = json!({"present": fixture.uri("nowhere")});
    let refusals: [(&[&str], Value); 5] = [
        (&[], json!({})),
        (&["file"], json!({})),
        (&["file:///C:/x"], json!({})),
        (&many, json!({})),
        (&["other"], absent),
    ];
    for (number, (missing, extra)) in (1..).zip(refusals) {
        let id = number * 10;
        let name = format!("none-{number}");
        begin(&mut fixture, id, &[&name]).await;
        assert!(!watch(&mut fixture, id + 1, missing, extra).await);
        fs::write(fixture.path(&name), "").unwrap();
        silent_until(&mut fixture, id + 2).await;
    }
}

async fn unwatchable_path_is_not_an_error(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    let present = |uri: String| json!({ "present": uri });
    let cases: [(&[&str], Value); 11] = [
        (&[], json!({})),
        (&["file"], json!({})),
        (&["dir"], json!({})),
        (&["none", "file"], json!({})),
        (&["to-none"], json!({})),
        (&["file/below"], json!({})),
        (&["file:///C:/x"], json!({})),
        (&["none", "file://host/share/x"], json!({})),
        (&["none"], present(fixture.uri("nowhere"))),
        (&["none"], present("file:///C:/x".to_owned())),
        (&[""], json!({})),
    ];
    for (id, (missing, extra)) in (1..).zip(cases) {
        let watching = watch(&mut fixture, id, missing, extra.clone()).await;
        assert!(!watching, "{missing:?} {extra}");
    }
    let null = json!({"present": null});
    assert!(watch(&mut fixture, 100, &["none"], null).await);
}

async fn at_most_64_paths_are_watched(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    let names: Vec<String> = (0..65).map(|number| format!("n{number}/x")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    assert!(!watch(&mut fixture, 1, &names, json!({})).await);
    begin(&mut fixture, 2, &names[..64]).await;
    fs::create_dir(fixture.path("n63")).unwrap();
    wait_for_change(&mut fixture, 2).await;
}

async fn request_fields_are_validated(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    let missing = json!([fixture.uri("none")]);
    for (params, member) in [
        (json!({"missing": missing}), "watchId"),
        (json!({"watchId": null, "missing": missing}), "watchId"),
        (json!({"watchId": "1", "missing": missing}), "watchId"),
        (json!({"watchId": -1, "missing": missing}), "watchId"),
        (json!({"watchId": 1.0, "missing": missing}), "watchId"),
        (json!({"watchId": 1}), "missing"),
        (json!({"watchId": 1, "missing": null}), "missing"),
        (json!({"watchId": 1, "missing": "x"}), "missing"),
        (json!({"watchId": 1, "missing": [1]}), "missing"),
        (json!({"watchId": 1, "missing": ["none"]}), "missing"),
        (json!({"watchId": 1, "missing": ["http://x/y"]}), "missing"),
        (
            json!({"watchId": 1, "missing": missing, "present": 1}),
            "present",
        ),
        (
            json!({"watchId": 1, "missing": missing, "present": "x"}),
            "present",
        ),
    ] {
        let message = fixture
            .client
            .expect_error(-32602, "fs/watchMissing", params)
            .await;
        assert!(message.contains(member), "{message}");
    }
    begin(&mut fixture, 1, &["none"]).await;
}

async fn watch_ids_are_per_connection(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    begin(&mut fixture, 50, &["none"]).await;
    let mut other = fixture.server.ready().await;
    let params = json!({"watchId": 1, "missing": [fixture.uri("none")]});
    let result = other.call("fs/watchMissing", params).await;
    assert_eq!(result, json!({"watching": true}));
    fs::write(fixture.path("none"), "").unwrap();
    wait_for_change(&mut fixture, 50).await;
    let note = other.note("fs/missingChanged").await;
    assert_eq!(note, json!({"watchId": 1}));
}
