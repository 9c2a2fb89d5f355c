//! `capabilityRoots/discoverV1` and `capabilities/discoverV2`: results and invalid requests.

use std::{fs, os::unix::fs::symlink, path::Path};

use serde_json::{Value, json};

use crate::{
    fs_fixture::{FsFixture, uri},
    over_every_transport, over_one_transport,
    server::Transport,
};

const ROOTS: &str = "capabilityRoots/discoverV1";
const INSTALLED: &str = "capabilities/discoverV2";

over_every_transport!(
    files_of_a_root_are_listed_exactly,
    installed_plugins_and_skills_are_listed_exactly
);

over_one_transport!(
    failing_roots_report_their_error_in_place,
    declared_files_stay_below_their_root,
    nested_plugins_are_listed_once_each,
    root_has_a_byte_limit,
    request_params_are_validated,
    skill_metadata_is_read,
    only_one_version_of_a_plugin_is_listed,
);

fn write(path: &Path, text: impl AsRef<[u8]>) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

/// Discovers below one root.
async fn below(fixture: &mut FsFixture, name: &str) -> Value {
    let params = json!({"roots": [{"id": "r", "path": fixture.uri(name)}]});
    let mut result = fixture.client.call(ROOTS, params).await;
    assert_eq!(result["roots"].as_array().unwrap().len(), 1);
    result["roots"][0].take()
}

async fn installed(fixture: &mut FsFixture) -> Value {
    let params = json!({"cwd": fixture.uri("")});
    fixture.client.call(INSTALLED, params).await
}

fn texts(files: &Value) -> Vec<&str> {
    let files = files.as_array().unwrap().iter();
    files
        .map(|file| file["contents"].as_str().unwrap())
        .collect()
}

fn skills(root: &Value) -> Vec<&str> {
    let skills = root["skills"].as_array().unwrap().iter();
    skills
        .map(|skill| skill["instructions"]["contents"].as_str().unwrap())
        .collect()
}

async fn files_of_a_root_are_listed_exactly(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    write(&fixture.path("r/.codex-plugin/plugin.json"), "{}");
    write(&fixture.path("r/.mcp.json"), "m");
    write(&fixture.path("r/s/SKILL.md"), "s");
    write(&fixture.path("r/s/agents/openai.yaml"), "y");
    write(&fixture.path("r/a b/SKILL.md"), "a");
    let file = |name: &str, text: &str| json!({"path": fixture.uri(name), "contents": text});
    let manifest = file("r/.codex-plugin/plugin.json", "{}");
    let expected = json!({
        "id": "r",
        "path": fixture.uri("r"),
        "plugin": {
            "manifest": manifest,
            "mcpConfig": file("r/.mcp.json", "m"),
            "appsConfig": null,
        },
        "skills": [
            {"instructions": file("r/a%20b/SKILL.md", "a"), "metadata": null},
            {
                "instructions": file("r/s/SKILL.md", "s"),
                "metadata": file("r/s/agents/openai.yaml", "y"),
            },
        ],
        "namespaceManifests": [manifest],
        "warnings": [],
        "error": null,
    });
    assert_eq!(below(&mut fixture, "r").await, expected);
}

async fn failing_roots_report_their_error_in_place(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    for name in ["none", "file", "fifo", "to-none"] {
        let root = below(&mut fixture, name).await;
        assert!(root["error"].is_string(), "{root}");
    }
    assert_eq!(below(&mut fixture, "to-dir").await["error"], Value::Null);
    let roots = json!([
        {"id": "", "path": "file:///C:/x"}, {"id": "", "path": fixture.uri("dir")},
    ]);
    let result = fixture.client.call(ROOTS, json!({"roots": roots})).await;
    assert!(result["roots"][0]["error"].is_string(), "{result}");
    assert_eq!(result["roots"][1]["error"], Value::Null);
    let nothing = fixture.client.call(ROOTS, json!({"roots": []})).await;
    assert_eq!(nothing, json!({"roots": []}));
    // FIFOs and dangling symlinks in place of files are ignored and do not block.
    fs::create_dir_all(fixture.path("r/s")).unwrap();
    fs::rename(fixture.path("fifo"), fixture.path("r/s/SKILL.md")).unwrap();
    symlink("none", fixture.path("r/.mcp.json")).unwrap();
    let root = below(&mut fixture, "r").await;
    assert_eq!((skills(&root).len(), &root["warnings"]), (0, &json!([])));
}

async fn declared_files_stay_below_their_root(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    for (name, text) in [("x.json", "out"), ("r/x.json", "x"), ("r/a/x.json", "ax")] {
        write(&fixture.path(name), text);
    }
    write(&fixture.path("r/.mcp.json"), "usual");
    // The declaration, the result, and the number of warnings.
    let rows: [(Value, Value, usize); 11] = [
        (json!("./x.json"), json!("x"), 0),
        (json!("./a/./x.json"), json!("ax"), 0),
        (json!("./x.json/"), json!("x"), 0),
        (json!("./none"), Value::Null, 0),
        (json!("./a"), Value::Null, 0),
        (json!({"inline": {}}), Value::Null, 0),
        (json!(5), json!("usual"), 0),
        (json!("x.json"), json!("usual"), 1),
        (json!("./../x.json"), json!("usual"), 1),
        (json!("./a/../x.json"), json!("usual"), 1),
        (json!("./"), json!("usual"), 1),
    ];
    for (declared, versions, warnings) in rows {
        let manifest = json!({"mcpServers": declared}).to_string();
        write(&fixture.path("r/.codex-plugin/plugin.json"), manifest);
        let root = below(&mut fixture, "r").await;
        assert_eq!(
            root["plugin"]["mcpConfig"]["contents"], versions,
            "{declared}"
        );
        assert_eq!(
            root["warnings"].as_array().unwrap().len(),
            warnings,
            "{declared}"
        );
    }
}

async fn nested_plugins_are_listed_once_each(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    for (directory, kind) in [
        ("r", "claude"),
        ("r/b", "cursor"),
        ("r/b", "codex"),
        ("r/a/c", "codex"),
        ("r/a", "codex"),
        ("r/a-b", "codex"),
    ] {
        let path = fixture
            .path(directory)
            .join(format!(".{kind}-plugin/plugin.json"));
        write(&path, format!("{directory} {kind}"));
    }
    let root = below(&mut fixture, "r").await;
    let expected = [
        "r claude",
        "r/a codex",
        "r/a-b codex",
        "r/a/c codex",
        "r/b codex",
    ];
    assert_eq!(texts(&root["namespaceManifests"]), expected);
    // Below a nested plugin, its manifest comes first.
    fs::create_dir(fixture.path("r/b/inner")).unwrap();
    let root = below(&mut fixture, "r/b/inner").await;
    assert_eq!(root["plugin"], Value::Null);
    assert_eq!(texts(&root["namespaceManifests"]), ["r/b codex"]);
}

async fn root_has_a_byte_limit(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    for number in 0..17 {
        write(
            &fixture.path(&format!("r/{number:02}/SKILL.md")),
            "x".repeat(1 << 20),
        );
    }
    write(&fixture.path("r/98/SKILL.md"), "x".repeat((1 << 20) + 1));
    write(&fixture.path("r/99/SKILL.md"), b"\xff");
    let root = below(&mut fixture, "r").await;
    assert_eq!(skills(&root).len(), 16);
    assert_eq!(root["warnings"].as_array().unwrap().len(), 3);
}

async fn request_params_are_validated(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    let root = json!({"id": "r", "path": fixture.uri("none")});
    let roots = json!({"roots": vec![root.clone(); 128]});
    let result = fixture.client.call(ROOTS, roots).await;
    assert_eq!(result["roots"].as_array().unwrap().len(), 128);
    let roots = json!({"roots": vec![root; 129]});
    fixture.client.expect_error(-32600, ROOTS, roots).await;
    for params in [
        json!({}),
        json!({"roots": null}),
        json!({"roots": [{"path": "file:///x"}]}),
        json!({"roots": [{"id": "r"}]}),
        json!({"roots": [{"id": 5, "path": "file:///x"}]}),
        json!({"roots": [{"id": "r", "path": "/native"}]}),
        json!({"roots": [{"id": "r", "path": "file:///x", "sandbox": {}}]}),
    ] {
        fixture.client.expect_error(-32602, ROOTS, params).await;
    }
    for params in [
        json!({}),
        json!({"cwd": 5}),
        json!({"cwd": "file:///x", "sandbox": 5}),
    ] {
        fixture.client.expect_error(-32602, INSTALLED, params).await;
    }
    let nothing = json!({"plugins": [], "skills": [], "warnings": []});
    for cwd in ["file:///none", "file:///C:/x"] {
        let params = json!({"cwd": cwd, "sandbox": null});
        assert_eq!(fixture.client.call(INSTALLED, params).await, nothing);
    }
}

async fn installed_plugins_and_skills_are_listed_exactly(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    let home = fixture.server.dir.path().to_owned();
    let skill = home.join(".codex/skills/s/SKILL.md");
    let text = "---\ndescription: use: with care\nmetadata:\n  short-description: care\n---\n";
    write(&skill, text);
    let version = home.join(".codex/plugins/cache/m/p/1.0.0");
    let of_plugin = version.join("any/where/SKILL.md");
    let manifest = version.join(".codex-plugin/plugin.json");
    write(
        &of_plugin,
        "---\nname: n\ndescription: >\n  two\n  lines\n---\n",
    );
    write(&manifest, r#"{"name":"plug"}"#);
    let remote = json!({"schema_version": 1, "remote_plugin_id": "remote"}).to_string();
    write(
        &home.join(".codex/plugins/cache/m/p/.codex-remote-plugin-install.json"),
        remote,
    );
    let expected = json!({
        "plugins": [{
            "id": "p@m",
            "displayName": "plug",
            "remotePluginId": "remote",
            "version": "1.0.0",
            "root": uri(&version),
            "files": {
                "manifest": {"path": uri(&manifest), "contents": r#"{"name":"plug"}"#},
                "mcpConfig": null,
                "appsConfig": null,
            },
            "skills": [{
                "name": "plug:n",
                "description": "two lines",
                "shortDescription": null,
                "path": uri(&of_plugin),
                "dependencies": null,
                "policy": null,
            }],
        }],
        "skills": [{
            "name": "s",
            "description": "use: with care",
            "shortDescription": "care",
            "path": uri(&skill),
            "discoveryRoot": {
                "id": "codex-home-skills",
                "path": uri(&home.join(".codex/skills")),
            },
            "dependencies": null,
            "policy": null,
        }],
        "warnings": [],
    });
    assert_eq!(installed(&mut fixture).await, expected);
}

async fn skill_metadata_is_read(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    let skill = fixture.server.dir.path().join(".agents/skills/s");
    write(&skill.join("SKILL.md"), "---\ndescription: d\n---\n");
    let text = "policy:\n  allow_implicit_invocation: false\n  products: [codex]\ndependencies:\n  \
                tools:\n    - type: mcp\n      value: v\n      oauth:\n        callback_port: 80\n";
    write(&skill.join("agents/openai.yaml"), text);
    let found = installed(&mut fixture).await;
    let policy = json!({"allowImplicitInvocation": false, "products": ["codex"]});
    assert_eq!(found["skills"][0]["policy"], policy);
    let tool = json!({
        "type": "mcp", "value": "v", "description": null, "transport": null, "command": null,
        "url": null, "oauthCallbackPort": 80,
    });
    assert_eq!(found["skills"][0]["dependencies"], json!({"tools": [tool]}));
    assert_eq!(
        found["skills"][0]["discoveryRoot"]["id"],
        "user-agent-skills"
    );
    // A small file that expands to a large value is ignored.
    let mut bomb = "policy: {}\na0: &a0 x\n".to_owned();
    for level in 1..10 {
        let below = format!("*a{}, ", level - 1).repeat(10);
        bomb += &format!("a{level}: &a{level} [{below}]\n");
    }
    write(&skill.join("agents/openai.yaml"), bomb);
    assert_eq!(
        installed(&mut fixture).await["skills"][0]["policy"],
        Value::Null
    );
}

async fn only_one_version_of_a_plugin_is_listed(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    let cache = fixture.server.dir.path().join(".codex/plugins/cache");
    for version in [
        "b/p/1.9.0",
        "b/p/1.10.0",
        "b/q/1.0.0",
        "b/q/local",
        "a/p/x",
        "a b/p/1",
        "a/.p/1",
    ] {
        write(&cache.join(version).join(".codex-plugin/plugin.json"), "{}");
    }
    write(&cache.join("b/broken/1/.codex-plugin/plugin.json"), "[]");
    write(&fixture.path("elsewhere/.codex-plugin/plugin.json"), "{}");
    symlink(fixture.path("elsewhere"), cache.join("b/p/2.0.0")).unwrap();
    let found = installed(&mut fixture).await;
    let plugins = found["plugins"].as_array().unwrap().iter();
    let versions: Vec<_> = plugins
        .map(|plugin| (&plugin["id"], &plugin["version"]))
        .collect();
    let expected = [("p@a", "x"), ("p@b", "1.10.0"), ("q@b", "local")]
        .map(|(id, version)| (json!(id), json!(version)));
    assert_eq!(
        versions,
        expected.each_ref().map(|(id, version)| (id, version))
    );
    assert_eq!(found["warnings"].as_array().unwrap().len(), 1, "{found}");
}
