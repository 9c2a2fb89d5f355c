//! Tests of exit statuses of executors, and of servers that watch stdin.

use std::process::{Output, Stdio};

use tokio::{
    io::AsyncWriteExt,
    process::{Child, Command},
};

use crate::{
    program::{clean, product, text, within_timeout},
    relay::cast::Hub,
};

/// Starts the binary with these flags and variables, and a pipe as stdin.
fn start(flags: &[&str], variables: &[(&str, &str)]) -> Child {
    let mut command = Command::new(product());
    clean(&mut command)
        .args(flags)
        .envs(variables.iter().copied())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

async fn end(child: Child) -> Output {
    within_timeout(child.wait_with_output()).await.unwrap()
}

const NOWHERE: [&str; 4] = ["--remote", "http://127.0.0.1:1", "--environment-id", "e"];

#[tokio::test]
async fn usage_errors_are_distinguished_from_failures() {
    let direct = [&NOWHERE[..], &["--remote-transport", "direct"]].concat();
    for (flags, variables, status, said) in [
        (
            &["--remote", "http://127.0.0.1:1"][..],
            &[][..],
            2,
            "--environment-id",
        ),
        (&NOWHERE, &[], 1, "no credentials for the registry"),
        (&direct, &[("CODEX_API_KEY", "k")], 2, "--aws-sigv4"),
        (
            &["--remote", "https://hub.example", "--environment-id", "e"],
            &[("CODEX_API_KEY", "k")],
            1,
            "an API key is sent to its vendor",
        ),
        (
            &["--remote", "http://hub.example", "--environment-id", "e"],
            &[("EXEC_SERVER_REMOTE_TOKEN", "k")],
            1,
            "over https:// or to this machine only",
        ),
        (
            &NOWHERE,
            &[("CODEX_ACCESS_TOKEN", "a.b.c")],
            1,
            "does not begin with `at-`",
        ),
    ] {
        let output = end(start(flags, variables)).await;
        assert_eq!(output.status.code(), Some(status), "{flags:?} {output:?}");
        assert!(text(&output.stderr).contains(said), "{flags:?} {output:?}");
        assert!(output.stdout.is_empty(), "{output:?}");
    }
}

#[tokio::test]
async fn end_of_stdin_stops_the_server_if_configured() {
    let flag: &[&str] = &["--exit-on-stdin-close"];
    let variable: &[(&str, &str)] = &[("CODEX_EXEC_SERVER_EXIT_ON_STDIN_CLOSE", "1")];
    for (flags, variables) in [(flag, &[][..]), (&[], variable)] {
        let mut server = start(flags, variables);
        let mut stdin = server.stdin.take().unwrap();
        stdin
            .write_all(b"what comes before does not matter\n")
            .await
            .unwrap();
        drop(stdin);
        let output = end(server).await;
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        assert!(
            text(&output.stdout).starts_with("ws://127.0.0.1:"),
            "{output:?}"
        );
    }
    let wrong = end(start(&[], &[(variable[0].0, "perhaps")])).await;
    assert_eq!(wrong.status.code(), Some(1));
}

#[tokio::test]
async fn tokens_on_standard_input_are_used_until_it_ends() {
    let hub = Hub::start().await;
    let flags = [
        "--remote",
        &hub.server.url,
        "--environment-id",
        "box",
        "--executor-credential-stdin",
    ];
    let mut executor = start(&flags, &[]);
    let mut stdin = executor.stdin.take().unwrap();
    let frame = serde_json::json!({
        "version": 1, "environment_id": "box", "token": hub.token, "expires_at": 4_000_000_000_u64,
    });
    stdin
        .write_all(format!("{frame}\n").as_bytes())
        .await
        .unwrap();
    drop(hub.connect("box").await);
    drop(stdin);
    let output = end(executor).await;
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), ""));

    let mut wrong = start(&flags, &[]);
    let mut stdin = wrong.stdin.take().unwrap();
    stdin.write_all(b"{\"token\":\"s3cret\"}\n").await.unwrap();
    let output = end(wrong).await;
    assert_eq!(output.status.code(), Some(1));
    assert!(
        text(&output.stderr).contains("invalid executor credential frame"),
        "{output:?}"
    );
    assert!(!text(&output.stderr).contains("s3cret"), "{output:?}");

    // The parent has gone away, and an incomplete line is not a token.
    for written in ["", "{\"version\":1"] {
        let mut early = start(&flags, &[]);
        let mut stdin = early.stdin.take().unwrap();
        stdin.write_all(written.as_bytes()).await.unwrap();
        drop(stdin);
        let output = end(early).await;
        assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), ""));
    }
}
