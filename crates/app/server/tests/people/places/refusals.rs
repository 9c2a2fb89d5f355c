//! Environments that are not reached: one line, the reason, the next step, a status of its own.

use tokio::net::TcpListener;

use crate::cast::{Hub, Person};

#[tokio::test]
async fn an_unknown_environment_is_told_with_those_that_are_known() {
    let person = Person::new();
    let file = "[[environments]]\nid = 'devbox'\nurl = 'ws://127.0.0.1:1'\n";
    std::fs::write(person.codex().join("environments.toml"), file).unwrap();
    let ended = person.run(["run", "-E", "nowhere", "--", "true"]).await;
    ended.failed(
        78,
        &["`nowhere`", "local, devbox", "env list", "env add nowhere"],
    );
    let chosen = person.command(["run", "--", "true"]);
    let mut chosen = chosen;
    let ended = crate::cast::OutputSoon::output_soon(chosen.env("EXEC_SERVER_ENV", "gone")).await;
    ended.failed(78, &["`gone`"]);
    // Nothing was started instead.
    assert_eq!(person.local_server(), None);
}

#[tokio::test]
async fn broken_settings_are_told_with_their_place() {
    let person = Person::new();
    std::fs::write(person.codex().join("environments.toml"), "defualt = 'x'\n").unwrap();
    let ended = person.run(["run", "--", "true"]).await;
    ended.failed(78, &["environments.toml:1:1", "defualt"]);
    let ended = person.run(["run", "-E", "http://h", "--", "true"]).await;
    ended.failed(2, &["ws://HOST:PORT"]);
}

#[tokio::test]
async fn a_url_where_nobody_listens_is_told_with_what_to_start() {
    let person = Person::new();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("ws://{}", listener.local_addr().unwrap());
    drop(listener);
    let ended = person.run(["run", "--env", &url, "--", "true"]).await;
    ended.failed(69, &[&url, "refused", "exec-server --listen"]);
    let socket = format!("unix://{}/none.sock", person.home().display());
    let ended = person.run(["run", "--env", &socket, "--", "true"]).await;
    ended.failed(69, &[&socket, "exec-server --listen"]);
}

#[tokio::test]
async fn a_missing_and_a_wrong_token_are_told_apart_from_no_server() {
    let person = Person::new();
    let right = person.keep("right", "s3cret-token");
    let wrong = person.keep("wrong", "another-token");
    let flags = [
        "--ws-auth",
        "capability-token",
        "--ws-token-file",
        right.to_str().unwrap(),
    ];
    let server = person.server(&flags).await;
    let line = |file: Option<&std::path::Path>| {
        let mut line = vec!["run".to_owned(), "--env".to_owned(), server.url.clone()];
        if let Some(file) = file {
            line.extend(["--token-file".to_owned(), file.display().to_string()]);
        }
        line.extend(["--", "echo", "in"].map(str::to_owned));
        line
    };
    let missing = person.run(line(None)).await;
    missing.failed(77, &[&server.url, "401", "--token-file"]);
    let refused = person.run(line(Some(&wrong))).await;
    refused.failed(77, &["401"]);
    assert!(!refused.stderr.contains("another-token"), "{refused:?}");
    let unreadable = person.run(line(Some(&person.home().join("none")))).await;
    unreadable.failed(77, &["none"]);
    assert_eq!(person.run(line(Some(&right))).await.well(), "in\n");
    let person = person.with("EXEC_SERVER_TOKEN", "s3cret-token");
    assert_eq!(person.run(line(None)).await.well(), "in\n");
}

#[tokio::test]
async fn what_is_no_exec_server_is_told() {
    let person = Person::new();
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
    let ended = person.run(["ls", "-E", &plain]).await;
    ended.failed(69, &["200", "exec-server"]);
    let secure = format!("wss://127.0.0.1:{port}");
    let ended = person.run(["ls", "-E", &secure]).await;
    ended.failed(69, &["TLS", "SSL_CERT_FILE"]);
}

#[tokio::test]
async fn a_hub_without_the_executor_tells_how_to_start_it() {
    let person = Person::new();
    let hub = Hub::start(&person).await;
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
    person.run(add).await.well();
    let ended = person.run(["run", "-E", "box", "--", "true"]).await;
    ended.failed(69, &["offline", "--environment-id box"]);
    std::fs::write(&hub.token_file, "nonsense").unwrap();
    let ended = person.run(["run", "-E", "box", "--", "true"]).await;
    ended.failed(77, &["401", token, "environments.toml"]);

    let told = "CODEX_EXEC_SERVER_NOISE_AUTH_TOKEN";
    let person = Person::new()
        .with("CODEX_EXEC_SERVER_NOISE_REGISTRY_URL", &hub.server.url)
        .with("CODEX_EXEC_SERVER_NOISE_ENVIRONMENT_ID", "box")
        .with(told, "nonsense");
    let ended = person.run(["run", "--", "true"]).await;
    ended.failed(77, &["401", told]);
    assert!(!ended.stderr.contains("environments.toml"), "{ended:?}");
}
