//! The `sandbox` field of file requests: permitted and refused operations.

use serde_json::{Value, json};

use crate::{
    client::{merge, with},
    fs_fixture::FsFixture,
    over_every_transport, over_one_transport,
    params::without,
    server::{Server, Transport},
};

over_every_transport!(policies_without_restrictions_allow_everything);

over_one_transport!(
    full_read_allows_reading_and_nothing_else,
    full_write_allows_everything,
    only_listed_directories_exist,
    entries_that_depend_on_the_cwd_need_one,
    sandbox_fields_are_validated,
    permission_profiles_are_validated,
    optional_fields_of_a_sandbox_are_accepted,
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

/// Returns requests that only read.
fn reads(fixture: &FsFixture) -> Vec<(&'static str, Value)> {
    let walk = json!({
        "maxDepth": 1, "maxDirectories": 1, "maxEntries": 10, "followDirectorySymlinks": false,
    });
    vec![
        ("fs/readFile", fixture.params("file", json!({}))),
        ("fs/getMetadata", fixture.params("file", json!({}))),
        ("fs/canonicalize", fixture.params("file", json!({}))),
        ("fs/readDirectory", fixture.params("dir", json!({}))),
        (
            "fs/readDirectory",
            fixture.params("dir", json!({"details": true})),
        ),
        ("fs/walk", fixture.params("dir", json!({"options": walk}))),
        ("fs/open", fixture.params("file", json!({"handleId": "r"}))),
        ("fs/search", fixture.params("dir", json!({"pattern": "x"}))),
        ("fs/find", fixture.params("dir", json!({"glob": "x"}))),
        ("fs/watch", fixture.params("dir", json!({"watchId": "w"}))),
    ]
}

/// Returns requests that change something.
fn changes(fixture: &FsFixture) -> Vec<(&'static str, Value)> {
    let pair = |from: &str, to: &str| {
        json!({
            "sourcePath": fixture.uri(from), "destinationPath": fixture.uri(to), "recursive": false,
        })
    };
    let replace = json!({"handleId": "w", "mode": "replace"});
    vec![
        (
            "fs/writeFile",
            fixture.params("new", json!({"dataBase64": "eA=="})),
        ),
        ("fs/copy", pair("file", "copy")),
        ("fs/rename", pair("dir/inner", "renamed")),
        ("fs/createDirectory", fixture.params("made", json!({}))),
        (
            "fs/setMetadata",
            fixture.params("dir/sub", json!({"mode": 0o700})),
        ),
        (
            "fs/setMetadata",
            fixture.params(
                "file",
                json!({"mode": 0o600, "modifiedAtMs": 0, "followSymlinks": false}),
            ),
        ),
        (
            "fs/createSymlink",
            fixture.params("linked", json!({"target": "file"})),
        ),
        ("fs/open", fixture.params("opened", replace)),
        ("fs/remove", fixture.params("to-file", json!({}))),
    ]
}

async fn allowed(fixture: &mut FsFixture, requests: &[(&str, Value)], sandbox: &Value) {
    for (method, params) in requests {
        let params = with(params.clone(), json!({"sandbox": sandbox}));
        fixture.client.call(method, params).await;
    }
}

async fn refused(code: i64, fixture: &mut FsFixture, requests: &[(&str, Value)], sandbox: &Value) {
    for (method, params) in requests {
        let params = with(params.clone(), json!({"sandbox": sandbox}));
        fixture.client.expect_error(code, method, params).await;
    }
}

async fn policies_without_restrictions_allow_everything(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
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
        fixture.reset();
        let (reads, changes) = (reads(&fixture), changes(&fixture));
        allowed(&mut fixture, &reads, &sandbox).await;
        allowed(&mut fixture, &changes, &sandbox).await;
        for handle in ["r", "w"] {
            fixture
                .client
                .call("fs/close", json!({"handleId": handle}))
                .await;
        }
        fixture
            .client
            .call("fs/unwatch", json!({"watchId": "w"}))
            .await;
    }
    assert_eq!(fixture.content("new"), "x");
}

async fn full_read_allows_reading_and_nothing_else(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    let before = fixture.names("");
    let (reads, changes) = (reads(&fixture), changes(&fixture));
    let sandbox = restricted(json!([special("root", "read")]));
    allowed(&mut fixture, &reads, &sandbox).await;
    refused(-32603, &mut fixture, &changes, &sandbox).await;
    assert_eq!(fixture.names(""), before, "nothing was changed");
    assert_eq!(fixture.content("file"), "hello");
}

async fn full_write_allows_everything(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    let (reads, changes) = (reads(&fixture), changes(&fixture));
    let sandbox = restricted(json!([special("root", "write")]));
    allowed(&mut fixture, &reads, &sandbox).await;
    allowed(&mut fixture, &changes, &sandbox).await;
}

async fn only_listed_directories_exist(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    let (reads, changes) = (reads(&fixture), changes(&fixture));
    let own =
        |access: &str| json!({"path": {"type": "path", "path": fixture.uri("")}, "access": access});
    let (own_read, own_write) = (
        restricted(json!([own("read")])),
        restricted(json!([own("write")])),
    );
    let before = fixture.names("");
    for entries in [
        json!([]),
        json!([special("minimal", "read")]),
        json!([special("root", "none")]),
    ] {
        let sandbox = restricted(entries);
        refused(-32004, &mut fixture, &reads, &sandbox).await;
    }
    allowed(&mut fixture, &reads, &own_read).await;
    for handle in ["r", "w"] {
        let close = json!({"handleId": handle});
        fixture.client.call("fs/close", close).await;
    }
    let unwatch = json!({"watchId": "w"});
    fixture.client.call("fs/unwatch", unwatch).await;
    refused(-32603, &mut fixture, &changes, &own_read).await;
    assert_eq!(fixture.names(""), before, "nothing was changed");
    allowed(&mut fixture, &reads, &own_write).await;
    allowed(&mut fixture, &changes, &own_write).await;
    assert_eq!(fixture.content("new"), "x");
    // System files are readable for file requests.
    let passwd = json!({"path": "file:///etc/passwd", "sandbox": restricted(json!([]))});
    fixture.client.call("fs/readFile", passwd).await;
}

async fn entries_that_depend_on_the_cwd_need_one(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    let (reads, changes) = (reads(&fixture), changes(&fixture));
    let glob = json!({"path": {"type": "glob_pattern", "pattern": "**/.env"}, "access": "deny"});
    let denying = restricted(json!([special("root", "read"), glob]));
    refused(-32602, &mut fixture, &reads, &denying).await;
    refused(-32602, &mut fixture, &changes, &denying).await;
    let cwd = with(denying, json!({"cwd": fixture.uri("")}));
    allowed(&mut fixture, &reads, &cwd).await;
    // Read-only parts of writable roots keep reading possible.
    let parts = restricted(json!([
        special("root", "write"),
        special("project_roots", "read")
    ]));
    let file = fixture.params("file", json!({"sandbox": parts}));
    fixture.client.call("fs/readFile", file).await;
    refused(-32602, &mut fixture, &changes, &parts).await;
}

async fn sandbox_fields_are_validated(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    let complete = sandbox(json!({"type": "disabled"}));
    for (sandbox, word) in [
        (
            without(complete.clone(), "windowsSandboxLevel"),
            "windowsSandboxLevel",
        ),
        (without(complete.clone(), "permissions"), "permissions"),
        (json!({}), "permissions"),
        (json!("none"), "sandbox"),
        (json!(1), "sandbox"),
        (
            with(complete.clone(), json!({"windowsSandboxLevel": "none"})),
            "windowsSandboxLevel",
        ),
        (
            with(complete.clone(), json!({"windowsSandboxLevel": null})),
            "windowsSandboxLevel",
        ),
        (
            with(complete.clone(), json!({"permissions": null})),
            "permissions",
        ),
        (with(complete.clone(), json!({"cwd": "native"})), "cwd"),
        (
            with(complete.clone(), json!({"workspaceRoots": null})),
            "workspaceRoots",
        ),
        (
            with(complete.clone(), json!({"useLegacyLandlock": null})),
            "useLegacyLandlock",
        ),
        (
            with(complete, json!({"sandboxOverride": "other"})),
            "sandboxOverride",
        ),
    ] {
        for (method, extra) in [
            ("fs/readFile", json!({"sandbox": sandbox})),
            (
                "fs/writeFile",
                json!({"sandbox": sandbox, "dataBase64": ""}),
            ),
            ("fs/remove", json!({"sandbox": sandbox})),
            ("fs/open", json!({"sandbox": sandbox, "handleId": "h"})),
        ] {
            let message = fixture.refused(-32602, method, "file", extra).await;
            assert!(message.contains(word), "{method}: {message}");
        }
    }
    assert_eq!(fixture.content("file"), "hello");
}

async fn permission_profiles_are_validated(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
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
        let extra = json!({"sandbox": sandbox(permissions.clone())});
        fixture.refused(-32602, "fs/readFile", "file", extra).await;
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
        let extra = json!({"sandbox": restricted(json!([special("root", "read"), entry]))});
        fixture.refused(-32602, "fs/readFile", "file", extra).await;
    }
    let mut zero = restricted(json!([special("root", "read")]));
    zero["permissions"]["file_system"]["glob_scan_max_depth"] = json!(0);
    fixture
        .refused(-32602, "fs/readFile", "file", json!({"sandbox": zero}))
        .await;
}

#[tokio::test]
async fn descriptor_shortage_is_named_as_the_reason() {
    let script = |limit: u32| format!("ulimit -n {limit}; exec \"$0\" \"$@\"");
    let sandbox = |fixture: &FsFixture| {
        let denied = json!({"type": "path", "path": fixture.uri("nothing")});
        let denied = json!({"path": denied, "access": "deny"});
        json!({"sandbox": restricted(json!([special("root", "read"), denied]))})
    };
    let enough = Server::start_by(&script(48), Transport::Stdio, &[]).await;
    let mut fixture = FsFixture::on(enough).await;
    let extra = sandbox(&fixture);
    fixture.call("fs/readFile", "file", extra).await;
    for limit in [16, 20, 24] {
        let few = Server::start_by(&script(limit), Transport::Stdio, &[]).await;
        let mut fixture = FsFixture::on(few).await;
        let params = fixture.params("file", sandbox(&fixture));
        let id = fixture.client.request("fs/readFile", params).await;
        let answer = fixture.client.answer(id).await;
        let message = answer["error"]["message"].as_str().unwrap_or_default();
        assert!(
            answer["error"].is_null() || message.contains("Too many open files"),
            "{limit}: {answer}"
        );
    }
}

async fn optional_fields_of_a_sandbox_are_accepted(transport: Transport) {
    let mut fixture = FsFixture::new(transport).await;
    let root = fixture.uri("");
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
    fixture
        .call("fs/readFile", "file", json!({"sandbox": sandbox}))
        .await;
    let nulls = json!({
        "cwd": null, "policyContext": null, "userHomeDir": null, "temporaryDirectories": null,
        "windowsSandboxProxySettingsMode": null, "sandboxOverride": null,
    });
    merge(&mut sandbox, nulls);
    fixture
        .call("fs/readFile", "file", json!({"sandbox": sandbox}))
        .await;
    // A client cannot loosen the policy by itself.
    let loose = json!({"sandboxOverride": "bypassSandboxFirstAttempt"});
    let extra = json!({"sandbox": with(sandbox, loose), "dataBase64": "eA=="});
    fixture.refused(-32602, "fs/writeFile", "file", extra).await;
}
