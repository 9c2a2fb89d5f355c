//! Tests of unreachable environments: one line with reason and next step, and an exit status.

use tokio::net::TcpListener;

use crate::test_user::{Hub, TestUser};

#[tokio::test]
async fn unknown_environment_error_lists_known_ones() {
    let user = TestUser::new();
    let file = "[[environments]]\nid = 'devbox'\nurl = 'ws://127.0.0.1:1'\n";
    std::fs::write(user.codex().join("environments.toml"), file).unwrap();
    let ended = user.run(["run", "-E", "nowhere", "--", "true"]).await;
    ended.failed(
        78,
        &["`nowhere`", "local, devbox", "env list", "env add nowhere"],
    );
    let chosen = user.command(["run", "--", "true"]);
    let mut chosen = chosen;
    let ended =
        crate::test_user::OutputSoon::output_soon(chosen.env("EXEC_SERVER_ENV", "gone")).await;
    ended.failed(78, &["`gone`"]);
    // No local server was started instead.
    assert_eq!(user.local_server(), None);
}

#[tokio::test]
async fn invalid_settings_are_reported_with_their_location() {
    let user = TestUser::new();
    std::fs::write(user.codex().join("environments.toml"), "defualt = 'x'\n").unwrap();
    let ended = user.run(["run", "--", "true"]).await;
    ended.failed(78, &["environments.toml:1:1", "defualt"]);
    let ended = user.run(["run", "-E", "http://h", "--", "true"]).await;
    ended.failed(2, &["ws://HOST:PORT"]);
}

#[tokio::test]
async fn unreachable_url_error_suggests_the_server_command() {
    let user = TestUser::new();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("ws://{}", listener.local_addr().unwrap());
    drop(listener);
    let ended = user.run(["run", "--env", &url, "--", "true"]).await;
    ended.failed(69, &[&url, "refused", "exec-server --listen"]);
    let socket = format!("unix://{}/none.sock", user.home().display());
    let ended = user.run(["run", "--env", &socket, "--", "true"]).await;
    ended.failed(69, &[&socket, "exec-server --listen"]);
}

#[tokio::test]
async fn token_errors_are_distinguished_from_an_unreachable_server() {
    let user = TestUser::new();
    let right = user.keep("right", "s3cret-token");
    let wrong = user.keep("wrong", "another-token");
    let flags = [
        "--ws-auth",
        "capability-token",
        "--ws-token-file",
        right.to_str().unwrap(),
    ];
    let server = user.server(&flags).await;
    let line = |file: Option<&std::path::Path>| {
        let mut line = vec!["run".to_owned(), "--env".to_owned(), server.url.clone()];
        if let Some(file) = file {
            line.extend(["--token-file".to_owned(), file.display().to_string()]);
        }
        line.extend(["--", "echo", "in"].map(str::to_owned));
        line
    };
    let missing = user.run(line(None)).await;
    missing.failed(77, &[&server.url, "401", "--token-file"]);
    let refused = user.run(line(Some(&wrong))).await;
    refused.failed(77, &["401"]);
    assert!(!refused.stderr.contains("another-token"), "{refused:?}");
    let unreadable = user.run(line(Some(&user.home().join("none")))).await;
    unreadable.failed(77, &["none"]);
    assert_eq!(user.run(line(Some(&right))).await.expect_success(), "in\n");
    let user = user.with("EXEC_SERVER_TOKEN", "s3cret-token");
    assert_eq!(user.run(line(None)).await.expect_success(), "in\n");
}

#[tokio::test]
async fn other_http_server_is_reported() {
    let user = TestUser::new();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                use tokio::io::{AsyncReadExt, AsyncWriteExt};
                let mut stream = stream;
                let mut request = [0; 4096];
                let read = stream.read(&mut request).await.unwrap_or(0);
                assert!(read > 0);
                let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
                drop(stream.write_all(answer).await);
            });
        }
    });
    let plain = format!("ws://127.0.0.1:{port}");
    let ended = user.run(["ls", "-E", &plain]).await;
    ended.failed(69, &["200", "exec-server"]);
    let secure = format!("wss://127.0.0.1:{port}");
    let ended = user.run(["ls", "-E", &secure]).await;
    ended.failed(69, &["TLS", "SSL_CERT_FILE"]);
}

#[tokio::test]
async fn offline_executor_error_suggests_its_command() {
    let user = TestUser::new();
    let hub = Hub::start(&user).await;
    let token = hub.token_file.to_str().unwrap();
    let add = [
        "env",
        "add",
        "box",
        "--hub",
        &hub.server.url,
        "--token-file",
        token,
    ];
    user.run(add).await.expect_success();
    let ended = user.run(["run", "-E", "box", "--", "true"]).await;
    ended.failed(69, &["offline", "--environment-id box"]);
    std::fs::write(&hub.token_file, "nonsense").unwrap();
    let ended = user.run(["run", "-E", "box", "--", "true"]).await;
    ended.failed(77, &["401", token, "environments.toml"]);

    let output = "CODEX_EXEC_SERVER_NOISE_AUTH_TOKEN";
    let user = TestUser::new()
        .with("CODEX_EXEC_SERVER_NOISE_REGISTRY_URL", &hub.server.url)
        .with("CODEX_EXEC_SERVER_NOISE_ENVIRONMENT_ID", "box")
        .with(output, "nonsense");
    let ended = user.run(["run", "--", "true"]).await;
    ended.failed(77, &["401", output]);
    assert!(!ended.stderr.contains("environments.toml"), "{ended:?}");
}
