//! Tests of executors behind a registry.

use super::*;

const REMOTE: [&str; 2] = ["--remote=https://hub.example/", "--environment-id= env-1 "];

fn with(more: &[&'static str]) -> Vec<&'static str> {
    REMOTE.iter().chain(more).copied().collect()
}

fn read(arguments: &[&str]) -> Cli {
    Cli::read(["exec-server"].iter().chain(arguments)).unwrap()
}

#[test]
fn every_flag_of_an_executor_is_accepted() {
    let cli = read(&with(&[
        "--name=box",
        "--exit-on-stdin-close",
        "--session-ttl=5",
    ]));
    assert!(cli.stdin.exit_on_stdin_close);
    let registration = cli.registration;
    let url = registration.remote.unwrap();
    assert_eq!(url.to_string(), "https://hub.example");
    assert_eq!(registration.environment_id.unwrap().as_str(), "env-1");
    assert_eq!(cli.transport.remote_transport, None);
    for more in [
        &["--use-agent-identity-auth"][..],
        &["--executor-credential-stdin"],
        &["--registration-bearer-stdin"],
        &["--chatgpt-token-stdin"],
        &["--chatgpt-token-stdin", "--chatgpt-account-id=a"],
        &["--remote-token-file=f"],
        &["--remote-transport=noise"],
        &["--remote-transport=direct", "--remote-token-file=f"],
        &["--remote-transport=direct", "--aws-sigv4"],
        &[
            "--remote-transport=direct",
            "--aws-sigv4",
            "--aws-profile=p",
            "--aws-region=r",
            "--aws-service=s",
        ],
    ] {
        assert_eq!(status(&with(more)), None, "{more:?}");
    }
    assert!(read(&["--exit-on-stdin-close"]).stdin.exit_on_stdin_close);
}

#[test]
fn incompatible_flags_are_usage_errors() {
    for more in [
        &["--listen=ws://127.0.0.1:0"][..],
        &["--idle-exit=1"],
        &["--ws-auth=capability-token"],
        &["--ws-token-file=f"],
        &["--ws-shared-secret-file=f"],
        &["--ws-issuer=i"],
        &["--ws-audience=a"],
        &["--ws-max-clock-skew-seconds=1"],
        &["--insecure-no-auth"],
        &["--tls-cert=c"],
        &["--tls-key=k"],
        &["--remote-transport=quic"],
        &["--use-agent-identity-auth", "--executor-credential-stdin"],
        &["--use-agent-identity-auth", "--remote-token-file=f"],
        &["--executor-credential-stdin", "--remote-token-file=f"],
        &["--registration-bearer-stdin", "--use-agent-identity-auth"],
        &["--registration-bearer-stdin", "--executor-credential-stdin"],
        &["--registration-bearer-stdin", "--remote-token-file=f"],
        &["--registration-bearer-stdin", "--chatgpt-token-stdin"],
        &["--registration-bearer-stdin", "--remote-transport=direct"],
        &[
            "--registration-bearer-stdin",
            "--remote-transport=direct",
            "--aws-sigv4",
        ],
        &["--chatgpt-token-stdin", "--use-agent-identity-auth"],
        &["--chatgpt-token-stdin", "--executor-credential-stdin"],
        &["--chatgpt-token-stdin", "--remote-token-file=f"],
        &["--chatgpt-token-stdin", "--remote-transport=direct"],
        &["--chatgpt-account-id=a"],
        &["--aws-sigv4"],
        &["--aws-sigv4", "--remote-transport=noise"],
        &["--aws-region=r", "--remote-transport=direct"],
        &["--aws-profile=p", "--remote-transport=direct"],
        &["--aws-service=s", "--remote-transport=direct"],
        &[
            "--aws-sigv4",
            "--remote-transport=direct",
            "--use-agent-identity-auth",
        ],
        &[
            "--aws-sigv4",
            "--remote-transport=direct",
            "--executor-credential-stdin",
        ],
        &[
            "--aws-sigv4",
            "--remote-transport=direct",
            "--remote-token-file=f",
        ],
        &["--remote-transport=direct", "--use-agent-identity-auth"],
        &["--remote-transport=direct", "--executor-credential-stdin"],
        &["doctor"],
        &["hub"],
        &[
            "forward",
            "--connect=ws://h",
            "--remote=https://h",
            "--environment-id=e",
        ],
    ] {
        assert_eq!(status(&with(more)), Some(2), "{more:?}");
    }
}

#[test]
fn registry_and_environment_id_require_each_other() {
    for line in [
        &["--remote=https://h"][..],
        &["--environment-id=e"],
        &["--name=n"],
        &["--remote-transport=noise"],
        &["--use-agent-identity-auth"],
        &["--executor-credential-stdin"],
        &["--registration-bearer-stdin"],
        &["--chatgpt-token-stdin"],
        &["--chatgpt-account-id=a"],
        &["--remote-token-file=f"],
        &["--aws-sigv4"],
        &["--remote=", "--environment-id=e"],
        &["--remote=ws://h", "--environment-id=e"],
        &["--remote=https://u:p@h", "--environment-id=e"],
        &["--remote=https://h", "--environment-id="],
        &["--remote=https://h", "--environment-id=  "],
        &["--remote=https://h", "--environment-id=a/../b"],
    ] {
        assert_eq!(status(line), Some(2), "{line:?}");
    }
}

#[test]
fn forward_accepts_executor_flags_and_a_destination() {
    let forward = |more: &[&'static str]| {
        let mut line = vec!["forward"];
        line.extend(more);
        line
    };
    let line = with(&[
        "--connect=wss://box.example/x",
        "--remote-token-file=f",
        "--name=n",
    ]);
    let cli = read(&forward(&line));
    let Some(Command::Forward(found)) = cli.command else {
        panic!("another command");
    };
    assert_eq!(found.connect.to_string(), "wss://box.example:443");
    assert_eq!(found.registration.environment_id.unwrap().as_str(), "env-1");
    assert!(cli.registration.remote.is_none());
    for more in [
        &[][..],
        &["--connect=ws://h"],
        &["--connect=ws://h", "--remote=https://h"],
        &["--connect=ws://h", "--environment-id=e"],
    ] {
        assert_eq!(status(&forward(more)), Some(2), "{more:?}");
    }
    for more in [
        &[][..],
        &["--connect=http://h"],
        &["--connect=unix:///x"],
        &["--connect=ws://"],
        &["--connect=ws://u@h"],
        &["--connect=ws://h", "--listen=off"],
        &["--connect=ws://h", "--remote-transport=direct"],
        &["--connect=ws://h", "--aws-sigv4"],
        &[
            "--connect=ws://h",
            "--aws-sigv4",
            "--remote-transport=direct",
        ],
        &["--connect=ws://h", "--chatgpt-token-stdin"],
    ] {
        assert_eq!(status(&forward(&with(more))), Some(2), "{more:?}");
    }
    for more in [
        &["--connect=ws://h", "--registration-bearer-stdin"][..],
        &["--connect=ws://h", "--remote-transport=noise"],
    ] {
        assert_eq!(status(&forward(&with(more))), None, "{more:?}");
    }
}

#[test]
fn forward_ignores_stock_flags_without_effect() {
    let mut line = vec!["forward"];
    line.extend(with(&[
        "--connect=ws://h",
        "-ca=b",
        "--config=c=d",
        "--enable=x",
        "--disable=y",
        "--strict-config",
        "--linux-sandbox-pid-namespace=inherit",
        "--proxy-private-ips-via-upstream",
        "--remote-transport=noise",
    ]));
    assert_eq!(status(&line), None);
}
