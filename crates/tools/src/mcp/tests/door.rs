//! Who is let in over HTTP.

use std::sync::Arc;

use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Full};
use serde_json::{Value, json};

use super::stage;
use crate::mcp::{HttpDoor, HttpDoorOptions};

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

#[tokio::test]
async fn one_session_too_many_is_refused_until_another_ends() {
    let directory = tempfile::tempdir().unwrap();
    let door = door(&directory);
    let init = initialize();
    let mut last = None;
    for _ in 0..64 {
        let answer = door.answer(post().body(body(&init)).unwrap()).await;
        assert_eq!(answer.status(), StatusCode::OK);
        last = answer.headers().get("mcp-session-id").cloned();
        let _said = answer.into_body().collect().await.unwrap();
    }
    let answer = door.answer(post().body(body(&init)).unwrap()).await;
    assert_eq!(answer.status(), StatusCode::SERVICE_UNAVAILABLE);
    let end = Request::delete("/mcp")
        .header("host", "localhost")
        .header("authorization", "Bearer right")
        .header("mcp-session-id", last.unwrap());
    let answer = door
        .answer(end.body(Full::new(Bytes::new())).unwrap())
        .await;
    assert_eq!(answer.status(), StatusCode::NO_CONTENT);
    // Its place is free when nothing runs there any more.
    let free = async {
        while door
            .answer(post().body(body(&init)).unwrap())
            .await
            .status()
            != StatusCode::OK
        {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(20), free)
        .await
        .unwrap();
}
