//! The `sandbox` member of requests about files: what it allows, and what is refused.

use serde_json::{Value, json};

use crate::{
    client::{merge, with},
    over_every_transport, over_one_transport,
    params::without,
    scene::Scene,
    server::{Server, Transport},
};

over_every_transport!(policies_without_restrictions_allow_everything);

over_one_transport!(
    full_read_allows_reading_and_nothing_else,
    full_write_allows_everything,
    listed_directories_are_all_there_is,
    entries_that_depend_on_the_cwd_need_one,
    a_sandbox_has_its_members,
    profiles_are_checked,
    optional_members_of_a_sandbox,
);

fn sandbox(permissions: Value) -> Value {
    json!({"permissions": permissions, "windowsSandboxLevel": "disabled"})
}

fn restricted(entries: Value) -> Value {
    let files = json!({"type": "restricted", "entries": entries});
    sandbox(json!({"type": "managed", "file_system": files, "network": "restricted"}))
}

fn special(kind: &str, access: &str) -> Value {
    json!({"path": {"type": "special", "value": {"kind": kind}}, "access": access})
}

/// Requests that only read.
fn reads(scene: &Scene) -> Vec<(&'static str, Value)> {
    let walk = json!({
        "maxDepth": 1, "maxDirectories": 1, "maxEntries": 10, "followDirectorySymlinks": false,
    });
    vec![
        ("fs/readFile", scene.params("file", json!({}))),
        ("fs/getMetadata", scene.params("file", json!({}))),
        ("fs/canonicalize", scene.params("file", json!({}))),
        ("fs/readDirectory", scene.params("dir", json!({}))),
        ("fs/walk", scene.params("dir", json!({"options": walk}))),
        ("fs/open", scene.params("file", json!({"handleId": "r"}))),
        ("fs/search", scene.params("dir", json!({"pattern": "x"}))),
        ("fs/find", scene.params("dir", json!({"glob": "x"}))),
        ("fs/watch", scene.params("dir", json!({"watchId": "w"}))),
    ]
}

/// Requests that change something.
fn changes(scene: &Scene) -> Vec<(&'static str, Value)> {
    let pair = |from: &str, to: &str| {
        json!({
            "sourcePath": scene.uri(from), "destinationPath": scene.uri(to), "recursive": false,
        })
    };
    let replace = json!({"handleId": "w", "mode": "replace"});
    vec![
        (
            "fs/writeFile",
            scene.params("new", json!({"dataBase64": "eA=="})),
        ),
        ("fs/copy", pair("file", "copy")),
        ("fs/rename", pair("dir/inner", "renamed")),
        ("fs/createDirectory", scene.params("made", json!({}))),
        ("fs/open", scene.params("opened", replace)),
        ("fs/remove", scene.params("to-file", json!({}))),
    ]
}

async fn allowed(scene: &mut Scene, requests: &[(&str, Value)], sandbox: &Value) {
    for (method, params) in requests {
        let params = with(params.clone(), json!({"sandbox": sandbox}));
        scene.client.call(method, params).await;
    }
}

async fn refused(code: i64, scene: &mut Scene, requests: &[(&str, Value)], sandbox: &Value) {
    for (method, params) in requests {
        let params = with(params.clone(), json!({"sandbox": sandbox}));
        scene.client.expect_error(code, method, params).await;
    }
}

async fn policies_without_restrictions_allow_everything(transport: Transport) {
    let mut scene = Scene::new(transport).await;
    let unrestricted = json!({
        "type": "managed", "file_system": {"type": "unrestricted"}, "network": "restricted",
    });
    let external = json!({"type": "external", "network": "enabled"});
    let sandboxes = [
        json!(null),
        sandbox(json!({"type": "disabled"})),
        sandbox(external),
        sandbox(unrestricted),
    ];
    for sandbox in sandboxes {
        scene.reset();
        let (reads, changes) = (reads(&scene), changes(&scene));
        allowed(&mut scene, &reads, &sandbox).await;
        allowed(&mut scene, &changes, &sandbox).await;
        for handle in ["r", "w"] {
            scene
                .client
                .call("fs/close", json!({"handleId": handle}))
                .await;
        }
        scene
            .client
            .call("fs/unwatch", json!({"watchId": "w"}))
            .await;
    }
    assert_eq!(scene.content("new"), "x");
}

async fn full_read_allows_reading_and_nothing_else(transport: Transport) {
    let mut scene = Scene::new(transport).await;
    let before = scene.names("");
    let (reads, changes) = (reads(&scene), changes(&scene));
    let sandbox = restricted(json!([special("root", "read")]));
    allowed(&mut scene, &reads, &sandbox).await;
    refused(-32603, &mut scene, &changes, &sandbox).await;
    assert_eq!(scene.names(""), before, "nothing was changed");
    assert_eq!(scene.content("file"), "hello");
}

async fn full_write_allows_everything(transport: Transport) {
    let mut scene = Scene::new(transport).await;
    let (reads, changes) = (reads(&scene), changes(&scene));
    let sandbox = restricted(json!([special("root", "write")]));
    allowed(&mut scene, &reads, &sandbox).await;
    allowed(&mut scene, &changes, &sandbox).await;
}

async fn listed_directories_are_all_there_is(transport: Transport) {
    let mut scene = Scene::new(transport).await;
    let (reads, changes) = (reads(&scene), changes(&scene));
    let own =
        |access: &str| json!({"path": {"type": "path", "path": scene.uri("")}, "access": access});
    let (own_read, own_write) = (
        restricted(json!([own("read")])),
        restricted(json!([own("write")])),
    );
    let before = scene.names("");
    for entries in [
        json!([]),
        json!([special("minimal", "read")]),
        json!([special("root", "none")]),
    ] {
        let sandbox = restricted(entries);
        refused(-32004, &mut scene, &reads, &sandbox).await;
    }
    allowed(&mut scene, &reads, &own_read).await;
    for handle in ["r", "w"] {
        let close = json!({"handleId": handle});
        scene.client.call("fs/close", close).await;
    }
    let unwatch = json!({"watchId": "w"});
    scene.client.call("fs/unwatch", unwatch).await;
    refused(-32603, &mut scene, &changes, &own_read).await;
    assert_eq!(scene.names(""), before, "nothing was changed");
    allowed(&mut scene, &reads, &own_write).await;
    allowed(&mut scene, &changes, &own_write).await;
    assert_eq!(scene.content("new"), "x");
    // The system's files are readable to whatever asks about files.
    let passwd = json!({"path": "file:///etc/passwd", "sandbox": restricted(json!([]))});
    scene.client.call("fs/readFile", passwd).await;
}

async fn entries_that_depend_on_the_cwd_need_one(transport: Transport) {
    let mut scene = Scene::new(transport).await;
    let (reads, changes) = (reads(&scene), changes(&scene));
    let glob = json!({"path": {"type": "glob_pattern", "pattern": "**/.env"}, "access": "deny"});
    let denying = restricted(json!([special("root", "read"), glob]));
    refused(-32602, &mut scene, &reads, &denying).await;
    refused(-32602, &mut scene, &changes, &denying).await;
    let cwd = with(denying, json!({"cwd": scene.uri("")}));
    allowed(&mut scene, &reads, &cwd).await;
    // Read-only parts of what may be written otherwise keep reading possible.
    let parts = restricted(json!([
        special("root", "write"),
        special("project_roots", "read")
    ]));
    let file = scene.params("file", json!({"sandbox": parts}));
    scene.client.call("fs/readFile", file).await;
    refused(-32602, &mut scene, &changes, &parts).await;
}

async fn a_sandbox_has_its_members(transport: Transport) {
    let mut scene = Scene::new(transport).await;
    let whole = sandbox(json!({"type": "disabled"}));
    for (sandbox, word) in [
        (
            without(whole.clone(), "windowsSandboxLevel"),
            "windowsSandboxLevel",
        ),
        (without(whole.clone(), "permissions"), "permissions"),
        (json!({}), "permissions"),
        (json!("none"), "sandbox"),
        (json!(1), "sandbox"),
        (
            with(whole.clone(), json!({"windowsSandboxLevel": "none"})),
            "windowsSandboxLevel",
        ),
        (
            with(whole.clone(), json!({"windowsSandboxLevel": null})),
            "windowsSandboxLevel",
        ),
        (
            with(whole.clone(), json!({"permissions": null})),
            "permissions",
        ),
        (with(whole.clone(), json!({"cwd": "native"})), "cwd"),
        (
            with(whole.clone(), json!({"workspaceRoots": null})),
            "workspaceRoots",
        ),
        (
            with(whole.clone(), json!({"useLegacyLandlock": null})),
            "useLegacyLandlock",
        ),
        (
            with(whole, json!({"sandboxOverride": "other"})),
            "sandboxOverride",
        ),
    ] {
        for (method, more) in [
            ("fs/readFile", json!({"sandbox": sandbox})),
            (
                "fs/writeFile",
                json!({"sandbox": sandbox, "dataBase64": ""}),
            ),
            ("fs/remove", json!({"sandbox": sandbox})),
            ("fs/open", json!({"sandbox": sandbox, "handleId": "h"})),
        ] {
            let message = scene.refused(-32602, method, "file", more).await;
            assert!(message.contains(word), "{method}: {message}");
        }
    }
    assert_eq!(scene.content("file"), "hello");
}

async fn profiles_are_checked(transport: Transport) {
    let mut scene = Scene::new(transport).await;
    let open = json!({"type": "unrestricted"});
    for permissions in [
        json!({}),
        json!({"type": "other"}),
        json!({"type": "external"}),
        json!({"type": "external", "network": "some"}),
        json!({"type": "managed", "network": "enabled"}),
        json!({"type": "managed", "file_system": open}),
        json!({"type": "managed", "file_system": {"type": "other"}, "network": "enabled"}),
        json!({"type": "managed", "file_system": {"type": "restricted"}, "network": "enabled"}),
    ] {
        let more = json!({"sandbox": sandbox(permissions.clone())});
        scene.refused(-32602, "fs/readFile", "file", more).await;
    }
    for entry in [
        special("other", "read"),
        special("root", "execute"),
        json!({"path": {"type": "special", "value": {"kind": "root"}}}),
        json!({"path": {"type": "path", "path": "native"}, "access": "read"}),
        json!({"path": {"type": "other"}, "access": "read"}),
        json!({"access": "read"}),
        with(
            special("root", "read"),
            json!({"missing_path_behavior": "create"}),
        ),
    ] {
        let more = json!({"sandbox": restricted(json!([special("root", "read"), entry]))});
        scene.refused(-32602, "fs/readFile", "file", more).await;
    }
    let mut zero = restricted(json!([special("root", "read")]));
    zero["permissions"]["file_system"]["glob_scan_max_depth"] = json!(0);
    scene
        .refused(-32602, "fs/readFile", "file", json!({"sandbox": zero}))
        .await;
}

#[tokio::test]
async fn few_descriptors_are_enough_or_named_as_the_reason() {
    let script = |limit: u32| format!("ulimit -n {limit}; exec \"$0\" \"$@\"");
    let sandbox = |scene: &Scene| {
        let denied = json!({"type": "path", "path": scene.uri("nothing")});
        let denied = json!({"path": denied, "access": "deny"});
        json!({"sandbox": restricted(json!([special("root", "read"), denied]))})
    };
    let enough = Server::start_by(&script(48), Transport::Stdio, &[]).await;
    let mut scene = Scene::on(enough).await;
    let more = sandbox(&scene);
    scene.call("fs/readFile", "file", more).await;
    for limit in [16, 20, 24] {
        let few = Server::start_by(&script(limit), Transport::Stdio, &[]).await;
        let mut scene = Scene::on(few).await;
        let params = scene.params("file", sandbox(&scene));
        let id = scene.client.request("fs/readFile", params).await;
        let answer = scene.client.answer(id).await;
        let message = answer["error"]["message"].as_str().unwrap_or_default();
        assert!(
            answer["error"].is_null() || message.contains("Too many open files"),
            "{limit}: {answer}"
        );
    }
}

async fn optional_members_of_a_sandbox(transport: Transport) {
    let mut scene = Scene::new(transport).await;
    let root = scene.uri("");
    let mut sandbox = restricted(json!([
        special("root", "read"),
        with(
            special("project_roots", "read"),
            json!({"missing_path_behavior": "skip"})
        ),
    ]));
    let members = json!({
        "cwd": root, "policyContext": {"cwd": root, "workspaceRoots": [root]},
        "workspaceRoots": [root], "userHomeDir": root, "temporaryDirectories": [root],
        "useLegacyLandlock": false, "windowsSandboxProxySettingsMode": "reconcile",
        "sandboxOverride": "noOverride", "later": {"x": 1},
    });
    merge(&mut sandbox, members);
    scene
        .call("fs/readFile", "file", json!({"sandbox": sandbox}))
        .await;
    let nulls = json!({
        "cwd": null, "policyContext": null, "userHomeDir": null, "temporaryDirectories": null,
        "windowsSandboxProxySettingsMode": null, "sandboxOverride": null,
    });
    merge(&mut sandbox, nulls);
    scene
        .call("fs/readFile", "file", json!({"sandbox": sandbox}))
        .await;
    // Loosening is never taken from the client's word.
    let loose = json!({"sandboxOverride": "bypassSandboxFirstAttempt"});
    let more = json!({"sandbox": with(sandbox, loose), "dataBase64": "eA=="});
    scene.refused(-32602, "fs/writeFile", "file", more).await;
}
