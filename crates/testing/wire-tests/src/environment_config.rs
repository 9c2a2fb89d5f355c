//! `environmentConfig/read`: layers, and bad questions.

use std::{fs, path::Path};

use serde_json::{Value, json};

use crate::{
    over_every_transport, over_one_transport,
    scene::{Scene, uri},
    server::Transport,
};

const READ: &str = "environmentConfig/read";

over_every_transport!(selected_keys_are_told_layer_by_layer);

over_one_transport!(
    a_server_without_configuration_has_empty_stacks,
    worktrees_are_trusted_with_their_repository,
    questions_are_checked,
    configuration_that_cannot_be_read_is_an_internal_error,
);

/// The home of the server's account.
fn home(scene: &Scene) -> std::path::PathBuf {
    scene.server.dir.path().to_owned()
}

fn write(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

fn question(scene: &Scene, cwd: &str, keys: Value) -> Value {
    json!({"cwd": scene.uri(cwd), "configPaths": keys, "requirementsPaths": []})
}

async fn a_server_without_configuration_has_empty_stacks(transport: Transport) {
    let mut scene = Scene::new(transport).await;
    let params = question(&scene, "none", json!([["model"]]));
    let mut result = scene.client.call(READ, params).await;
    let hostname = result["hostname"].take();
    assert!(hostname.is_string(), "{hostname}");
    let empty = json!({"layers": [], "cloudInsertionIndex": 0});
    let expected = json!({
        "userHomeDir": uri(&home(&scene)),
        "codexHomeDir": uri(&home(&scene).join(".codex")),
        "hostname": null,
        "config": empty,
        "requirements": empty,
    });
    assert_eq!(result, expected);
}

async fn selected_keys_are_told_layer_by_layer(transport: Transport) {
    let mut scene = Scene::new(transport).await;
    let codex = home(&scene).join(".codex");
    let project = scene.path("project");
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
    let params = question(&scene, "project", keys);
    let result = scene.client.call(READ, params).await;
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
    let mut scene = Scene::new(transport).await;
    let (main, tree) = (scene.path("main"), scene.path("tree"));
    let private = main.join(".git/worktrees/tree");
    write(&main.join(".git/HEAD"), "");
    write(&private.join("commondir"), "../..\n");
    write(
        &tree.join(".git"),
        &format!("gitdir: {}\n", private.display()),
    );
    write(&tree.join(".codex/config.toml"), "model = 't'\n");
    let trust = format!("[projects.'{}']\ntrust_level = 'trusted'\n", main.display());
    write(&home(&scene).join(".codex/config.toml"), &trust);
    // The repository must know the worktree: anybody can write a `.git` that names a repository.
    for (known, layers) in [
        ("/elsewhere/.git", 0),
        (tree.join(".git").to_str().unwrap(), 1),
    ] {
        write(&private.join("gitdir"), known);
        let params = question(&scene, "tree", json!([["model"]]));
        let result = scene.client.call(READ, params).await;
        let found = result["config"]["layers"].as_array().unwrap().len();
        assert_eq!(found, layers, "{result}");
    }
}

async fn questions_are_checked(transport: Transport) {
    let mut scene = Scene::new(transport).await;
    let cwd = scene.uri("");
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
        scene.client.expect_error(-32602, READ, params).await;
    }
    scene.client.expect_alive().await;
}

async fn configuration_that_cannot_be_read_is_an_internal_error(transport: Transport) {
    let mut scene = Scene::new(transport).await;
    let config = home(&scene).join(".codex/config.toml");
    let large = format!("a = '{}'", "x".repeat(4 << 20));
    for text in [
        "model = ",
        "a = 1\na = 2\n",
        "project_root_markers = 5\n",
        "[projects.'/x']\ntrust_level = 'perhaps'\n",
        &large,
    ] {
        write(&config, text);
        let params = question(&scene, "", json!([["model"]]));
        scene.client.expect_error(-32603, READ, params).await;
    }
    fs::write(&config, b"model = '\xff'").unwrap();
    let params = question(&scene, "", json!([["model"]]));
    let text = scene
        .client
        .expect_error(-32603, READ, params.clone())
        .await;
    assert!(text.contains("config.toml"), "{text}");
    fs::remove_file(&config).unwrap();
    fs::create_dir(&config).unwrap();
    scene.client.expect_error(-32603, READ, params).await;
}
