//! `environmentConfig/read`: layers and invalid requests.

use std::{fs, path::Path};

use serde_json::{Value, json};

use crate::{
    fs_fixture::{FsFixture, uri},
    over_every_transport, over_one_transport,
    server::Transport,
};

const READ: &str = "environmentConfig/read";

over_every_transport!(selected_keys_are_returned_per_layer);

over_one_transport!(
    server_without_configuration_has_empty_layer_stacks,
    worktrees_are_trusted_with_their_repository,
    request_params_are_validated,
    unreadable_configuration_is_an_internal_error,
);

/// Returns the home directory of the server's user.
fn home(fixture: &FsFixture) -> std::path::PathBuf {
    fixture.server.dir.path().to_owned()
}

fn write(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

fn question(fixture: &FsFixture, cwd: &str, keys: Value) -> Value {
    json!({"cwd": fixture.uri(cwd), "configPaths": keys, "requirementsPaths": []})
}

async fn server_without_configuration_has_empty_layer_stacks(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    let params = question(&fixture, "none", json!([["model"]]));
    let mut result = fixture.client.call(READ, params).await;
    let hostname = result["hostname"].take();
    assert!(hostname.is_string(), "{hostname}");
    let empty = json!({"layers": [], "cloudInsertionIndex": 0});
    let expected = json!({
        "userHomeDir": uri(&home(&fixture)),
        "codexHomeDir": uri(&home(&fixture).join(".codex")),
        "hostname": null,
        "config": empty,
        "requirements": empty,
    });
    assert_eq!(result, expected);
}

async fn selected_keys_are_returned_per_layer(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    let codex = home(&fixture).join(".codex");
    let project = fixture.path("project");
    let (user, own) = (
        codex.join("config.toml"),
        project.join(".codex/config.toml"),
    );
    let trust = format!(
        "[projects.'{}']\ntrust_level = 'trusted'\n",
        project.display()
    );
    write(
        &user,
        &format!("other = 1\nmodel = 'u'\n[servers]\na = {{ b = [1] }}\n{trust}"),
    );
    write(&own, "model = 'p'\nmodel_provider = 'x'\n");
    let keys = json!([["servers", "a"], ["model"], ["model_provider"]]);
    let params = question(&fixture, "project", keys);
    let result = fixture.client.call(READ, params).await;
    let layer = |kind: &str, path: &Path, toml: &str| {
        json!({
            "source": format!("{kind} ({})", path.display()),
            "baseDir": uri(path.parent().unwrap()),
            "toml": toml,
        })
    };
    let layers = json!([
        layer("user", &user, "model = \"u\"\n\n[servers.a]\nb = [1]\n"),
        layer("project", &own, "model = \"p\"\n"),
    ]);
    assert_eq!(
        result["config"],
        json!({"layers": layers, "cloudInsertionIndex": 0})
    );
}

async fn worktrees_are_trusted_with_their_repository(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    let (main, tree) = (fixture.path("main"), fixture.path("tree"));
    let private = main.join(".git/worktrees/tree");
    write(&main.join(".git/HEAD"), "");
    write(&private.join("commondir"), "../..\n");
    write(
        &tree.join(".git"),
        &format!("gitdir: {}\n", private.display()),
    );
    write(&tree.join(".codex/config.toml"), "model = 't'\n");
    let trust = format!("[projects.'{}']\ntrust_level = 'trusted'\n", main.display());
    write(&home(&fixture).join(".codex/config.toml"), &trust);
    // The repository must list the worktree, since anyone can write a `.git` file that names a
    // repository.
    for (known, layers) in [
        ("/elsewhere/.git", 0),
        (tree.join(".git").to_str().unwrap(), 1),
    ] {
        write(&private.join("gitdir"), known);
        let params = question(&fixture, "tree", json!([["model"]]));
        let result = fixture.client.call(READ, params).await;
        let found = result["config"]["layers"].as_array().unwrap().len();
        assert_eq!(found, layers, "{result}");
    }
}

async fn request_params_are_validated(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    let cwd = fixture.uri("");
    let many = vec![json!(["model"]); 1025];
    for params in [
        json!({"cwd": cwd, "configPaths": [], "requirementsPaths": []}),
        json!({"cwd": cwd, "configPaths": [[]], "requirementsPaths": []}),
        json!({"cwd": cwd, "configPaths": [["a"]], "requirementsPaths": [[]]}),
        json!({"cwd": cwd, "configPaths": many, "requirementsPaths": []}),
        json!({"cwd": "file:///C:/x", "configPaths": [["a"]], "requirementsPaths": []}),
        json!({"cwd": "file://host/x", "configPaths": [["a"]], "requirementsPaths": []}),
        json!({"cwd": "/native", "configPaths": [["a"]], "requirementsPaths": []}),
        json!({"cwd": cwd, "configPaths": [["a"]]}),
        json!({"cwd": cwd, "configPaths": [["a"]], "requirementsPaths": null}),
        json!({"cwd": cwd, "configPaths": ["a"], "requirementsPaths": []}),
        json!({"configPaths": [["a"]], "requirementsPaths": []}),
    ] {
        fixture.client.expect_error(-32602, READ, params).await;
    }
    fixture.client.expect_alive().await;
}

async fn unreadable_configuration_is_an_internal_error(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    let config = home(&fixture).join(".codex/config.toml");
    let large = format!("a = '{}'", "x".repeat(4 << 20));
    for text in [
        "model = ",
        "a = 1\na = 2\n",
        "project_root_markers = 5\n",
        "[projects.'/x']\ntrust_level = 'perhaps'\n",
        &large,
    ] {
        write(&config, text);
        let params = question(&fixture, "", json!([["model"]]));
        fixture.client.expect_error(-32603, READ, params).await;
    }
    fs::write(&config, b"model = '\xff'").unwrap();
    let params = question(&fixture, "", json!([["model"]]));
    let text = fixture
        .client
        .expect_error(-32603, READ, params.clone())
        .await;
    assert!(text.contains("config.toml"), "{text}");
    fs::remove_file(&config).unwrap();
    fs::create_dir(&config).unwrap();
    fixture.client.expect_error(-32603, READ, params).await;
}
