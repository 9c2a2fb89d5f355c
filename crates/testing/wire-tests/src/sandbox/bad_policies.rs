//! Invalid or unenforceable policies are refused, and nothing is started.

use serde_json::{Value, json};

use super::{
    SandboxFixture, as_every_user,
    policies::{FilePolicy, NetworkPolicy, SandboxPolicy, path, special},
};
use crate::{client::with, params::without};

as_every_user!(
    invalid_entries_are_named,
    invalid_fields_are_named,
    invalid_policy_starts_nothing,
    symlink_in_a_policy_is_resolved_once,
);

async fn expect(fixture: &mut SandboxFixture, sandbox: &Value, words: &[&str]) {
    let mut params = fixture.params(None, &["create", "@work/started"]);
    params["sandbox"] = sandbox.clone();
    let id = params["processId"].clone();
    let request = fixture.client.request("process/start", params).await;
    let answer = fixture.client.answer(request).await;
    let message = answer["error"]["message"].as_str().unwrap_or_default();
    let named = words.iter().all(|word| message.contains(word));
    if answer["error"]["code"] != -32602 || !named {
        fixture.record_fault(format!("{sandbox}: {answer}, and not {words:?}"));
    }
    // The process must not exist.
    let read = json!({"processId": id});
    fixture
        .client
        .expect_error(-32600, "process/read", read)
        .await;
}

async fn invalid_entries_are_named(fixture: &mut SandboxFixture) {
    let glob = |pattern: &str, access: &str| json!({"path": {"type": "glob_pattern", "pattern": pattern}, "access": access});
    let rows = [
        (special("other", "read"), vec!["other"]),
        (special("root", "execute"), vec!["execute"]),
        (path("native", "read"), vec!["entries[1]"]),
        (path("work/relative", "write"), vec!["entries[1]"]),
        (path("file:///C:/x", "write"), vec![]),
        (path("http://host/x", "write"), vec!["entries[1]"]),
        (json!({"access": "read"}), vec!["path"]),
        (
            json!({"path": {"type": "other"}, "access": "read"}),
            vec!["other"],
        ),
        (glob("/**/*.env", "deny"), vec!["/**/*.env"]),
        (glob("/*", "deny"), vec!["/*"]),
        (glob("**/*.env", "read"), vec!["**/*.env"]),
        (glob("**/*.env", "write"), vec!["**/*.env"]),
        (glob("[", "deny"), vec!["["]),
    ];
    for (entry, words) in rows {
        let entries = json!([special("root", "read"), entry]);
        let policy = SandboxPolicy::of(fixture, "wrong", entries, NetworkPolicy::Restricted);
        expect(fixture, &policy.sandbox, &words).await;
    }
    assert!(!fixture.path("work/started").exists());
}

async fn invalid_fields_are_named(fixture: &mut SandboxFixture) {
    let complete =
        SandboxPolicy::new(fixture, FilePolicy::Workspace, NetworkPolicy::Restricted).sandbox;
    for (sandbox, word) in [
        (json!({}), "permissions"),
        (json!("none"), "sandbox"),
        (
            without(complete.clone(), "windowsSandboxLevel"),
            "windowsSandboxLevel",
        ),
        (
            with(complete.clone(), json!({"windowsSandboxLevel": "mxc"})),
            "mxc",
        ),
        (
            with(complete.clone(), json!({"windowsSandboxLevel": "some"})),
            "windowsSandboxLevel",
        ),
        (with(complete.clone(), json!({"cwd": "relative"})), "cwd"),
        (
            with(complete.clone(), json!({"workspaceRoots": ["relative"]})),
            "workspaceRoots[0]",
        ),
        (
            with(complete.clone(), json!({"permissions": {"type": "other"}})),
            "other",
        ),
        (
            with(complete.clone(), json!({"useLegacyLandlock": true})),
            "useLegacyLandlock",
        ),
    ] {
        expect(fixture, &sandbox, &[word]).await;
    }
    let mut zero = complete;
    zero["permissions"]["file_system"]["glob_scan_max_depth"] = json!(0);
    expect(fixture, &zero, &["nonzero"]).await;
}

async fn invalid_policy_starts_nothing(fixture: &mut SandboxFixture) {
    let before = fixture.snapshot("work");
    let entries = json!([special("project_roots", "write"), special("bogus", "read")]);
    let policy = SandboxPolicy::of(fixture, "wrong", entries, NetworkPolicy::Enabled);
    for _ in 0..5 {
        expect(fixture, &policy.sandbox, &["bogus"]).await;
    }
    fixture.unchanged("work", &before, "wrong policies");
    // The id stays free for a valid start.
    let mut params = fixture.params(None, &["euid"]);
    params["sandbox"] = policy.sandbox.clone();
    fixture
        .client
        .expect_error(-32602, "process/start", params.clone())
        .await;
    params["sandbox"] =
        SandboxPolicy::new(fixture, FilePolicy::Workspace, NetworkPolicy::Restricted).sandbox;
    assert_eq!(fixture.finish(params).await.code(), 0);
}

/// A writable root that is a symlink grants its target at the time of resolution, not a later
/// target set by a command that may write the link.
async fn symlink_in_a_policy_is_resolved_once(fixture: &mut SandboxFixture) {
    std::os::unix::fs::symlink("dir", fixture.path("work/alias")).unwrap();
    let entries = json!([
        special("root", "read"),
        path(&fixture.uri("work/alias"), "write")
    ]);
    let policy = SandboxPolicy::of(fixture, "alias", entries, NetworkPolicy::Restricted);
    fixture
        .allowed(&policy, &["write", "@work/dir/inner"])
        .await;
    fixture
        .allowed(&policy, &["write", "@work/alias/inner"])
        .await;
    let errors = "EROFS EXDEV";
    fixture
        .refused(&policy, errors, &["write", "@work/file"])
        .await;
    fixture
        .refused(&policy, errors, &["unlink", "@work/alias"])
        .await;
    fixture
        .refused(&policy, errors, &["symlink", "../out", "@work/alias2"])
        .await;
}
