//! HTTP access and session limits, and calls that clients cancel or lose the response of.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::future::join_all;
use http::{HeaderValue, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader, DuplexStream, Lines},
    time::timeout,
};

use crate::mcp::{McpHttpEndpoint, McpHttpOptions, tests};

const TEST_TIMEOUT: Duration = Duration::from_secs(20);

pub(super) fn endpoint(directory: &tempfile::TempDir) -> McpHttpEndpoint {
    let options = McpHttpOptions {
        authenticate: Arc::new(|authorization| match authorization {
            Some(b"Bearer right") => Ok(()),
            _ => Err("wrong".to_owned()),
        }),
        hosts: vec!["box.example:81".to_owned()],
    };
    McpHttpEndpoint::new(tests::tools(directory.path()), options)
}

/// Builds a valid request with some headers replaced.
fn request(overrides: &[(&str, &str)]) -> http::request::Builder {
    let defaults = [
        ("host", "127.0.0.1:80"),
        ("authorization", "Bearer right"),
        ("accept", "application/json, text/event-stream"),
        ("content-type", "application/json"),
    ];
    let is_default = |name: &str| overrides.iter().all(|(other, _)| *other != name);
    let unchanged = defaults.iter().filter(|(name, _)| is_default(name));
    let headers = unchanged
        .chain(overrides)
        .filter(|(_, value)| !value.is_empty());
    headers.fold(Request::post("/mcp"), |request, (name, value)| {
        request.header(*name, *value)
    })
}

pub(super) fn post() -> http::request::Builder {
    request(&[])
}

pub(super) fn with(name: &str, value: &str) -> http::request::Builder {
    request(&[(name, value)])
}

pub(super) fn initialize() -> Value {
    json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "test", "version": "0"},
    }})
}

pub(super) fn body(value: &Value) -> Full<Bytes> {
    Full::new(Bytes::from(value.to_string()))
}

#[tokio::test]
async fn requests_need_the_token_and_an_allowed_host() {
    let directory = tempfile::tempdir().unwrap();
    let endpoint = endpoint(&directory);
    let init = initialize();
    let cases = [
        (post(), StatusCode::OK),
        (post().uri("/"), StatusCode::NOT_FOUND),
        (with("authorization", ""), StatusCode::UNAUTHORIZED),
        (
            with("authorization", "Bearer wrong"),
            StatusCode::UNAUTHORIZED,
        ),
        (with("host", "evil.example"), StatusCode::FORBIDDEN),
        (with("host", "box.example:81"), StatusCode::OK),
        (with("host", "box.example:82"), StatusCode::FORBIDDEN),
        (with("origin", "http://evil.example"), StatusCode::FORBIDDEN),
        (with("origin", "http://127.0.0.1:80"), StatusCode::FORBIDDEN),
        (with("origin", "null"), StatusCode::FORBIDDEN),
        (
            with("content-type", "text/plain"),
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
        ),
    ];
    for (request, expected) in cases {
        let request = request.body(body(&init)).unwrap();
        let headers = format!("{:?}", request.headers());
        assert_eq!(
            endpoint.handle(request).await.status(),
            expected,
            "{headers}"
        );
    }
}

#[tokio::test]
async fn oversized_request_is_rejected() {
    let directory = tempfile::tempdir().unwrap();
    let endpoint = endpoint(&directory);
    let large = Full::new(Bytes::from(vec![b' '; (16 << 20) + 1]));
    let answer = endpoint.handle(post().body(large).unwrap()).await;
    assert_eq!(answer.status(), StatusCode::PAYLOAD_TOO_LARGE);
}

/// Opens a session and returns its ID.
async fn open_session(endpoint: &McpHttpEndpoint) -> Result<HeaderValue, StatusCode> {
    let answer = endpoint
        .handle(post().body(body(&initialize())).unwrap())
        .await;
    let (status, name) = (
        answer.status(),
        answer.headers().get("mcp-session-id").cloned(),
    );
    let _said = answer.into_body().collect().await.unwrap();
    name.ok_or(status)
}

/// Posts a message in a session.
async fn post_message(
    endpoint: &McpHttpEndpoint,
    session: &HeaderValue,
    message: &Value,
) -> StatusCode {
    let request = with("mcp-session-id", session.to_str().unwrap());
    let answer = endpoint.handle(request.body(body(message)).unwrap()).await;
    let status = answer.status();
    let _said = answer.into_body().collect().await.unwrap();
    status
}

#[tokio::test]
async fn least_recently_used_idle_session_is_evicted() {
    let directory = tempfile::tempdir().unwrap();
    let endpoint = endpoint(&directory);
    let mut sessions = Vec::new();
    for _ in 0..64 {
        sessions.push(open_session(&endpoint).await.unwrap());
    }
    let ping = json!({"jsonrpc": "2.0", "id": 2, "method": "ping"});
    assert_eq!(
        post_message(&endpoint, &sessions[0], &ping).await,
        StatusCode::OK
    );
    let newest = timeout(TEST_TIMEOUT, open_session(&endpoint))
        .await
        .unwrap()
        .unwrap();
    assert_eq!(
        post_message(&endpoint, &sessions[1], &ping).await,
        StatusCode::NOT_FOUND
    );
    for stays in [&sessions[0], &sessions[2], &newest] {
        assert_eq!(post_message(&endpoint, stays, &ping).await, StatusCode::OK);
    }
}

#[tokio::test]
async fn session_limit_holds_while_all_sessions_are_busy() {
    let directory = tempfile::tempdir().unwrap();
    let endpoint = endpoint(&directory);
    let mut sessions = Vec::new();
    for _ in 0..64 {
        sessions.push(open_session(&endpoint).await.unwrap());
    }
    let command = json!({"cmd": "sleep 600", "yield_time_ms": 250});
    let call = json!({"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {
        "name": "exec_command",
        "arguments": command,
    }});
    let started = sessions
        .iter()
        .map(|session| post_message(&endpoint, session, &call));
    for status in join_all(started).await {
        assert_eq!(status, StatusCode::OK);
    }
    assert_eq!(
        open_session(&endpoint).await,
        Err(StatusCode::SERVICE_UNAVAILABLE)
    );
    // Requests without a session are not limited by it.
    let meta = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
    });
    let list =
        json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {"_meta": meta}});
    let request = post()
        .header("mcp-protocol-version", "2026-07-28")
        .header("mcp-method", "tools/list");
    let answer = endpoint.handle(request.body(body(&list)).unwrap()).await;
    assert_eq!(answer.status(), StatusCode::OK);
    let end = Request::delete("/mcp")
        .header("host", "localhost")
        .header("authorization", "Bearer right")
        .header("mcp-session-id", &sessions[7]);
    let answer = endpoint
        .handle(end.body(Full::new(Bytes::new())).unwrap())
        .await;
    assert_eq!(answer.status(), StatusCode::NO_CONTENT);
    // The slot is free when the session's commands have ended.
    let free = async {
        while open_session(&endpoint).await.is_err() {
            tokio::task::yield_now().await;
        }
    };
    timeout(TEST_TIMEOUT, free).await.unwrap();
    endpoint.close().await;
}

/// A client connected through two pipes.
struct Client {
    input: DuplexStream,
    output: Lines<BufReader<DuplexStream>>,
    next: u64,
}

impl Client {
    async fn new(directory: &tempfile::TempDir) -> Self {
        let tools = tests::tools(directory.path());
        let (input, theirs) = tokio::io::duplex(1 << 16);
        let (ours, output) = tokio::io::duplex(1 << 16);
        tokio::spawn(async move { tools.serve(theirs, ours).await });
        let mut client = Self {
            input,
            output: BufReader::new(output).lines(),
            next: 2,
        };
        client.send(&initialize()).await;
        client.answer(1).await;
        let initialized = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
        client.send(&initialized).await;
        client
    }

    async fn send(&mut self, message: &Value) {
        let line = format!("{message}\n");
        self.input.write_all(line.as_bytes()).await.unwrap();
    }

    async fn answer(&mut self, id: u64) -> Value {
        loop {
            let line = timeout(TEST_TIMEOUT, self.output.next_line())
                .await
                .unwrap();
            let line: Value = serde_json::from_str(&line.unwrap().unwrap()).unwrap();
            if line["id"] == id {
                return line["result"]["structuredContent"].clone();
            }
        }
    }

    async fn call(&mut self, name: &str, arguments: Value) -> Value {
        self.next += 1;
        let id = self.next;
        self.send(&call(id, name, &arguments)).await;
        self.answer(id).await
    }

    async fn cancel(&mut self, id: u64) {
        let params = json!({"requestId": id});
        let cancelled =
            json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params});
        self.send(&cancelled).await;
    }
}

fn call(id: u64, name: &str, arguments: &Value) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": {
        "name": name,
        "arguments": arguments,
    }})
}

#[tokio::test]
async fn cancelled_call_leaves_its_output_to_the_next() {
    let directory = tempfile::tempdir().unwrap();
    let mut client = Client::new(&directory).await;
    client.next += 1;
    let command = json!({"cmd": "echo said; sleep 600", "yield_time_ms": 50_000});
    client
        .send(&call(client.next, "exec_command", &command))
        .await;
    let session = loop {
        let listed = client.call("list_processes", json!({})).await;
        if let [process] = &listed["processes"].as_array().unwrap()[..] {
            break process["session_id"].clone();
        }
    };
    client.cancel(3).await;
    let poll = json!({"session_id": session, "wait_for": {"pattern": "said"}});
    let answer = loop {
        // Until the cancellation arrives, the first call holds the command.
        let answer = client.call("write_stdin", poll.clone()).await;
        if !answer.is_null() {
            break answer;
        }
    };
    assert_eq!(answer["output"], "said\n");
    let more = json!({"session_id": session, "yield_time_ms": 250});
    assert_eq!(client.call("write_stdin", more).await["output"], "");
}

#[tokio::test]
async fn lost_response_is_resumed_by_its_event_id() {
    let directory = tempfile::tempdir().unwrap();
    let endpoint = endpoint(&directory);
    let session = open_session(&endpoint).await.unwrap();
    let session = session.to_str().unwrap();
    let lost = call(3, "exec_command", &json!({"cmd": "echo lost"}));
    let request = with("mcp-session-id", session).body(body(&lost)).unwrap();
    let mut stream = endpoint.handle(request).await.into_body();
    let first = stream.frame().await.unwrap().unwrap().into_data().unwrap();
    let first = str::from_utf8(&first).unwrap().to_owned();
    let id = first.lines().find_map(|line| line.strip_prefix("id: "));
    drop(stream);

    let resume = Request::get("/mcp")
        .header("host", "localhost")
        .header("authorization", "Bearer right")
        .header("accept", "text/event-stream")
        .header("mcp-session-id", session)
        .header("last-event-id", id.expect(&first));
    let resume = resume.body(Full::new(Bytes::new())).unwrap();
    let resumed = endpoint.handle(resume).await.into_body().collect();
    let text = timeout(TEST_TIMEOUT, resumed).await.unwrap().unwrap();
    let text = String::from_utf8(text.to_bytes().to_vec()).unwrap();
    assert!(text.contains(r#""output":"lost\n""#), "{text}");
}
