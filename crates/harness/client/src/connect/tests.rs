//! Connect arguments, and the party that each connect error blames.

use std::{future::Future, time::Duration};

use exec_test_support::bounded_wait::within;
use exec_transport::{
    connect::{BearerToken, RequestHeaders},
    link::DataEncoding,
    memory,
};
use exec_wire::outgoing_message::OutgoingMessage;
use tokio::net::TcpListener;

use super::{ServerConnector, SessionContinuity, *};
use crate::{
    client::{ExecServerClient, ExecServerClientConnectOptions},
    error::{ExecServerError, FaultParty},
};

/// A shell script that answers `initialize` and runs until its stdin ends.
const SERVER: &str =
    r#"read -r request; echo '{"id":1,"result":{"sessionId":"s"}}'; cat >/dev/null"#;

fn remote(url: &str) -> RemoteExecServerConnectArgs {
    RemoteExecServerConnectArgs::new(url, "test")
}

fn script(text: &str) -> StdioExecServerConnectArgs {
    StdioExecServerConnectArgs::new("sh", ["-c", text], "test")
}

async fn fault(
    connecting: impl Future<Output = Result<ExecServerClient, ExecServerError>>,
) -> (FaultParty, String) {
    let error = within("an error", connecting).await.expect_err("no client");
    (error.fault(), error.to_string())
}

#[tokio::test]
async fn invalid_arguments_are_reported_before_connecting() {
    let token = |url| RemoteExecServerConnectArgs {
        bearer_token: Some(BearerToken::new("s3cret").unwrap()),
        ..remote(url)
    };
    for (args, words) in [
        (remote("http://a.test"), "scheme `http` is not supported"),
        (
            remote("ws://me:s3cret@a.test"),
            "passwords are not supported",
        ),
        (remote("s3cret"), "expected ws://HOST:PORT"),
        (
            token("ws://a.test"),
            "sent over wss:// or to this machine only",
        ),
        (
            token("ws://192.0.2.1:80"),
            "sent over wss:// or to this machine only",
        ),
    ] {
        let debug = format!("{args:?}");
        let (fault, text) = fault(ExecServerClient::connect_websocket(args)).await;
        assert_eq!(fault, FaultParty::Caller, "{text}");
        assert!(text.contains(words) && !text.contains("s3cret"), "{text}");
        assert!(!debug.contains("s3cret"), "{debug}");
    }
    for url in [
        "wss://a.test",
        "ws://localhost:1",
        "ws://[::1]:1",
        "unix:///x",
    ] {
        let connector = token(url).connector().unwrap();
        assert_eq!(connector.continuity(), SessionContinuity::Resumed);
    }
}

#[test]
fn debug_output_hides_secrets() {
    let args = RemoteExecServerConnectArgs {
        headers: RequestHeaders::new([("x-key", "s3cret")]).unwrap(),
        bearer_token: Some(BearerToken::new("s3cret").unwrap()),
        ..remote("wss://a.test/?key=s3cret")
    };
    let mut program = script("exit");
    program.env.insert("KEY".into(), "s3cret".into());
    for debug in [
        format!("{args:?} {:?}", args.connector().unwrap()),
        format!("{program:?} {:?}", program.connector()),
    ] {
        assert!(!debug.contains("s3cret"), "{debug}");
        assert!(debug.contains("a.test") || debug.contains("KEY"), "{debug}");
    }
}

#[tokio::test]
async fn unreachable_server_is_a_transport_fault() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("ws://{}", listener.local_addr().unwrap());
    drop(listener);
    let (fault_, text) = fault(ExecServerClient::connect_websocket(remote(&url))).await;
    assert_eq!(fault_, FaultParty::Transport);
    assert!(text.contains(&url) && text.contains("refused"), "{text}");
    let dir = tempfile::tempdir().unwrap();
    let connecting = ExecServerClient::connect_unix(
        dir.path().join("none"),
        ExecServerClientConnectOptions::default(),
    );
    let (fault_, text) = fault(connecting).await;
    assert_eq!(fault_, FaultParty::Transport);
    assert!(text.contains("No such file"), "{text}");
}

#[tokio::test]
async fn unresponsive_server_times_out() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let args = RemoteExecServerConnectArgs {
        connect_timeout: Duration::from_millis(50),
        ..remote(&format!("ws://{}", listener.local_addr().unwrap()))
    };
    let (fault_, text) = fault(ExecServerClient::connect_websocket(args)).await;
    assert_eq!(fault_, FaultParty::Transport);
    assert!(text.contains("took longer than 50ms"), "{text}");
    let args = StdioExecServerConnectArgs {
        initialize_timeout: Duration::from_millis(50),
        ..script("sleep 1000")
    };
    let (fault_, text) = fault(ExecServerClient::connect_stdio(args)).await;
    assert_eq!(fault_, FaultParty::Peer);
    assert!(
        text.contains("did not answer `initialize` within 50ms"),
        "{text}"
    );
}

#[tokio::test]
async fn stdio_program_connects() {
    let client = within("a client", ExecServerClient::connect_stdio(script(SERVER))).await;
    assert_eq!(client.unwrap().session().session_id.to_string(), "s");
    assert_eq!(
        script("").connector().continuity(),
        SessionContinuity::Ended
    );
}

#[tokio::test]
async fn failed_program_reports_its_stderr() {
    let (fault_, text) = fault(ExecServerClient::connect_stdio(script(
        "read -r request; echo 'no such host' >&2; exit 255",
    )))
    .await;
    assert_eq!(fault_, FaultParty::Transport);
    assert!(
        text.contains("exited with status 255: no such host"),
        "{text}"
    );
    let missing =
        StdioExecServerConnectArgs::new("no-such-program-of-ours", Vec::<String>::new(), "test");
    let (fault_, text) = fault(ExecServerClient::connect_stdio(missing)).await;
    assert_eq!(fault_, FaultParty::Caller);
    assert!(
        text.contains("cannot start `no-such-program-of-ours`: No such file"),
        "{text}"
    );
}

#[tokio::test]
async fn exit_of_a_program_is_reported_to_callers() {
    let program = r#"read -r request; echo '{"id":1,"result":{"sessionId":"s"}}'; read -r initialized; read -r call
        echo 'out of memory' >&2; exit 9"#;
    let connected = within("a client", ExecServerClient::connect_stdio(script(program))).await;
    let client = connected.unwrap();
    let error = within("an error", client.status()).await.unwrap_err();
    assert!(
        error
            .to_string()
            .contains("exited with status 9: out of memory"),
        "{error}"
    );
    let second_error = within("an error", client.status()).await.unwrap_err();
    assert!(
        second_error
            .to_string()
            .contains("exited with status 9: out of memory"),
        "{second_error}"
    );
}

#[tokio::test]
async fn in_process_server_connects() {
    let open = || {
        let (near, mut far) = memory::pair();
        tokio::spawn(async move {
            far.reader.next().await.unwrap().unwrap();
            let id = exec_wire::message::RequestId::Number(1);
            let answer = serde_json::json!({"sessionId": "m"});
            far.writer
                .push(OutgoingMessage::result(&id, &answer), DataEncoding::Text);
            far.writer.flush().await.unwrap();
            while let Ok(Some(_)) = far.reader.next().await {}
        });
        near
    };
    let options = ExecServerClientConnectOptions::default();
    let connecting = ExecServerClient::connect_memory(open, SessionContinuity::Ended, options);
    let client = within("a client", connecting).await.unwrap();
    assert_eq!(client.session().session_id.to_string(), "m");
}

#[tokio::test(start_paused = true)]
async fn initialize_timeout_includes_the_link_handshake() {
    let (mut link, _silent) = memory::pair();
    let started_at = tokio::time::Instant::now();
    link.handshake_started_at = Some(started_at);
    tokio::time::sleep(Duration::from_secs(8)).await;
    let options = ExecServerClientConnectOptions::default();
    let (_, text) = fault(ExecServerClient::connect(link, options)).await;
    assert!(text.contains("10s"), "{text}");
    assert_eq!(started_at.elapsed().as_secs(), 10);
}
