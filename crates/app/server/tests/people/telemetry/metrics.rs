//! Tests of the server's metrics.

use exec_server::{
    Command, Environment, ExecServerClient, OutputSeq, PathUri, ProcessId, ProcessIo,
    RemoteExecServerConnectArgs, StdinMode, TerminateMode, WaitUntil,
};

use crate::{
    telemetry::http_client::{Samples, ask, ask_unix},
    test_user::{Server, TestUser, within_timeout},
};

fn authority(server: &Server) -> &str {
    server.url.split_once("://").unwrap().1
}

async fn environment(server: &Server) -> Environment {
    let args = RemoteExecServerConnectArgs::new(&server.url, "watcher");
    within_timeout(ExecServerClient::connect_websocket(args))
        .await
        .unwrap()
        .environment()
}

fn command(id: &str, argv: &[&str]) -> Command {
    let argv = argv.iter().map(|word| (*word).to_owned()).collect();
    let root = PathUri::parse("file:///").unwrap();
    let mut command = Command::new(ProcessId::new(id).unwrap(), argv, root);
    command.env = [("PATH".to_owned(), "/usr/bin:/bin".to_owned())].into();
    command
}

/// Polls until the metrics have these values: some are counted just after the response.
async fn become_these(server: &Server, before: &Samples, expected: &[(&str, f64)]) {
    let wait = async {
        loop {
            let now = Samples::of(authority(server)).await;
            let grown = |name: &str| now.value(name) - before.value(name);
            if expected.iter().all(|(name, by)| grown(name) == *by) {
                return;
            }
            // A counter never decreases.
            let counters = expected.iter().filter(|(name, _)| name.contains("_total"));
            let mut wrong = counters.filter(|(name, by)| grown(name) > *by);
            assert_eq!(wrong.next().map(|(name, _)| (name, grown(name))), None);
        }
    };
    let done = tokio::time::timeout(crate::test_user::TIMEOUT, wait).await;
    if done.is_err() {
        let now = Samples::of(authority(server)).await;
        let grown = expected
            .iter()
            .map(|(name, by)| (name, by, now.value(name) - before.value(name)));
        panic!("{:?}", grown.collect::<Vec<_>>());
    }
}

#[tokio::test]
async fn metrics_count_exactly_what_happened() {
    let user = TestUser::new();
    let server = user.server(&[]).await;
    let before = Samples::of(authority(&server)).await;
    assert_eq!(before.value("exec_server_connections"), 0.0);
    assert_eq!(before.value("exec_server_processes_started_total"), 0.0);
    let environment = environment(&server).await;

    let greets = command("greets", &["sh", "-c", "printf 'hello, you'"]);
    let greets = environment.backend.start(greets).await.unwrap().process;
    within_timeout(greets.wait(WaitUntil::Closed, None))
        .await
        .unwrap();
    let mut reads = command("reads", &["cat"]);
    reads.io = ProcessIo::Pipes {
        stdin: StdinMode::Piped,
    };
    let reads = environment.backend.start(reads).await.unwrap().process;
    within_timeout(reads.write(None, "12345".into()))
        .await
        .unwrap();
    let page = exec_server::OutputReadRequest {
        after: OutputSeq(0),
        max_bytes: None,
        wait: crate::test_user::TIMEOUT,
    };
    assert!(
        !within_timeout(reads.read(page))
            .await
            .unwrap()
            .chunks
            .is_empty()
    );
    let stays = command("stays", &["sleep", "1000"]);
    let stays = environment.backend.start(stays).await.unwrap().process;
    within_timeout(reads.terminate(TerminateMode::Force))
        .await
        .unwrap();
    within_timeout(reads.wait(WaitUntil::Closed, None))
        .await
        .unwrap();
    let missing = command("missing", &["/no/such/program"]);
    assert!(environment.backend.start(missing).await.is_err());

    become_these(
        &server,
        &before,
        &[
            ("exec_server_connections", 1.0),
            ("exec_server_connections_total", 1.0),
            (r#"exec_server_sessions{state="attached"}"#, 1.0),
            (r#"exec_server_session_events_total{event="opened"}"#, 1.0),
            ("exec_server_processes_started_total", 3.0),
            (r#"exec_server_processes{state="running"}"#, 1.0),
            (r#"exec_server_processes_ended_total{cause="exit"}"#, 1.0),
            (
                r#"exec_server_processes_ended_total{cause="terminated"}"#,
                1.0,
            ),
            (r#"exec_server_process_refusals_total{reason="spawn"}"#, 1.0),
            ("exec_server_output_bytes_total", 15.0),
            ("exec_server_input_bytes_total", 5.0),
            ("exec_server_requests_in_flight", 0.0),
            (
                r#"exec_server_requests_total{method="process/start",outcome="ok"}"#,
                3.0,
            ),
            (
                r#"exec_server_requests_total{method="process/start",outcome="internal"}"#,
                1.0,
            ),
            (
                r#"exec_server_request_duration_seconds_count{method="process/start"}"#,
                4.0,
            ),
            (
                r#"exec_server_request_duration_seconds_bucket{method="process/start",le="+Inf"}"#,
                4.0,
            ),
            (
                r#"exec_server_requests_total{method="initialize",outcome="ok"}"#,
                1.0,
            ),
        ],
    )
    .await;

    within_timeout(stays.terminate(TerminateMode::Force))
        .await
        .unwrap();
    drop((greets, reads, stays, environment));
    become_these(
        &server,
        &before,
        &[
            ("exec_server_connections", 0.0),
            ("exec_server_connections_total", 1.0),
            (r#"exec_server_sessions{state="attached"}"#, 0.0),
            (r#"exec_server_sessions{state="detached"}"#, 1.0),
            (r#"exec_server_processes{state="running"}"#, 0.0),
            (
                r#"exec_server_processes_ended_total{cause="terminated"}"#,
                2.0,
            ),
        ],
    )
    .await;
}

#[tokio::test]
async fn invalid_messages_are_counted_separately() {
    let user = TestUser::new();
    let metrics = ["--metrics-listen", "127.0.0.1:0", "--log-level", "info"];
    let mut command = user.command(["--listen", "stdio"]);
    let mut server = crate::telemetry::logs::StdioServer::start(command.args(metrics));
    let address = server.metrics_address().await;
    let hello = r#"{"id":1,"method":"initialize","params":{"clientName":"w"}}"#;
    for line in [
        hello,
        r#"{"method":"initialized"}"#,
        r#"{"id":7,"result":{}}"#,
    ] {
        server.say(line).await;
    }
    server.say("no json").await;
    server.say(r#"{"id":2,"method":"process/fly"}"#).await;
    server
        .say(r#"{"id":3,"method":"process/read","params":{}}"#)
        .await;
    server
        .say(r#"{"id":4,"method":"environment/status"}"#)
        .await;
    server.hear(r#""id":4"#).await;
    let now = Samples::of(&address).await;
    for kind in ["malformed", "unknown_method", "unsolicited_response"] {
        let name = format!(r#"exec_server_bad_messages_total{{kind="{kind}"}}"#);
        assert_eq!(now.value(&name), 1.0, "{name}");
    }
    let refused = r#"exec_server_requests_total{method="process/read",outcome="invalid_params"}"#;
    assert_eq!(now.value(refused), 1.0, "{now:?}");
    assert!(!now.0.keys().any(|name| name.contains("process/fly")));
    assert_eq!(now.value("exec_server_messages_received_total"), 7.0);
}

#[tokio::test]
async fn metrics_require_the_connection_token() {
    let user = TestUser::new();
    let token = user.keep("token", "a long enough token");
    let token = token.to_str().unwrap();
    let flags = ["--ws-auth", "capability-token", "--ws-token-file", token];
    let server = user.server(&flags).await;
    let authority = authority(&server);
    let (right, wrong) = (
        "Authorization: Bearer a long enough token\r\n",
        "Authorization: Bearer another token\r\n",
    );
    for headers in ["", wrong] {
        let answer = ask(authority, "GET /metrics", headers).await;
        assert_eq!(answer.status, 401, "{answer:?}");
        assert!(!answer.body.contains("exec_server"), "{answer:?}");
    }
    let page = ask(authority, "GET /metrics", right).await;
    assert_eq!(page.status, 200, "{page:?}");
    assert!(
        page.head
            .contains("content-type: text/plain; version=0.0.4"),
        "{}",
        page.head
    );
    assert!(
        page.body.contains("exec_server_build_info{version="),
        "{}",
        page.body
    );
    let head = ask(authority, "HEAD /metrics", right).await;
    assert_eq!((head.status, head.body.as_str()), (200, ""));
    let posted = ask(authority, "POST /metrics", right).await;
    assert_eq!(posted.status, 405);
    assert!(posted.head.contains("allow: get, head"), "{}", posted.head);
    let paged = format!("{right}Origin: http://evil.example\r\n");
    assert_eq!(ask(authority, "GET /metrics", &paged).await.status, 403);
    // Health needs no token.
    assert_eq!(ask(authority, "GET /healthz", "").await.status, 200);
}

#[tokio::test]
async fn unix_socket_serves_metrics() {
    let user = TestUser::new();
    let server = user.unix_server(&[]).await;
    let socket = server.url.strip_prefix("unix://").unwrap();
    let page = ask_unix(socket.as_ref(), "GET /metrics").await;
    assert_eq!(page.status, 200, "{page:?}");
    assert!(
        page.body.contains("# TYPE exec_server_connections gauge"),
        "{page:?}"
    );
}

#[tokio::test]
async fn metrics_listener_serves_a_server_without_listener() {
    let user = TestUser::new();
    let metrics = ["--metrics-listen", "127.0.0.1:0", "--log-level", "info"];
    let mut command = user.command(["--listen", "off"]);
    let mut server = crate::telemetry::logs::StdioServer::start(command.args(metrics));
    let address = server.metrics_address().await;
    for (line, status) in [
        ("GET /metrics", 200),
        ("GET /healthz", 200),
        ("HEAD /readyz", 200),
        ("DELETE /metrics", 405),
        ("GET /", 404),
    ] {
        assert_eq!(ask(&address, line, "").await.status, status, "{line}");
    }
    let page = "Origin: http://evil.example\r\n";
    assert_eq!(ask(&address, "GET /metrics", page).await.status, 403);
    let upgrade = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
                   Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n";
    assert_eq!(ask(&address, "GET /", upgrade).await.status, 404);

    let open = user.run(["--metrics-listen", "0.0.0.0:9464"]).await;
    assert_eq!(open.status, Some(2), "{open:?}");
    assert!(
        open.stderr.contains("expected a loopback address"),
        "{open:?}"
    );
}

#[tokio::test]
async fn sandbox_denials_and_rejected_policies_are_counted() {
    let user = TestUser::new();
    let metrics = ["--metrics-listen", "127.0.0.1:0", "--log-level", "info"];
    let mut command = user.command(["--listen", "stdio", "--sandbox-mechanism", "landlock"]);
    let mut stdio_server = crate::telemetry::logs::StdioServer::start(command.args(metrics));
    let address = stdio_server.metrics_address().await;
    let hello = r#"{"id":1,"method":"initialize","params":{"clientName":"w"}}"#;
    for line in [hello, r#"{"method":"initialized"}"#] {
        stdio_server.say(line).await;
    }
    let start = |id: u32, more: &str| {
        let everything = r#"{"path":{"type":"special","value":{"kind":"root"}},"access":"read"}"#;
        let files = format!(r#"{{"type":"restricted","entries":[{everything}{more}]}}"#);
        let permissions =
            format!(r#"{{"type":"managed","file_system":{files},"network":"enabled"}}"#);
        let sandbox =
            format!(r#"{{"permissions":{permissions},"windowsSandboxLevel":"disabled"}}"#);
        let script = "echo never > /exec-server-must-not-write-this";
        let params = format!(
            r#""processId":"p{id}","argv":["sh","-c","{script}"],"cwd":"file:///","tty":false"#
        );
        let env = r#""env":{"PATH":"/usr/bin:/bin"}"#;
        format!(
            r#"{{"id":{id},"method":"process/start","params":{{{params},{env},"sandbox":{sandbox}}}}}"#
        )
    };
    // Everything is readable, nothing writable.
    stdio_server.say(&start(2, "")).await;
    stdio_server.hear(r#""sandboxDenied":true"#).await;
    // Landlock alone cannot hide a path.
    let hidden = r#",{"path":{"type":"path","path":"file:///etc"},"access":"deny"}"#;
    stdio_server.say(&start(3, hidden)).await;
    let refusal = stdio_server.hear(r#""id":3"#).await;
    assert!(refusal.contains("-32602"), "{refusal}");
    let now = Samples::of(&address).await;
    assert_eq!(now.value("exec_server_sandbox_denials_total"), 1.0);
    let refused = r#"exec_server_process_refusals_total{reason="sandbox"}"#;
    assert_eq!(now.value(refused), 1.0, "{now:?}");
    let logs = stdio_server.end().await.concat();
    assert!(logs.contains("process did not start"), "{logs}");
}
