//! Tests of the sandbox flags, with commands that agents commonly run.

use std::{fs, path::Path, process::Stdio};

use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, Lines},
    net::TcpListener,
    process::{Child, ChildStdin, ChildStdout, Command},
};

use crate::test_user::{CommandResult, OutputSoon, TestUser, within_timeout};

/// Creates a repository with a file in the user's directory.
async fn repository(user: &TestUser) {
    fs::write(user.work().join("file"), "text").unwrap();
    let mut git = Command::new("git");
    git.args(["init", "--quiet", "."]).current_dir(user.work());
    git.kill_on_drop(true).output_soon().await.expect_success();
}

/// Answers every HTTP request on a loopback port; returns the port.
async fn web_server() -> u16 {
    web_server_on("127.0.0.1").await
}

async fn web_server_on(address: &str) -> u16 {
    let listener = TcpListener::bind((address, 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    match stream.read_u8().await {
                        Ok(byte) => head.push(byte),
                        Err(_) => return,
                    }
                }
                let answer =
                    "HTTP/1.1 200 OK\r\nContent-Length: 6\r\nConnection: close\r\n\r\nhello\n";
                // The client may be gone already.
                drop(stream.write_all(answer.as_bytes()).await);
            });
        }
    });
    port
}

async fn sandboxed(user: &TestUser, flags: &[&str], command: &[&str]) -> CommandResult {
    let mut line = user.command(["run", "--sandbox", "workspace-write"]);
    line.args(flags).arg("--").args(command).output_soon().await
}

#[tokio::test]
async fn git_directory_is_protected_unless_allowed() {
    let user = TestUser::new();
    repository(&user).await;
    let add = ["git", "add", "file"];
    let refused = sandboxed(&user, &[], &add).await;
    assert_ne!(refused.status, Some(0), "{refused:?}");
    sandboxed(&user, &["--allow-git"], &add)
        .await
        .expect_success();
    // The flag opens `.git`, and nothing else that is protected.
    let codex = ["mkdir", ".codex"];
    let refused = sandboxed(&user, &["--allow-git"], &codex).await;
    assert_ne!(refused.status, Some(0), "{refused:?}");
    fs::create_dir(user.work().join("new")).unwrap();
    let init = ["-C", "new", "--allow-git"];
    sandboxed(&user, &init, &["git", "init", "--quiet", "."])
        .await
        .expect_success();
}

#[tokio::test]
async fn named_directory_is_writable() {
    let user = TestUser::new();
    let outside = tempfile::tempdir_in("/var/tmp").unwrap();
    let file = outside.path().join("file");
    let touch = ["touch", file.to_str().unwrap()];
    let refused = sandboxed(&user, &[], &touch).await;
    assert_ne!(refused.status, Some(0), "{refused:?}");
    let named = ["--writable", outside.path().to_str().unwrap()];
    sandboxed(&user, &named, &touch).await.expect_success();
    assert!(file.exists());
    let mut alone = user.command(["run", "--writable", "/tmp", "--", "true"]);
    assert_eq!(alone.output_soon().await.status, Some(2));
}

#[tokio::test]
async fn loopback_network_reaches_only_loopback() {
    let user = TestUser::new();
    let port = web_server().await;
    let (local, literal) = (
        format!("http://localhost:{port}/"),
        format!("http://127.0.0.1:{port}/"),
    );
    let curl = |url: &str| ["curl", "-sS", "--fail", url].map(str::to_owned);
    let run = async |flags: &[&str], url: &str| {
        let command = curl(url);
        let command: Vec<&str> = command.iter().map(String::as_str).collect();
        sandboxed(&user, flags, &command).await
    };
    for url in [&local, &literal] {
        assert_ne!(run(&[], url).await.status, Some(0));
        for flags in [&["--network", "loopback"][..], &["--network=loopback"]] {
            assert_eq!(run(flags, url).await.expect_success(), "hello\n", "{url}");
        }
        assert_eq!(
            run(&["--network"], url).await.expect_success(),
            "hello\n",
            "{url}"
        );
    }
    let loopback = ["--network", "loopback"];
    // The proxy does not connect to a server on another address of the host.
    let elsewhere = format!("http://127.0.0.2:{}/", web_server_on("127.0.0.2").await);
    assert_eq!(
        run(&["--network"], &elsewhere).await.expect_success(),
        "hello\n"
    );
    assert_ne!(run(&loopback, &elsewhere).await.status, Some(0));
    // There is no way around the proxy.
    let direct = ["curl", "-sS", "--noproxy", "*", &literal];
    assert_ne!(sandboxed(&user, &loopback, &direct).await.status, Some(0));
    // The word after the flag belongs to the command, unless it is a value of the flag.
    let mut line = user.command([
        "run",
        "--sandbox",
        "read-only",
        "--network",
        "echo",
        "hello",
    ]);
    assert_eq!(line.output_soon().await.expect_success(), "hello\n");
}

/// Minimal client of `exec-server mcp`.
struct Agent {
    _server: Child,
    stdin: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
    calls: u64,
}

impl Agent {
    /// Starts the server; returns the client and the server's instructions.
    async fn new(user: &TestUser, flags: &[&str]) -> (Self, String) {
        let mut server = user.command(["mcp"]);
        server
            .args(flags)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut server = server.spawn().unwrap();
        let (stdin, stdout) = (server.stdin.take().unwrap(), server.stdout.take().unwrap());
        let mut agent = Self {
            _server: server,
            stdin,
            lines: BufReader::new(stdout).lines(),
            calls: 0,
        };
        let client = json!({"name": "test", "version": "1"});
        let hello = json!({
            "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client,
        });
        let answer = agent.request("initialize", hello).await;
        let instructions = answer["instructions"].as_str().unwrap().to_owned();
        agent
            .send(json!({"jsonrpc": "2.0", "method": "notifications/initialized"}))
            .await;
        (agent, instructions)
    }

    async fn send(&mut self, message: Value) {
        let line = format!("{message}\n");
        self.stdin.write_all(line.as_bytes()).await.unwrap();
    }

    async fn request(&mut self, method: &str, params: Value) -> Value {
        self.calls += 1;
        let id = self.calls;
        let request = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
        self.send(request).await;
        loop {
            let line = within_timeout(self.lines.next_line())
                .await
                .unwrap()
                .unwrap();
            let message: Value = serde_json::from_str(&line).unwrap();
            if message["id"] == id {
                return message["result"].clone();
            }
        }
    }

    /// Runs a command; returns its exit code and the text of the response.
    async fn exec(&mut self, command: &str) -> (i64, String) {
        let arguments = json!({"name": "exec_command", "arguments": {"cmd": command}});
        let result = self.request("tools/call", arguments).await;
        let code = result["structuredContent"]["exit_code"].as_i64().unwrap();
        (
            code,
            result["content"][0]["text"].as_str().unwrap().to_owned(),
        )
    }
}

#[tokio::test]
async fn agent_is_told_about_restrictions_and_flags() {
    let user = TestUser::new();
    repository(&user).await;
    let curl = format!("curl -sS --fail http://localhost:{}/", web_server().await);
    let (mut agent, instructions) = Agent::new(&user, &[]).await;
    for word in ["`.git`", "--allow-git", "--writable", "--network loopback"] {
        assert!(instructions.contains(word), "{word}: {instructions}");
    }
    let (code, text) = agent.exec("git add file").await;
    assert_ne!(code, 0, "{text}");
    assert!(text.contains("--allow-git"), "{text}");
    let (code, text) = agent.exec(&curl).await;
    assert_ne!(code, 0, "{text}");
    assert!(text.contains("--network loopback"), "{text}");
    let (code, text) = agent.exec("touch /var/tmp/outside/x").await;
    assert_ne!(code, 0, "{text}");

    let outside = tempfile::tempdir_in("/var/tmp").unwrap();
    let directory = outside.path().to_str().unwrap();
    let flags = [
        "--network",
        "loopback",
        "--allow-git",
        "--writable",
        directory,
    ];
    let (mut agent, instructions) = Agent::new(&user, &flags).await;
    assert!(!instructions.contains("--allow-git"), "{instructions}");
    assert_eq!(agent.exec("git add file").await.0, 0);
    let (code, text) = agent.exec(&curl).await;
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("hello"), "{text}");
    assert_eq!(agent.exec(&format!("touch {directory}/x")).await.0, 0);
    assert!(Path::new(directory).join("x").exists());
    let wrong = user.run(["mcp", "--sandbox", "none", "--allow-git"]).await;
    wrong.failed(2, &["--allow-git", "workspace-write"]);
}
