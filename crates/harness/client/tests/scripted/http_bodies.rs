//! Streamed bodies, including protocol violations by the server.

use exec_client::{client::ExecServerClient, http::RemoteHttpClient};
use exec_env::http::{HttpBody, HttpClient, HttpError, HttpRequest};
use exec_wire::http::HttpHeader;
use futures_util::{StreamExt, future::FutureExt, join};
use serde_json::{Value, json};

use crate::scripted_server::{ScriptedServer, server_closed, within};

const URL: &str = "http://127.0.0.1/";

/// Requests a streamed body and answers with its start.
async fn begin(server: &mut ScriptedServer, client: &ExecServerClient) -> (String, HttpBody) {
    let http = RemoteHttpClient::new(client.clone());
    let serve = async {
        let request = server.expect("http/request").await;
        assert_eq!(request["params"]["streamResponse"], true);
        let result = json!({"status": 200, "headers": [], "bodyBase64": ""});
        server.answer(&request, result).await;
        request["params"]["requestId"].as_str().unwrap().to_owned()
    };
    let (response, id) = join!(http.stream(HttpRequest::new("GET", URL)), serve);
    (id, response.unwrap().body)
}

async fn delta(server: &mut ScriptedServer, id: &str, seq: u64, more: Value) {
    let mut params = json!({"requestId": id, "seq": seq, "deltaBase64": "YQ==",
        "done": false, "error": null});
    let members = params.as_object_mut().unwrap();
    members.extend(more.as_object().unwrap().clone());
    server
        .send(json!({"method": "http/request/bodyDelta", "params": params}))
        .await;
}

async fn error(body: &mut HttpBody) -> HttpError {
    loop {
        let part = within(body.next()).await;
        if let Err(error) = part.expect("body ended without an error") {
            assert!(within(body.next()).await.is_none());
            return error;
        }
    }
}

#[tokio::test]
async fn each_body_has_its_own_id_and_chunks() {
    let (mut server, client) = ScriptedServer::connect().await;
    let (one, mut first) = begin(&mut server, &client).await;
    let (two, mut second) = begin(&mut server, &client).await;
    assert_eq!((&*one, &*two), ("http-1", "http-2"));
    delta(&mut server, &two, 1, json!({})).await;
    delta(&mut server, "http-3", 1, json!({})).await;
    let end = json!({"deltaBase64": "", "done": true});
    delta(&mut server, &two, 2, end.clone()).await;
    assert_eq!(&within(second.next()).await.unwrap().unwrap()[..], b"a");
    assert!(within(second.next()).await.is_none());
    delta(&mut server, &one, 1, end).await;
    assert!(within(first.next()).await.is_none());
}

#[tokio::test]
async fn protocol_violation_fails_only_its_body() {
    let large = "AAAA".repeat((1 << 20) / 3 + 1);
    let violations = [
        (1, 3, json!({}), "unexpected body chunk 3: expected 2"),
        (1, 1, json!({}), "unexpected body chunk 1: expected 2"),
        (1, 2, json!({"deltaBase64": large}), "limit is 1048576"),
    ];
    let (mut server, client) = ScriptedServer::connect().await;
    for (first, second, more, expected) in violations {
        let (id, mut body) = begin(&mut server, &client).await;
        let (other, mut fine) = begin(&mut server, &client).await;
        delta(&mut server, &id, first, json!({})).await;
        delta(&mut server, &id, second, more).await;
        let error = error(&mut body).await;
        let HttpError::Protocol(text) = &error else {
            panic!("{error:?}")
        };
        assert!(text.contains(expected), "{text}");
        // The client cancels the body and ignores further chunks.
        let cancel = server.expect("http/request/cancel").await;
        assert_eq!(cancel["params"]["requestId"], json!(id));
        delta(&mut server, &id, 2, json!({})).await;
        delta(&mut server, &other, 1, json!({"done": true})).await;
        assert!(within(fine.next()).await.unwrap().is_ok());
        assert!(within(fine.next()).await.is_none());
    }
}

#[tokio::test]
async fn unread_body_fails_alone() {
    let (mut server, client) = ScriptedServer::connect().await;
    let (id, mut body) = begin(&mut server, &client).await;
    let megabyte = json!({"deltaBase64": "AAAA".repeat((1 << 20) / 3)});
    for seq in 1..=17 {
        delta(&mut server, &id, seq, megabyte.clone()).await;
    }
    server.expect("http/request/cancel").await;
    assert_eq!(error(&mut body).await, HttpError::Lagged(16 << 20));
    let (_, _body) = begin(&mut server, &client).await;
}

#[tokio::test]
async fn dropped_body_is_cancelled_unless_finished() {
    let (mut server, client) = ScriptedServer::connect().await;
    let (id, body) = begin(&mut server, &client).await;
    delta(&mut server, &id, 1, json!({"done": true})).await;
    let read: Vec<_> = within(body.collect()).await;
    assert_eq!(read.len(), 1);
    let (id, body) = begin(&mut server, &client).await;
    drop(body);
    let cancel = server.expect("http/request/cancel").await;
    assert_eq!(cancel["params"], json!({"requestId": id}));
}

#[tokio::test]
async fn dropped_request_is_cancelled() {
    let (mut server, client) = ScriptedServer::connect().await;
    let http = RemoteHttpClient::new(client);
    let response = http.request(HttpRequest::new("GET", URL));
    let mut response = Box::pin(response);
    assert!((&mut response).now_or_never().is_none());
    let request = server.expect("http/request").await;
    drop(response);
    let cancel = server.expect("http/request/cancel").await;
    assert_eq!(
        cancel["params"]["requestId"],
        request["params"]["requestId"]
    );
}

#[tokio::test]
async fn bodies_and_requests_fail_on_disconnect() {
    let (mut server, client) = ScriptedServer::connect().await;
    let (id, mut body) = begin(&mut server, &client).await;
    delta(&mut server, &id, 1, json!({})).await;
    let http = RemoteHttpClient::new(client);
    let hang_up = async {
        server.expect("http/request").await;
        drop(server);
    };
    let (response, ()) = join!(http.request(HttpRequest::new("GET", URL)), hang_up);
    let reason = HttpError::Disconnected(server_closed());
    assert_eq!(response.unwrap_err(), reason);
    assert_eq!(error(&mut body).await, reason);
}

#[tokio::test]
async fn header_variables_are_rejected_without_server_support() {
    let (mut server, client) = ScriptedServer::connect_as(json!({"sessionId": "s"})).await;
    let http = RemoteHttpClient::new(client);
    let sent = http.request(HttpRequest {
        headers: vec![HttpHeader {
            name: "a".to_owned(),
            value: "Bearer ".to_owned(),
            value_env_var: Some("SVC".to_owned()),
        }],
        ..HttpRequest::new("GET", URL)
    });
    let describe = async {
        let request = server.expect("environment/info").await;
        let info = json!({"shell": {"name": "sh", "path": "/bin/sh"}, "cwd": "file:///",
            "osFamily": "unix", "os": "linux", "arch": "x86_64"});
        server.answer(&request, info).await;
    };
    let (response, ()) = join!(sent, describe);
    let text = "header a: this server does not support variables in headers".to_owned();
    assert_eq!(response.unwrap_err(), HttpError::Refused(text));
}

#[tokio::test]
async fn response_without_a_body_is_a_protocol_error() {
    let (mut server, client) = ScriptedServer::connect().await;
    let http = RemoteHttpClient::new(client);
    let serve = async {
        let request = server.expect("http/request").await;
        server
            .answer(&request, json!({"status": 200, "headers": []}))
            .await;
    };
    let (response, ()) = join!(http.request(HttpRequest::new("GET", URL)), serve);
    let error = response.unwrap_err();
    assert!(matches!(error, HttpError::Protocol(_)), "{error:?}");
}
