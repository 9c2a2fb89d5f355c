//! Revision 2026-07-28 of MCP beside the earlier ones: discovery, requests without a session, and
//! what is refused.

use serde_json::{Value, json};

use super::mcp_door::{DOORS, DoorKind, MODERN, McpDoor, StatelessRequest, TASKS};
use crate::test_user::TestUser;

fn discover() -> StatelessRequest {
    StatelessRequest::new("server/discover", json!({}))
}

#[tokio::test]
async fn server_is_discovered_on_both_doors() {
    let user = TestUser::new();
    for kind in DOORS {
        let mut door = McpDoor::open(&user, kind, &["--in-process"]).await;
        let reply = door.ask(discover()).await;
        let result = reply.result();
        assert_eq!(result["resultType"], "complete", "{result}");
        let versions = result["supportedVersions"].as_array().unwrap();
        for version in [MODERN, "2025-11-25"] {
            assert!(versions.contains(&json!(version)), "{versions:?}");
        }
        assert_eq!(result["capabilities"]["extensions"], json!({TASKS: {}}));
        assert!(result["capabilities"]["tools"].is_object(), "{result}");
        let info = &result["_meta"]["io.modelcontextprotocol/serverInfo"];
        assert_eq!(info["name"], "exec-server", "{result}");
        let instructions = result["instructions"].as_str().unwrap();
        assert!(instructions.contains("the workspace"), "{instructions}");
    }
}

#[tokio::test]
async fn tools_are_called_without_a_session() {
    let user = TestUser::new();
    for kind in DOORS {
        // Over HTTP, every request has its own connection.
        let mut door = McpDoor::open(&user, kind, &["--in-process"]).await;
        let reply = door
            .ask(StatelessRequest::new("tools/list", json!({})))
            .await;
        assert_eq!(reply.result()["resultType"], "complete");
        assert_eq!(reply.result()["tools"].as_array().unwrap().len(), 12);
        let answer = door.call("exec_command", json!({"cmd": "echo $((6 * 7))"}));
        assert_eq!(answer.await["output"], "42\n");
        let command =
            json!({"cmd": "read line; echo got $line", "open_stdin": true, "yield_time_ms": 250});
        let started = door.call("exec_command", command).await;
        let id = &started["session_id"];
        // 128 bits are 32 hexadecimal digits.
        let random = id.as_str().unwrap().rsplit('-').next().unwrap();
        assert!(random.len() > 32, "{id}");
        let listed = door.call("list_processes", json!({})).await;
        assert_eq!(listed["processes"][0]["session_id"], *id, "{listed}");
        let write = json!({"session_id": id, "chars": "it\n", "yield_time_ms": 20_000});
        let answer = door.call("write_stdin", write).await;
        assert_eq!(answer["output"], "got it\n", "{answer}");
        assert_eq!(answer["exit_code"], 0, "{answer}");
    }
}

#[tokio::test]
async fn handles_are_checked() {
    let user = TestUser::new();
    let mut door = McpDoor::open(&user, DoorKind::Stdio, &["--in-process"]).await;
    for wrong in ["1", "", "mcp-0-c1", "../x"] {
        let write = StatelessRequest::tool("write_stdin", json!({"session_id": wrong}));
        let reply = door.ask(write).await;
        assert_eq!(reply.result()["isError"], true, "{reply:?}");
        let text = reply.result()["content"][0]["text"].as_str().unwrap();
        assert!(text.contains("no command has session_id"), "{text}");
    }
}

#[tokio::test]
async fn unsupported_version_is_refused_with_the_supported_ones() {
    let user = TestUser::new();
    for kind in DOORS {
        let mut door = McpDoor::open(&user, kind, &["--in-process"]).await;
        for request in [
            discover(),
            StatelessRequest::tool("exec_command", json!({"cmd": "touch created"})),
        ] {
            let version = "2031-01-01";
            let reply = door.ask(StatelessRequest { version, ..request }).await;
            assert_eq!(reply.error(400), -32022, "{reply:?}");
            let data = &reply.message["error"]["data"];
            assert_eq!(data["requested"], version, "{data}");
            let supported = data["supported"].as_array().unwrap();
            assert!(supported.contains(&json!(MODERN)), "{data}");
        }
    }
    assert!(!user.work().join("created").exists());
}

#[tokio::test]
async fn request_headers_must_match_the_body() {
    let user = TestUser::new();
    let mut door = McpDoor::open(&user, DoorKind::Http, &["--in-process"]).await;
    let call = || StatelessRequest::tool("exec_command", json!({"cmd": "touch created"}));
    for header in [
        ("Mcp-Method", "tools/list"),
        ("Mcp-Method", ""),
        ("Mcp-Name", "read_file"),
        ("Mcp-Name", ""),
        ("MCP-Protocol-Version", "2025-11-25"),
        ("MCP-Protocol-Version", ""),
    ] {
        let mut request = call();
        request.headers.push((header.0, header.1.to_owned()));
        let reply = door.ask(request).await;
        assert_eq!(reply.error(400), -32020, "{header:?}: {reply:?}");
    }
    let unknown = StatelessRequest::new("no/such", json!({}));
    let reply = door.ask(unknown).await;
    assert_eq!(reply.error(404), -32601, "{reply:?}");
    assert!(!user.work().join("created").exists());
}

/// Messages of a client of revision 2025-11-25.
fn initialize() -> Value {
    json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
        "protocolVersion": "2025-11-25",
        // A declaration for the whole session does not make tasks.
        "capabilities": {"extensions": {TASKS: {}}},
        "clientInfo": {"name": "old", "version": "1"},
    }})
}

#[tokio::test]
async fn older_revision_keeps_its_sessions_and_plain_results() {
    let user = TestUser::new();
    for kind in DOORS {
        let mut door = McpDoor::open(&user, kind, &[]).await;
        let (reply, head) = door.exchange(&initialize(), "").await;
        let result = reply.result();
        assert_eq!(result["protocolVersion"], "2025-11-25", "{result}");
        assert_eq!(result["capabilities"], json!({"tools": {}}));
        let session = head
            .lines()
            .find_map(|line| line.strip_prefix("mcp-session-id: "));
        let headers = session.map_or(String::new(), |id| {
            format!("Mcp-Session-Id: {id}\r\nMCP-Protocol-Version: 2025-11-25\r\n")
        });
        assert_eq!(session.is_some(), matches!(kind, DoorKind::Http));
        let call = json!({"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {
            "name": "exec_command",
            "arguments": {"cmd": "echo started; sleep 600", "yield_time_ms": 500},
        }});
        let (reply, _) = door.exchange(&call, &headers).await;
        let result = reply.result();
        assert!(result["resultType"].is_null(), "{result}");
        assert!(result["_meta"].is_null(), "{result}");
        let answer = &result["structuredContent"];
        assert_eq!(answer["output"], "started\n", "{result}");
        assert!(answer["session_id"].is_string(), "{result}");
        // Sessions are separate, and their commands end with them.
        let mut other = McpDoor::open(&user, DoorKind::Stdio, &[]).await;
        let listed = other.call("list_processes", json!({})).await;
        assert_eq!(listed, json!({"processes": []}));
        let unknown = json!({"jsonrpc": "2.0", "id": 3, "method": "tasks/get", "params": {
            "taskId": "x",
        }});
        let (reply, _) = door.exchange(&unknown, &headers).await;
        assert_eq!(reply.message["error"]["code"], -32601, "{reply:?}");
    }
}
