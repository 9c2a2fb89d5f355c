//! Tests of tokens, configuration and memory release.

use std::{ffi::OsString, path::PathBuf};

use super::{HubPaths, MIN_CHANGE_BYTES, MIN_RESIDENT_BYTES, ReleaseBackoff, edit_tokens};
use crate::{
    cli::{Cli, Command, HubCommand, TokenFileArgs},
    hub as run,
};

/// Runs `hub token …` with files in `home`; returns stdout and stderr.
fn tokens(home: &std::path::Path, arguments: &[&str]) -> anyhow::Result<(String, String)> {
    let line = ["exec-server", "hub", "token"];
    let cli = Cli::read(line.iter().chain(arguments))?;
    let Some(Command::Hub(hub)) = cli.command else {
        anyhow::bail!("another command");
    };
    let Some(HubCommand::Token(command)) = hub.command else {
        anyhow::bail!("another command");
    };
    let lookup = |name: &str| (name == "EXEC_SERVER_HOME").then(|| OsString::from(home));
    let (mut out, mut messages) = (Vec::new(), Vec::new());
    edit_tokens(&command, &lookup, &mut out, &mut messages)?;
    Ok((String::from_utf8(out)?, String::from_utf8(messages)?))
}

#[test]
fn token_is_printed_once_and_listed_until_revoked() {
    use std::os::unix::fs::PermissionsExt;

    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    let create = [
        "create",
        "--name=alice",
        "--role=harness",
        "--environment=dev-*",
        "--expires-in=1h",
    ];
    let (token, messages) = tokens(home, &create).unwrap();
    let token = token.strip_suffix('\n').unwrap();
    assert!(
        !messages.contains(token) && messages.contains("alice: harness"),
        "{messages}"
    );
    let file = home.join("hub/tokens.toml");
    let stored = std::fs::read_to_string(&file).unwrap();
    assert!(!stored.contains(token), "{stored}");
    assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600);

    let (json, _) = tokens(home, &["list", "--json"]).unwrap();
    let rows: serde_json::Value = serde_json::from_str(&json).unwrap();
    let id = rows[0]["id"].as_str().unwrap();
    assert_eq!(rows[0]["principal"], "alice");
    assert_eq!(rows[0]["roles"], serde_json::json!(["harness"]));
    assert_eq!(rows[0]["environments"], serde_json::json!(["dev-*"]));
    assert!(rows[0]["expires_at"].as_str().unwrap().ends_with('Z'));
    let (text, _) = tokens(home, &["list"]).unwrap();
    assert_eq!(text.lines().count(), 2, "{text}");
    assert!(text.contains(id) && !text.contains(token), "{text}");

    tokens(home, &["revoke", id]).unwrap();
    assert_eq!(tokens(home, &["list", "--json"]).unwrap().0, "[]\n");
    let error = tokens(home, &["revoke", id]).unwrap_err().to_string();
    assert_eq!(error, "no token has this id");
}

#[test]
fn token_file_is_private_and_replaces_nothing_without_force() {
    use std::os::unix::fs::PermissionsExt;

    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    let path = home.join("token");
    let out = format!("--out={}", path.display());
    let (printed, messages) = tokens(home, &["create", "--name=alice", &out]).unwrap();
    assert_eq!(printed, "");
    let first = std::fs::read_to_string(&path).unwrap();
    assert!(
        first.ends_with('\n') && !messages.contains(first.trim()),
        "{messages}"
    );
    assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);

    let refused = tokens(home, &["create", "--name=alice", &out]).unwrap_err();
    assert!(format!("{refused:#}").contains("--force"), "{refused:#}");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), first);
    let listed = |home| tokens(home, &["list"]).unwrap().0.lines().count() - 1;
    assert_eq!(listed(home), 1, "a token that nobody has is not made");

    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
    tokens(home, &["create", "--name=alice", &out, "--force"]).unwrap();
    assert_ne!(std::fs::read_to_string(&path).unwrap(), first);
    assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(listed(home), 2);

    // A failure leaves nothing behind.
    let other = format!("--out={}", home.join("other").display());
    tokens(home, &["create", "--name=a", "--environment=[", &other]).unwrap_err();
    std::fs::write(home.join("hub/tokens.toml"), "token = 3").unwrap();
    tokens(home, &["create", "--name=a", &other]).unwrap_err();
    let remaining: Vec<_> = std::fs::read_dir(home)
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert_eq!(remaining.len(), 2, "{remaining:?}");
    assert!(tokens(home, &["create", "--name=a", "--force"]).is_err());
}

#[test]
fn token_has_two_default_roles() {
    let home = tempfile::tempdir().unwrap();
    let (_, messages) = tokens(home.path(), &["create", "--name=a"]).unwrap();
    assert!(
        messages.contains("a: executor, harness; until it is revoked"),
        "{messages}"
    );
}

#[test]
fn invalid_token_requests_are_errors() {
    let home = tempfile::tempdir().unwrap();
    let refused = |arguments: &[&str]| format!("{:#}", tokens(home.path(), arguments).unwrap_err());
    assert!(
        refused(&["create", "--name=a", "--environment=["])
            .contains("environment glob 0 is invalid")
    );
    assert!(refused(&["revoke", "a b"]).contains("not a token id"));
    std::fs::create_dir(home.path().join("hub")).unwrap();
    std::fs::write(home.path().join("hub/tokens.toml"), "token = 3").unwrap();
    assert!(refused(&["list"]).contains("invalid token file"));
    assert!(refused(&["create", "--name=a"]).contains("invalid token file"));
}

/// Returns the configuration for these flags, and its warnings.
fn hub(home: &std::path::Path, arguments: &[&str]) -> (exec_hub::config::HubConfig, Vec<String>) {
    let line = ["exec-server", "hub"];
    let cli = Cli::read(line.iter().chain(arguments)).unwrap();
    let Some(Command::Hub(hub)) = cli.command else {
        panic!("another command");
    };
    let lookup = |name: &str| (name == "EXEC_SERVER_HOME").then(|| OsString::from(home));
    let config = run::config(&hub.flags, &lookup).unwrap();
    let warnings = run::warnings(&config, &hub.flags);
    (config, warnings)
}

#[test]
fn flags_become_a_configuration() {
    let home = tempfile::tempdir().unwrap();
    let (config, _) = hub(home.path(), &[]);
    assert_eq!(config.token_file(), home.path().join("hub/tokens.toml"));
    assert!(config.jwt.is_none() && config.tls.is_none());
    let (config, _) = hub(
        home.path(),
        &[
            "--node-name=n1",
            "--jwt-secret-file=s",
            "--jwt-issuer=i",
            "--tls-cert=c",
            "--tls-key=k",
            "--token-file=t",
            "--public-url=https://hub.example",
        ],
    );
    assert_eq!(config.node.unwrap().as_str(), "n1");
    assert_eq!(config.jwt.unwrap().issuer.as_deref(), Some("i"));
    assert_eq!(config.tls.unwrap().key.to_str(), Some("k"));
    assert_eq!(config.token_file.unwrap().to_str(), Some("t"));
    assert!(config.public_url.is_some());
}

#[cfg(feature = "nats")]
#[test]
fn nats_flags_become_the_configuration_of_a_node() {
    use exec_hub::nats::ReplicaCount;

    let home = tempfile::tempdir().unwrap();
    assert!(hub(home.path(), &[]).0.nats.is_none());
    let (config, _) = hub(
        home.path(),
        &[
            "--nats=nats://127.0.0.1:4222",
            "--node-name=n1",
            "--nats-replicas=3",
            "--nats-ca=c",
        ],
    );
    let nats = config.nats.unwrap();
    assert_eq!(nats.node.as_str(), "n1");
    assert_eq!(nats.servers.to_string(), "nats://127.0.0.1:4222");
    assert_eq!(nats.replicas, ReplicaCount::Three);
    assert_eq!(nats.prefix.as_str(), "exec-hub");
    assert_eq!(nats.ca_file.unwrap().to_str(), Some("c"));
}

#[test]
fn hub_without_tokens_or_tls_causes_warnings() {
    let home = tempfile::tempdir().unwrap();
    let warnings = |flags: &[&str]| hub(home.path(), flags).1;
    let nobody = warnings(&[]);
    assert!(
        nobody.len() == 1 && nobody[0].contains("no client can connect"),
        "{nobody:?}"
    );
    assert!(warnings(&["--jwt-secret-file=s"]).is_empty());
    tokens(home.path(), &["create", "--name=a"]).unwrap();
    assert!(warnings(&[]).is_empty());
    let open = warnings(&["--listen=0.0.0.0:1"]);
    assert!(
        open.len() == 1 && open[0].contains("tokens are sent unencrypted"),
        "{open:?}"
    );
    for safe in [
        &["--tls-cert=c", "--tls-key=k"][..],
        &["--public-url=https://hub.example"],
    ] {
        let flags: Vec<_> = ["--listen=0.0.0.0:1"].iter().chain(safe).copied().collect();
        assert!(warnings(&flags).is_empty(), "{safe:?}");
    }
}

fn found(token_files: &TokenFileArgs, variables: &[(&str, &str)]) -> Option<(String, String)> {
    let lookup = |name: &str| {
        let set = variables.iter().find(|(variable, _)| *variable == name);
        set.map(|(_, value)| OsString::from(value))
    };
    let paths = HubPaths::find(token_files, &lookup).ok()?;
    let text = |path: PathBuf| path.to_str().unwrap().to_owned();
    Some((text(paths.data_dir), text(paths.token_file)))
}

#[test]
fn data_directory_prefers_flags_then_exec_server_home_then_home() {
    let nothing = TokenFileArgs::default();
    let both = [("EXEC_SERVER_HOME", "/e"), ("HOME", "/h")];
    let pair = |dir: &str, file: &str| Some((dir.to_owned(), file.to_owned()));
    assert_eq!(found(&nothing, &both), pair("/e/hub", "/e/hub/tokens.toml"));
    let account = "/h/.local/share/exec-server/hub";
    let blank = [("EXEC_SERVER_HOME", ""), ("HOME", "/h")];
    assert_eq!(
        found(&nothing, &blank),
        pair(account, &format!("{account}/tokens.toml"))
    );
    assert_eq!(found(&nothing, &[]), None);
    let dir = TokenFileArgs {
        data_dir: Some("/d".into()),
        token_file: None,
    };
    assert_eq!(found(&dir, &both), pair("/d", "/d/tokens.toml"));
    let file = TokenFileArgs {
        data_dir: None,
        token_file: Some("t".into()),
    };
    assert_eq!(found(&file, &both), pair("/e/hub", "t"));
}

const BUSY: u64 = 300 << 20;

/// Simulates checks of a process of this size in which nothing can be released. Returns the number
/// of release attempts.
fn releases(backoff: &mut ReleaseBackoff, count: usize, resident: u64) -> usize {
    let mut tried = 0;
    for _ in 0..count {
        if backoff.is_due(resident) {
            tried += 1;
            backoff.released(resident, resident);
        }
    }
    tried
}

#[test]
fn small_hub_releases_no_memory() {
    assert_eq!(
        releases(&mut ReleaseBackoff::default(), 1000, MIN_RESIDENT_BYTES - 1),
        0
    );
}

#[test]
fn release_backs_off_to_once_a_minute() {
    let mut backoff = ReleaseBackoff::default();
    releases(&mut backoff, 60, BUSY);
    let tried = releases(&mut backoff, 300, BUSY);
    assert!((9..=11).contains(&tried), "{tried}");
}

#[test]
fn memory_is_released_soon_after_a_change() {
    let mut backoff = ReleaseBackoff::default();
    releases(&mut backoff, 100, BUSY);
    assert_eq!(releases(&mut backoff, 1, BUSY + MIN_CHANGE_BYTES), 1);
    assert!(releases(&mut backoff, 2, BUSY + MIN_CHANGE_BYTES) >= 1);
}
