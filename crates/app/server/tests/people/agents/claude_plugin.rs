//! Tests of the plugin for Claude Code and of the manifests beside it.

use std::{
    fs,
    path::{Path, PathBuf},
};

use serde_json::{Value, json};

use crate::test_user::{CommandResult, OutputSoon, TestUser, product};

fn project() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../..")
}

fn manifest(path: &str) -> Value {
    let text = fs::read_to_string(project().join(path));
    let text = text.unwrap_or_else(|error| panic!("{path}: {error}"));
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Runs the hook before a Bash command, with these variables and the program on the PATH.
async fn hook(user: &TestUser, variables: &[(&str, &str)], input: &str) -> CommandResult {
    let call = user.work().join("call.json");
    fs::write(&call, input).unwrap();
    let script = project().join("packaging/claude-plugin/hooks/bash-in-environment");
    let mut hook = user.program(Path::new("sh"), [script]);
    let hook = hook
        .envs(variables.iter().copied())
        .env("PATH", path_with_product())
        .stdin(fs::File::open(call).unwrap());
    hook.output_soon().await
}

fn path_with_product() -> String {
    let directory = product().parent().unwrap().display();
    format!("{directory}:{}", std::env::var("PATH").unwrap())
}

fn bash_call(command: &str) -> String {
    json!({ "tool_name": "Bash", "tool_input": { "command": command, "timeout": 5000 } })
        .to_string()
}

#[test]
fn manifests_name_one_version_and_one_server() {
    let version = env!("CARGO_PKG_VERSION");
    let plugin = manifest("packaging/claude-plugin/.claude-plugin/plugin.json");
    let server = manifest("server.json");
    let npm = manifest("packaging/npm/exec-server/package.json");
    assert_eq!(plugin["version"], version);
    assert_eq!(server["version"], version);
    for package in server["packages"].as_array().unwrap() {
        assert_eq!(package["version"], version);
        assert_eq!(package["identifier"], npm["name"]);
    }
    assert_eq!(server["name"], npm["mcpName"]);

    let market = manifest(".claude-plugin/marketplace.json");
    let source = market["plugins"][0]["source"].as_str().unwrap();
    let files = [
        ".claude-plugin/plugin.json",
        ".mcp.json",
        "hooks/hooks.json",
        "hooks/bash-in-environment",
        "skills/exec-server/SKILL.md",
    ];
    for file in files {
        assert!(project().join(source).join(file).is_file(), "{file}");
    }
    let hooks = manifest("packaging/claude-plugin/hooks/hooks.json");
    let command = &hooks["hooks"]["PreToolUse"][0]["hooks"][0]["command"];
    assert_eq!(
        command,
        "sh \"${CLAUDE_PLUGIN_ROOT}/hooks/bash-in-environment\""
    );
}

#[tokio::test]
async fn hook_without_an_environment_changes_nothing() {
    let printed = hook(&TestUser::new(), &[], &bash_call("ls")).await;
    assert_eq!(printed.expect_success(), "");
}

#[tokio::test]
async fn hooked_command_runs_in_the_environment() {
    let user = TestUser::new();
    let server = user.server(&[]).await;
    let there = user.work().join("a directory");
    fs::create_dir(&there).unwrap();
    let there = there.to_str().unwrap();
    let variables = [
        ("EXEC_SERVER_BASH_ENV", server.url.as_str()),
        ("EXEC_SERVER_BASH_CWD", there),
    ];
    let call = bash_call("pwd; printf '%s\\n' \"it's  \\\"quoted\\\"\"; exit 3");
    let answer = hook(&user, &variables, &call).await.expect_success();
    let answer: Value = serde_json::from_str(&answer).unwrap();
    let output = &answer["hookSpecificOutput"];
    assert_eq!(output["permissionDecision"], "ask");
    assert_eq!(output["updatedInput"]["timeout"], 5000);

    let command = output["updatedInput"]["command"].as_str().unwrap();
    let mut bash = user.program(Path::new("bash"), ["-c", command]);
    let ended = bash.env("PATH", path_with_product()).output_soon().await;
    assert_eq!(ended.status, Some(3), "{ended:?}");
    assert_eq!(ended.stdout, format!("{there}\nit's  \"quoted\"\n"));
}

#[tokio::test]
async fn command_that_cannot_be_redirected_is_blocked() {
    let user = TestUser::new();
    let remote = ("EXEC_SERVER_BASH_ENV", "ws://127.0.0.1:1");
    let invalid = hook(&user, &[remote], "no JSON").await;
    assert_eq!(invalid.status, Some(2), "{invalid:?}");

    let decision = ("EXEC_SERVER_BASH_DECISION", "always");
    let invalid = hook(&user, &[remote, decision], &bash_call("ls")).await;
    assert_eq!(invalid.status, Some(2), "{invalid:?}");
    assert_eq!(invalid.stdout, "");
    assert!(invalid.stderr.contains("use ask or allow"), "{invalid:?}");
}
