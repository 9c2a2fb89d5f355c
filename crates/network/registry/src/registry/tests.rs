//! Tests of the registry client against an HTTP server on loopback.

use std::{cell::RefCell, error::Error, sync::Arc, time::Duration};

use bytes::Bytes;
use exec_relay::identity::{NoiseIdentity, NoisePublicKey};
use exec_transport::trace::TraceSource;
use exec_wire::message::TraceContext;
use http::{
    Method, Response,
    header::{self, HeaderValue, LOCATION},
};
use http_body_util::Full;
use serde_json::{Value, json};
use tokio::{net::TcpListener, time::Instant};

use super::*;
use crate::{
    api::{
        HarnessConnectResponse, RegisterResponse, RegistryEnvironmentId, RegistryErrorCode,
        SECURITY_PROFILE, SecretString, ValidateRequest,
    },
    credentials::{
        AccountId, CredentialError, CredentialPipe, Credentials, FixedCredentials, RegistryToken,
        SecretScopeError,
    },
    http::{
        BaseUrl, ExchangeError,
        tests::{Server, answer, http},
    },
};

fn environment() -> RegistryEnvironmentId {
    RegistryEnvironmentId::new("env-1").unwrap()
}

fn key() -> NoisePublicKey {
    NoiseIdentity::generate().public_key().clone()
}

fn registry_with(server: &Server, credentials: Arc<dyn Credentials>) -> RegistryClient {
    let base = BaseUrl::parse(&server.url()).unwrap();
    RegistryClient::new(base, credentials, http()).unwrap()
}

fn registry(server: &Server) -> RegistryClient {
    let token = RegistryToken::new("tok-1").unwrap();
    registry_with(server, Arc::new(FixedCredentials::registry_token(&token)))
}

fn registered() -> Value {
    json!({
        "environment_id": "env-1",
        "url": "wss://relay.test/ws?sig=s3cret",
        "security_profile": "noise_hybrid_ik_v1",
        "executor_registration_id": "reg-1",
        "unknown": 1,
    })
}

fn connected() -> Value {
    json!({
        "environment_id": "env-1",
        "url": "wss://relay.test/ws?sig=s3cret",
        "security_profile": "noise_hybrid_ik_v1",
        "executor_registration_id": "reg-1",
        "executor_public_key": key(),
        "harness_key_authorization": "s3cret-too",
        "unknown": 1,
    })
}

fn direct() -> Value {
    json!({
        "environment_id": "env-1",
        "transport": "direct_jsonrpc_v1",
        "registration_id": "dreg-1",
        "url": "wss://host.test/executors/env-1",
    })
}

fn json(status: u16, body: &Value) -> Response<Full<Bytes>> {
    answer(status, body.to_string())
}

/// Sends `connect` to a registry with the given response.
async fn connect(
    status: u16,
    body: impl Into<Bytes>,
) -> Result<HarnessConnectResponse, RegistryError> {
    let body = body.into();
    let server = Server::start(move |_, _| answer(status, body.clone())).await;
    registry(&server).connect(&environment(), &key()).await
}

fn refused(status: u16, code: Option<RegistryErrorCode>) -> RegistryError {
    RegistryError::Refused {
        status,
        code,
        text: None,
    }
}

#[tokio::test(start_paused = true)]
async fn registration_conflict_is_retried_without_limit() {
    let (delay, times) = (RegistryBackoff::new("key"), RefCell::new(Vec::new()));
    let started_at = Instant::now();
    let registered = retry_until_final(&delay, RegistryError::may_register_again, || {
        times.borrow_mut().push(started_at.elapsed());
        let number = times.borrow().len();
        async move {
            match number {
                20 => Ok(RegisterResponse {
                    environment_id: "e".to_owned(),
                    url: SecretString::new("u"),
                    security_profile: SECURITY_PROFILE.to_owned(),
                    executor_registration_id: "r".to_owned(),
                }),
                n if n % 2 == 0 => Err(refused(503, Some(RegistryErrorCode::RegistrationConflict))),
                _ => Err(refused(
                    502,
                    Some(RegistryErrorCode::AuthenticationServiceUnavailable),
                )),
            }
        }
    })
    .await;
    assert_eq!(registered.unwrap().executor_registration_id, "r");
    let mut expected = Duration::ZERO;
    for (attempt, time) in (0..).zip(times.into_inner()) {
        assert_eq!(time.as_millis(), expected.as_millis(), "{attempt}");
        // Tokio's clock counts whole milliseconds and rounds up.
        expected += Duration::from_millis(
            u64::try_from(delay.after(attempt).as_nanos().div_ceil(1_000_000)).unwrap(),
        );
    }
}

#[tokio::test(start_paused = true)]
async fn other_failures_are_not_retried() {
    let finals: [fn() -> RegistryError; 9] = [
        || refused(302, None),
        || refused(400, None),
        || refused(409, Some(RegistryErrorCode::RegistrationConflict)),
        || refused(429, None),
        || refused(500, None),
        || refused(503, None),
        || {
            refused(
                503,
                Some(RegistryErrorCode::AuthenticationServiceUnavailable),
            )
        },
        || refused(502, Some(RegistryErrorCode::RegistrationConflict)),
        || RegistryError::Malformed(None),
    ];
    for make in finals {
        let (mut requests, delay) = (0, RegistryBackoff::new("key"));
        let again = RegistryError::may_register_again;
        let settled = retry_until_final(&delay, again, || {
            requests += 1;
            async { Err::<RegisterResponse, _>(make()) }
        });
        assert!(settled.await.is_err());
        assert_eq!(requests, 1, "{:?}", make());
    }
}

#[tokio::test]
async fn register_sends_the_expected_request() {
    let server = Server::start(|_, _| json(201, &registered())).await;
    let key = key();
    let response = registry(&server)
        .register(&environment(), &key)
        .await
        .unwrap();
    assert_eq!(response.executor_registration_id, "reg-1");
    assert_eq!(response.url.expose(), "wss://relay.test/ws?sig=s3cret");
    assert!(!format!("{response:?}").contains("s3cret"));
    let seen = &server.seen()[0];
    assert_eq!(seen.method, Method::POST);
    assert_eq!(seen.target, "/cloud/environment/env-1/register");
    assert_eq!(
        seen.json(),
        json!({"security_profile": "noise_hybrid_ik_v1", "executor_public_key": key})
    );
    assert_eq!(seen.body.len(), 1792);
    assert!(
        seen.body
            .starts_with(br#"{"security_profile":"noise_hybrid_ik_v1","#)
    );
    assert_eq!(seen.headers[header::AUTHORIZATION], "Bearer tok-1");
    assert_eq!(seen.headers[header::CONTENT_TYPE], "application/json");
    assert_eq!(seen.headers[header::ACCEPT], "*/*");
    let mut names: Vec<_> = seen
        .headers
        .keys()
        .map(header::HeaderName::as_str)
        .collect();
    names.sort_unstable();
    let known = [
        "accept",
        "authorization",
        "content-length",
        "content-type",
        "host",
    ];
    assert_eq!(names, known);
}

#[tokio::test]
async fn connect_sends_the_key_and_returns_the_whole_response() {
    let server = Server::start(|_, _| json(200, &connected())).await;
    let account = AccountId::new("acc-1").unwrap();
    let credentials =
        FixedCredentials::harness_token(&RegistryToken::new("tok-1").unwrap(), Some(&account));
    let registry = registry_with(&server, Arc::new(credentials));
    let key = key();
    let response = registry.connect(&environment(), &key).await.unwrap();
    assert_eq!(response.harness_key_authorization.expose(), "s3cret-too");
    assert!(!format!("{response:?}").contains("s3cret"));
    let seen = &server.seen()[0];
    assert_eq!(seen.target, "/cloud/environment/env-1/connect");
    assert_eq!(seen.json(), json!({"harness_public_key": key}));
    assert_eq!(seen.body.len(), 1751);
    assert_eq!(seen.headers["chatgpt-account-id"], "acc-1");
    assert!(!seen.headers.contains_key("traceparent"));
}

#[tokio::test]
async fn requests_carry_the_trace_context() {
    let server = Server::start(|_, _| json(200, &connected())).await;
    let trace = TraceSource::new(|| {
        Some(TraceContext {
            traceparent: Some("00-ab-cd-01".to_owned()),
            tracestate: Some("a=b".to_owned()),
        })
    });
    let registry = registry(&server).with_trace(Some(trace));
    registry.connect(&environment(), &key()).await.unwrap();
    let seen = &server.seen()[0];
    assert_eq!(seen.headers["traceparent"], "00-ab-cd-01");
    assert_eq!(seen.headers["tracestate"], "a=b");
    assert_eq!(seen.headers[header::AUTHORIZATION], "Bearer tok-1");
}

#[tokio::test]
async fn validate_sends_the_stream_id_once() {
    let server =
        Server::start(|number, _| json(200, &json!({"valid": number == 0, "extra": "x"}))).await;
    let request = ValidateRequest {
        executor_registration_id: "reg-1".to_owned(),
        harness_public_key: key(),
        harness_key_authorization: SecretString::new("auth-1"),
    };
    let registry = registry(&server);
    let validate = async || {
        registry
            .validate(&environment(), "stream-1", &request)
            .await
    };
    assert!(validate().await.unwrap());
    assert!(!validate().await.unwrap());
    let seen = &server.seen()[0];
    assert_eq!(seen.target, "/cloud/environment/env-1/validate");
    assert_eq!(seen.headers["x-codex-noise-stream-id"], "stream-1");
    assert_eq!(
        seen.json(),
        json!({
            "executor_registration_id": "reg-1",
            "harness_public_key": request.harness_public_key,
            "harness_key_authorization": "auth-1",
        })
    );
    let result = registry
        .validate(&environment(), "a\r\nb: c", &request)
        .await;
    assert!(matches!(result, Err(RegistryError::StreamId)));
    assert_eq!(server.seen().len(), 2);
}

#[tokio::test]
async fn direct_register_sends_its_transport() {
    let server = Server::start(|_, _| json(200, &direct())).await;
    let response = registry(&server)
        .direct_register(&environment())
        .await
        .unwrap();
    assert_eq!(response.registration_id, "dreg-1");
    let seen = &server.seen()[0];
    assert_eq!(seen.target, "/cloud/environment/env-1/direct/register");
    assert_eq!(seen.body, r#"{"transport":"direct_jsonrpc_v1"}"#);
}

#[tokio::test]
async fn secret_is_not_sent_outside_its_scope() {
    let token = || RegistryToken::new("key-1").unwrap();
    let new = |base: &str, credentials: Arc<dyn Credentials>| {
        RegistryClient::new(BaseUrl::parse(base).unwrap(), credentials, http())
    };
    let refused = new(
        "https://a.test",
        Arc::new(FixedCredentials::api_key(&token())),
    );
    let reason = SecretScopeError::NotTheVendor("https://a.test".to_owned());
    assert!(matches!(refused, Err(CredentialError::SecretScope(found)) if found == reason));
    let refused = new(
        "http://a.test",
        Arc::new(FixedCredentials::registry_token(&token())),
    );
    let reason = SecretScopeError::InTheClear("http://a.test".to_owned());
    assert!(matches!(refused, Err(CredentialError::SecretScope(found)) if found == reason));
    assert!(
        new(
            "http://localhost",
            Arc::new(FixedCredentials::api_key(&token()))
        )
        .is_ok()
    );
    let anywhere = Arc::new(FixedCredentials::harness_token(&token(), None));
    let clear = new("http://a.test", anywhere).unwrap();
    let direct = clear.direct_register(&environment()).await;
    assert!(matches!(direct, Err(RegistryError::InTheClear(_))));
}

#[tokio::test]
async fn non_repeatable_requests_use_fresh_connections() {
    let server = Server::start(|_, request| match request.target.rsplit_once('/') {
        Some((_, "connect")) => json(200, &connected()),
        _ => json(200, &registered()),
    })
    .await;
    let (registry, key) = (registry(&server), key());
    for _ in 0..2 {
        registry.connect(&environment(), &key).await.unwrap();
    }
    for _ in 0..2 {
        registry.register(&environment(), &key).await.unwrap();
    }
    let peers: Vec<_> = server.seen().iter().map(|seen| seen.peer).collect();
    assert_eq!(peers[0], peers[1]);
    assert!(peers[1] != peers[2] && peers[2] != peers[3], "{peers:?}");
}

/// Returns `answer` with one member replaced or removed.
fn with(mut answer: Value, member: &str, value: Option<Value>) -> Value {
    let members = answer.as_object_mut().unwrap();
    match value {
        Some(value) => members.insert(member.to_owned(), value),
        None => members.remove(member),
    };
    answer
}

#[tokio::test]
async fn registration_must_match_environment_and_profile() {
    let register = async |body: Value| {
        let server = Server::start(move |_, _| json(200, &body)).await;
        let result = registry(&server).register(&environment(), &key()).await;
        (result, server.seen().len())
    };
    for (member, found) in [
        ("environment_id", "environment id"),
        ("security_profile", "security profile"),
    ] {
        let (result, requests) = register(with(registered(), member, Some(json!("other")))).await;
        assert!(matches!(result, Err(RegistryError::ResponseMember(member)) if member == found));
        assert_eq!(requests, 1);
    }
    for member in [
        "environment_id",
        "url",
        "security_profile",
        "executor_registration_id",
    ] {
        let (result, _) = register(with(registered(), member, None)).await;
        assert!(
            matches!(result, Err(RegistryError::Malformed(Some(_)))),
            "{member}"
        );
        let (result, _) = register(with(registered(), member, Some(json!(7)))).await;
        assert!(
            matches!(result, Err(RegistryError::Malformed(Some(_)))),
            "{member}"
        );
    }
    // These two are validated only when used.
    for member in ["url", "executor_registration_id"] {
        let (result, _) = register(with(registered(), member, Some(json!(" ")))).await;
        result.unwrap();
    }
}

#[tokio::test]
async fn connect_response_must_be_complete() {
    let connect = async |body: Value| connect(200, body.to_string()).await;
    for (member, found) in [
        ("environment_id", "environment id"),
        ("security_profile", "security profile"),
        ("url", "url"),
        ("executor_registration_id", "registration id"),
        ("harness_key_authorization", "authorization"),
    ] {
        let error = connect(with(connected(), member, Some(json!(" "))))
            .await
            .unwrap_err();
        assert!(
            matches!(error, RegistryError::ResponseMember(member) if member == found),
            "{error}"
        );
        assert!(!error.may_connect_again());
        let error = connect(with(connected(), member, None)).await.unwrap_err();
        assert!(matches!(error, RegistryError::Malformed(_)), "{error}");
        assert!(!error.may_connect_again());
    }
    let mut more = serde_json::to_value(key()).unwrap();
    more.as_object_mut()
        .unwrap()
        .insert("more".to_owned(), json!(1));
    let error = connect(with(connected(), "executor_public_key", Some(more))).await;
    assert!(matches!(error, Err(RegistryError::Malformed(_))));
}

#[tokio::test]
async fn direct_registration_requires_an_encrypted_websocket() {
    let direct_register = async |member: &str, value: &str| {
        let body = with(direct(), member, Some(json!(value)));
        let server = Server::start(move |_, _| json(200, &body)).await;
        registry(&server).direct_register(&environment()).await
    };
    for (member, found) in [
        ("environment_id", "environment id"),
        ("transport", "transport"),
        ("registration_id", "registration id"),
        ("url", "url"),
    ] {
        let result = direct_register(member, " ").await;
        assert!(matches!(result, Err(RegistryError::ResponseMember(member)) if member == found));
    }
    for url in ["nonsense", "https://host.test", "http://127.0.0.1"] {
        let result = direct_register("url", url).await;
        assert!(
            matches!(result, Err(RegistryError::ResponseMember("url"))),
            "{url}"
        );
    }
    let result = direct_register("url", "ws://host.test/x?sig=s3cret").await;
    let error = result.unwrap_err();
    assert!(matches!(error, RegistryError::InTheClear(_)));
    assert!(!error.to_string().contains("s3cret"));
    direct_register("url", "ws://127.0.0.1:1/x").await.unwrap();
}

#[tokio::test]
async fn transient_connect_failures_are_retryable() {
    let offline = r#"{"error":{"code":"environment_offline","message":"off"}}"#;
    let detail = r#"{"detail":{"code":"environment_offline"}}"#;
    let other = r#"{"error":{"code":"other"}}"#;
    let table = [
        (302, "", false),
        (400, "", false),
        (401, "", false),
        (403, offline, false),
        (404, "", false),
        (408, "", true),
        (409, offline, true),
        (409, detail, true),
        (409, other, false),
        (409, "", false),
        (418, offline, false),
        (429, "", true),
        (500, "", true),
        (502, "", true),
        (503, "", true),
        (599, "", true),
        (200, "no json", false),
        (204, "", false),
    ];
    for (status, body, again) in table {
        let error = connect(status, body).await.unwrap_err();
        assert_eq!(error.may_connect_again(), again, "{status} {body}: {error}");
        let denied = matches!(error, RegistryError::Denied { .. });
        assert_eq!(denied, matches!(status, 401 | 403), "{status}");
    }
}

#[tokio::test]
async fn ambiguous_register_failures_are_not_retried() {
    let conflict = r#"{"error":{"code":"registration_conflict"}}"#;
    let unavailable = r#"{"error":{"code":"authentication_service_unavailable"}}"#;
    let table = [
        (302, ""),
        (400, ""),
        (401, ""),
        (403, conflict),
        (404, ""),
        (409, conflict),
        (429, ""),
        (500, conflict),
        (502, conflict),
        (502, ""),
        (503, unavailable),
        (503, r#"{"detail":"registration_conflict"}"#),
        (503, ""),
        (200, ""),
    ];
    for (status, body) in table {
        let server = Server::start(move |_, _| answer(status, body)).await;
        let result = registry(&server).register(&environment(), &key()).await;
        assert!(result.is_err());
        assert_eq!(server.seen().len(), 1, "{status} {body}");
    }
}

#[tokio::test]
async fn register_repeats_the_same_request_after_a_conflict() {
    let server = Server::start(|number, _| match number {
        0 => answer(503, r#"{"error":{"code":"registration_conflict"}}"#),
        1 => answer(
            502,
            r#"{"detail":{"code":"authentication_service_unavailable"}}"#,
        ),
        _ => json(200, &registered()),
    })
    .await;
    let started_at = Instant::now();
    let result = registry(&server).register(&environment(), &key()).await;
    assert_eq!(result.unwrap().executor_registration_id, "reg-1");
    assert!(started_at.elapsed() >= Duration::from_millis(1500));
    let seen = server.seen();
    assert_eq!(seen.len(), 3);
    assert!(seen.iter().all(|request| request.body == seen[0].body));
}

#[tokio::test]
async fn unsent_request_may_be_retried() {
    // A port without a listener.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let base = BaseUrl::parse(&format!("http://{}", listener.local_addr().unwrap())).unwrap();
    drop(listener);
    let bearer = FixedCredentials::registry_token(&RegistryToken::new("tok-1").unwrap());
    let registry = RegistryClient::new(base, Arc::new(bearer), http()).unwrap();
    let error = registry.connect(&environment(), &key()).await.unwrap_err();
    assert!(
        error.was_not_sent() && error.may_register_again(),
        "{error:?}"
    );
}

#[tokio::test]
async fn redirect_is_an_error_and_not_followed() {
    let other_server = Server::start(|_, _| json(200, &registered())).await;
    let location = HeaderValue::try_from(other_server.url()).unwrap();
    let server = Server::start(move |_, _| {
        let mut redirect = answer(308, "");
        redirect.headers_mut().insert(LOCATION, location.clone());
        redirect
    })
    .await;
    let error = registry(&server).register(&environment(), &key()).await;
    assert!(matches!(
        error,
        Err(RegistryError::Refused { status: 308, .. })
    ));
    assert!(other_server.seen().is_empty());
}

#[tokio::test(start_paused = true)]
async fn requests_time_out_after_ten_seconds() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let base = BaseUrl::parse(&format!("http://{}", listener.local_addr().unwrap())).unwrap();
    let bearer = FixedCredentials::registry_token(&RegistryToken::new("tok-1").unwrap());
    let registry = RegistryClient::new(base, Arc::new(bearer), http()).unwrap();
    let started_at = Instant::now();
    let error = registry.register(&environment(), &key()).await.unwrap_err();
    assert!(matches!(
        error,
        RegistryError::Exchange(ExchangeError::Timeout(_))
    ));
    assert_eq!(started_at.elapsed().as_secs(), 10);
    assert!(error.may_connect_again() && !error.may_register_again());
}

#[tokio::test]
async fn error_response_is_displayed_and_truncated() {
    let error_text = async |body: String| connect(404, body).await.unwrap_err().to_string();
    let envelope =
        error_text(r#"{"error":{"code":"gone","message":"not\u001b[2J here"}}"#.to_owned());
    assert_eq!(envelope.await, "registry refused: 404: gone: not [2J here");
    assert_eq!(
        error_text("plain".to_owned()).await,
        "registry refused: 404: plain"
    );
    assert_eq!(error_text(String::new()).await, "registry refused: 404");
    let opaque = error_text(r#"{"detail":"no"}"#.to_owned()).await;
    assert_eq!(opaque, r#"registry refused: 404: {"detail":"no"}"#);
    let long = error_text("ä".repeat(5000)).await;
    assert_eq!(long.chars().filter(|c| *c == 'ä').count(), 4096);
    let error = connect(401, "who?").await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "registry refused the credentials: 401: who?"
    );
}

#[tokio::test]
async fn error_codes_are_parsed() {
    let error = connect(409, r#"{"error":{"code":"environment_offline"}}"#).await;
    let RegistryError::Refused { code, .. } = error.unwrap_err() else {
        panic!();
    };
    assert_eq!(code, Some(RegistryErrorCode::EnvironmentOffline));
}

/// Returns everything that an error displays, including its sources.
fn everything(error: &RegistryError) -> String {
    let mut text = format!("{error} {error:?}");
    let mut source = error.source();
    while let Some(error) = source {
        text += &error.to_string();
        source = error.source();
    }
    text
}

#[tokio::test]
async fn response_bodies_are_hidden_with_a_credential_pipe() {
    let frame = r#"{"version":1,"environment_id":"env-1","token":"a","expires_at":99999999999}"#;
    let input = std::io::Cursor::new(format!("{frame}\n"));
    let opened = CredentialPipe::open(input, environment()).await;
    let (pipe, _end) = opened.unwrap();
    for (status, body) in [
        (401, "s3cret"),
        (404, r#"{"error":{"code":"s3cret","message":"s3cret"}}"#),
        (200, r#"{"environment_id":"s3cret"}"#),
        (200, r#""s3cret""#),
    ] {
        let server = Server::start(move |_, _| answer(status, body)).await;
        let registry = registry_with(&server, Arc::new(pipe.clone()));
        let error = registry.register(&environment(), &key()).await.unwrap_err();
        let shown = everything(&error);
        assert!(!shown.contains("s3cret"), "{shown}");
    }
    // The error code still takes effect.
    let body = r#"{"error":{"code":"registration_conflict"}}"#;
    let server = Server::start(move |number, _| match number {
        0 => answer(503, body),
        _ => json(200, &registered()),
    })
    .await;
    let registry = registry_with(&server, Arc::new(pipe));
    registry.register(&environment(), &key()).await.unwrap();
}

#[tokio::test]
async fn failed_validation_is_an_error_without_the_body() {
    let request = ValidateRequest {
        executor_registration_id: "reg-1".to_owned(),
        harness_public_key: key(),
        harness_key_authorization: SecretString::new("auth-1"),
    };
    for (status, body) in [
        (500, r#"{"valid":true,"error":"s3cret"}"#),
        (302, r#"{"valid":true}"#),
        (403, "s3cret"),
        (200, r#"{"valid":"s3cret"}"#),
        (200, "{}"),
    ] {
        let server = Server::start(move |_, _| answer(status, body)).await;
        let registry = registry(&server);
        let validated = registry.validate(&environment(), "s", &request).await;
        let shown = everything(&validated.unwrap_err());
        assert!(!shown.contains("s3cret"), "{shown}");
        assert_eq!(server.seen().len(), 1);
    }
}
