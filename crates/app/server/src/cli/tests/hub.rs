//! Tests of the hub and its tokens.

use std::time::Duration;

use exec_hub::principal::Role;

use super::*;

fn hub(arguments: &[&str]) -> HubArgs {
    let line = ["exec-server", "hub"];
    let cli = Cli::read(line.iter().chain(arguments)).unwrap();
    match cli.command {
        Some(Command::Hub(hub)) => *hub,
        Some(
            Command::Bridge(_)
            | Command::Doctor(_)
            | Command::Forward(_)
            | Command::Join(_)
            | Command::People(_),
        )
        | None => panic!("another command"),
    }
}

#[test]
fn hub_starts_without_flags() {
    let hub = hub(&[]);
    assert!(hub.command.is_none());
    assert_eq!(hub.flags.listen.to_string(), "127.0.0.1:8765");
}

#[test]
fn every_flag_of_a_hub_is_accepted() {
    let hub = hub(&[
        "--listen=[::]:0",
        "--public-url=https://hub.example/",
        "--data-dir=d",
        "--token-file=t",
        "--jwt-secret-file=s",
        "--jwt-issuer=i",
        "--jwt-audience=a",
        "--tls-cert=c",
        "--tls-key=k",
        "--node-name=n",
        "--access-keys=f",
        "--audit-log=l",
    ]);
    assert_eq!(
        hub.flags.public_url.unwrap().to_string(),
        "https://hub.example"
    );
    assert_eq!(hub.flags.token_files.data_dir.unwrap().to_str(), Some("d"));
}

#[cfg(feature = "nats")]
#[test]
fn every_flag_of_a_cluster_is_accepted() {
    let hub = hub(&[
        "--nats=nats://127.0.0.1:4222",
        "--nats-credentials=f",
        "--nats-ca=f",
        "--nats-replicas=3",
        "--nats-prefix=p",
    ]);
    assert!(hub.flags.nats.servers.is_some());
}

#[cfg(not(feature = "nats"))]
#[test]
fn flags_of_a_cluster_name_the_missing_feature() {
    for flag in ["--nats=nats://h", "--nats-ca=f", "--nats-replicas=3"] {
        let error = Cli::read(["exec-server", "hub", flag]).unwrap_err();
        assert_eq!(error.exit_code(), 2);
        assert!(error.to_string().contains("feature `nats`"), "{error}");
    }
}

#[test]
fn tokens_are_made_listed_and_revoked() {
    let create = hub(&[
        "token",
        "create",
        "--name=alice",
        "--role=executor",
        "--role=harness,admin",
        "--environment=dev-*",
        "--environment=ci",
        "--expires-in=90d",
        "--token-file=t",
    ]);
    let Some(HubCommand::Token(TokenCommand::Create(create))) = create.command else {
        panic!("another command");
    };
    assert_eq!(create.role, [Role::Executor, Role::Harness, Role::Admin]);
    assert_eq!(create.environment, ["dev-*", "ci"]);
    assert_eq!(
        create.expires_in,
        Some(TokenLifetime(Duration::from_secs(90 * 86400)))
    );
    let listed = hub(&["token", "list", "--json", "--data-dir=d"]).command;
    assert!(matches!(listed, Some(HubCommand::Token(TokenCommand::List(list))) if list.json));
    let revoked = hub(&["token", "revoke", "abc"]).command;
    assert!(matches!(
        revoked,
        Some(HubCommand::Token(TokenCommand::Revoke(revoke))) if revoke.id == "abc"
    ));
    let environments = hub(&["environments", "--url=http://127.0.0.1:1", "--json"]).command;
    assert!(
        matches!(environments, Some(HubCommand::Environments(environments)) if environments.json)
    );
}

#[test]
fn invalid_command_lines_are_rejected() {
    for line in [
        &["--listen=localhost:1"][..],
        &["--listen=ws://127.0.0.1:1"],
        &["--public-url=hub"],
        &["--jwt-issuer=i"],
        &["--jwt-audience=a"],
        &["--tls-cert=c"],
        &["--tls-key=k"],
        &["--node-name= "],
        &["--nats=http://h"],
        &["--nats-credentials=f"],
        &["--nats-ca=f"],
        &["--nats-replicas=3"],
        &["--nats=nats://h", "--nats-replicas=2"],
        &["--nats=nats://h", "--nats-prefix=a.b"],
        &["--data-dir=d", "token", "list"],
        &["token"],
        &["token", "create"],
        &["token", "create", "--name="],
        &["token", "create", "--name=a b"],
        &["token", "create", "--name=a", "--role=root"],
        &["token", "create", "--name=a", "--expires-in=90"],
        &["token", "create", "--name=a", "--expires-in=0d"],
        &["token", "revoke"],
        &["environments"],
        &["help"],
    ] {
        let line: Vec<_> = ["hub"].iter().chain(line).copied().collect();
        assert_eq!(status(&line), Some(2), "{line:?}");
    }
}

#[test]
fn token_lifetimes_have_a_number_and_a_unit() {
    for (text, seconds) in [
        ("1s", 1),
        ("2m", 120),
        ("3h", 10800),
        ("4d", 345600),
        ("1w", 604800),
    ] {
        assert_eq!(
            text.parse(),
            Ok(TokenLifetime(Duration::from_secs(seconds))),
            "{text}"
        );
    }
    for text in [
        "",
        "d",
        "1",
        "1.5d",
        "-1d",
        "0s",
        "1D",
        "1 d",
        "1dd",
        "36601d",
        "99999999999999999999s",
        "1é",
    ] {
        assert_eq!(
            text.parse::<TokenLifetime>(),
            Err(TokenLifetimeParseError),
            "{text}"
        );
    }
}
