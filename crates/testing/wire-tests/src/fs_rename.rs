//! `fs/rename`: atomic, and without replacement by default.

use std::fs;

use serde_json::{Value, json};

use crate::{fs_fixture::FsFixture, over_every_transport, over_one_transport, server::Transport};

over_every_transport!(files_directories_and_symlinks_are_renamed);

over_one_transport!(
    rename_does_not_replace_by_default,
    rename_replaces_on_request,
    impossible_renames_are_refused,
    concurrent_renames_to_one_name_have_one_winner,
    request_fields_are_validated,
);

fn params(fixture: &FsFixture, from: &str, to: &str, overwrite: Option<bool>) -> Value {
    let mut params = json!({"sourcePath": fixture.uri(from), "destinationPath": fixture.uri(to)});
    if let Some(overwrite) = overwrite {
        params["overwrite"] = overwrite.into();
    }
    params
}

async fn renamed(fixture: &mut FsFixture, from: &str, to: &str, overwrite: Option<bool>) {
    let params = params(fixture, from, to, overwrite);
    assert_eq!(fixture.client.call("fs/rename", params).await, json!({}));
}

async fn files_directories_and_symlinks_are_renamed(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    for (from, to) in [
        ("file", "dir/moved"),
        ("dir", "other"),
        ("to-none", "link"),
        ("fifo", "other/sub/fifo"),
        ("to-file", "to-other"),
    ] {
        renamed(&mut fixture, from, to, None).await;
        assert!(!fixture.path(from).is_symlink() && !fixture.path(from).exists());
    }
    assert_eq!(fixture.content("other/moved"), "hello");
    assert_eq!(
        fs::read_link(fixture.path("link")).unwrap().to_str(),
        Some("nothing")
    );
    assert_eq!(
        fs::read_link(fixture.path("to-other")).unwrap().to_str(),
        Some("file")
    );
}

async fn rename_does_not_replace_by_default(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    for overwrite in [None, Some(false)] {
        for (from, to) in [
            ("file", "dir/inner"),
            ("file", "dir"),
            ("file", "to-none"),
            ("dir/inner", "to-file"),
            ("dir", "file"),
            ("file", "fifo"),
        ] {
            let params = params(&fixture, from, to, overwrite);
            let message = fixture
                .client
                .expect_error(-32603, "fs/rename", params)
                .await;
            assert!(message.contains("os error 17"), "{from} to {to}: {message}");
        }
    }
    assert_eq!(fixture.content("file"), "hello");
    assert_eq!(fixture.content("dir/inner"), "x");
    assert!(fixture.path("to-none").is_symlink());
}

async fn rename_replaces_on_request(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    renamed(&mut fixture, "file", "dir/inner", Some(true)).await;
    assert_eq!(fixture.content("dir/inner"), "hello");
    renamed(&mut fixture, "dir/inner", "to-none", Some(true)).await;
    assert_eq!(fixture.content("to-none"), "hello");
    assert!(
        !fixture.path("nothing").exists(),
        "rename followed the symlink"
    );
    fs::create_dir(fixture.path("empty")).unwrap();
    renamed(&mut fixture, "dir", "empty", Some(true)).await;
    assert_eq!(fixture.names("empty"), ["sub"]);
    renamed(&mut fixture, "to-none", "new", Some(true)).await;
    // Renaming onto itself has no effect.
    renamed(&mut fixture, "new", "new", Some(true)).await;
    assert_eq!(fixture.content("new"), "hello");
}

async fn impossible_renames_are_refused(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
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
            let params = params(&fixture, from, to, Some(overwrite));
            fixture.client.expect_error(code, "fs/rename", params).await;
        }
    }
    for (from, to) in [("file", "dir"), ("dir", "file"), ("dir/sub", "dir")] {
        let params = params(&fixture, from, to, Some(true));
        fixture
            .client
            .expect_error(-32603, "fs/rename", params)
            .await;
    }
    assert_eq!(fixture.content("file"), "hello");
    assert_eq!(fixture.names("dir"), ["inner", "sub"]);
}

async fn concurrent_renames_to_one_name_have_one_winner(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    let mut rival = fixture.server.ready().await;
    for round in 0..30 {
        for name in ["a", "b"] {
            fs::write(fixture.path(name), name).unwrap();
        }
        let to = format!("won-{round}");
        let own = params(&fixture, "a", &to, None);
        let rival_rename = params(&fixture, "b", &to, None);
        let own = fixture.client.request("fs/rename", own).await;
        let rival_rename = rival.request("fs/rename", rival_rename).await;
        let won = [
            fixture.client.answer(own).await["result"].is_object(),
            rival.answer(rival_rename).await["result"].is_object(),
        ];
        assert_ne!(won[0], won[1], "one wins and one loses");
        let (winner, loser) = if won[0] { ("a", "b") } else { ("b", "a") };
        assert_eq!(fixture.content(&to), winner);
        assert_eq!(fixture.content(loser), loser, "the loser keeps its name");
    }
}

async fn request_fields_are_validated(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    for member in ["sourcePath", "destinationPath"] {
        let params = crate::params::without(params(&fixture, "file", "new", None), member);
        let message = fixture
            .client
            .expect_error(-32602, "fs/rename", params)
            .await;
        assert!(message.contains(member), "{message}");
    }
    for overwrite in [json!(null), json!(1), json!("true")] {
        let mut params = params(&fixture, "file", "new", None);
        params["overwrite"] = overwrite;
        let message = fixture
            .client
            .expect_error(-32602, "fs/rename", params)
            .await;
        assert!(message.contains("overwrite"), "{message}");
    }
    assert_eq!(fixture.content("file"), "hello");
}
