//! Renaming: one step, and nothing replaced unless it is asked for.

use std::fs;

use serde_json::{Value, json};

use crate::{over_every_transport, over_one_transport, scene::Scene, server::Transport};

over_every_transport!(things_get_another_name);

over_one_transport!(
    nothing_is_replaced_unless_asked_for,
    what_has_the_name_is_replaced_if_asked_for,
    what_cannot_be_renamed_is_refused,
    a_race_for_a_name_has_one_winner,
    members_are_checked,
);

fn params(scene: &Scene, from: &str, to: &str, overwrite: Option<bool>) -> Value {
    let mut params = json!({"sourcePath": scene.uri(from), "destinationPath": scene.uri(to)});
    if let Some(overwrite) = overwrite {
        params["overwrite"] = overwrite.into();
    }
    params
}

async fn renamed(scene: &mut Scene, from: &str, to: &str, overwrite: Option<bool>) {
    let params = params(scene, from, to, overwrite);
    assert_eq!(scene.client.call("fs/rename", params).await, json!({}));
}

async fn things_get_another_name(transport: Transport) {
    let mut scene = Scene::new(transport).await;
    for (from, to) in [
        ("file", "dir/moved"),
        ("dir", "other"),
        ("to-none", "link"),
        ("fifo", "other/sub/fifo"),
        ("to-file", "to-other"),
    ] {
        renamed(&mut scene, from, to, None).await;
        assert!(!scene.path(from).is_symlink() && !scene.path(from).exists());
    }
    assert_eq!(scene.content("other/moved"), "hello");
    assert_eq!(
        fs::read_link(scene.path("link")).unwrap().to_str(),
        Some("nothing")
    );
    assert_eq!(
        fs::read_link(scene.path("to-other")).unwrap().to_str(),
        Some("file")
    );
}

async fn nothing_is_replaced_unless_asked_for(transport: Transport) {
    let mut scene = Scene::new(transport).await;
    for overwrite in [None, Some(false)] {
        for (from, to) in [
            ("file", "dir/inner"),
            ("file", "dir"),
            ("file", "to-none"),
            ("dir/inner", "to-file"),
            ("dir", "file"),
            ("file", "fifo"),
        ] {
            let params = params(&scene, from, to, overwrite);
            let message = scene.client.expect_error(-32603, "fs/rename", params).await;
            assert!(message.contains("os error 17"), "{from} to {to}: {message}");
        }
    }
    assert_eq!(scene.content("file"), "hello");
    assert_eq!(scene.content("dir/inner"), "x");
    assert!(scene.path("to-none").is_symlink());
}

async fn what_has_the_name_is_replaced_if_asked_for(transport: Transport) {
    let mut scene = Scene::new(transport).await;
    renamed(&mut scene, "file", "dir/inner", Some(true)).await;
    assert_eq!(scene.content("dir/inner"), "hello");
    renamed(&mut scene, "dir/inner", "to-none", Some(true)).await;
    assert_eq!(scene.content("to-none"), "hello");
    assert!(
        !scene.path("nothing").exists(),
        "the link was replaced, not its target"
    );
    fs::create_dir(scene.path("empty")).unwrap();
    renamed(&mut scene, "dir", "empty", Some(true)).await;
    assert_eq!(scene.names("empty"), ["sub"]);
    renamed(&mut scene, "to-none", "new", Some(true)).await;
    // Onto itself nothing happens.
    renamed(&mut scene, "new", "new", Some(true)).await;
    assert_eq!(scene.content("new"), "hello");
}

async fn what_cannot_be_renamed_is_refused(transport: Transport) {
    let mut scene = Scene::new(transport).await;
    for overwrite in [false, true] {
        for (from, to, code) in [
            ("none", "new", -32004),
            ("none", "file", -32004),
            ("file", "none/new", -32004),
            ("file/x", "new", -32603),
            ("file", "dir/inner/x", -32603),
            ("dir", "dir/sub/new", -32600),
            ("file:///C:/x", "new", -32600),
            ("file", "file:///C:/x", -32600),
        ] {
            let params = params(&scene, from, to, Some(overwrite));
            scene.client.expect_error(code, "fs/rename", params).await;
        }
    }
    for (from, to) in [("file", "dir"), ("dir", "file"), ("dir/sub", "dir")] {
        let params = params(&scene, from, to, Some(true));
        scene.client.expect_error(-32603, "fs/rename", params).await;
    }
    assert_eq!(scene.content("file"), "hello");
    assert_eq!(scene.names("dir"), ["inner", "sub"]);
}

async fn a_race_for_a_name_has_one_winner(transport: Transport) {
    let mut scene = Scene::new(transport).await;
    let mut rival = scene.server.ready().await;
    for round in 0..30 {
        for name in ["a", "b"] {
            fs::write(scene.path(name), name).unwrap();
        }
        let to = format!("won-{round}");
        let mine = params(&scene, "a", &to, None);
        let theirs = params(&scene, "b", &to, None);
        let mine = scene.client.request("fs/rename", mine).await;
        let theirs = rival.request("fs/rename", theirs).await;
        let won = [
            scene.client.answer(mine).await["result"].is_object(),
            rival.answer(theirs).await["result"].is_object(),
        ];
        assert_ne!(won[0], won[1], "one wins and one loses");
        let (winner, loser) = if won[0] { ("a", "b") } else { ("b", "a") };
        assert_eq!(scene.content(&to), winner);
        assert_eq!(scene.content(loser), loser, "the loser keeps its name");
    }
}

async fn members_are_checked(transport: Transport) {
    let mut scene = Scene::new(transport).await;
    for member in ["sourcePath", "destinationPath"] {
        let params = crate::params::without(params(&scene, "file", "new", None), member);
        let message = scene.client.expect_error(-32602, "fs/rename", params).await;
        assert!(message.contains(member), "{message}");
    }
    for overwrite in [json!(null), json!(1), json!("true")] {
        let mut params = params(&scene, "file", "new", None);
        params["overwrite"] = overwrite;
        let message = scene.client.expect_error(-32602, "fs/rename", params).await;
        assert!(message.contains("overwrite"), "{message}");
    }
    assert_eq!(scene.content("file"), "hello");
}
