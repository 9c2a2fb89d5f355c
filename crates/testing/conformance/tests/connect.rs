//! Connecting to a real server over every transport.
#![expect(clippy::unwrap_used, reason = "a failed set-up fails the test")]

use std::{ffi::OsString, path::Path};

use exec_client::{
    client::{ExecServerClient, ExecServerClientConnectOptions},
    connect::{RemoteExecServerConnectArgs, StdioExecServerConnectArgs},
    error::FaultParty,
};
use exec_conformance::server::{self, Server};
use exec_core::output_log::{BackpressureMode, FollowOptions, FollowStart};
use exec_env::{environment::Command, process::ExecProcessEvent};
use exec_test_support::bounded_wait::{wait_until, within};
use exec_transport::{connect::BearerToken, tls::TrustStore};
use exec_wire::{
    id::{OutputSeq, ProcessId},
    path_uri::PathUri,
};
use futures_util::StreamExt;
use rustix::process::{Pid, test_kill_process};

const TOKEN: &str = "correct horse battery staple é";

fn remote(url: &str) -> RemoteExecServerConnectArgs {
    RemoteExecServerConnectArgs::new(url, "connecting")
}

fn with_token(url: &str, token: &str) -> RemoteExecServerConnectArgs {
    RemoteExecServerConnectArgs {
        bearer_token: Some(BearerToken::new(token).unwrap()),
        ..remote(url)
    }
}

/// Returns the arguments for a server that the client starts itself.
fn stdio() -> StdioExecServerConnectArgs {
    let server = server::program("stdio");
    let (program, args) = (server.as_std().get_program(), server.as_std().get_args());
    StdioExecServerConnectArgs::new(program, args.map(OsString::from), "connecting")
}

/// Runs a command and returns its stdout.
async fn run(client: &ExecServerClient, script: &str) -> String {
    let argv = ["/bin/sh", "-c", script].map(str::to_owned).to_vec();
    let cwd = PathUri::from_native(Path::new("/")).unwrap();
    let id = ProcessId::new(&format!("process of {script}")).unwrap();
    let command = Command::new(id, argv, cwd);
    let started = within("a start", client.environment().backend.start(command)).await;
    let process = started.unwrap().process;
    let mut events = process.follow(FollowOptions {
        start: FollowStart::After(OutputSeq(0)),
        backpressure: BackpressureMode::Pause,
    });
    let mut written = Vec::new();
    while let Some(event) = within("an event", events.next()).await {
        if let ExecProcessEvent::Output(chunk) = event {
            written.extend_from_slice(&chunk.data);
        }
    }
    String::from_utf8(written).unwrap()
}

async fn expect_served(client: &ExecServerClient) {
    assert_eq!(run(client, "echo here; echo there").await, "here\nthere\n");
}

#[tokio::test]
async fn connects_by_websocket_with_a_token_file() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("token");
    std::fs::write(&file, format!("{TOKEN}\n")).unwrap();
    let flags = [
        "--ws-auth",
        "capability-token",
        "--ws-token-file",
        file.to_str().unwrap(),
    ];
    let server = Server::listen_with("ws://127.0.0.1:0", &flags).await;
    let connecting = ExecServerClient::connect_websocket(with_token(&server.url, TOKEN));
    expect_served(&within("a client", connecting).await.unwrap()).await;
    for (args, words) in [
        (remote(&server.url), "401 missing websocket bearer token"),
        (
            with_token(&server.url, "another"),
            "401 invalid websocket bearer token",
        ),
    ] {
        let refused = within("a refusal", ExecServerClient::connect_websocket(args)).await;
        let error = refused.unwrap_err();
        assert_eq!(error.fault(), FaultParty::Caller);
        assert!(error.to_string().contains(words), "{error}");
    }
}

#[tokio::test]
async fn connects_by_tls_with_a_trusted_certificate() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    std::fs::write(path("cert.pem"), made.cert.pem()).unwrap();
    std::fs::write(path("key.pem"), made.signing_key.serialize_pem()).unwrap();
    std::fs::write(path("token"), TOKEN).unwrap();
    let (cert, key, token) = (path("cert.pem"), path("key.pem"), path("token"));
    let flags = [
        "--tls-cert",
        &cert,
        "--tls-key",
        &key,
        "--ws-auth",
        "capability-token",
        "--ws-token-file",
        &token,
    ];
    let server = Server::listen_with("wss://127.0.0.1:0", &flags).await;
    let trusting = RemoteExecServerConnectArgs {
        trust: TrustStore::only(&cert),
        ..with_token(&server.url, TOKEN)
    };
    let connecting = ExecServerClient::connect_websocket(trusting);
    expect_served(&within("a client", connecting).await.unwrap()).await;
    // An additional root certificate keeps the connection trusted; a different one does not.
    let both = RemoteExecServerConnectArgs {
        trust: TrustStore::platform().and(&cert),
        ..with_token(&server.url, TOKEN)
    };
    expect_served(
        &within("a client", ExecServerClient::connect_websocket(both))
            .await
            .unwrap(),
    )
    .await;
    let other = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    std::fs::write(path("other.pem"), other.cert.pem()).unwrap();
    let wary = RemoteExecServerConnectArgs {
        trust: TrustStore::only(path("other.pem")),
        ..with_token(&server.url, TOKEN)
    };
    let refused = within("a refusal", ExecServerClient::connect_websocket(wary)).await;
    let error = refused.unwrap_err();
    assert_eq!(error.fault(), FaultParty::Peer);
    assert!(
        error.to_string().contains("issuer is not trusted"),
        "{error}"
    );
}

#[tokio::test]
async fn connects_by_unix_socket() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("socket");
    let server = Server::listen(&format!("unix://{}", socket.display())).await;
    let options = ExecServerClientConnectOptions::default();
    let connecting = ExecServerClient::connect_unix(&socket, options);
    expect_served(&within("a client", connecting).await.unwrap()).await;
    // The URL that the server printed works as well.
    let connecting = ExecServerClient::connect_websocket(remote(&server.url));
    expect_served(&within("a client", connecting).await.unwrap()).await;
}

#[tokio::test]
async fn connects_by_stdio_program_that_ends_with_its_client() {
    let dir = tempfile::tempdir().unwrap();
    let server = stdio();
    let mut args = StdioExecServerConnectArgs::new(
        "sh",
        ["-c", "echo $$ > pid; exec \"$0\" \"$@\""],
        "connecting",
    );
    args.cwd = Some(dir.path().to_owned());
    args.args.push(server.program);
    args.args.extend(server.args);
    let connecting = ExecServerClient::connect_stdio(args);
    let client = within("a client", connecting).await.unwrap();
    expect_served(&client).await;
    let pid = std::fs::read_to_string(dir.path().join("pid")).unwrap();
    let pid = Pid::from_raw(pid.trim().parse().unwrap()).unwrap();
    assert!(test_kill_process(pid).is_ok(), "server is not running");
    drop(client);
    wait_until("server exits", || test_kill_process(pid).is_err()).await;
}

#[tokio::test]
async fn program_that_fails_to_start_reports_its_stderr() {
    let mut args = stdio();
    args.args
        .extend(["--config", "/no/such/file"].map(OsString::from));
    let refused = within("a refusal", ExecServerClient::connect_stdio(args)).await;
    let text = refused.unwrap_err().to_string();
    assert!(
        text.contains("exited with status 1: Error: cannot read") && text.contains("/no/such/file"),
        "{text}"
    );
}
