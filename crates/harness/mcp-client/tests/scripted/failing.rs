//! What those who wait are told when a server fails.

use std::time::Duration;

use exec_env::{disconnect::Disconnect, process::ProcessError};
use exec_mcp_client::{
    config::Connected,
    error::{LaunchError, McpTransportError},
};
use exec_wire::process::{TerminateMode, WriteStatus};
use futures_util::future::{join, join3};
use rmcp::{
    model::CallToolRequestParams,
    service::{RoleClient, RunningService, ServiceError},
};
use serde_json::json;
use tokio::time::Instant;

use crate::{
    fake_server::{Input, Server, config, id, pair, within},
    messages::{connected, connected_with},
};

async fn call(service: &RunningService<RoleClient, ()>) -> ServiceError {
    let call = service.call_tool(CallToolRequestParams::new("slow"));
    within("the call is over", call).await.unwrap_err()
}

/// The transport's own error, that a call failed with.
fn reason(error: &ServiceError) -> McpTransportError {
    let ServiceError::TransportSend(error) = error else {
        panic!("expected an error of the transport: {error:?}");
    };
    let error = error.error.downcast_ref::<McpTransportError>();
    error.unwrap().clone()
}

async fn two_calls(server: &mut Server) {
    for _ in 0..2 {
        server.hears_request("tools/call").await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_death_of_a_server_is_told_at_once_to_all_who_wait() {
    let (mut server, Connected { service, watch }) = connected().await;
    let begun = Instant::now();
    let serving = async {
        two_calls(&mut server).await;
        server.complains("loading\nTraceback: out of ");
        server.complains("cheese\n");
        server.exits(3, None);
        server.closes();
    };
    let (one, other, ()) = join3(call(&service), call(&service), serving).await;
    for error in [one, other] {
        let text = error.to_string();
        assert!(text.contains("`fake` exited with code 3"), "{text}");
        assert!(text.contains("out of cheese"), "{text}");
        assert!(matches!(reason(&error), McpTransportError::Exited { .. }));
    }
    assert!(begun.elapsed() < Duration::from_millis(20));
    assert!(matches!(
        watch.ended(),
        Some(McpTransportError::Exited { .. })
    ));
    // Later calls fail, too.
    call(&service).await;
}

#[tokio::test(start_paused = true)]
async fn a_signal_is_told_by_name() {
    let (mut server, Connected { service, .. }) = connected().await;
    let serving = async {
        server.hears_request("tools/call").await;
        server.exits(137, Some("SIGKILL"));
        server.closes();
    };
    let (error, ()) = join(call(&service), serving).await;
    let text = error.to_string();
    assert!(text.contains("was killed by SIGKILL"), "{text}");
}

#[tokio::test(start_paused = true)]
async fn a_descendant_that_holds_the_output_does_not_hide_the_death() {
    let (mut server, Connected { service, .. }) = connected().await;
    let serving = async {
        server.hears_request("tools/call").await;
        server.exits(1, None);
    };
    let (error, ()) = join(call(&service), serving).await;
    assert!(matches!(reason(&error), McpTransportError::Exited { .. }));
}

#[tokio::test(start_paused = true)]
async fn an_answer_behind_the_exit_is_received() {
    let (mut server, Connected { service, .. }) = connected().await;
    let serving = async {
        let id = server.hears_request("tools/call").await;
        server.exits(0, None);
        server.answers(&id, &json!({"content": []}));
        server.closes();
    };
    let call = service.call_tool(CallToolRequestParams::new("last"));
    let (result, ()) = within("the call is over", join(call, serving)).await;
    result.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_disconnect_is_told_at_once_to_all_who_wait() {
    let (mut server, Connected { service, .. }) = connected().await;
    let begun = Instant::now();
    let gone = Disconnect::Transport("reset by peer".to_owned());
    let serving = async {
        two_calls(&mut server).await;
        server.is_lost(ProcessError::Disconnected(gone.clone()));
    };
    let (one, other, ()) = join3(call(&service), call(&service), serving).await;
    for error in [one, other] {
        let text = error.to_string();
        assert!(text.contains("reset by peer"), "{text}");
        let McpTransportError::Lost { error, .. } = reason(&error) else {
            panic!("expected a loss: {error:?}");
        };
        assert_eq!(error, ProcessError::Disconnected(gone.clone()));
    }
    assert!(begun.elapsed() < Duration::from_millis(20));
}

#[tokio::test(start_paused = true)]
async fn a_line_without_end_is_a_failure() {
    let mut short = config();
    short.max_line_bytes = 1000;
    let (mut server, Connected { service, .. }) = connected_with(short).await;
    let serving = async {
        server.hears_request("tools/call").await;
        server.prints(&[b'x'; 1001]);
    };
    let (error, ()) = join(call(&service), serving).await;
    let expected = McpTransportError::LineTooLong {
        server: "fake".to_owned(),
        limit: 1000,
    };
    assert_eq!(reason(&error), expected);
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_cannot_be_read_fails_its_call_alone() {
    let (mut server, Connected { service, .. }) = connected().await;
    let serving = async {
        let [bad, good] = [
            server.hears_request("tools/call").await,
            server.hears_request("tools/call").await,
        ];
        server.says(&json!({"jsonrpc": "2.0", "id": bad, "result": {}, "error": 7}));
        server.answers(&good, &json!({"content": []}));
    };
    let params = || CallToolRequestParams::new("any");
    let calls = join3(
        service.call_tool(params()),
        service.call_tool(params()),
        serving,
    );
    let (one, other, ()) = within("both are over", calls).await;
    let ((Err(error), Ok(_)) | (Ok(_), Err(error))) = (one, other) else {
        panic!("one fails and the other does not");
    };
    assert!(matches!(
        reason(&error),
        McpTransportError::Malformed { .. }
    ));
}

#[tokio::test(start_paused = true)]
async fn a_server_that_takes_no_input_is_a_failure() {
    let (server, Connected { service, .. }) = connected().await;
    server.answers_writes_with(WriteStatus::StdinClosed);
    let closed = reason(&call(&service).await);
    assert!(matches!(closed, McpTransportError::StdinClosed { .. }));
    server.answers_writes_with(WriteStatus::UnknownProcess);
    let unknown = reason(&call(&service).await);
    assert!(matches!(unknown, McpTransportError::Lost { .. }));
}

#[tokio::test(start_paused = true)]
async fn an_end_behind_a_refused_write_is_what_is_told() {
    let (server, Connected { service, .. }) = connected().await;
    server.answers_writes_with(WriteStatus::StdinClosed);
    let serving = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        server.exits(9, None);
        server.closes();
    };
    let (error, ()) = join(call(&service), serving).await;
    assert!(matches!(reason(&error), McpTransportError::Exited { .. }));
}

#[tokio::test(start_paused = true)]
async fn a_server_that_is_starting_is_tried_again() {
    let (mut server, backend) = pair();
    server.answers_writes_with(WriteStatus::Starting);
    let (config, id) = (config(), id());
    let connect = config.connect(&backend, id, ());
    let serving = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        server.answers_writes_with(WriteStatus::Accepted);
        server.initializes().await;
    };
    let (connected, ()) = within("they shake hands", join(connect, serving)).await;
    connected.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_server_that_dies_before_it_is_ready_is_told_with_its_last_words() {
    let (mut server, backend) = pair();
    let (config, id) = (config(), id());
    let connect = config.connect(&backend, id, ());
    let serving = async {
        server.hears_request("initialize").await;
        server.complains("no such module");
        server.exits(2, None);
        server.closes();
    };
    let (connected, ()) = within("it is over", join(connect, serving)).await;
    let error = connected.unwrap_err();
    assert!(matches!(error, LaunchError::Transport(_)), "{error:?}");
    let text = error.to_string();
    assert!(text.contains("exited with code 2"), "{text}");
    assert!(text.contains("no such module"), "{text}");
}

#[tokio::test(start_paused = true)]
async fn a_server_that_does_not_get_ready_is_given_up() {
    let (mut server, backend) = pair();
    server.complains("installing…\n");
    let connected = within("it is over", config().connect(&backend, id(), ())).await;
    let error = connected.unwrap_err();
    assert!(matches!(error, LaunchError::TimedOut { .. }), "{error:?}");
    assert!(error.to_string().contains("installing"), "{error}");
    server.hears_request("initialize").await;
    assert_eq!(server.next_input().await, crate::fake_server::Input::End);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_cannot_be_started_is_told() {
    let (_server, backend) = pair();
    let _started = config().launch(&backend, id()).await.unwrap();
    let refused = config().connect(&backend, id(), ()).await.unwrap_err();
    assert!(matches!(refused, LaunchError::Start { .. }), "{refused:?}");
}

#[tokio::test(start_paused = true)]
async fn a_time_limit_may_be_as_long_as_there_is() {
    let (mut server, backend) = pair();
    let mut config = config();
    config.startup_timeout = Duration::MAX;
    let connect = config.connect(&backend, id(), ());
    let (connected, ()) = join(within("it gets ready", connect), server.initializes()).await;
    assert!(connected.is_ok());
}

#[tokio::test(start_paused = true)]
async fn half_a_message_is_the_end_of_the_transport() {
    let (mut server, Connected { service, watch }) = connected().await;
    server.answers_writes_behind(1, WriteStatus::Starting);
    let text = "x".repeat(1 << 20);
    let arguments = json!({ "text": text }).as_object().cloned().unwrap();
    let large = service.call_tool(CallToolRequestParams::new("t").with_arguments(arguments));
    let error = reason(&within("it is given up", large).await.unwrap_err());
    let Input::Data(half) = server.next_input().await else {
        panic!("expected the first part of a message");
    };
    assert!(!half.ends_with(b"\n"));
    // What is sent next would be read as the rest of that message.
    assert_eq!(watch.ended(), Some(error));
}

const GRACEFUL: Input = Input::Terminate(TerminateMode::Graceful { timeout_ms: 3000 });
const FORCE: Input = Input::Terminate(TerminateMode::Force);

#[tokio::test(start_paused = true)]
async fn a_server_that_ends_with_its_input_is_not_terminated() {
    let (mut server, connected) = connected().await;
    drop(connected);
    assert_eq!(server.next_input().await, Input::End);
    server.exits(0, None);
    server.closes();
    assert_eq!(server.next_input().await, Input::Dropped);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_goes_on_is_terminated_then_killed() {
    let (mut server, connected) = connected().await;
    drop(connected);
    assert_eq!(server.next_input().await, Input::End);
    assert_eq!(server.next_input().await, GRACEFUL);
    assert_eq!(server.next_input().await, FORCE);
    assert_eq!(server.next_input().await, Input::Dropped);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_heeds_the_signal_is_not_killed() {
    let (mut server, connected) = connected().await;
    drop(connected);
    assert_eq!(server.next_input().await, Input::End);
    assert_eq!(server.next_input().await, GRACEFUL);
    server.exits(143, Some("SIGTERM"));
    server.closes();
    assert_eq!(server.next_input().await, Input::Dropped);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_does_not_read_is_ended_all_the_same() {
    let (mut server, Connected { service, .. }) = connected().await;
    server.reads(false);
    let peer = service.peer().clone();
    let waiting = tokio::spawn(async move { peer.list_tools(None).await });
    tokio::time::sleep(Duration::from_millis(1)).await;
    drop(service);
    assert_eq!(server.next_input().await, GRACEFUL);
    assert_eq!(server.next_input().await, FORCE);
    assert_eq!(server.next_input().await, Input::Dropped);
    let told = within("who waits is told", waiting).await.unwrap();
    assert!(told.is_err());
}

#[tokio::test(start_paused = true)]
async fn cancelling_waits_for_the_end_of_the_server() {
    let (mut server, Connected { service, watch }) = connected().await;
    let serving = async {
        assert_eq!(server.next_input().await, Input::End);
        tokio::time::sleep(Duration::from_secs(1)).await;
        server.exits(0, None);
        server.closes();
        tokio::time::Instant::now()
    };
    let both = futures_util::future::join(service.cancel(), serving);
    let (cancelled, exited) = within("it is over", both).await;
    cancelled.unwrap();
    assert!(tokio::time::Instant::now() >= exited);
    assert_eq!(server.next_input().await, Input::Dropped);
    assert!(watch.ended().is_some());
}
