//! Tests with a server without our extensions: ours, behind a relay that hides them.

use std::{fs, os::unix::fs::symlink, process::Stdio, sync::Arc};

use exec_transport::{
    connect::{ServerAddress, WebSocketConnector},
    http::HttpEndpoint,
    link::{DataEncoding, Link},
    listener::Listener,
};
use exec_wire::outgoing_message::OutgoingMessage;
use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    sync::mpsc,
    task::AbortHandle,
};

use crate::{
    processes::RunningCommand,
    test_user::{Server, TestUser, within_timeout},
};

/// Methods that the stock server lacks.
const UNKNOWN: &[&str] = &[
    "process/closeStdin",
    "process/resize",
    "process/wait",
    "process/snapshot",
    "process/attach",
    "process/release",
    "process/list",
    "ports/list",
    "fs/rename",
    "fs/setMetadata",
    "fs/createSymlink",
];

/// Server that behaves like the stock one. Dropping it stops it.
struct StockServer {
    url: String,
    relay: AbortHandle,
    _server: Server,
}

impl StockServer {
    async fn start(user: &TestUser) -> Self {
        let server = user.server(&[]).await;
        let listener = Listener::bind_tcp("127.0.0.1:0".parse().unwrap(), false);
        let listener = listener.await.unwrap();
        let url = listener.address().to_string();
        let (links, mut opened) = mpsc::channel(8);
        let endpoint = HttpEndpoint {
            auth: Arc::default(),
            metrics: None,
            draining: Arc::default(),
            hosts: Default::default(),
            pending: Default::default(),
        };
        let upstream = server.url.clone();
        let relay = tokio::spawn(async move {
            tokio::spawn(listener.run(endpoint, None, links));
            while let Some(downstream) = opened.recv().await {
                let address: ServerAddress = upstream.parse().unwrap();
                let upstream = WebSocketConnector::new(address).open().await.unwrap();
                tokio::spawn(relay(downstream, upstream));
            }
        });
        Self {
            url,
            relay: relay.abort_handle(),
            _server: server,
        }
    }
}

impl Drop for StockServer {
    fn drop(&mut self) {
        self.relay.abort();
    }
}

async fn send(link: &mut Link, message: &Value) {
    let text = message.to_string().into_bytes();
    link.writer
        .push(OutgoingMessage::Text(text), DataEncoding::Text);
    // The peer is gone.
    drop(link.writer.flush().await);
}

/// Relays messages and drops what the stock server does not know.
async fn relay(mut downstream: Link, mut upstream: Link) {
    loop {
        tokio::select! {
            request = downstream.reader.next() => {
                let Ok(Some(request)) = request else { return };
                let mut request: Value = serde_json::from_slice(&request).unwrap();
                if let Some(refusal) = refuse(&request) {
                    let answer = json!({"id": request["id"], "error": refusal});
                    send(&mut downstream, &answer).await;
                    continue;
                }
                if request["method"] == "initialize" {
                    request["params"]["extensions"] = json!(null);
                }
                send(&mut upstream, &request).await;
            }
            answer = upstream.reader.next() => {
                let Ok(Some(answer)) = answer else { return };
                let mut answer: Value = serde_json::from_slice(&answer).unwrap();
                let result = answer.get_mut("result").and_then(Value::as_object_mut);
                if let Some(result) = result
                    && result.contains_key("sessionId")
                {
                    for ours in ["server", "extensions", "sessionTtlMs"] {
                        result.remove(ours);
                    }
                }
                if answer["error"]["message"].as_str().is_some_and(|text| text.ends_with("(os error 2)")) {
                    answer["error"]["message"] = json!("No such file or directory (os error 2)");
                }
                send(&mut downstream, &answer).await;
            }
        }
    }
}

fn refuse(request: &Value) -> Option<Value> {
    let (method, params) = (request["method"].as_str()?, &request["params"]);
    if UNKNOWN.contains(&method) {
        let message = format!("exec-server stub does not implement `{method}` yet");
        return Some(json!({"code": -32601, "message": message}));
    }
    let signal = params["signal"].as_str()?;
    (method == "process/signal" && signal != "interrupt").then(|| {
        let message = format!("unknown variant `{signal}`, expected `interrupt`");
        json!({"code": -32602, "message": message})
    })
}

#[tokio::test]
async fn first_termination_signal_ends_the_command_on_a_stock_server() {
    let user = TestUser::new();
    let server = StockServer::start(&user).await;
    for signal in [Signal::TERM, Signal::HUP] {
        let run = [
            "run",
            "-E",
            &server.url,
            "sh",
            "-c",
            "echo ready; sleep 1000",
        ];
        let mut running = RunningCommand::start(&mut user.command(run));
        running.says("ready").await;
        running.signal(signal);
        let (status, output) = running.end().await;
        assert_eq!(status.code(), Some(137), "{output}");
    }
}

#[tokio::test]
async fn client_enforces_the_timeout_on_a_stock_server() {
    let user = TestUser::new();
    let server = StockServer::start(&user).await;
    let run = ["run", "-E", &server.url, "--timeout=0.2s", "sleep", "1000"];
    user.run(run).await.failed(124, &["--timeout"]);
}

#[tokio::test]
async fn missing_close_stdin_is_reported_at_once() {
    let user = TestUser::new();
    let server = StockServer::start(&user).await;
    let mut run = user.command(["run", "-E", &server.url, "cat"]);
    let run = run.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = run.stderr(Stdio::piped()).spawn().unwrap();
    let mut stderr = child.stderr.take().unwrap();
    let mut output = [0; 128];
    let read = within_timeout(stderr.read(&mut output)).await.unwrap();
    let output = String::from_utf8_lossy(&output[..read]);
    assert!(
        output.contains("cannot close a command's stdin"),
        "{output}"
    );
    // Piped input is delivered anyway.
    let mut stdin = child.stdin.take().unwrap();
    within_timeout(stdin.write_all(b"in\n")).await.unwrap();
    let mut out = [0; 3];
    let mut stdout = child.stdout.take().unwrap();
    within_timeout(stdout.read_exact(&mut out)).await.unwrap();
    assert_eq!(&out, b"in\n");
    let nothing = user.run(["run", "-E", &server.url, "cat"]).await;
    assert_eq!(nothing.expect_success(), "");
}

#[tokio::test]
async fn missing_directory_is_distinguished_from_a_missing_program() {
    let user = TestUser::new();
    let server = StockServer::start(&user).await;
    for flags in [
        &["-C", "/no/such/directory"][..],
        &["-tC", "/no/such/directory"],
    ] {
        let line = ["run", "-E", &server.url].into_iter();
        let line = line.chain(flags.iter().copied()).chain(["true"]);
        user.run(line)
            .await
            .failed(66, &["/no/such/directory", "-C"]);
    }
    let missing = user
        .run(["run", "-E", &server.url, "no-such-program"])
        .await;
    missing.failed(127, &["PATH"]);
}

#[tokio::test]
async fn edit_reports_a_non_atomic_overwrite() {
    let user = TestUser::new().with("EDITOR", "sed -i s/old/new/");
    let server = StockServer::start(&user).await;
    let file = user.work().join("file");
    fs::write(&file, "old\n").unwrap();
    let edit = ["edit", "-E", &server.url, file.to_str().unwrap()];
    let edited = user.run(edit).await;
    assert_eq!(edited.status, Some(0), "{edited:?}");
    assert!(edited.stderr.contains("was overwritten"), "{edited:?}");
    assert_eq!(fs::read_to_string(&file).unwrap(), "new\n");
}

#[tokio::test]
async fn copy_reports_links_and_times_that_a_stock_server_cannot_keep() {
    let user = TestUser::new();
    let server = StockServer::start(&user).await;
    let remote = tempfile::tempdir().unwrap();
    fs::create_dir_all(remote.path().join("tree/dir")).unwrap();
    fs::write(remote.path().join("tree/file"), "x").unwrap();
    symlink("file", remote.path().join("tree/to-file")).unwrap();
    symlink("dir", remote.path().join("tree/to-dir")).unwrap();
    let source = format!(":{}/tree", remote.path().display());
    let copy = user
        .run(["cp", "-r", "-E", &server.url, &source, "."])
        .await;
    assert_eq!(copy.status, Some(1), "{copy:?}");
    assert!(copy.stderr.contains("2 not copied, 1 copied"), "{copy:?}");
    for name in ["to-file", "to-dir"] {
        let text = format!("{name}`: its server does not report targets");
        assert!(copy.stderr.contains(&text), "{copy:?}");
        assert!(!user.work().join("tree").join(name).exists());
    }
    assert!(copy.stderr.contains("`cp -L`"), "{copy:?}");
    let followed = ["cp", "-rL", "-E", &server.url, &source, "followed"];
    user.run(followed).await.expect_success();
    assert!(user.work().join("followed/to-file").is_file());
    // To the server: the content arrives, and what is missing is said.
    symlink("file", user.work().join("followed/link")).unwrap();
    let target = format!(":{}/back", remote.path().display());
    let copy = ["cp", "-a", "-E", &server.url, "followed", &target];
    let copy = user.run(copy).await;
    assert_eq!(copy.status, Some(1), "{copy:?}");
    for text in [
        "cannot create link",
        "cannot set the time",
        "its server does not support it",
    ] {
        assert!(copy.stderr.contains(text), "{copy:?}");
    }
    assert_eq!(fs::read(remote.path().join("back/file")).unwrap(), b"x");
}

#[tokio::test]
async fn tunnels_of_a_stock_server_are_refused_before_anything_starts() {
    let user = TestUser::new();
    let stock = StockServer::start(&user).await;
    let unsupported = ["does not support tunnels", "exec-server of this version"];
    for words in [
        &["tunnel", "3000"][..],
        &["ports"],
        &["run", "--tunnel", "auto", "touch", "x"],
    ] {
        let line = [&words[..1], &["-E", &stock.url], &words[1..]].concat();
        user.run(line).await.failed(1, &unsupported);
    }
    assert!(!fs::exists(user.work().join("x")).unwrap());
}
