//! Errors of pending calls when a server fails, and the shutdown of servers.

use std::time::Duration;

use exec_env::{environment::DisconnectReason, process::ProcessError};
use exec_mcp_client::{
    config::{ConnectedServer, LaunchError},
    transport::McpTransportError,
};
use exec_test_support::{bounded_wait::within, fake_process::ProcessCall};
use exec_wire::process::{TerminateMode, WriteStatus};
use futures_util::future::{join, join3};
use rmcp::{
    model::CallToolRequestParams,
    service::{RoleClient, RunningService, ServiceError},
};
use serde_json::json;
use tokio::time::Instant;

use crate::{
    fake_server::{FakeServer, config, id, pair},
    messages::{connected, connected_with},
};

async fn call(service: &RunningService<RoleClient, ()>) -> ServiceError {
    let call = service.call_tool(CallToolRequestParams::new("slow"));
    within("the call is over", call).await.unwrap_err()
}

/// Returns the transport error of a failed call.
fn transport_error(error: &ServiceError) -> McpTransportError {
    let ServiceError::TransportSend(error) = error else {
        panic!("expected a transport error: {error:?}");
    };
    let error = error.error.downcast_ref::<McpTransportError>();
    error.unwrap().clone()
}

async fn expect_two_calls(server: &mut FakeServer) {
    for _ in 0..2 {
        server.expect_request("tools/call").await;
    }
}

#[tokio::test(start_paused = true)]
async fn server_exit_fails_all_pending_calls_at_once() {
    let (mut server, ConnectedServer { service, watch }) = connected().await;
    let started_at = Instant::now();
    let serving = async {
        expect_two_calls(&mut server).await;
        server.write_stderr("loading\nTraceback: out of ");
        server.write_stderr("cheese\n");
        server.exits(3, None);
        server.process.close();
    };
    let (first, second, ()) = join3(call(&service), call(&service), serving).await;
    for error in [first, second] {
        let text = error.to_string();
        assert!(text.contains("`fake` exited with code 3"), "{text}");
        assert!(text.contains("out of cheese"), "{text}");
        assert!(matches!(
            transport_error(&error),
            McpTransportError::Exited { .. }
        ));
    }
    assert!(started_at.elapsed() < Duration::from_millis(20));
    assert!(matches!(
        watch.ended(),
        Some(McpTransportError::Exited { .. })
    ));
    // Later calls fail as well.
    call(&service).await;
}

#[tokio::test(start_paused = true)]
async fn killing_signal_is_named() {
    let (mut server, ConnectedServer { service, .. }) = connected().await;
    let serving = async {
        server.expect_request("tools/call").await;
        server.exits(137, Some("SIGKILL"));
        server.process.close();
    };
    let (error, ()) = join(call(&service), serving).await;
    let text = error.to_string();
    assert!(text.contains("was killed by SIGKILL"), "{text}");
}

#[tokio::test(start_paused = true)]
async fn descendant_holding_stdout_does_not_hide_the_exit() {
    let (mut server, ConnectedServer { service, .. }) = connected().await;
    let serving = async {
        server.expect_request("tools/call").await;
        server.exits(1, None);
    };
    let (error, ()) = join(call(&service), serving).await;
    assert!(matches!(
        transport_error(&error),
        McpTransportError::Exited { .. }
    ));
}

#[tokio::test(start_paused = true)]
async fn response_after_exit_is_received() {
    let (mut server, ConnectedServer { service, .. }) = connected().await;
    let serving = async {
        let id = server.expect_request("tools/call").await;
        server.exits(0, None);
        server.respond(&id, &json!({"content": []}));
        server.process.close();
    };
    let call = service.call_tool(CallToolRequestParams::new("last"));
    let (result, ()) = within("the call is over", join(call, serving)).await;
    result.unwrap();
}

#[tokio::test(start_paused = true)]
async fn disconnect_fails_all_pending_calls_at_once() {
    let (mut server, ConnectedServer { service, .. }) = connected().await;
    let started_at = Instant::now();
    let reason = DisconnectReason::Transport("reset by peer".to_owned());
    let serving = async {
        expect_two_calls(&mut server).await;
        server
            .process
            .fail(ProcessError::Disconnected(reason.clone()));
    };
    let (first, second, ()) = join3(call(&service), call(&service), serving).await;
    for error in [first, second] {
        let text = error.to_string();
        assert!(text.contains("reset by peer"), "{text}");
        let McpTransportError::Lost { error, .. } = transport_error(&error) else {
            panic!("expected a loss: {error:?}");
        };
        assert_eq!(error, ProcessError::Disconnected(reason.clone()));
    }
    assert!(started_at.elapsed() < Duration::from_millis(20));
}

#[tokio::test(start_paused = true)]
async fn overlong_line_fails_the_transport() {
    let mut short = config();
    short.max_line_bytes = 1000;
    let (mut server, ConnectedServer { service, .. }) = connected_with(short).await;
    let serving = async {
        server.expect_request("tools/call").await;
        server.write_stdout(&[b'x'; 1001]);
    };
    let (error, ()) = join(call(&service), serving).await;
    let expected = McpTransportError::LineTooLong {
        server: "fake".to_owned(),
        limit: 1000,
    };
    assert_eq!(transport_error(&error), expected);
}

#[tokio::test(start_paused = true)]
async fn malformed_response_fails_only_its_call() {
    let (mut server, ConnectedServer { service, .. }) = connected().await;
    let serving = async {
        let [bad, good] = [
            server.expect_request("tools/call").await,
            server.expect_request("tools/call").await,
        ];
        server.send(&json!({"jsonrpc": "2.0", "id": bad, "result": {}, "error": 7}));
        server.respond(&good, &json!({"content": []}));
    };
    let params = || CallToolRequestParams::new("any");
    let calls = join3(
        service.call_tool(params()),
        service.call_tool(params()),
        serving,
    );
    let (first, second, ()) = within("both are over", calls).await;
    let ((Err(error), Ok(_)) | (Ok(_), Err(error))) = (first, second) else {
        panic!("one fails and the other does not");
    };
    assert!(matches!(
        transport_error(&error),
        McpTransportError::Malformed { .. }
    ));
}

#[tokio::test(start_paused = true)]
async fn closed_stdin_fails_the_call() {
    let (server, ConnectedServer { service, .. }) = connected().await;
    server.process.set_write_status(WriteStatus::StdinClosed);
    let closed = transport_error(&call(&service).await);
    assert!(matches!(closed, McpTransportError::StdinClosed { .. }));
    server.process.set_write_status(WriteStatus::UnknownProcess);
    let unknown = transport_error(&call(&service).await);
    assert!(matches!(unknown, McpTransportError::Lost { .. }));
}

#[tokio::test(start_paused = true)]
async fn exit_after_a_failed_write_is_reported_instead() {
    let (server, ConnectedServer { service, .. }) = connected().await;
    server.process.set_write_status(WriteStatus::StdinClosed);
    let serving = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        server.exits(9, None);
        server.process.close();
    };
    let (error, ()) = join(call(&service), serving).await;
    assert!(matches!(
        transport_error(&error),
        McpTransportError::Exited { .. }
    ));
}

#[tokio::test(start_paused = true)]
async fn write_to_a_starting_server_is_retried() {
    let (mut server, backend) = pair();
    server.process.set_write_status(WriteStatus::Starting);
    let (config, id) = (config(), id());
    let connect = config.connect(&backend, id, ());
    let serving = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        server.process.set_write_status(WriteStatus::Accepted);
        server.complete_handshake().await;
    };
    let (connected, ()) = within("handshake", join(connect, serving)).await;
    connected.unwrap();
}

#[tokio::test(start_paused = true)]
async fn exit_during_startup_is_reported_with_stderr() {
    let (mut server, backend) = pair();
    let (config, id) = (config(), id());
    let connect = config.connect(&backend, id, ());
    let serving = async {
        server.expect_request("initialize").await;
        server.write_stderr("no such module");
        server.exits(2, None);
        server.process.close();
    };
    let (connected, ()) = within("it is over", join(connect, serving)).await;
    let error = connected.unwrap_err();
    assert!(matches!(error, LaunchError::Transport(_)), "{error:?}");
    let text = error.to_string();
    assert!(text.contains("exited with code 2"), "{text}");
    assert!(text.contains("no such module"), "{text}");
}

#[tokio::test(start_paused = true)]
async fn startup_timeout_is_reported() {
    let (mut server, backend) = pair();
    server.write_stderr("installing…\n");
    let connected = within("it is over", config().connect(&backend, id(), ())).await;
    let error = connected.unwrap_err();
    assert!(matches!(error, LaunchError::TimedOut { .. }), "{error:?}");
    assert!(error.to_string().contains("installing"), "{error}");
    server.expect_request("initialize").await;
    assert_eq!(server.next_call().await, ProcessCall::CloseStdin);
}

#[tokio::test(start_paused = true)]
async fn start_failure_is_reported() {
    let (_server, backend) = pair();
    let _started = config().launch(&backend, id()).await.unwrap();
    let refused = config().connect(&backend, id(), ()).await.unwrap_err();
    assert!(matches!(refused, LaunchError::Start { .. }), "{refused:?}");
}

#[tokio::test(start_paused = true)]
async fn maximum_timeout_does_not_overflow() {
    let (mut server, backend) = pair();
    let mut config = config();
    config.startup_timeout = Duration::MAX;
    let connect = config.connect(&backend, id(), ());
    let (connected, ()) = join(
        within("it gets ready", connect),
        server.complete_handshake(),
    )
    .await;
    assert!(connected.is_ok());
}

#[tokio::test(start_paused = true)]
async fn partially_written_message_ends_the_transport() {
    let (mut server, ConnectedServer { service, watch }) = connected().await;
    server.process.script_writes([Ok(WriteStatus::Accepted)]);
    server.process.set_write_status(WriteStatus::Starting);
    let text = "x".repeat(1 << 20);
    let arguments = json!({ "text": text }).as_object().cloned().unwrap();
    let large = service.call_tool(CallToolRequestParams::new("t").with_arguments(arguments));
    let error = transport_error(&within("it is given up", large).await.unwrap_err());
    let ProcessCall::Write(half) = server.next_call().await else {
        panic!("expected the first part of a message");
    };
    assert!(!half.ends_with(b"\n"));
    // The server would read the next message as the rest of this one.
    assert_eq!(watch.ended(), Some(error));
}

const GRACEFUL: ProcessCall = ProcessCall::Terminate(TerminateMode::Graceful { timeout_ms: 3000 });
const FORCE: ProcessCall = ProcessCall::Terminate(TerminateMode::Force);

#[tokio::test(start_paused = true)]
async fn server_that_exits_on_eof_is_not_terminated() {
    let (mut server, connected) = connected().await;
    drop(connected);
    assert_eq!(server.next_call().await, ProcessCall::CloseStdin);
    server.exits(0, None);
    server.process.close();
    assert_eq!(server.next_call().await, ProcessCall::Drop);
}

#[tokio::test(start_paused = true)]
async fn unresponsive_server_is_terminated_then_killed() {
    let (mut server, connected) = connected().await;
    drop(connected);
    assert_eq!(server.next_call().await, ProcessCall::CloseStdin);
    assert_eq!(server.next_call().await, GRACEFUL);
    assert_eq!(server.next_call().await, FORCE);
    assert_eq!(server.next_call().await, ProcessCall::Drop);
}

#[tokio::test(start_paused = true)]
async fn server_that_handles_sigterm_is_not_killed() {
    let (mut server, connected) = connected().await;
    drop(connected);
    assert_eq!(server.next_call().await, ProcessCall::CloseStdin);
    assert_eq!(server.next_call().await, GRACEFUL);
    server.exits(143, Some("SIGTERM"));
    server.process.close();
    assert_eq!(server.next_call().await, ProcessCall::Drop);
}

#[tokio::test(start_paused = true)]
async fn server_that_does_not_read_is_still_stopped() {
    let (mut server, ConnectedServer { service, .. }) = connected().await;
    server.process.set_reading(false);
    let peer = service.peer().clone();
    let waiting = tokio::spawn(async move { peer.list_tools(None).await });
    tokio::time::sleep(Duration::from_millis(1)).await;
    drop(service);
    assert_eq!(server.next_call().await, GRACEFUL);
    assert_eq!(server.next_call().await, FORCE);
    assert_eq!(server.next_call().await, ProcessCall::Drop);
    let outcome = within("pending call fails", waiting).await.unwrap();
    assert!(outcome.is_err());
}

#[tokio::test(start_paused = true)]
async fn cancel_waits_for_the_server_to_exit() {
    let (mut server, ConnectedServer { service, watch }) = connected().await;
    let serving = async {
        assert_eq!(server.next_call().await, ProcessCall::CloseStdin);
        tokio::time::sleep(Duration::from_secs(1)).await;
        server.exits(0, None);
        server.process.close();
        tokio::time::Instant::now()
    };
    let both = futures_util::future::join(service.cancel(), serving);
    let (cancelled, exited) = within("it is over", both).await;
    cancelled.unwrap();
    assert!(tokio::time::Instant::now() >= exited);
    assert_eq!(server.next_call().await, ProcessCall::Drop);
    assert!(watch.ended().is_some());
}
