//! Policies that are wrong, or that cannot be enforced: refused, and nothing is started.

use serde_json::{Value, json};

use super::{
    ground::{Ground, as_every_user},
    policies::{Kind, Network, Policy, path, special},
};
use crate::{client::with, params::without};

as_every_user!(
    wrong_entries_are_named,
    wrong_members_are_named,
    nothing_is_started_under_a_wrong_policy,
    a_link_in_a_policy_is_followed_once,
);

async fn expect(ground: &mut Ground, sandbox: &Value, words: &[&str]) {
    let mut params = ground.params(None, &["create", "@work/started"]);
    params["sandbox"] = sandbox.clone();
    let id = params["processId"].clone();
    let request = ground.client.request("process/start", params).await;
    let answer = ground.client.answer(request).await;
    let message = answer["error"]["message"].as_str().unwrap_or_default();
    let named = words.iter().all(|word| message.contains(word));
    if answer["error"]["code"] != -32602 || !named {
        ground.fault(format!("{sandbox}: {answer}, and not {words:?}"));
    }
    // There is no such process.
    let read = json!({"processId": id});
    ground
        .client
        .expect_error(-32600, "process/read", read)
        .await;
}

async fn wrong_entries_are_named(ground: &mut Ground) {
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
        let policy = Policy::of(ground, "wrong", entries, Network::Restricted);
        expect(ground, &policy.sandbox, &words).await;
    }
    assert!(!ground.path("work/started").exists());
}

async fn wrong_members_are_named(ground: &mut Ground) {
    let whole = Policy::new(ground, Kind::Workspace, Network::Restricted).sandbox;
    for (sandbox, word) in [
        (json!({}), "permissions"),
        (json!("none"), "sandbox"),
        (
            without(whole.clone(), "windowsSandboxLevel"),
            "windowsSandboxLevel",
        ),
        (
            with(whole.clone(), json!({"windowsSandboxLevel": "mxc"})),
            "mxc",
        ),
        (
            with(whole.clone(), json!({"windowsSandboxLevel": "some"})),
            "windowsSandboxLevel",
        ),
        (with(whole.clone(), json!({"cwd": "relative"})), "cwd"),
        (
            with(whole.clone(), json!({"workspaceRoots": ["relative"]})),
            "workspaceRoots[0]",
        ),
        (
            with(whole.clone(), json!({"permissions": {"type": "other"}})),
            "other",
        ),
        (
            with(whole.clone(), json!({"useLegacyLandlock": true})),
            "useLegacyLandlock",
        ),
    ] {
        expect(ground, &sandbox, &[word]).await;
    }
    let mut zero = whole;
    zero["permissions"]["file_system"]["glob_scan_max_depth"] = json!(0);
    expect(ground, &zero, &["nonzero"]).await;
}

async fn nothing_is_started_under_a_wrong_policy(ground: &mut Ground) {
    let before = ground.snapshot("work");
    let entries = json!([special("project_roots", "write"), special("bogus", "read")]);
    let policy = Policy::of(ground, "wrong", entries, Network::Enabled);
    for _ in 0..5 {
        expect(ground, &policy.sandbox, &["bogus"]).await;
    }
    ground.unchanged("work", &before, "wrong policies");
    // The same id is free for a start that is right.
    let mut params = ground.params(None, &["euid"]);
    params["sandbox"] = policy.sandbox.clone();
    ground
        .client
        .expect_error(-32602, "process/start", params.clone())
        .await;
    params["sandbox"] = Policy::new(ground, Kind::Workspace, Network::Restricted).sandbox;
    assert_eq!(ground.finish(params).await.code(), 0);
}

/// A writable root that is a link gives what the link points to, and not what it is made to point to
/// later, by a command that may write it.
async fn a_link_in_a_policy_is_followed_once(ground: &mut Ground) {
    std::os::unix::fs::symlink("dir", ground.path("work/alias")).unwrap();
    let entries = json!([
        special("root", "read"),
        path(&ground.uri("work/alias"), "write")
    ]);
    let policy = Policy::of(ground, "alias", entries, Network::Restricted);
    ground.allowed(&policy, &["write", "@work/dir/inner"]).await;
    ground
        .allowed(&policy, &["write", "@work/alias/inner"])
        .await;
    let errors = "EROFS EXDEV";
    ground
        .refused(&policy, errors, &["write", "@work/file"])
        .await;
    ground
        .refused(&policy, errors, &["unlink", "@work/alias"])
        .await;
    ground
        .refused(&policy, errors, &["symlink", "../out", "@work/alias2"])
        .await;
}
