//! Messages in both directions.

use std::time::Duration;

use bytes::Bytes;
use exec_env::environment::{ProcessIo, StdinMode};
use exec_mcp_client::{
    config::{ConnectedServer, InheritedVariables, McpServerConfig},
    transport::McpTransport,
};
use exec_test_support::{
    bounded_wait::within, fake_environment::FakeBackend, fake_process::ProcessCall,
};
use exec_wire::process::EnvInherit;
use futures_util::{
    FutureExt,
    future::{BoxFuture, join},
};
use rmcp::{
    RoleClient,
    model::{CallToolRequestParams, JsonRpcMessage},
    transport::Transport,
};
use serde_json::{Value, json};

use crate::fake_server::{FakeServer, config, id, initialized, pair};

pub(crate) async fn connected() -> (FakeServer, ConnectedServer<()>) {
    connected_with(config()).await
}

pub(crate) async fn connected_with(config: McpServerConfig) -> (FakeServer, ConnectedServer<()>) {
    let (mut server, backend) = pair();
    let connect = config.connect(&backend, id(), ());
    let both = join(connect, server.complete_handshake());
    let (connected, ()) = within("handshake", both).await;
    (server, connected.unwrap())
}

async fn launched(backend: &FakeBackend) -> McpTransport {
    config().launch(backend, id()).await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn tools_are_listed_and_called() {
    let (mut server, ConnectedServer { service, .. }) = connected().await;
    let serving = async {
        let id = server.expect_request("tools/list").await;
        let tool = json!({"name": "echo", "inputSchema": {"type": "object"}});
        server.respond(&id, &json!({ "tools": [tool] }));
        let id = server.expect_request("tools/call").await;
        server.respond(
            &id,
            &json!({"content": [{"type": "text", "text": "hello"}]}),
        );
    };
    let calling = async {
        let tools = service.list_all_tools().await.unwrap();
        assert_eq!(tools[0].name, "echo");
        service.call_tool(CallToolRequestParams::new("echo")).await
    };
    let (result, ()) = within("they talk", join(calling, serving)).await;
    let result = serde_json::to_value(result.unwrap()).unwrap();
    assert_eq!(result["content"][0]["text"], "hello");
}

#[tokio::test(start_paused = true)]
async fn messages_do_not_depend_on_chunk_boundaries() {
    let (server, backend) = pair();
    let mut transport = launched(&backend).await;
    let text = "gr\u{fc}n \u{1f331}".repeat(30);
    let message = json!({"jsonrpc": "2.0", "id": 1, "method": "ping", "params": {"x": text}});
    let line = format!("{message}\r\n\n{message}\n");
    for size in [1, 2, 7, 1000] {
        for chunk in line.as_bytes().chunks(size) {
            server.write_stdout(chunk);
        }
        for _ in 0..2 {
            let received = within("a message comes", transport.receive()).await;
            assert!(matches!(received, Some(JsonRpcMessage::Request(_))));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn invalid_messages_are_skipped() {
    let (server, backend) = pair();
    let mut transport = launched(&backend).await;
    server.write_stdout(b"Listening on stdio\n{\"jsonrpc\": \"1.0\"}\n\xff\xfe\n[]\n");
    server.send(&json!({"jsonrpc": "2.0", "id": 1, "method": "ping"}));
    let received = within("a message comes", transport.receive()).await;
    assert!(matches!(received, Some(JsonRpcMessage::Request(_))));
}

#[tokio::test(start_paused = true)]
async fn server_request_before_its_response_is_answered() {
    let (mut server, backend) = pair();
    let (config, id) = (config(), id());
    let connect = config.connect(&backend, id, ());
    let serving = async {
        let id = server.expect_request("initialize").await;
        server.send(&json!({"jsonrpc": "2.0", "id": "p", "method": "ping"}));
        let pong = server.next_message().await;
        assert_eq!((&pong["id"], &pong["result"]), (&json!("p"), &json!({})));
        server.respond(&id, &initialized());
        server.next_message().await;
    };
    let (connected, ()) = within("handshake", join(connect, serving)).await;
    connected.unwrap();
}

#[tokio::test(start_paused = true)]
async fn unread_messages_apply_backpressure_to_the_server() {
    const MESSAGES: usize = 1000;
    let (server, backend) = pair();
    let mut transport = launched(&backend).await;
    let padding = "x".repeat(1000);
    for number in 0..MESSAGES {
        let params = json!({"level": "info", "data": {"number": number, "padding": padding}});
        let method = "notifications/message";
        server.send(&json!({"jsonrpc": "2.0", "method": method, "params": params}));
    }
    // By now the reader has filled its queue.
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(server.process.is_paused());
    for number in 0..MESSAGES {
        let message = within("a message comes", transport.receive()).await;
        let message = serde_json::to_value(message.unwrap()).unwrap();
        assert_eq!(message["params"]["data"]["number"], number);
    }
    assert!(!server.process.is_paused());
}

fn notification(
    text: &str,
) -> JsonRpcMessage<
    rmcp::model::ClientRequest,
    rmcp::model::ClientResult,
    rmcp::model::ClientNotification,
> {
    let params = json!({"progressToken": text, "progress": 1});
    let method = "notifications/progress";
    let message = json!({"jsonrpc": "2.0", "method": method, "params": params});
    serde_json::from_value(message).unwrap()
}

#[tokio::test(start_paused = true)]
async fn send_blocks_while_the_server_does_not_read() {
    let (mut server, backend) = pair();
    let mut transport = launched(&backend).await;
    server.process.set_reading(false);
    let mut sends: Vec<BoxFuture<'static, _>> = Vec::new();
    for number in 0..100 {
        sends.push(transport.send(notification(&number.to_string())).boxed());
    }
    for send in &mut sends {
        assert!(send.now_or_never().is_none(), "the server does not read");
    }
    server.process.set_reading(true);
    let sending = futures_util::future::join_all(sends);
    let receiving = async {
        for number in 0..100 {
            let received = server.next_message().await;
            assert_eq!(received["params"]["progressToken"], number.to_string());
        }
    };
    let (sent, ()) = within("all messages are sent", join(sending, receiving)).await;
    assert!(sent.iter().all(Result::is_ok));
}

#[tokio::test(start_paused = true)]
async fn large_message_is_written_in_pieces() {
    let (mut server, backend) = pair();
    let mut transport = launched(&backend).await;
    let text = "x".repeat(1 << 20);
    let send = transport.send(notification(&text));
    let receiving = async {
        let first = server.next_call().await;
        assert!(matches!(&first, ProcessCall::Write(data) if data.len() <= 256 << 10));
        let ProcessCall::Write(mut all) = first else {
            panic!("expected data")
        };
        while !all.ends_with(b"\n") {
            let ProcessCall::Write(more) = server.next_call().await else {
                panic!("expected data")
            };
            all = Bytes::from([all, more].concat());
        }
        serde_json::from_slice::<Value>(&all).unwrap()
    };
    let (sent, received) = within("it is written", join(send, receiving)).await;
    sent.unwrap();
    assert_eq!(received["params"]["progressToken"], text);
}

#[tokio::test(start_paused = true)]
async fn command_matches_the_configuration() {
    let (_server, backend) = pair();
    let mut config = config();
    config.args = vec!["--verbose".to_owned()];
    config.env.insert("KEY".to_owned(), "value".to_owned());
    config.env_vars = InheritedVariables::Named(vec!["API_TOKEN".to_owned()]);
    let _transport = config.launch(&backend, id()).await.unwrap();
    let command = backend.started(0).await.0;
    assert_eq!(command.argv, ["fake-server", "--verbose"]);
    assert_eq!(
        command.io,
        ProcessIo::Pipes {
            stdin: StdinMode::Piped
        }
    );
    assert_eq!(command.env["KEY"], "value");
    let policy = command.env_policy.unwrap();
    assert_eq!(policy.inherit, EnvInherit::All);
    assert!(policy.ignore_default_excludes);
    for name in ["PATH", "API_TOKEN"] {
        assert!(policy.include_only.iter().any(|included| included == name));
    }
}

#[test]
fn transport_implements_the_rmcp_trait() {
    fn is_transport<T: Transport<RoleClient>>() {}
    is_transport::<McpTransport>();
}
