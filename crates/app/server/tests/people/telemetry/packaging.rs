//! Tests that units, container and documents match the program.

use std::{collections::BTreeSet, fs, path::PathBuf};

use clap::CommandFactory;
use exec_server::{cli::Cli, config::ServerSettings};

use crate::{
    telemetry::http_client::{Samples, ask},
    test_user::TestUser,
};

fn project() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../..")
}

fn read(path: &str) -> String {
    fs::read_to_string(project().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Returns the values of an option in a unit.
fn values<'a>(unit: &'a str, option: &str) -> Vec<&'a str> {
    let lines = unit.lines().map(str::trim);
    lines
        .filter_map(|line| line.strip_prefix(option)?.strip_prefix('='))
        .collect()
}

#[test]
fn systemd_units_use_existing_flags() {
    for name in ["exec-server", "exec-server-hub"] {
        let unit = read(&format!("packaging/{name}.service"));
        for line in values(&unit, "ExecStart") {
            let words: Vec<&str> = line.split(' ').collect();
            assert_eq!(words[0], "/usr/local/bin/exec-server");
            Cli::read(words).unwrap_or_else(|error| panic!("{name}: {error}"));
        }
        assert_eq!(values(&unit, "ExecStart").len(), 1);
    }
}

#[test]
fn server_unit_does_not_restrict_sandboxes() {
    let unit = read("packaging/exec-server.service");
    for option in [
        "RestrictNamespaces",
        "ProtectProc",
        "ProcSubset",
        "ProtectKernelTunables",
        "ProtectKernelLogs",
        "SystemCallFilter",
        "MemoryDenyWriteExecute",
    ] {
        assert!(values(&unit, option).is_empty(), "{option}");
    }
    // The keeper and durable processes outlive a restart of the unit.
    assert_eq!(values(&unit, "KillMode"), ["process"]);
    assert_eq!(values(&unit, "OOMPolicy"), ["continue"]);
    let grace = Cli::read(values(&unit, "ExecStart")[0].split(' ')).unwrap();
    let grace = grace.settings.shutdown_grace.unwrap().0.as_secs();
    let timeout: u64 = values(&unit, "TimeoutStopSec")[0].parse().unwrap();
    assert!(grace < timeout);
}

#[test]
fn container_sets_existing_variables() {
    let file = read("packaging/Containerfile");
    let known: BTreeSet<String> = ServerSettings::KEYS
        .iter()
        .map(|key| format!("EXEC_SERVER_{}", key.to_ascii_uppercase()))
        .collect();
    let words = file.split([' ', '\n', '=']);
    let used: Vec<&str> = words
        .filter(|word| word.starts_with("EXEC_SERVER_"))
        .collect();
    assert!(used.len() >= 4, "{used:?}");
    for variable in used {
        assert!(known.contains(variable), "{variable}");
    }
}

#[tokio::test]
async fn documents_cover_every_metric_limit_and_setting() {
    let text = read("docs/operations.md");
    let user = TestUser::new();
    let server = user.server(&[]).await;
    let authority = server.url.strip_prefix("ws://").unwrap();
    let page = ask(authority, "GET /metrics", "").await.body;
    Samples::read(&page);
    let names: Vec<&str> = page
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next())
        .collect();
    assert!(names.len() > 25, "{names:?}");
    for name in names {
        let (plain, labelled) = (format!("| `{name}`"), format!("| `{name}{{"));
        assert!(text.contains(&plain) || text.contains(&labelled), "{name}");
    }
    let limits = read("crates/base/wire/src/limits.rs");
    let protocol = read("PROTOCOL.md");
    for line in limits.lines() {
        if let Some(name) = line.strip_prefix("pub const ") {
            let name = name.split(':').next().unwrap();
            assert!(protocol.contains(&format!("`{name}`")), "{name}");
        }
    }
    for key in ServerSettings::KEYS {
        assert!(text.contains(&format!("`{key}`")), "{key}");
    }
    assert!(
        Cli::command()
            .get_arguments()
            .any(|flag| flag.get_id() == "metrics_listen")
    );
}
