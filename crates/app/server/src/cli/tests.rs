//! Tests of accepted and rejected command lines.

mod hub;
mod remote;

use clap::CommandFactory;

use super::*;
use crate::config::SandboxMechanism;

/// Returns the exit status of a rejected command line.
fn status(arguments: &[&str]) -> Option<i32> {
    let line = ["exec-server"].iter().chain(arguments);
    Cli::read(line).err().map(|error| error.exit_code())
}

#[test]
fn clap_definition_is_valid() {
    Cli::command().debug_assert();
}

#[test]
fn every_flag_is_accepted() {
    let cli = Cli::read([
        "exec-server",
        "--listen=ws://127.0.0.1:0",
        "--concurrent-requests=1",
        "--ws-auth=signed-bearer-token",
        "--ws-token-file=t",
        "--ws-token-sha256=ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
        "--ws-shared-secret-file=s",
        "--ws-issuer=i",
        "--ws-audience=a",
        "--ws-max-clock-skew-seconds=5",
        "--tls-cert=c",
        "--tls-key=k",
        "--session-ttl=0.5",
        "--retained-output-bytes=1",
        "--max-processes=1",
        "--shutdown-grace=1",
        "--idle-exit=1",
        "--allow-direct-exec=false",
        "--allow-prepared-exec=false",
        "--insecure-no-auth",
        "--sandbox-mechanism=landlock",
        "--linux-sandbox-pid-namespace=inherit",
        "--proxy-private-ips-via-upstream",
        "--config=f",
        "-c",
        "listen=off",
        "-csession_ttl=1",
        "--enable=x",
        "--disable=y",
        "--strict-config",
    ]);
    assert_eq!(
        cli.map(|cli| cli.overrides.len())
            .map_err(|error| error.to_string()),
        Ok(2)
    );
}

#[test]
fn invalid_arguments_are_rejected_by_the_parser() {
    let wrong: [&[&str]; 20] = [
        &["--listen=ws://localhost:0"],
        &["--concurrent-requests=0"],
        &["--concurrent-requests=two"],
        &["--ws-auth=none"],
        &["--ws-token-sha256=abc"],
        &["--session-ttl=-1"],
        &["--session-ttl=nan"],
        &["--max-processes=0"],
        &["--allow-direct-exec=perhaps"],
        &["-c", "listen"],
        &["-c", "=off"],
        &["--listen=off", "--listen=off"],
        &["--sandbox-mechanism=seatbelt"],
        &["--linux-sandbox-pid-namespace=host"],
        &["serve"],
        &["help", "serve"],
        &["find", "-type", "f"],
        &["kill", "-SEGV", "id"],
        &["doctor", "--listen=off"],
        &["doctor", "now"],
    ];
    for arguments in wrong {
        assert_eq!(status(arguments), Some(2), "{arguments:?}");
    }
}

#[test]
fn doctor_accepts_server_options_before_it() {
    let parsed = |line: &[&str]| {
        let line = ["exec-server"].iter().chain(line);
        let cli = Cli::read(line).unwrap();
        let doctor = cli.command.map(|command| match command {
            Command::Doctor(doctor) => doctor.json,
            Command::Bridge(_)
            | Command::Forward(_)
            | Command::Hub(_)
            | Command::Join(_)
            | Command::People(_) => {
                panic!("another command")
            }
        });
        (doctor, cli.settings.sandbox_mechanism)
    };
    let landlock = Some(SandboxMechanism::Landlock);
    assert_eq!(parsed(&[]), (None, None));
    assert_eq!(parsed(&["doctor"]), (Some(false), None));
    assert_eq!(
        parsed(&["--sandbox-mechanism=landlock", "doctor", "--json"]),
        (Some(true), landlock)
    );
    let value = parsed(&["--enable", "doctor", "--sandbox-mechanism", "landlock"]);
    assert_eq!(
        value,
        (None, landlock),
        "the value of an option is no command"
    );
}

#[test]
fn help_has_headings_defaults_and_examples() {
    let help = Cli::command().render_long_help().to_string();
    for text in [
        "Listener:",
        "Authentication:",
        "Sessions",
        "ws://127.0.0.1:0",
        "Sandbox:",
        "Remote:",
        "doctor",
        "forward",
        "hub",
        "Examples, for people:",
        "Examples, for servers:",
        "Exit status",
    ] {
        assert!(help.contains(text), "{text}\n{help}");
    }
}

#[test]
fn network_value_is_optional_and_parsed_only_before_the_command() {
    let rewritten = |line: &str| {
        let words = line.split(' ').map(OsString::from).collect();
        let words = argv::rewrite_argv(words).unwrap();
        let words = words.iter().map(|word| word.to_str().unwrap());
        words.collect::<Vec<_>>().join(" ")
    };
    for (line, expected) in [
        (
            "x run --network loopback -- curl",
            "x run --network=loopback -- curl",
        ),
        ("x run --network full -C / a", "x run --network=full -C / a"),
        ("x run --network make test", "x run --network make test"),
        ("x run --network -- full", "x run --network -- full"),
        ("x run a --network loopback", "x run a --network loopback"),
        (
            "x run -- a --network loopback",
            "x run -- a --network loopback",
        ),
        (
            "x run -C --network --network loopback a",
            "x run -C --network --network=loopback a",
        ),
        (
            "x run --sandbox read-only -te A=1 --network loopback a",
            "x run --sandbox read-only -te A=1 --network=loopback a",
        ),
        ("x mcp --network loopback", "x mcp --network=loopback"),
        ("x ls --network loopback", "x ls --network loopback"),
    ] {
        assert_eq!(rewritten(line), expected, "{line}");
    }
}
