//! Tests of hub, executor and harness; hub and executor are real processes.

pub(crate) mod cast;

use std::time::Duration;

use exec_server::{
    BackpressureMode, Command, DisconnectReason, ExecProcessEvent, ExecServerError, FollowFrom,
    FollowOptions, OutputSeq, PathUri, ProcessId, protocol::environment::ReadEnvironmentStatus,
};
use futures_util::StreamExt;
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    net::TcpStream,
    process::Command as Program,
    time::{sleep, timeout},
};

use self::cast::{Executor, Hub};
use crate::program::{Server, clean, example, product, run, run_example, text, within_timeout};

#[tokio::test]
async fn command_runs_through_a_hub_and_everything_shuts_down_cleanly() {
    let hub = Hub::start().await;
    let executor = hub.executor("box");
    let client = hub.connect("box").await;
    let result = run(&client.environment(), "echo out; echo err >&2; exit 3").await;
    assert_eq!(
        (text(&result.stdout.data), text(&result.stderr.data)),
        ("out\n", "err\n")
    );
    assert_eq!(result.exit.map(|exit| exit.code), Some(3));

    let mut command = Program::new(product());
    command.args(["hub", "environments", "--url", &hub.server.url]);
    let command = clean(&mut command).env("EXEC_SERVER_HUB_TOKEN", &hub.token);
    let listed = within_timeout(command.output()).await.unwrap();
    let lines: Vec<_> = text(&listed.stdout).lines().collect();
    assert_eq!(lines.len(), 2, "{listed:?}");
    let words: Vec<_> = lines[1].split_whitespace().collect();
    assert_eq!(words[..4], ["box", "me", "online", "noise"]);

    drop(client);
    assert_eq!(executor.stop().await, Some(0));
    assert_eq!(hub.server.stop().await, Some(0));
}

#[tokio::test]
async fn killed_and_restarted_hub_loses_no_bytes_and_no_session() {
    let mut hub = Hub::start().await;
    let _executor = hub.executor("box");
    let client = hub.connect("box").await;
    let session = client.session().session_id.clone();
    let script = "i=0; while [ $i -lt 400 ]; do i=$((i+1)); echo $i; sleep 0.005; done";
    let argv = ["/bin/sh", "-c", script].map(str::to_owned).to_vec();
    let command = Command::new(
        ProcessId::new("count").unwrap(),
        argv,
        PathUri::parse("file:///").unwrap(),
    );
    let count = within_timeout(client.environment().backend.start(command))
        .await
        .unwrap()
        .process;
    let mut events = count.follow(FollowOptions {
        start: FollowFrom::After(OutputSeq(0)),
        backpressure: BackpressureMode::Pause,
    });
    let (mut counted, mut restarted) = (String::new(), false);
    while let Some(event) = within_timeout(events.next()).await {
        match event {
            ExecProcessEvent::Output(chunk) => counted.push_str(text(&chunk.data)),
            ExecProcessEvent::Exited(..) => {}
            ExecProcessEvent::Closed(_) => break,
            ExecProcessEvent::Failed(error) => panic!("{error}"),
        }
        if !restarted && counted.lines().count() >= 100 {
            hub.restart().await;
            restarted = true;
        }
    }
    let expected: String = (1..=400).map(|number| format!("{number}\n")).collect();
    assert!(restarted && counted == expected, "{counted}");
    assert_eq!(client.session().session_id, session);
}

#[tokio::test]
async fn replacement_executor_ends_the_session_and_serves_the_next() {
    let hub = Hub::start().await;
    let executor = hub.executor("box");
    let client = hub.connect("box").await;
    executor.kill().await;
    let _another = hub.executor("box");
    // A request meanwhile fails with the session, as soon as that is known.
    let lost = within_timeout(client.call(ReadEnvironmentStatus)).await;
    assert!(
        matches!(&lost, Err(ExecServerError::Disconnected(DisconnectReason::Session(reason)))
            if reason.ends_with("session was not resumed: executor key changed")),
        "{lost:?}"
    );
    assert_eq!(
        text(&run(&client.environment(), "echo again").await.stdout.data),
        "again\n"
    );
}

#[tokio::test]
async fn unauthorized_clients_are_rejected_with_a_reason() {
    let hub = Hub::start().await;
    let _executor = hub.executor("box");
    drop(hub.connect("box").await);
    for (token, expected) in [
        (hub.stranger.as_str(), "no accessible executor"),
        ("nonsense", "401"),
    ] {
        let mut args = hub.connect_args("box");
        args.auth_token = exec_server::remote::SecretString::new(token);
        let error = exec_server::ExecServerClient::connect_relay(args)
            .await
            .unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
        assert!(!error.to_string().contains(token), "{error}");
    }
    // The owner of the name keeps it.
    let mut command = Program::new(product());
    let flags = ["--remote", &hub.server.url, "--environment-id", "box"];
    command
        .args(flags)
        .env("EXEC_SERVER_REMOTE_TOKEN", &hub.stranger);
    let ended = within_timeout(clean(&mut command).output()).await.unwrap();
    assert_eq!(ended.status.code(), Some(1));
    assert!(text(&ended.stderr).contains("403"), "{ended:?}");
}

#[tokio::test]
async fn forwarder_offers_a_listening_server() {
    let hub = Hub::start().await;
    let server = Server::start(&[]).await;
    let mut command = Program::new(product());
    command.args([
        "forward",
        "--connect",
        &server.url,
        "--remote",
        &hub.server.url,
    ]);
    command
        .args(["--environment-id", "far"])
        .env("EXEC_SERVER_REMOTE_TOKEN", &hub.token);
    let forwarder = Executor::of(command);
    let client = hub.connect("far").await;
    let environment = client.environment();
    assert_eq!(
        text(&run(&environment, "echo far").await.stdout.data),
        "far\n"
    );
    drop((client, environment));
    assert_eq!(forwarder.stop().await, Some(0));
}

#[tokio::test]
async fn example_and_variables_connect_through_a_hub() {
    let hub = Hub::start().await;
    let _executor = hub.executor("box");
    drop(hub.connect("box").await);
    let arguments = [
        hub.server.url.as_str(),
        "box",
        &hub.token,
        "echo there; exit 4",
    ];
    let output = run_example("through_a_hub", &arguments).await;
    assert_eq!(
        (text(&output.stdout), output.status.code()),
        ("there\n", Some(4)),
        "{output:?}"
    );

    let mut command = Program::new(example("local_or_remote"));
    let command = clean(&mut command)
        .env("CODEX_EXEC_SERVER_NOISE_REGISTRY_URL", &hub.server.url)
        .env("CODEX_EXEC_SERVER_NOISE_ENVIRONMENT_ID", "box")
        .env("CODEX_EXEC_SERVER_NOISE_AUTH_TOKEN", &hub.token);
    let output = within_timeout(command.output()).await.unwrap();
    assert_eq!(text(&output.stdout), "*remote: HELLO\n", "{output:?}");

    let home = tempfile::tempdir().unwrap();
    std::fs::write(home.path().join("token"), &hub.token).unwrap();
    let file = format!(
        "default = 'box'\ninclude_local = false\n[[environments]]\nid = 'box'\n\
         registry_url = '{}'\nauth_token_file = 'token'\n",
        hub.server.url
    );
    std::fs::write(home.path().join("environments.toml"), file).unwrap();
    let mut command = Program::new(example("local_or_remote"));
    let command = clean(&mut command).env("CODEX_HOME", home.path());
    let output = within_timeout(command.output()).await.unwrap();
    assert_eq!(text(&output.stdout), "*box: HELLO\n", "{output:?}");
}

#[tokio::test]
async fn executor_retries_until_the_hub_is_up() {
    let mut hub = Hub::start().await;
    hub.server.kill().await;
    let mut command = hub.executor_command("box");
    command.stderr(std::process::Stdio::piped());
    let mut executor = Executor::of(command);
    let mut log = BufReader::new(executor.0.stderr.take().unwrap()).lines();
    let line = within_timeout(log.next_line()).await.unwrap().unwrap();
    assert!(line.contains("retrying"), "{line}");
    hub.restart().await;
    hub.connect("box").await;
    assert_eq!(executor.stop().await, Some(0));
}

#[tokio::test]
async fn executor_with_wrong_token_exits_at_once() {
    let hub = Hub::start().await;
    let mut command = hub.executor_command("box");
    command.env("EXEC_SERVER_REMOTE_TOKEN", "wrong");
    let output = within_timeout(clean(&mut command).output()).await.unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let result = text(&output.stderr);
    assert!(
        result.contains("cannot register environment `box`") && result.contains("401"),
        "{result}"
    );
}

#[tokio::test]
async fn registration_bearer_is_one_line_of_stdin() {
    let hub = Hub::start().await;
    let start = |more: &[&str]| {
        let mut command = hub.executor_command("box");
        clean(&mut command).env_remove("EXEC_SERVER_REMOTE_TOKEN");
        command.arg("--registration-bearer-stdin").args(more);
        // The flag takes precedence over an API key.
        command.env("CODEX_API_KEY", "wrong");
        command
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped())
            .spawn()
            .unwrap()
    };
    let line = format!("{}\nwhat follows is not read", hub.token);
    for (more, ends) in [(&[][..], false), (&["--exit-on-stdin-close"], true)] {
        let mut child = start(more);
        let mut stdin = child.stdin.take().unwrap();
        within_timeout(stdin.write_all(line.as_bytes()))
            .await
            .unwrap();
        let mut result = BufReader::new(child.stdout.take().unwrap()).lines();
        let online = within_timeout(result.next_line()).await.unwrap();
        assert_eq!(online.as_deref(), Some("online box"));
        drop(stdin);
        if ends {
            assert_eq!(within_timeout(child.wait()).await.unwrap().code(), Some(0));
        } else {
            hub.connect("box").await;
            assert_eq!(crate::program::stop(&mut child).await, Some(0));
        }
    }
    for (line, error) in [
        (
            "unended",
            "expected a newline-terminated registration bearer of at most 16 KiB",
        ),
        ("a b\n", "invalid registration bearer"),
        ("wrong\n", "registry refused the credentials: 401\n"),
    ] {
        let mut child = start(&[]);
        let mut stdin = child.stdin.take().unwrap();
        within_timeout(stdin.write_all(line.as_bytes()))
            .await
            .unwrap();
        drop(stdin);
        let output = within_timeout(child.wait_with_output()).await.unwrap();
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert!(text(&output.stderr).contains(error), "{output:?}");
    }
}

#[tokio::test]
async fn hub_environments_accepts_a_token_file_and_exits_77_on_a_wrong_token() {
    let hub = Hub::start().await;
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("token");
    let list = async |token: &str| {
        std::fs::write(&file, token).unwrap();
        let mut command = Program::new(product());
        command.args(["hub", "environments", "--url", &hub.server.url]);
        command.arg("--token-file").arg(&file);
        within_timeout(clean(&mut command).output()).await.unwrap()
    };
    let listed = list(&format!("{}\n", hub.token)).await;
    assert!(listed.status.success(), "{listed:?}");
    for wrong in ["wrong", "", "\n"] {
        let refused = list(wrong).await;
        assert_eq!(refused.status.code(), Some(77), "{refused:?}");
    }
}

#[tokio::test]
async fn hub_releases_memory_after_a_burst_of_incomplete_requests() {
    let hub = Hub::start().await;
    let before = hub.server.resident_bytes();
    let head = format!(
        "POST /cloud/environment/box/connect HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {}\r\n\
         Content-Type: application/json\r\nContent-Length: 30000\r\n\r\n",
        hub.token
    );
    let half_a_body = [head.as_bytes(), &[b' '; 29_000]].concat();
    let half_a_head = [b"GET / HTTP/1.1\r\nX: ", &[b'x'; 300_000][..]].concat();
    for _ in 0..2 {
        let mut connections = Vec::new();
        for number in 0..600 {
            let mut stream = TcpStream::connect(hub.server.authority()).await.unwrap();
            let sent = match number % 2 {
                0 => &half_a_body,
                _ => &half_a_head,
            };
            // The hub does not read overlong requests, and may disconnect.
            drop(timeout(Duration::from_millis(20), stream.write_all(sent)).await);
            connections.push(stream);
        }
        let during = hub.server.resident_bytes();
        assert!(during < before + (64 << 20), "{before} {during}");
    }
    let given_back = async {
        while hub.server.resident_bytes() > before + (24 << 20) {
            sleep(Duration::from_millis(100)).await;
        }
    };
    let after = || (before, hub.server.resident_bytes());
    let outcome = timeout(Duration::from_secs(30), given_back).await;
    assert!(outcome.is_ok(), "{:?}", after());
}
