//! `fs/*` under policies: refusals with their codes, and effective writes.

use std::fs;

use serde_json::{Value, json};

use super::{
    SandboxFixture, as_every_user,
    policies::{FilePolicy, NetworkPolicy, SandboxPolicy, path, special},
};
use crate::client::{decode, merge};

as_every_user!(
    workspace_can_be_changed,
    nothing_outside_the_workspace_changes,
    hidden_paths_do_not_exist,
    denied_paths_cannot_be_read,
    metadata_directories_cannot_be_changed_or_created,
    acknowledged_writes_reach_the_host,
    policies_do_not_share_a_worker,
);

/// Sends a request under a policy and returns the response.
async fn ask(
    fixture: &mut SandboxFixture,
    policy: &SandboxPolicy,
    method: &str,
    params: &Value,
) -> Value {
    let mut params = params.clone();
    merge(&mut params, json!({"sandbox": policy.sandbox}));
    let id = fixture.client.request(method, params).await;
    fixture.client.answer(id).await
}

/// Expects responses with one of the codes; 0 is a result.
async fn expect(
    fixture: &mut SandboxFixture,
    policy: &SandboxPolicy,
    codes: &[i64],
    requests: &[(&str, Value)],
) {
    for (method, params) in requests {
        let answer = ask(fixture, policy, method, params).await;
        let code = answer["error"]["code"].as_i64().unwrap_or(0);
        if !codes.contains(&code) {
            let name = &policy.name;
            fixture.record_fault(format!(
                "{name}: {method} {params}: {answer}, and not {codes:?}"
            ));
        }
        if answer["result"]["handleId"].is_string() {
            let close = json!({"handleId": answer["result"]["handleId"]});
            fixture.client.call("fs/close", close).await;
        }
    }
}

/// Returns requests that only read, in a fixture directory with `file` and `dir`.
fn reads(fixture: &SandboxFixture, directory: &str) -> Vec<(&'static str, Value)> {
    let walk = json!({
        "maxDepth": 1, "maxDirectories": 9, "maxEntries": 90, "followDirectorySymlinks": false,
    });
    let file = fixture.uri(&format!("{directory}/file"));
    let directory = fixture.uri(directory);
    vec![
        ("fs/readFile", json!({"path": file})),
        ("fs/open", json!({"path": file, "handleId": "r"})),
        ("fs/readDirectory", json!({"path": directory})),
        ("fs/walk", json!({"path": directory, "options": walk})),
        ("fs/search", json!({"path": directory, "pattern": "x"})),
        ("fs/find", json!({"path": directory, "glob": "x"})),
    ]
}

/// Returns requests that change something, in a fixture directory with `file` and `dir`.
fn changes(fixture: &SandboxFixture, directory: &str) -> Vec<(&'static str, Value)> {
    let at = |name: &str| fixture.uri(&format!("{directory}/{name}"));
    let pair = |from: &str, to: &str| json!({"sourcePath": at(from), "destinationPath": at(to), "recursive": true});
    vec![
        (
            "fs/writeFile",
            json!({"path": at("file"), "dataBase64": "eA=="}),
        ),
        (
            "fs/writeFile",
            json!({"path": at("new"), "dataBase64": "eA=="}),
        ),
        ("fs/createDirectory", json!({"path": at("made/below")})),
        (
            "fs/createDirectory",
            json!({"path": at("made2"), "recursive": false}),
        ),
        (
            "fs/open",
            json!({"path": at("opened"), "handleId": "w", "mode": "replace"}),
        ),
        (
            "fs/open",
            json!({"path": at("file"), "handleId": "w", "mode": "replace"}),
        ),
        ("fs/copy", pair("file", "copied")),
        ("fs/copy", pair("dir", "tree")),
        ("fs/rename", pair("dir/inner", "dir/renamed")),
        ("fs/remove", json!({"path": at("file"), "force": false})),
        ("fs/remove", json!({"path": at("dir"), "force": false})),
    ]
}

async fn workspace_can_be_changed(fixture: &mut SandboxFixture) {
    for kind in [
        FilePolicy::Workspace,
        FilePolicy::Stock,
        FilePolicy::Narrow,
        FilePolicy::Carved,
        FilePolicy::Denied,
    ] {
        fixture.reset();
        let policy = SandboxPolicy::new(fixture, kind, NetworkPolicy::Restricted);
        let (reads, changes) = (reads(fixture, "work"), changes(fixture, "work"));
        expect(fixture, &policy, &[0], &reads).await;
        expect(fixture, &policy, &[0], &changes).await;
        for name in [
            "new",
            "made/below",
            "made2",
            "opened",
            "copied",
            "tree/inner",
        ] {
            if !fixture.path("work").join(name).exists() {
                fixture.record_fault(format!("{}: {name} is missing", policy.name));
            }
        }
        for name in ["file", "dir"] {
            if fixture.path("work").join(name).exists() {
                fixture.record_fault(format!("{}: {name} is not removed", policy.name));
            }
        }
    }
}

async fn nothing_outside_the_workspace_changes(fixture: &mut SandboxFixture) {
    let before = fixture.snapshot("out");
    for network in NetworkPolicy::ALL {
        for kind in [
            FilePolicy::ReadOnly,
            FilePolicy::Workspace,
            FilePolicy::Stock,
            FilePolicy::Carved,
        ] {
            let policy = SandboxPolicy::new(fixture, kind, network);
            let mut requests = changes(fixture, "out");
            // Through symlinks in the workspace.
            requests.extend(changes(fixture, "work/to-out"));
            let link = fixture.uri("work/to-file");
            requests.push(("fs/writeFile", json!({"path": link, "dataBase64": "eA=="})));
            requests.push((
                "fs/open",
                json!({"path": link, "handleId": "w", "mode": "replace"}),
            ));
            for (from, to) in [("work/file", "out/new"), ("out/file", "work/new")] {
                let pair = json!({
                    "sourcePath": fixture.uri(from), "destinationPath": fixture.uri(to),
                });
                requests.push(("fs/rename", pair));
            }
            expect(fixture, &policy, &[-32603], &requests).await;
            let reads = reads(fixture, "out");
            expect(fixture, &policy, &[0], &reads).await;
            let name = policy.name.clone();
            fixture.unchanged("out", &before, &name);
        }
    }
}

async fn hidden_paths_do_not_exist(fixture: &mut SandboxFixture) {
    let before = fixture.snapshot("out");
    let nothing = SandboxPolicy::of(fixture, "nothing", json!([]), NetworkPolicy::Restricted);
    let narrow = SandboxPolicy::new(fixture, FilePolicy::Narrow, NetworkPolicy::Restricted);
    for policy in [nothing, narrow] {
        let mut reads = reads(fixture, "out");
        reads.push(("fs/readFile", json!({"path": fixture.uri("work/to-file")})));
        reads.push(("fs/getMetadata", json!({"path": fixture.uri("out/file")})));
        reads.push(("fs/canonicalize", json!({"path": fixture.uri("out/file")})));
        expect(fixture, &policy, &[-32004], &reads).await;
        let mut requests = changes(fixture, "out");
        requests.push((
            "fs/createDirectory",
            json!({"path": fixture.uri("new/below")}),
        ));
        let file = json!({"path": fixture.uri("new-file"), "dataBase64": "eA=="});
        requests.push(("fs/writeFile", file));
        expect(fixture, &policy, &[-32004, -32603], &requests).await;
        let name = policy.name.clone();
        fixture.unchanged("out", &before, &name);
    }
    assert_eq!(fs::read_dir(fixture.path("")).unwrap().count(), 3);
}

async fn denied_paths_cannot_be_read(fixture: &mut SandboxFixture) {
    let secret = fixture.path("work/a.secret");
    fs::write(&secret, "text").unwrap();
    fixture.give(&secret);
    let before = fixture.snapshot("out");
    let policy = SandboxPolicy::new(fixture, FilePolicy::Denied, NetworkPolicy::Restricted);
    for name in ["work/a.secret", "out/file", "work/to-file"] {
        let requests = [
            ("fs/readFile", json!({"path": fixture.uri(name)})),
            (
                "fs/open",
                json!({"path": fixture.uri(name), "handleId": "r"}),
            ),
        ];
        expect(fixture, &policy, &[-32600, -32004], &requests).await;
    }
    let copy = json!({
        "sourcePath": fixture.uri("work/a.secret"), "destinationPath": fixture.uri("work/copy"),
        "recursive": false,
    });
    expect(fixture, &policy, &[-32600], &[("fs/copy", copy)]).await;
    assert!(!fixture.path("work/copy").exists());
    let search = json!({"path": fixture.uri("work"), "pattern": "text"});
    let answer = ask(fixture, &policy, "fs/search", &search).await;
    assert_eq!(answer["result"]["matches"], json!([]), "{answer}");
    let changes = changes(fixture, "out");
    expect(fixture, &policy, &[-32600, -32603, -32004], &changes).await;
    fixture.unchanged("out", &before, "denied");
}

async fn metadata_directories_cannot_be_changed_or_created(fixture: &mut SandboxFixture) {
    let before = fixture.snapshot("work");
    for kind in [
        FilePolicy::Workspace,
        FilePolicy::Stock,
        FilePolicy::Narrow,
        FilePolicy::Denied,
    ] {
        let policy = SandboxPolicy::new(fixture, kind, NetworkPolicy::Restricted);
        let mut requests = Vec::new();
        for name in [
            "work/.git/config",
            "work/.git/new",
            "work/.codex",
            "work/.aws/config",
        ] {
            let path = fixture.uri(name);
            requests.push(("fs/writeFile", json!({"path": path, "dataBase64": "eA=="})));
            let open = json!({"path": path, "handleId": "w", "mode": "replace"});
            requests.push(("fs/open", open));
            let copy = json!({
                "sourcePath": fixture.uri("work/file"), "destinationPath": path,
                "recursive": false,
            });
            requests.push(("fs/copy", copy));
        }
        for name in ["work/.git/new", "work/.codex", "work/.aws/below"] {
            requests.push(("fs/createDirectory", json!({"path": fixture.uri(name)})));
        }
        for name in ["work/.codex", "work/.git"] {
            let pair = json!({
                "sourcePath": fixture.uri("work/dir"), "destinationPath": fixture.uri(name),
                "recursive": true, "overwrite": true,
            });
            requests.push(("fs/rename", pair.clone()));
            requests.push(("fs/copy", pair));
        }
        let away = json!({
            "sourcePath": fixture.uri("work/.git"), "destinationPath": fixture.uri("work/moved"),
        });
        requests.push(("fs/rename", away));
        requests.push(("fs/remove", json!({"path": fixture.uri("work/.git")})));
        requests.push((
            "fs/remove",
            json!({"path": fixture.uri("work/.git/config")}),
        ));
        // Paths below a name that cannot be created do not exist.
        expect(fixture, &policy, &[-32603, -32004], &requests).await;
        let name = policy.name.clone();
        fixture.unchanged("work", &before, &name);
        let nested = json!({"path": fixture.uri("work/dir/.git")});
        expect(fixture, &policy, &[0], &[("fs/createDirectory", nested)]).await;
        fixture.reset();
    }
}

/// A write must reach the host, not only the worker's mount namespace.
async fn acknowledged_writes_reach_the_host(fixture: &mut SandboxFixture) {
    let entries = [
        ("nothing", json!([])),
        ("minimal", json!([special("minimal", "read")])),
        ("work", json!([path(&fixture.uri("work"), "write")])),
        ("dir", json!([path(&fixture.uri("work/dir"), "write")])),
        ("root none", json!([special("root", "none")])),
    ];
    for (name, entries) in entries {
        let policy = SandboxPolicy::of(fixture, name, entries, NetworkPolicy::Restricted);
        for directory in ["", "work", "work/dir", "out", "none", "../none", "../../x"] {
            let file = fixture.path(&format!("{directory}/probe-file"));
            let params = json!({"path": crate::fs_fixture::uri(&file), "dataBase64": "eA=="});
            let response = ask(fixture, &policy, "fs/writeFile", &params).await;
            if response.get("error").is_none() && !file.exists() {
                fixture.record_fault(format!("{name}: {directory}: success without a file"));
            }
            let created = fixture.path(&format!("{directory}/probe-made"));
            let params = json!({"path": crate::fs_fixture::uri(&created)});
            let response = ask(fixture, &policy, "fs/createDirectory", &params).await;
            if response.get("error").is_none() && !created.exists() {
                fixture.record_fault(format!("{name}: {directory}: success without a directory"));
            }
        }
        fixture.reset();
    }
}

/// Workers are reused only for requests with the same policy.
async fn policies_do_not_share_a_worker(fixture: &mut SandboxFixture) {
    let other = fixture.path("aside/file");
    fs::write(&other, "aside").unwrap();
    fixture.give(&other);
    let one = |fixture: &SandboxFixture, name: &str| {
        let entries = json!([path(&fixture.uri(name), "read")]);
        SandboxPolicy::of(fixture, name, entries, NetworkPolicy::Restricted)
    };
    let policies = ["work", "out", "aside"].map(|name| one(fixture, name));
    for round in 0..20 {
        for (index, policy) in policies.iter().enumerate() {
            for (other, text) in [("work", "inside"), ("out", "outside"), ("aside", "aside")] {
                let params = json!({"path": fixture.uri(&format!("{other}/file"))});
                let answer = ask(fixture, policy, "fs/readFile", &params).await;
                let allowed = policies[index].name == other;
                let right = if allowed {
                    decode(&answer["result"]["dataBase64"]) == text.as_bytes()
                } else {
                    answer["error"]["code"] == -32004
                };
                if !right {
                    let name = &policy.name;
                    fixture.record_fault(format!("{round}: {name} reads {other}: {answer}"));
                }
            }
        }
    }
}
