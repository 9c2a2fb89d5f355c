//! Tests of `exec-server mcp` with the official MCP clients for Python and TypeScript, which
//! `scripts/mcp-servers` installs.

use std::{
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use tokio::{
    process::Command,
    time::{Instant, timeout},
};

use crate::test_user::{CommandResult, Server, TestUser, product};

/// Limit for all cases of the client.
const CASES: Duration = Duration::from_secs(240);

/// Returns an installed file of the official clients.
fn installed(path: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
    let folder = std::env::var_os("EXEC_MCP_SERVERS")
        .map_or_else(|| root.join("target/mcp-servers"), PathBuf::from);
    let file = folder.join(path);
    assert!(
        file.exists(),
        "{} is missing: run `scripts/mcp-servers`, or name the folder in EXEC_MCP_SERVERS",
        file.display()
    );
    file
}

/// Returns a directory that no sandbox may write to.
fn outside() -> tempfile::TempDir {
    tempfile::tempdir_in("/var/tmp").unwrap()
}

/// Runs every case of the client for Python.
async fn drive(user: &TestUser, arguments: &[&str]) -> String {
    let mut client = Command::new(installed("client/bin/python"));
    client
        .arg(script("mcp_client.py"))
        .arg("--workspace")
        .arg(user.work());
    run_client(user, client.args(arguments)).await
}

/// Runs every case of the Tasks client for TypeScript.
async fn drive_tasks(user: &TestUser, arguments: &[&str]) {
    let mut client = Command::new("node");
    client
        .arg(script("mcp_tasks_client.mjs"))
        .arg(installed("tasks/node_modules"))
        .arg(user.work());
    run_client(user, client.args(arguments)).await;
}

fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/people/agents")
        .join(name)
}

/// Runs a client in the user's environment to its successful end.
async fn run_client(user: &TestUser, client: &mut Command) -> String {
    for (name, value) in user.command::<[&str; 0]>([]).as_std().get_envs() {
        match value {
            Some(value) => client.env(name, value),
            None => client.env_remove(name),
        };
    }
    client.stdin(Stdio::null()).kill_on_drop(true);
    let ended = timeout(CASES, client.output()).await.unwrap().unwrap();
    let ended = CommandResult::from(ended);
    assert_eq!(ended.status, Some(0), "{}\n{}", ended.stdout, ended.stderr);
    assert!(ended.stdout.ends_with("done\n"), "{}", ended.stdout);
    ended.stdout
}

fn program() -> &'static str {
    product().to_str().unwrap()
}

#[tokio::test]
async fn a_client_works_over_stdio_on_this_machine() {
    let (user, outside) = (TestUser::new(), outside());
    let outside = outside.path().to_str().unwrap();
    let line = ["--outlive", "--outside", outside, "stdio", program(), "mcp"];
    let output = drive(&user, &line).await;
    assert!(output.starts_with("speaks 2026-07-28\n"), "{output}");
}

#[tokio::test]
async fn a_client_works_over_stdio_in_one_process() {
    let (user, outside) = (TestUser::new(), outside());
    let outside = outside.path().to_str().unwrap();
    let line = [
        "--outside",
        outside,
        "stdio",
        program(),
        "mcp",
        "--in-process",
    ];
    let output = drive(&user, &line).await;
    assert!(output.starts_with("speaks 2026-07-28\n"), "{output}");
}

#[tokio::test]
async fn older_client_works_over_stdio_without_a_sandbox() {
    let user = TestUser::new();
    let line = [
        "--mode",
        "legacy",
        "stdio",
        program(),
        "mcp",
        "--sandbox",
        "none",
    ];
    let output = drive(&user, &line).await;
    assert!(output.starts_with("speaks 2025-11-25\n"), "{output}");
}

#[tokio::test]
async fn a_client_works_over_stdio_on_a_server() {
    let (user, outside) = (TestUser::new(), outside());
    let server = user.unix_server(&[]).await;
    let outside = outside.path().to_str().unwrap();
    let line = [
        "--outlive",
        "--outside",
        outside,
        "stdio",
        program(),
        "mcp",
        "--env",
        &server.url,
    ];
    drive(&user, &line).await;
}

#[tokio::test]
async fn a_client_works_over_http_on_this_machine() {
    let (user, outside) = (TestUser::new(), outside());
    let http_server = Server::of(&mut user.command(["mcp", "--http", "127.0.0.1:0"])).await;
    assert!(http_server.url.ends_with("/mcp"), "{}", http_server.url);
    let outside = outside.path().to_str().unwrap();
    let line = ["--outlive", "--outside", outside, "http", &http_server.url];
    let output = drive(&user, &line).await;
    assert!(output.starts_with("speaks 2026-07-28\n"), "{output}");
}

#[tokio::test]
async fn older_client_works_over_http_on_this_machine() {
    let user = TestUser::new();
    let http_server = Server::of(&mut user.command(["mcp", "--http", "127.0.0.1:0"])).await;
    let output = drive(&user, &["--mode", "legacy", "http", &http_server.url]).await;
    assert!(output.starts_with("speaks 2025-11-25\n"), "{output}");
}

#[tokio::test]
async fn a_client_with_the_token_works_over_http_on_a_server() {
    let (user, outside) = (TestUser::new(), outside());
    let server = user.unix_server(&[]).await;
    let token = user.keep("token", "s3cret\n");
    let mut command = user.command(["mcp", "--http", "0.0.0.0:0", "--env", &server.url]);
    let http_server = Server::of(command.arg("--http-token-file").arg(token)).await;
    let url = http_server.url.replace("0.0.0.0", "127.0.0.1");
    let outside = outside.path().to_str().unwrap();
    let line = [
        "--outlive",
        "--outside",
        outside,
        "--token",
        "s3cret",
        "http",
        &url,
    ];
    drive(&user, &line).await;
}

#[tokio::test]
async fn tasks_client_works_over_stdio() {
    let user = TestUser::new();
    drive_tasks(&user, &["stdio", program(), "mcp"]).await;
}

#[tokio::test]
async fn tasks_client_works_over_http() {
    let user = TestUser::new();
    let http_server = Server::of(&mut user.command(["mcp", "--http", "127.0.0.1:0"])).await;
    drive_tasks(&user, &["http", &http_server.url]).await;
}

#[tokio::test]
async fn invalid_mcp_options_are_explained() {
    let user = TestUser::new();
    let open = user.run(["mcp", "--http", "0.0.0.0:0"]).await;
    open.failed(2, &["could run commands", "--http-token-file"]);
    let missing = user.run(["mcp", "--workspace", "nowhere"]).await;
    missing.failed(66, &["nowhere", "is not a directory"]);
    let unknown = user.run(["mcp", "--env", "nobody"]).await;
    unknown.failed(78, &["nobody"]);
    let elsewhere = user
        .run(["mcp", "--in-process", "--env", "unix:///x.sock"])
        .await;
    elsewhere.failed(2, &["--in-process", "this machine"]);
    let token = user
        .run(["mcp", "--http", "127.0.0.1:0", "--http-token-file", "none"])
        .await;
    token.failed(66, &["none"]);
    let garbage = user.run_with(["mcp"], b"hello\n{}\n").await;
    assert_eq!(garbage.status, Some(0), "{garbage:?}");
    assert!(garbage.stdout.contains("Invalid request"), "{garbage:?}");
}

#[tokio::test]
async fn immediate_disconnect_is_not_a_failure() {
    let user = TestUser::new();
    let began = Instant::now();
    let ended = user.run(["mcp"]).await;
    assert_eq!(
        (ended.status, ended.stdout.as_str()),
        (Some(0), ""),
        "{ended:?}"
    );
    assert!(began.elapsed() < Duration::from_secs(20));
}
