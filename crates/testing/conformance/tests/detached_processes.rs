//! Detached processes of a real server, used by several clients.
#![expect(clippy::unwrap_used, reason = "a failed set-up fails the test")]

use std::{net::SocketAddr, path::Path, sync::Arc};

use bytes::Bytes;
use exec_client::{
    client::{ConnectionState, ExecServerClient},
    connect::RemoteExecServerConnectArgs,
    error::ExecServerError,
};
use exec_conformance::{cutting_proxy::CuttingProxy, server::Server};
use exec_core::output_log::{BackpressureMode, FollowOptions, FollowStart};
use exec_env::{
    environment::{Command, ProcessIo, StartError, StdinMode},
    process::{ExecProcess, ExecProcessEvent, OutputReadRequest},
};
use exec_test_support::bounded_wait::within;
use exec_wire::{
    id::{OutputSeq, ProcessId},
    path_uri::PathUri,
    process::{ExitCause, ProcessSignal, TerminalSize, TerminateMode, WaitUntil, WriteStatus},
};
use futures_util::StreamExt;

const ALL: FollowOptions = FollowOptions {
    start: FollowStart::After(OutputSeq(0)),
    backpressure: BackpressureMode::Pause,
};

async fn connect(url: &str) -> ExecServerClient {
    loop {
        // The proxy may cut the first handshake.
        let args = RemoteExecServerConnectArgs::new(url, "detached");
        match within("a connection", ExecServerClient::connect_websocket(args)).await {
            Ok(client) => return client,
            Err(error) => assert!(matches!(error, ExecServerError::Connect(_)), "{error}"),
        }
    }
}

fn id(id: &str) -> ProcessId {
    ProcessId::new(id).unwrap()
}

fn script(name: &str, script: &str) -> Command {
    let argv = ["/bin/sh", "-c", script].map(str::to_owned).to_vec();
    let cwd = PathUri::from_native(Path::new("/")).unwrap();
    Command {
        io: ProcessIo::Pipes {
            stdin: StdinMode::Piped,
        },
        ..Command::new(id(name), argv, cwd)
    }
}

async fn start(client: &ExecServerClient, command: Command) -> Arc<dyn ExecProcess> {
    let started = within("a start", client.start_detached(command)).await;
    started.unwrap().process
}

async fn attach(
    client: &ExecServerClient,
    name: &str,
    after: Option<OutputSeq>,
) -> Arc<dyn ExecProcess> {
    let attached = within("attaching", client.attach(id(name), after)).await;
    attached.unwrap()
}

async fn write(process: &Arc<dyn ExecProcess>, text: &'static str) {
    let written = process.write(None, Bytes::from_static(text.as_bytes()));
    let written = within("a write", written).await;
    assert_eq!(written, Ok(WriteStatus::Accepted));
}

/// Follows a process until it wrote `bytes` bytes or closed. Returns the output and the last
/// sequence number.
async fn output(process: &Arc<dyn ExecProcess>, bytes: usize) -> (String, OutputSeq) {
    let mut events = process.follow(ALL);
    let (mut written, mut last) = (Vec::new(), OutputSeq(0));
    while written.len() < bytes
        && let Some(event) = within("an event", events.next()).await
    {
        let seq = event.seq();
        if let ExecProcessEvent::Output(chunk) = event {
            written.extend_from_slice(&chunk.data);
        }
        last = seq.unwrap_or_else(|| panic!("process failed"));
    }
    (String::from_utf8(written).unwrap(), last)
}

#[tokio::test]
async fn detached_process_outlives_its_client_and_is_attached_by_another() {
    let server = Server::listen("ws://127.0.0.1:0").await;
    let first = connect(&server.url).await;
    let process = start(&first, script("shared", "read a; echo $a; read b; echo $b")).await;
    let pid = process.status().os_pid;
    write(&process, "one\n").await;
    let (text, last) = output(&process, 4).await;
    assert_eq!(text, "one\n");
    drop((process, first));

    let second = connect(&server.url).await;
    let listed = within("a list", second.processes()).await.unwrap();
    let [summary] = &listed[..] else {
        panic!("expected one process: {listed:?}")
    };
    assert_eq!(
        (summary.process_id.as_str(), summary.running),
        ("shared", true)
    );
    let taken = second.start_detached(script("shared", "true")).await;
    assert!(matches!(taken, Err(StartError::Remote(_))), "{taken:?}");
    let process = attach(&second, "shared", None).await;
    assert_eq!(process.status().os_pid, pid);
    assert_eq!(
        output(&process, 4).await.0,
        "one\n",
        "retained output was not replayed"
    );
    drop(process);
    let process = attach(&second, "shared", Some(last)).await;
    // Write ids of the second client do not collide with those of the first.
    write(&process, "two\n").await;
    assert_eq!(output(&process, usize::MAX).await.0, "two\n");
    let status = within("the end", process.wait(WaitUntil::Closed, None)).await;
    assert_eq!(status.unwrap().exit.unwrap().code, 0);
    drop(process);

    // The exited process is retained: attaching after the last event still returns its exit status.
    let last = OutputSeq(last.0 + 3);
    let process = attach(&second, "shared", Some(last)).await;
    let status = within("the end", process.wait(WaitUntil::Closed, None)).await;
    assert_eq!(status.unwrap().exit.unwrap().code, 0);
    let unknown = within("attaching", second.attach(id("nobody"), None)).await;
    assert_eq!(
        unknown.unwrap_err(),
        ExecServerError::UnknownProcess(id("nobody"))
    );
}

#[tokio::test]
async fn attached_process_supports_every_operation() {
    let server = Server::listen("ws://127.0.0.1:0").await;
    let client = connect(&server.url).await;
    let mut command = script(
        "terminal",
        "trap 'stty size' WINCH; echo up; while :; do read x; done",
    );
    command.io = ProcessIo::Terminal(TerminalSize { rows: 24, cols: 80 });
    drop(start(&client, command).await);
    let process = attach(&client, "terminal", None).await;
    let hold = process.hold(OutputSeq(0));
    assert_eq!(output(&process, 4).await.0, "up\r\n");
    let size = TerminalSize { rows: 5, cols: 9 };
    within("a resize", process.resize(size)).await.unwrap();
    assert_eq!(output(&process, 9).await.0, "up\r\n5 9\r\n");
    let page = within("a page", process.read(OutputReadRequest::default())).await;
    let read: Vec<u8> = page
        .unwrap()
        .chunks
        .iter()
        .flat_map(|c| c.data.to_vec())
        .collect();
    assert_eq!(read, b"up\r\n5 9\r\n");
    let snapshot = within("a snapshot", process.snapshot()).await.unwrap();
    assert_eq!(snapshot.terminal.data, b"up\r\n5 9\r\n");
    drop(hold);
    let signal = process.signal(ProcessSignal::Kill);
    within("a signal", signal).await.unwrap();
    let ended = within("the end", process.wait(WaitUntil::Exited, None)).await;
    assert_eq!(ended.unwrap().exit.unwrap().signal, Some("SIGKILL"));

    drop(start(&client, script("cat", "cat; sleep 1000")).await);
    let process = attach(&client, "cat", None).await;
    let no_terminal = within("a resize", process.resize(size)).await;
    assert!(no_terminal.is_err());
    write(&process, "text").await;
    let closed = within("a close", process.close_stdin(None)).await;
    assert_eq!(closed, Ok(WriteStatus::Accepted));
    assert_eq!(output(&process, 4).await.0, "text");
    let ended = within("an end", process.terminate(TerminateMode::Force)).await;
    assert_eq!(ended, Ok(true));
    let ended = within("the close", process.wait(WaitUntil::Closed, None)).await;
    assert_eq!(ended.unwrap().exit.unwrap().cause, ExitCause::Terminated);
}

/// Lines that the process writes, one for each line it reads.
const LINES: usize = 400;
const CUTS: usize = 12;

/// Cuts a client's connection repeatedly while a process writes, and asserts that no output is lost
/// or repeated.
async fn survive(flags: &[&str]) {
    let server = Server::listen_with("ws://127.0.0.1:0", flags).await;
    let upstream: SocketAddr = server.url.trim_start_matches("ws://").parse().unwrap();
    let direct = connect(&server.url).await;
    let command = script("cut", "while read n; do echo line $n; done");
    let driven = start(&direct, command).await;
    let proxy = CuttingProxy::start(upstream, CUTS, 0x5eed).await;
    let url = format!("ws://{}", proxy.address());
    let client = connect(&url).await;
    let process = loop {
        // The session may be lost with the response, which does not affect the process.
        match within("attaching", client.attach(id("cut"), None)).await {
            Ok(process) => break process,
            Err(error) => assert!(
                matches!(
                    error,
                    ExecServerError::Disconnected(_) | ExecServerError::Connect(_)
                ),
                "{error}"
            ),
        }
    };
    let follow = tokio::spawn(async move { output(&process, usize::MAX).await.0 });
    let mut expected = String::new();
    let mut number = 0;
    while number < LINES || proxy.cuts() < CUTS {
        assert!(!follow.is_finished(), "it was followed to the end");
        let line = format!("{number}\n");
        let written = driven.write(None, Bytes::from(line.clone().into_bytes()));
        assert_eq!(within("a write", written).await, Ok(WriteStatus::Accepted));
        expected.push_str(&format!("line {line}"));
        number += 1;
    }
    let closed = within("a close", driven.close_stdin(None)).await;
    assert_eq!(closed, Ok(WriteStatus::Accepted));
    let written = within("the close", follow).await.unwrap();
    assert_eq!(written.len(), expected.len());
    assert!(written == expected);
    assert!(proxy.cuts() >= CUTS);
    let mut states = client.connection();
    let connected = states.wait_for(|state| *state != ConnectionState::Reconnecting);
    drop(within("a connection", connected).await.unwrap());
}

#[tokio::test]
async fn disconnects_lose_and_repeat_no_output() {
    survive(&[]).await;
}

#[tokio::test]
async fn disconnects_that_lose_the_session_lose_no_output() {
    survive(&["--session-ttl", "0"]).await;
}
