//! Who is let in over HTTP.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::future::join_all;
use http::{HeaderValue, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use serde_json::{Value, json};
use tokio::time::timeout;

use super::stage;
use crate::mcp::{HttpDoor, HttpDoorOptions};

const SOON: Duration = Duration::from_secs(20);

pub(super) fn door(directory: &tempfile::TempDir) -> HttpDoor {
    let options = HttpDoorOptions {
        admit: Arc::new(|authorization| match authorization {
            Some(b"Bearer right") => Ok(()),
            _ => Err("wrong".to_owned()),
        }),
        hosts: vec!["box.example:81".to_owned()],
    };
    HttpDoor::new(stage::tools(directory.path()), options)
}

/// What a client that is let in sends, except for these headers.
fn request(differs: &[(&str, &str)]) -> http::request::Builder {
    let usual = [
        ("host", "127.0.0.1:80"),
        ("authorization", "Bearer right"),
        ("accept", "application/json, text/event-stream"),
        ("content-type", "application/json"),
    ];
    let same = |name: &str| differs.iter().all(|(other, _)| *other != name);
    let kept = usual.iter().filter(|(name, _)| same(name));
    let headers = kept.chain(differs).filter(|(_, value)| !value.is_empty());
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
async fn only_those_with_the_token_who_call_this_machine_by_its_name_come_in() {
    let directory = tempfile::tempdir().unwrap();
    let door = door(&directory);
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
        let shown = format!("{:?}", request.headers());
        assert_eq!(door.answer(request).await.status(), expected, "{shown}");
    }
}

#[tokio::test]
async fn a_request_that_is_too_large_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let door = door(&directory);
    let large = Full::new(Bytes::from(vec![b' '; (16 << 20) + 1]));
    let answer = door.answer(post().body(large).unwrap()).await;
    assert_eq!(answer.status(), StatusCode::PAYLOAD_TOO_LARGE);
}

/// Begins a session, and returns its name.
async fn begun(door: &HttpDoor) -> Result<HeaderValue, StatusCode> {
    let answer = door.answer(post().body(body(&initialize())).unwrap()).await;
    let (status, name) = (
        answer.status(),
        answer.headers().get("mcp-session-id").cloned(),
    );
    let _said = answer.into_body().collect().await.unwrap();
    name.ok_or(status)
}

/// Sends a message in a session.
async fn sent(door: &HttpDoor, session: &HeaderValue, message: &Value) -> StatusCode {
    let request = with("mcp-session-id", session.to_str().unwrap());
    let answer = door.answer(request.body(body(message)).unwrap()).await;
    let status = answer.status();
    let _said = answer.into_body().collect().await.unwrap();
    status
}

#[tokio::test]
async fn the_session_that_was_idle_for_the_longest_time_makes_room() {
    let directory = tempfile::tempdir().unwrap();
    let door = door(&directory);
    let mut sessions = Vec::new();
    for _ in 0..64 {
        sessions.push(begun(&door).await.unwrap());
    }
    let ping = json!({"jsonrpc": "2.0", "id": 2, "method": "ping"});
    assert_eq!(sent(&door, &sessions[0], &ping).await, StatusCode::OK);
    let came = timeout(SOON, begun(&door)).await.unwrap().unwrap();
    assert_eq!(
        sent(&door, &sessions[1], &ping).await,
        StatusCode::NOT_FOUND
    );
    for stays in [&sessions[0], &sessions[2], &came] {
        assert_eq!(sent(&door, stays, &ping).await, StatusCode::OK);
    }
}

#[tokio::test]
async fn one_session_too_many_is_refused_if_all_are_at_work_until_one_ends() {
    let directory = tempfile::tempdir().unwrap();
    let door = door(&directory);
    let mut sessions = Vec::new();
    for _ in 0..64 {
        sessions.push(begun(&door).await.unwrap());
    }
    let command = json!({"cmd": "sleep 600", "yield_time_ms": 250});
    let call = json!({"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {
        "name": "exec_command",
        "arguments": command,
    }});
    let started = sessions.iter().map(|session| sent(&door, session, &call));
    for status in join_all(started).await {
        assert_eq!(status, StatusCode::OK);
    }
    assert_eq!(begun(&door).await, Err(StatusCode::SERVICE_UNAVAILABLE));
    let end = Request::delete("/mcp")
        .header("host", "localhost")
        .header("authorization", "Bearer right")
        .header("mcp-session-id", &sessions[7]);
    let answer = door
        .answer(end.body(Full::new(Bytes::new())).unwrap())
        .await;
    assert_eq!(answer.status(), StatusCode::NO_CONTENT);
    // Its place is free when nothing runs there any more.
    let free = async {
        while begun(&door).await.is_err() {
            tokio::task::yield_now().await;
        }
    };
    timeout(SOON, free).await.unwrap();
    door.close().await;
}
