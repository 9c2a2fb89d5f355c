//! Tests of direct executors.

use std::{sync::Arc, time::Duration};

use exec_registry::{
    api::sigv4::{SigV4Timestamp, SignedRequest, VerifyError, verify},
    api::{RegistryEnvironmentId, SecretString},
    aws::{AwsEnvironment, AwsKeySources as AwsSettings},
    backoff::RegistryBackoff,
    credentials::{FixedCredentials, RegistryToken},
    direct::{
        DEFAULT_SERVICE, DirectAuth, DirectError, DirectExecutor, DirectExecutorSettings,
        SigV4Signer,
    },
    executor::DialOptions,
    http::{BaseUrl, HttpClient},
    registry::RegistryClient,
};
use exec_transport::link::{DataEncoding, Link};
use exec_wire::outgoing_message::OutgoingMessage;
use serde_json::json;
use tokio::{
    io::AsyncWriteExt,
    sync::{mpsc, oneshot},
    task::JoinHandle,
    time::Instant,
};

use crate::registry_server::{RegistryServer, Request, frame};

const REGISTER: &str = "/cloud/environment/env-1/direct/register";

/// A running direct executor.
struct Running {
    links: mpsc::Receiver<Link>,
    stop: oneshot::Sender<()>,
    task: JoinHandle<Result<(), DirectError>>,
}

async fn signature() -> DirectAuth {
    let keys = AwsSettings {
        environment: AwsEnvironment {
            access_key_id: Some("ASIAEXAMPLE".to_owned()),
            secret_access_key: Some("s3cret".to_owned()),
            session_token: Some("t0ken".to_owned()),
            ..AwsEnvironment::default()
        },
        region: Some("eu-west-1".to_owned()),
        ..AwsSettings::default()
    };
    let signer = SigV4Signer::new(keys, DEFAULT_SERVICE).await.unwrap();
    DirectAuth::Signature(Arc::new(signer))
}

fn token() -> DirectAuth {
    let token = RegistryToken::new("hub-token").unwrap();
    DirectAuth::Token(Arc::new(FixedCredentials::registry_token(&token)))
}

fn run(server: &RegistryServer, auth: DirectAuth) -> Running {
    let base = BaseUrl::parse(&server.http()).unwrap();
    let http = HttpClient::without_tls().unwrap();
    let executor = DirectExecutor::new(DirectExecutorSettings {
        registry: RegistryClient::new(base.clone(), auth.credentials(), http).unwrap(),
        base,
        environment: RegistryEnvironmentId::new("env-1").unwrap(),
        auth,
        dial_options: DialOptions::default(),
    });
    let (sender, links) = mpsc::channel(1);
    let (stop, stopped) = oneshot::channel();
    let task = tokio::spawn(executor.run(sender, async {
        drop(stopped.await);
    }));
    Running { links, stop, task }
}

fn registered(url: &str) -> serde_json::Value {
    json!({
        "environment_id": "env-1",
        "transport": "direct_jsonrpc_v1",
        "registration_id": "dreg-1",
        "url": url,
    })
}

async fn register(server: &mut RegistryServer, url: &str) {
    let request = server.expect("POST", REGISTER).await;
    assert_eq!(&request.body[..], br#"{"transport":"direct_jsonrpc_v1"}"#);
    request.reply(200, registered(url)).await;
}

fn verified(request: &Request, service: &str) -> Result<String, VerifyError> {
    let (path, query) = request
        .target
        .split_once('?')
        .unwrap_or((&request.target, ""));
    let presented = SignedRequest {
        method: &request.method,
        path,
        query,
        headers: &request.headers,
        body: &request.body,
    };
    let now = SigV4Timestamp::new(std::time::SystemTime::now());
    verify(presented, service, &now, |_| {
        Some(SecretString::new("s3cret"))
    })
}

#[tokio::test(start_paused = true)]
async fn both_requests_are_signed_without_other_credentials() {
    let mut server = RegistryServer::start().await;
    let running = run(&server, signature().await);
    let request = server.expect("POST", REGISTER).await;
    assert_eq!(
        verified(&request, DEFAULT_SERVICE),
        Ok("ASIAEXAMPLE".to_owned())
    );
    let authorization = request.header("authorization").unwrap();
    let signed = "SignedHeaders=content-type;host;x-amz-date;x-amz-security-token,";
    assert!(authorization.contains(signed), "{authorization}");
    assert!(request.header("x-amz-content-sha256").is_none());
    let url = server.ws("/executors/env-1?b=2&a=x%2Fy");
    request.reply(200, registered(&url)).await;
    let request = server.expect("GET", "/executors/env-1?b=2&a=x%2Fy").await;
    assert_eq!(
        verified(&request, DEFAULT_SERVICE),
        Ok("ASIAEXAMPLE".to_owned())
    );
    let authorization = request.header("authorization").unwrap();
    let signed = "SignedHeaders=host;x-amz-date;x-amz-security-token,";
    assert!(authorization.contains(signed), "{authorization}");
    assert!(request.header("x-request-id").is_none());
    assert_eq!(request.header("x-amz-security-token"), Some("t0ken"));
    drop(running);
}

#[tokio::test(start_paused = true)]
async fn messages_are_text_frames_without_pings() {
    let mut server = RegistryServer::start().await;
    let mut running = run(&server, signature().await);
    let url = server.ws("/x");
    register(&mut server, &url).await;
    let mut socket = server.expect("GET", "/x").await.upgrade().await;
    let mut link = running.links.recv().await.unwrap();
    // A text frame of three bytes, unmasked as servers send it.
    socket.write_all(b"\x81\x03abc").await.unwrap();
    assert_eq!(link.reader.next().await.unwrap().unwrap(), "abc");
    // Half an hour of silence.
    let idle = async {
        loop {
            std::future::poll_fn(|cx| link.writer.poll_keepalive(cx)).await;
            link.writer.flush().await.unwrap();
        }
    };
    let half_an_hour = Duration::from_secs(1800);
    assert!(tokio::time::timeout(half_an_hour, idle).await.is_err());
    link.writer
        .push(OutgoingMessage::Text(b"xyz".to_vec()), DataEncoding::Text);
    link.writer.flush().await.unwrap();
    assert_eq!(frame(&mut socket).await, Some((0x81, b"xyz".to_vec())));
}

#[tokio::test(start_paused = true)]
async fn next_websocket_is_dialled_after_the_previous_ends() {
    let mut server = RegistryServer::start().await;
    let mut running = run(&server, token());
    let url = server.ws("/x");
    register(&mut server, &url).await;
    let pause = RegistryBackoff::new("env-1").after(0);
    for _ in 0..3 {
        let mut remote = server.expect("GET", "/x").await.link().await;
        let mut link = running.links.recv().await.unwrap();
        // While the link is in use, however long, no other is dialled.
        server.expect_nothing(Duration::from_secs(100)).await;
        remote.writer.close().await.unwrap();
        assert!(link.reader.next().await.unwrap().is_none());
        let ended = Instant::now();
        drop(link);
        let request = server.expect("GET", "/x").await;
        // The delay is always the same, to the millisecond.
        let waited = request.at - ended;
        assert!(
            waited >= pause && waited < pause + Duration::from_millis(3),
            "{waited:?}"
        );
        request.reply(503, "").await;
    }
}

#[tokio::test(start_paused = true)]
async fn transient_failures_are_retried_at_the_same_url() {
    let mut server = RegistryServer::start().await;
    let mut running = run(&server, token());
    let url = server.ws("/x");
    register(&mut server, &url).await;
    let delay = RegistryBackoff::new("env-1");
    let mut last: Option<Instant> = None;
    for (attempt, status) in (0..).zip([408, 429, 500, 502, 503, 504, 302, 200]) {
        let request = server.expect("GET", "/x").await;
        let at = request.at;
        if let Some(last) = last {
            let (waited, pause) = (at - last, delay.after(attempt - 1));
            assert!(
                waited >= pause && waited < pause + Duration::from_millis(3),
                "{waited:?}"
            );
        }
        last = Some(at);
        request.reply(status, "").await;
    }
    // A connection dropped without a response.
    drop(server.expect("GET", "/x").await);
    // A successful connection resets the count.
    drop(server.expect("GET", "/x").await.link().await);
    let ended = Instant::now();
    drop(running.links.recv().await.unwrap());
    let request = server.expect("GET", "/x").await;
    assert!(request.at - ended < delay.after(0) + Duration::from_millis(3));
}

#[tokio::test(start_paused = true)]
async fn superseded_executor_registers_again_and_reconnects_after_backoff() {
    let mut server = RegistryServer::start().await;
    let running = run(&server, token());
    let url = server.ws("/old");
    register(&mut server, &url).await;
    let request = server.expect("GET", "/old").await;
    let refused = request.at;
    request.reply(409, "").await;
    let request = server.expect("POST", REGISTER).await;
    assert!(request.at - refused < Duration::from_millis(3));
    let url = server.ws("/new");
    request.reply(200, registered(&url)).await;
    let request = server.expect("GET", "/new").await;
    assert!(request.at - refused >= RegistryBackoff::new("env-1").after(0));
    drop(running);
}

#[tokio::test(start_paused = true)]
async fn rejected_executor_gives_up() {
    for status in [400, 401, 403, 404, 410, 426] {
        let mut server = RegistryServer::start().await;
        let running = run(&server, token());
        let url = server.ws("/x");
        register(&mut server, &url).await;
        server.expect("GET", "/x").await.reply(status, "").await;
        let error = running.task.await.unwrap().unwrap_err();
        assert!(
            matches!(error, DirectError::Refused(_)),
            "{status}: {error:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn failed_registration_is_not_retried() {
    for status in [302, 401, 404, 429, 500, 503] {
        let mut server = RegistryServer::start().await;
        let running = run(&server, signature().await);
        let code = json!({"error": {"code": "registration_conflict", "message": "x"}});
        server
            .expect("POST", REGISTER)
            .await
            .reply(status, code)
            .await;
        let error = running.task.await.unwrap().unwrap_err();
        assert!(
            matches!(error, DirectError::Register { .. }),
            "{status}: {error:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn registry_response_is_validated() {
    let good = registered("ws://127.0.0.1:1/x");
    for (member, value) in [
        ("environment_id", "env-2"),
        ("transport", "direct_jsonrpc_v2"),
        ("registration_id", " "),
        ("url", ""),
        ("url", "ws://192.0.2.1/x"),
        ("url", "http://127.0.0.1:1/x"),
    ] {
        let mut server = RegistryServer::start().await;
        let running = run(&server, signature().await);
        let mut answer = good.clone();
        answer[member] = value.into();
        server
            .expect("POST", REGISTER)
            .await
            .reply(200, answer)
            .await;
        let error = running.task.await.unwrap().unwrap_err();
        assert!(
            matches!(error, DirectError::Register { .. }),
            "{member}: {error:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn token_is_sent_only_to_the_registry_origin() {
    let (mut server, mut other) = (RegistryServer::start().await, RegistryServer::start().await);
    let mut running = run(&server, token());
    let url = server.ws("/x");
    register(&mut server, &url).await;
    let request = server.expect("GET", "/x").await;
    assert_eq!(request.header("authorization"), Some("Bearer hub-token"));
    request.reply(409, "").await;
    let url = other.ws("/x");
    register(&mut server, &url).await;
    let request = other.expect("GET", "/x").await;
    assert_eq!(request.header("authorization"), None);
    let _link = request.link().await;
    assert!(running.links.recv().await.is_some());
}

#[tokio::test(start_paused = true)]
async fn executor_stops_on_request_or_when_links_are_dropped() {
    let mut server = RegistryServer::start().await;
    let mut running = run(&server, token());
    let url = server.ws("/x");
    register(&mut server, &url).await;
    let _remote = server.expect("GET", "/x").await.link().await;
    let _link = running.links.recv().await.unwrap();
    running.stop.send(()).unwrap();
    assert!(running.task.await.unwrap().is_ok());
    let running = run(&server, token());
    drop(running.links);
    let error = running.task.await.unwrap().unwrap_err();
    assert!(matches!(error, DirectError::Abandoned), "{error:?}");
}
