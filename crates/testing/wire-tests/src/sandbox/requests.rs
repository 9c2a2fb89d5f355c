//! `fs/*` under policies: what is refused, with which code, and that what is told to be done is done.

use std::fs;

use serde_json::{Value, json};

use super::{
    ground::{Ground, as_every_user},
    policies::{Kind, Network, Policy, path, special},
};
use crate::client::{decode, merge};

as_every_user!(
    the_workspace_can_be_changed,
    outside_nothing_is_changed,
    what_is_hidden_is_not_there,
    what_is_denied_cannot_be_read,
    metadata_cannot_be_changed_or_made,
    what_is_told_to_be_written_is_written,
    policies_do_not_share_what_they_allow,
);

/// Asks for something under a policy; returns the answer.
async fn ask(ground: &mut Ground, policy: &Policy, method: &str, params: &Value) -> Value {
    let mut params = params.clone();
    merge(&mut params, json!({"sandbox": policy.sandbox}));
    let id = ground.client.request(method, params).await;
    ground.client.answer(id).await
}

/// Expects answers with one of some codes; 0 is a result.
async fn expect(ground: &mut Ground, policy: &Policy, codes: &[i64], asked: &[(&str, Value)]) {
    for (method, params) in asked {
        let answer = ask(ground, policy, method, params).await;
        let code = answer["error"]["code"].as_i64().unwrap_or(0);
        if !codes.contains(&code) {
            let name = &policy.name;
            ground.fault(format!(
                "{name}: {method} {params}: {answer}, and not {codes:?}"
            ));
        }
        if answer["result"]["handleId"].is_string() {
            let close = json!({"handleId": answer["result"]["handleId"]});
            ground.client.call("fs/close", close).await;
        }
    }
}

/// Requests that only read, in a directory of the ground that holds `file` and `dir`.
fn reads(ground: &Ground, directory: &str) -> Vec<(&'static str, Value)> {
    let walk = json!({
        "maxDepth": 1, "maxDirectories": 9, "maxEntries": 90, "followDirectorySymlinks": false,
    });
    let file = ground.uri(&format!("{directory}/file"));
    let directory = ground.uri(directory);
    vec![
        ("fs/readFile", json!({"path": file})),
        ("fs/open", json!({"path": file, "handleId": "r"})),
        ("fs/readDirectory", json!({"path": directory})),
        ("fs/walk", json!({"path": directory, "options": walk})),
        ("fs/search", json!({"path": directory, "pattern": "x"})),
        ("fs/find", json!({"path": directory, "glob": "x"})),
    ]
}

/// Requests that change something, in a directory of the ground that holds `file` and `dir`.
fn changes(ground: &Ground, directory: &str) -> Vec<(&'static str, Value)> {
    let at = |name: &str| ground.uri(&format!("{directory}/{name}"));
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

async fn the_workspace_can_be_changed(ground: &mut Ground) {
    for kind in [
        Kind::Workspace,
        Kind::Stock,
        Kind::Narrow,
        Kind::Carved,
        Kind::Denied,
    ] {
        ground.reset();
        let policy = Policy::new(ground, kind, Network::Restricted);
        let (reads, changes) = (reads(ground, "work"), changes(ground, "work"));
        expect(ground, &policy, &[0], &reads).await;
        expect(ground, &policy, &[0], &changes).await;
        for name in [
            "new",
            "made/below",
            "made2",
            "opened",
            "copied",
            "tree/inner",
        ] {
            if !ground.path("work").join(name).exists() {
                ground.fault(format!("{}: {name} is missing", policy.name));
            }
        }
        for name in ["file", "dir"] {
            if ground.path("work").join(name).exists() {
                ground.fault(format!("{}: {name} is not removed", policy.name));
            }
        }
    }
}

async fn outside_nothing_is_changed(ground: &mut Ground) {
    let before = ground.snapshot("out");
    for network in Network::ALL {
        for kind in [Kind::ReadOnly, Kind::Workspace, Kind::Stock, Kind::Carved] {
            let policy = Policy::new(ground, kind, network);
            let mut asked = changes(ground, "out");
            // By way of links in the workspace.
            asked.extend(changes(ground, "work/to-out"));
            let link = ground.uri("work/to-file");
            asked.push(("fs/writeFile", json!({"path": link, "dataBase64": "eA=="})));
            asked.push((
                "fs/open",
                json!({"path": link, "handleId": "w", "mode": "replace"}),
            ));
            for (from, to) in [("work/file", "out/new"), ("out/file", "work/new")] {
                let pair = json!({
                    "sourcePath": ground.uri(from), "destinationPath": ground.uri(to),
                });
                asked.push(("fs/rename", pair));
            }
            expect(ground, &policy, &[-32603], &asked).await;
            let reads = reads(ground, "out");
            expect(ground, &policy, &[0], &reads).await;
            let name = policy.name.clone();
            ground.unchanged("out", &before, &name);
        }
    }
}

async fn what_is_hidden_is_not_there(ground: &mut Ground) {
    let before = ground.snapshot("out");
    let nothing = Policy::of(ground, "nothing", json!([]), Network::Restricted);
    let narrow = Policy::new(ground, Kind::Narrow, Network::Restricted);
    for policy in [nothing, narrow] {
        let mut reads = reads(ground, "out");
        reads.push(("fs/readFile", json!({"path": ground.uri("work/to-file")})));
        reads.push(("fs/getMetadata", json!({"path": ground.uri("out/file")})));
        reads.push(("fs/canonicalize", json!({"path": ground.uri("out/file")})));
        expect(ground, &policy, &[-32004], &reads).await;
        let mut asked = changes(ground, "out");
        asked.push((
            "fs/createDirectory",
            json!({"path": ground.uri("new/below")}),
        ));
        let file = json!({"path": ground.uri("new-file"), "dataBase64": "eA=="});
        asked.push(("fs/writeFile", file));
        expect(ground, &policy, &[-32004, -32603], &asked).await;
        let name = policy.name.clone();
        ground.unchanged("out", &before, &name);
    }
    assert_eq!(fs::read_dir(ground.path("")).unwrap().count(), 3);
}

async fn what_is_denied_cannot_be_read(ground: &mut Ground) {
    let secret = ground.path("work/a.secret");
    fs::write(&secret, "text").unwrap();
    ground.give(&secret);
    let before = ground.snapshot("out");
    let policy = Policy::new(ground, Kind::Denied, Network::Restricted);
    for name in ["work/a.secret", "out/file", "work/to-file"] {
        let asked = [
            ("fs/readFile", json!({"path": ground.uri(name)})),
            (
                "fs/open",
                json!({"path": ground.uri(name), "handleId": "r"}),
            ),
        ];
        expect(ground, &policy, &[-32600, -32004], &asked).await;
    }
    let copy = json!({
        "sourcePath": ground.uri("work/a.secret"), "destinationPath": ground.uri("work/copy"),
        "recursive": false,
    });
    expect(ground, &policy, &[-32600], &[("fs/copy", copy)]).await;
    assert!(!ground.path("work/copy").exists());
    let search = json!({"path": ground.uri("work"), "pattern": "text"});
    let answer = ask(ground, &policy, "fs/search", &search).await;
    assert_eq!(answer["result"]["matches"], json!([]), "{answer}");
    let changes = changes(ground, "out");
    expect(ground, &policy, &[-32600, -32603, -32004], &changes).await;
    ground.unchanged("out", &before, "denied");
}

async fn metadata_cannot_be_changed_or_made(ground: &mut Ground) {
    let before = ground.snapshot("work");
    for kind in [Kind::Workspace, Kind::Stock, Kind::Narrow, Kind::Denied] {
        let policy = Policy::new(ground, kind, Network::Restricted);
        let mut asked = Vec::new();
        for name in [
            "work/.git/config",
            "work/.git/new",
            "work/.codex",
            "work/.aws/config",
        ] {
            let path = ground.uri(name);
            asked.push(("fs/writeFile", json!({"path": path, "dataBase64": "eA=="})));
            let open = json!({"path": path, "handleId": "w", "mode": "replace"});
            asked.push(("fs/open", open));
            let copy = json!({
                "sourcePath": ground.uri("work/file"), "destinationPath": path,
                "recursive": false,
            });
            asked.push(("fs/copy", copy));
        }
        for name in ["work/.git/new", "work/.codex", "work/.aws/below"] {
            asked.push(("fs/createDirectory", json!({"path": ground.uri(name)})));
        }
        for name in ["work/.codex", "work/.git"] {
            let pair = json!({
                "sourcePath": ground.uri("work/dir"), "destinationPath": ground.uri(name),
                "recursive": true, "overwrite": true,
            });
            asked.push(("fs/rename", pair.clone()));
            asked.push(("fs/copy", pair));
        }
        let away = json!({
            "sourcePath": ground.uri("work/.git"), "destinationPath": ground.uri("work/moved"),
        });
        asked.push(("fs/rename", away));
        asked.push(("fs/remove", json!({"path": ground.uri("work/.git")})));
        asked.push(("fs/remove", json!({"path": ground.uri("work/.git/config")})));
        // What is below a name that cannot be made is not there.
        expect(ground, &policy, &[-32603, -32004], &asked).await;
        let name = policy.name.clone();
        ground.unchanged("work", &before, &name);
        let nested = json!({"path": ground.uri("work/dir/.git")});
        expect(ground, &policy, &[0], &[("fs/createDirectory", nested)]).await;
        ground.reset();
    }
}

/// A view of its own must not take what the host never gets.
async fn what_is_told_to_be_written_is_written(ground: &mut Ground) {
    let entries = [
        ("nothing", json!([])),
        ("minimal", json!([special("minimal", "read")])),
        ("work", json!([path(&ground.uri("work"), "write")])),
        ("dir", json!([path(&ground.uri("work/dir"), "write")])),
        ("root none", json!([special("root", "none")])),
    ];
    for (name, entries) in entries {
        let policy = Policy::of(ground, name, entries, Network::Restricted);
        for place in ["", "work", "work/dir", "out", "none", "../none", "../../x"] {
            let file = ground.path(&format!("{place}/probe-file"));
            let params = json!({"path": crate::scene::uri(&file), "dataBase64": "eA=="});
            let told = ask(ground, &policy, "fs/writeFile", &params).await;
            if told.get("error").is_none() && !file.exists() {
                ground.fault(format!("{name}: {place}: a file was told to be written"));
            }
            let made = ground.path(&format!("{place}/probe-made"));
            let params = json!({"path": crate::scene::uri(&made)});
            let told = ask(ground, &policy, "fs/createDirectory", &params).await;
            if told.get("error").is_none() && !made.exists() {
                ground.fault(format!("{name}: {place}: a directory was told to be made"));
            }
        }
        ground.reset();
    }
}

/// Helpers stay for the next request of the same policy, and of no other one.
async fn policies_do_not_share_what_they_allow(ground: &mut Ground) {
    let other = ground.path("aside/file");
    fs::write(&other, "aside").unwrap();
    ground.give(&other);
    let one = |ground: &Ground, name: &str| {
        let entries = json!([path(&ground.uri(name), "read")]);
        Policy::of(ground, name, entries, Network::Restricted)
    };
    let policies = ["work", "out", "aside"].map(|name| one(ground, name));
    for round in 0..20 {
        for (index, policy) in policies.iter().enumerate() {
            for (other, text) in [("work", "inside"), ("out", "outside"), ("aside", "aside")] {
                let params = json!({"path": ground.uri(&format!("{other}/file"))});
                let answer = ask(ground, policy, "fs/readFile", &params).await;
                let allowed = policies[index].name == other;
                let right = if allowed {
                    decode(&answer["result"]["dataBase64"]) == text.as_bytes()
                } else {
                    answer["error"]["code"] == -32004
                };
                if !right {
                    let name = &policy.name;
                    ground.fault(format!("{round}: {name} reads {other}: {answer}"));
                }
            }
        }
    }
}
