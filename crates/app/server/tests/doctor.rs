//! Tests of `exec-server doctor` with the real binary on the real machine.
#![expect(clippy::unwrap_used, reason = "the functions below are parts of tests")]

use std::process::{Command, Output};

use serde_json::Value;

/// Runs the doctor without any of our configuration.
fn doctor(arguments: &[&str]) -> Output {
    let home = tempfile::tempdir().unwrap();
    Command::new(env!("CARGO_BIN_EXE_exec-server"))
        .args(arguments)
        .env_clear()
        .env("EXEC_SERVER_HOME", home.path())
        .output()
        .unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

#[test]
fn json_members_and_exit_status_agree() {
    let output = doctor(&["doctor", "--json"]);
    assert_eq!(text(&output.stderr), "");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let abilities = report["abilities"].as_object().unwrap();
    for name in [
        "seccomp",
        "namespaces",
        "privilegedNamespaces",
        "processes",
        "guards",
        "bubblewrap",
    ] {
        let state = abilities[name]["state"].as_str();
        let states = [Some("works"), Some("fails"), Some("untried")];
        assert!(states.contains(&state), "{name}: {state:?}");
    }
    assert!(abilities["landlock"].is_u64());
    assert!(abilities["host"]["kernel"].is_string());
    assert!(report["advice"].is_array());
    let policies = report["outlook"].as_array().unwrap();
    assert_eq!(policies.len(), 7);
    let all = policies.iter().all(|policy| !policy["mechanism"].is_null());
    assert_eq!(report["enforceable"], all);
    assert_eq!(output.status.code(), Some(i32::from(!all)));
}

#[test]
fn text_report_lists_abilities_and_mechanisms() {
    let output = doctor(&["doctor"]);
    let report = text(&output.stdout);
    for words in [
        "exec-server ",
        "What works",
        "Landlock",
        "What enforces each kind of policy",
        "workspace-write",
    ] {
        assert!(report.contains(words), "{report}");
    }
    assert!(
        report.lines().all(|line| line.chars().count() <= 100),
        "{report}"
    );
}

#[test]
fn doctor_applies_server_settings() {
    let output = doctor(&["--sandbox-mechanism=landlock", "doctor", "--json"]);
    assert_eq!(output.status.code(), Some(1));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    for policy in report["outlook"].as_array().unwrap() {
        let mechanism = &policy["mechanism"];
        assert!(mechanism.is_null() || mechanism == "landlock", "{policy}");
    }
}

#[test]
fn invalid_configuration_is_reported_like_by_the_server() {
    let output = doctor(&["-csession_ttl=soon", "doctor"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).starts_with("Error: -c `session_ttl`"));
    assert!(output.stdout.is_empty());
}
