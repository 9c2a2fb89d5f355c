//! What is sent.

use exec_transport::trace::TraceSource;
use exec_wire::message::Trace;
use http::{Method, header};

use super::*;
use crate::{
    api::{Secret, Validate},
    credentials::{AccountId, ApiKey, CredentialError, HarnessToken, ReachError},
};

#[tokio::test]
async fn register_sends_exactly_what_is_known() {
    let server = Server::start(|_, _| json(201, &registered())).await;
    let key = key();
    let made = registry(&server)
        .register(&environment(), &key)
        .await
        .unwrap();
    assert_eq!(made.executor_registration_id, "reg-1");
    assert_eq!(made.url.expose(), "wss://relay.test/ws?sig=s3cret");
    assert!(!format!("{made:?}").contains("s3cret"));
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
async fn connect_sends_the_key_and_keeps_the_answer_together() {
    let server = Server::start(|_, _| json(200, &connected())).await;
    let account = AccountId::new("acc-1").unwrap();
    let credentials = HarnessToken::new(Token::new("tok-1").unwrap(), Some(account));
    let registry = registry_with(&server, Arc::new(credentials));
    let key = key();
    let made = registry.connect(&environment(), &key).await.unwrap();
    assert_eq!(made.harness_key_authorization.expose(), "s3cret-too");
    assert!(!format!("{made:?}").contains("s3cret"));
    let seen = &server.seen()[0];
    assert_eq!(seen.target, "/cloud/environment/env-1/connect");
    assert_eq!(seen.json(), json!({"harness_public_key": key}));
    assert_eq!(seen.body.len(), 1751);
    assert_eq!(seen.headers["chatgpt-account-id"], "acc-1");
    assert!(!seen.headers.contains_key("traceparent"));
}

#[tokio::test]
async fn requests_say_what_they_belong_to() {
    let server = Server::start(|_, _| json(200, &connected())).await;
    let trace = TraceSource::new(|| {
        Some(Trace {
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
async fn validate_names_the_stream_and_asks_once() {
    let server =
        Server::start(|number, _| json(200, &json!({"valid": number == 0, "extra": "x"}))).await;
    let request = Validate {
        executor_registration_id: "reg-1".to_owned(),
        harness_public_key: key(),
        harness_key_authorization: Secret::new("auth-1"),
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
    let odd = registry
        .validate(&environment(), "a\r\nb: c", &request)
        .await;
    assert!(matches!(odd, Err(RegistryError::StreamId)));
    assert_eq!(server.seen().len(), 2);
}

#[tokio::test]
async fn direct_register_sends_its_transport() {
    let server = Server::start(|_, _| json(200, &direct())).await;
    let made = registry(&server)
        .direct_register(&environment())
        .await
        .unwrap();
    assert_eq!(made.registration_id, "dreg-1");
    let seen = &server.seen()[0];
    assert_eq!(seen.target, "/cloud/environment/env-1/direct/register");
    assert_eq!(seen.body, r#"{"transport":"direct_jsonrpc_v1"}"#);
}

#[tokio::test]
async fn a_secret_that_may_not_go_there_is_not_sent() {
    let token = || Token::new("key-1").unwrap();
    let new = |base: &str, credentials: Arc<dyn Credentials>| {
        Registry::new(BaseUrl::parse(base).unwrap(), credentials, http())
    };
    let refused = new("https://a.test", Arc::new(ApiKey::new(token())));
    let reason = ReachError::NotTheVendor("https://a.test".to_owned());
    assert!(matches!(refused, Err(CredentialError::Reach(found)) if found == reason));
    let refused = new("http://a.test", Arc::new(Bearer::new(token())));
    let reason = ReachError::InTheClear("http://a.test".to_owned());
    assert!(matches!(refused, Err(CredentialError::Reach(found)) if found == reason));
    assert!(new("http://localhost", Arc::new(ApiKey::new(token()))).is_ok());
    let anywhere = Arc::new(HarnessToken::new(token(), None));
    let clear = new("http://a.test", anywhere).unwrap();
    let direct = clear.direct_register(&environment()).await;
    assert!(matches!(direct, Err(RegistryError::InTheClear(_))));
}

#[tokio::test]
async fn what_must_not_be_asked_twice_has_a_connection_of_its_own() {
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
