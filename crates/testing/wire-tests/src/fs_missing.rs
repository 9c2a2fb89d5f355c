//! Watching for missing paths: once, and only the last.

use std::{fs, os::unix::fs::symlink};

use serde_json::{Value, json};

use crate::{over_every_transport, over_one_transport, scene::Scene, server::Transport};

over_every_transport!(an_appearance_is_told_once);

over_one_transport!(
    ids_are_counted_per_connection,
    a_missing_directory_above_is_told,
    what_was_present_and_goes_is_told,
    unrelated_changes_are_not_told,
    ids_must_increase,
    ids_begin_at_1,
    a_stale_id_leaves_the_watch_alone,
    a_new_watch_replaces_the_old,
    a_refused_call_cancels_the_watch,
    what_cannot_be_watched_is_not_an_error,
    sixty_four_paths_are_watched_and_no_more,
    members_are_checked,
    a_path_that_appears_by_a_rename_is_told,
    one_of_many_is_enough,
);

async fn watch(scene: &mut Scene, id: u64, missing: &[&str], more: Value) -> bool {
    let missing: Vec<String> = missing.iter().map(|name| scene.uri(name)).collect();
    let mut params = json!({"watchId": id, "missing": missing});
    crate::client::merge(&mut params, more);
    let result = scene.client.call("fs/watchMissing", params).await;
    assert_eq!(result.as_object().unwrap().len(), 1, "{result}");
    result["watching"].as_bool().unwrap()
}

async fn begin(scene: &mut Scene, id: u64, missing: &[&str]) {
    assert!(watch(scene, id, missing, json!({})).await, "{id}");
}

async fn told(scene: &mut Scene, id: u64) {
    let note = scene.client.note("fs/missingChanged").await;
    assert_eq!(note, json!({ "watchId": id }));
}

/// Sets a new watch, lets it be told, and so makes sure that nothing else is told before.
async fn silent_until(scene: &mut Scene, id: u64) {
    let name = format!("fence-{id}");
    begin(scene, id, &[&name]).await;
    fs::write(scene.path(&name), "").unwrap();
    told(scene, id).await;
}

async fn an_appearance_is_told_once(transport: Transport) {
    let mut scene = Scene::new(transport).await;
    begin(&mut scene, 5, &["none"]).await;
    fs::write(scene.path("none"), "").unwrap();
    told(&mut scene, 5).await;
    fs::remove_file(scene.path("none")).unwrap();
    fs::write(scene.path("none"), "").unwrap();
    silent_until(&mut scene, 6).await;
}

async fn a_missing_directory_above_is_told(transport: Transport) {
    let mut scene = Scene::new(transport).await;
    begin(&mut scene, 1, &["a/b/c"]).await;
    fs::create_dir(scene.path("a")).unwrap();
    told(&mut scene, 1).await;
    begin(&mut scene, 2, &["a/b/c"]).await;
    fs::create_dir_all(scene.path("a/b/c")).unwrap();
    told(&mut scene, 2).await;
}

async fn a_path_that_appears_by_a_rename_is_told(transport: Transport) {
    let mut scene = Scene::new(transport).await;
    begin(&mut scene, 1, &["none"]).await;
    fs::rename(scene.path("file"), scene.path("none")).unwrap();
    told(&mut scene, 1).await;
    begin(&mut scene, 2, &["other/inner"]).await;
    fs::rename(scene.path("dir"), scene.path("other")).unwrap();
    told(&mut scene, 2).await;
    begin(&mut scene, 3, &["link"]).await;
    symlink("other", scene.path("link")).unwrap();
    told(&mut scene, 3).await;
}

async fn one_of_many_is_enough(transport: Transport) {
    let mut scene = Scene::new(transport).await;
    begin(&mut scene, 1, &["n1", "dir/n2", "dir/sub/n3", "n1"]).await;
    fs::write(scene.path("dir/n2"), "").unwrap();
    told(&mut scene, 1).await;
    fs::write(scene.path("n1"), "").unwrap();
    silent_until(&mut scene, 2).await;
}

async fn what_was_present_and_goes_is_told(transport: Transport) {
    let mut scene = Scene::new(transport).await;
    let present = json!({"present": scene.uri("dir")});
    assert!(watch(&mut scene, 1, &["none"], present.clone()).await);
    fs::rename(scene.path("dir"), scene.path("elsewhere")).unwrap();
    told(&mut scene, 1).await;
    fs::rename(scene.path("elsewhere"), scene.path("dir")).unwrap();
    assert!(watch(&mut scene, 2, &["none"], present).await);
    fs::remove_dir_all(scene.path("dir")).unwrap();
    told(&mut scene, 2).await;
    let present = json!({"present": scene.uri("file")});
    assert!(watch(&mut scene, 3, &["none"], present).await);
    fs::remove_file(scene.path("file")).unwrap();
    told(&mut scene, 3).await;
}

async fn unrelated_changes_are_not_told(transport: Transport) {
    let mut scene = Scene::new(transport).await;
    let present = json!({"present": scene.uri("dir")});
    assert!(watch(&mut scene, 1, &["none"], present).await);
    fs::write(scene.path("sibling"), "").unwrap();
    fs::write(scene.path("dir/inside"), "").unwrap();
    fs::remove_file(scene.path("dir/inner")).unwrap();
    fs::write(scene.path("nonesuch"), "").unwrap();
    silent_until(&mut scene, 2).await;
}

async fn ids_must_increase(transport: Transport) {
    let mut scene = Scene::new(transport).await;
    begin(&mut scene, 5, &["none"]).await;
    for id in [5, 4, 1, 0] {
        assert!(!watch(&mut scene, id, &["none"], json!({})).await, "{id}");
    }
    // A refused one with a new id uses it up.
    assert!(!watch(&mut scene, 9, &["file"], json!({})).await);
    assert!(!watch(&mut scene, 8, &["none"], json!({})).await);
    begin(&mut scene, 10, &["none"]).await;
    begin(&mut scene, u64::MAX, &["none"]).await;
    assert!(!watch(&mut scene, u64::MAX, &["none"], json!({})).await);
}

async fn ids_begin_at_1(transport: Transport) {
    let mut scene = Scene::new(transport).await;
    assert!(!watch(&mut scene, 0, &["none"], json!({})).await);
    begin(&mut scene, 1, &["none"]).await;
}

async fn a_stale_id_leaves_the_watch_alone(transport: Transport) {
    let mut scene = Scene::new(transport).await;
    begin(&mut scene, 5, &["none"]).await;
    for id in [5, 4] {
        assert!(!watch(&mut scene, id, &["other"], json!({})).await);
    }
    let bad = json!({"watchId": 6});
    scene
        .client
        .expect_error(-32602, "fs/watchMissing", bad)
        .await;
    fs::write(scene.path("none"), "").unwrap();
    told(&mut scene, 5).await;
}

async fn a_new_watch_replaces_the_old(transport: Transport) {
    let mut scene = Scene::new(transport).await;
    begin(&mut scene, 1, &["none"]).await;
    begin(&mut scene, 2, &["other"]).await;
    fs::write(scene.path("none"), "").unwrap();
    fs::write(scene.path("other"), "").unwrap();
    told(&mut scene, 2).await;
    silent_until(&mut scene, 3).await;
}

async fn a_refused_call_cancels_the_watch(transport: Transport) {
    let mut scene = Scene::new(transport).await;
    let many: Vec<String> = (0..65).map(|number| format!("n{number}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let absent = json!({"present": scene.uri("nowhere")});
    let refusals: [(&[&str], Value); 5] = [
        (&[], json!({})),
        (&["file"], json!({})),
        (&["file:///C:/x"], json!({})),
        (&many, json!({})),
        (&["other"], absent),
    ];
    for (number, (missing, more)) in (1..).zip(refusals) {
        let id = number * 10;
        let name = format!("none-{number}");
        begin(&mut scene, id, &[&name]).await;
        assert!(!watch(&mut scene, id + 1, missing, more).await);
        fs::write(scene.path(&name), "").unwrap();
        silent_until(&mut scene, id + 2).await;
    }
}

async fn what_cannot_be_watched_is_not_an_error(transport: Transport) {
    let mut scene = Scene::new(transport).await;
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
        (&["none"], present(scene.uri("nowhere"))),
        (&["none"], present("file:///C:/x".to_owned())),
        (&[""], json!({})),
    ];
    for (id, (missing, more)) in (1..).zip(cases) {
        let watching = watch(&mut scene, id, missing, more.clone()).await;
        assert!(!watching, "{missing:?} {more}");
    }
    let null = json!({"present": null});
    assert!(watch(&mut scene, 100, &["none"], null).await);
}

async fn sixty_four_paths_are_watched_and_no_more(transport: Transport) {
    let mut scene = Scene::new(transport).await;
    let names: Vec<String> = (0..65).map(|number| format!("n{number}/x")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    assert!(!watch(&mut scene, 1, &names, json!({})).await);
    begin(&mut scene, 2, &names[..64]).await;
    fs::create_dir(scene.path("n63")).unwrap();
    told(&mut scene, 2).await;
}

async fn members_are_checked(transport: Transport) {
    let mut scene = Scene::new(transport).await;
    let missing = json!([scene.uri("none")]);
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
        let message = scene
            .client
            .expect_error(-32602, "fs/watchMissing", params)
            .await;
        assert!(message.contains(member), "{message}");
    }
    begin(&mut scene, 1, &["none"]).await;
}

async fn ids_are_counted_per_connection(transport: Transport) {
    let mut scene = Scene::new(transport).await;
    begin(&mut scene, 50, &["none"]).await;
    let mut other = scene.server.ready().await;
    let params = json!({"watchId": 1, "missing": [scene.uri("none")]});
    let result = other.call("fs/watchMissing", params).await;
    assert_eq!(result, json!({"watching": true}));
    fs::write(scene.path("none"), "").unwrap();
    told(&mut scene, 50).await;
    let note = other.note("fs/missingChanged").await;
    assert_eq!(note, json!({"watchId": 1}));
}
