use std::{
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use exec_relay::identity::NoisePublicKey;
use exec_transport::http::service::HttpPeer;
use http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use hyper::body::{Body, Frame, SizeHint};
use serde_json::{Value, json};

use super::{TestHub, key, plain};
use crate::{
    rate_limit::{RateLimitConfig, RateRule},
    registry::request_gate::{BodyBudget, MAX_BODY_BYTES, RequestBody},
};

const FEW: RateRule = RateRule {
    burst: 2,
    per_second: 1,
};
const MANY: RateRule = RateRule {
    burst: 1000,
    per_second: 1000,
};

#[tokio::test]
async fn requests_without_a_token_are_refused_and_audited() {
    let hub = TestHub::new().await;
    hub.token("alice");
    for operation in ["register", "connect", "validate", "direct/register"] {
        for authorization in [None, Some("Bearer exh_forged"), Some("Basic YTpi")] {
            let path = format!("/cloud/environment/env-1/{operation}");
            let mut request = plain(Method::POST, &path).header("content-type", "application/json");
            if let Some(authorization) = authorization {
                request = request.header("authorization", authorization);
            }
            let reply = hub.send(request.body("{}".to_owned()).unwrap()).await;
            assert_eq!(reply.refusal(), (401, "unauthorized"), "{operation}");
            assert_eq!(reply.headers["www-authenticate"], "Bearer");
        }
    }
    let lines = hub.audit_lines();
    assert_eq!(lines.len(), 12);
    for line in lines {
        assert_eq!(line["reason"], "unauthorized");
        assert_eq!(line["peer"], "192.0.2.7:1234");
        assert_eq!(line["environment"], "env-1");
        assert!(!line.to_string().contains("exh_forged"));
    }
}

#[tokio::test]
async fn audit_log_names_principals_without_secrets() {
    let hub = TestHub::new().await;
    let alice = hub.token("alice");
    let registered = hub.register("env-1", &alice, &key()).await;
    hub.attach("env-1", &registered).await;
    let connected = hub.connect("env-1", &alice, &key()).await;
    hub.connect("env-1", &hub.token("bob"), &key()).await;
    let secrets = [
        alice.expose().to_owned(),
        connected.text("harness_key_authorization").to_owned(),
        connected.text("url").to_owned(),
        registered.text("url").to_owned(),
    ];
    let lines = hub.audit_lines();
    let records: Vec<_> = lines
        .iter()
        .map(|line| {
            (
                line["action"].clone(),
                line["principal"].clone(),
                line["outcome"].clone(),
            )
        })
        .collect();
    let expected = [
        (json!("register"), json!("alice"), json!("allowed")),
        (json!("connect"), json!("alice"), json!("allowed")),
        (json!("connect"), json!("bob"), json!("refused")),
    ];
    assert_eq!(records, expected);
    assert!(lines[0]["evidence"].as_str().unwrap().starts_with("token:"));
    for (line, secret) in lines
        .iter()
        .flat_map(|line| secrets.iter().map(move |s| (line, s)))
    {
        assert!(!line.to_string().contains(secret.as_str()));
    }
}

#[tokio::test]
async fn connect_above_the_rate_limit_gets_retry_after() {
    let rules = RateLimitConfig {
        address: MANY,
        principal: FEW,
    };
    let mut hub = TestHub::with(rules, None).await;
    let (alice, bob) = (hub.token("alice"), hub.token("bob"));
    for _ in 0..2 {
        let reply = hub.connect("env-1", &alice, &key()).await;
        assert_eq!(reply.status, StatusCode::CONFLICT);
    }
    let reply = hub.connect("env-1", &alice, &key()).await;
    assert_eq!(reply.refusal(), (429, "too_many_requests"));
    assert_eq!(reply.headers["retry-after"], "1");
    assert_eq!(
        hub.connect("env-1", &bob, &key()).await.status,
        StatusCode::CONFLICT
    );
    hub.advance(Duration::from_secs(1));
    assert_eq!(
        hub.connect("env-1", &alice, &key()).await.status,
        StatusCode::CONFLICT
    );
}

#[tokio::test]
async fn address_rate_limit_applies_before_authentication() {
    let rules = RateLimitConfig {
        address: FEW,
        principal: MANY,
    };
    let hub = TestHub::with(rules, None).await;
    let connect = |address: &str| {
        let request = plain(Method::POST, "/cloud/environment/env-1/connect");
        let peer = HttpPeer::Network(address.parse().unwrap());
        hub.send_from(request.body(String::new()).unwrap(), peer)
    };
    for _ in 0..2 {
        assert_eq!(
            connect("192.0.2.1:1").await.refusal(),
            (401, "unauthorized")
        );
    }
    assert_eq!(
        connect("192.0.2.1:2").await.refusal(),
        (429, "too_many_requests")
    );
    assert_eq!(
        connect("192.0.2.2:1").await.refusal(),
        (401, "unauthorized")
    );
}

#[tokio::test]
async fn registering_is_not_rate_limited() {
    let rules = RateLimitConfig {
        address: FEW,
        principal: FEW,
    };
    let hub = TestHub::with(rules, None).await;
    let (alice, own_key) = (hub.token("alice"), key());
    for _ in 0..20 {
        let reply = hub.register("env-1", &alice, &own_key).await;
        assert_eq!(reply.status, StatusCode::OK);
    }
}

#[tokio::test]
async fn invalid_tokens_are_rate_limited_on_all_endpoints() {
    let rules = RateLimitConfig {
        address: FEW,
        principal: MANY,
    };
    for operation in ["register", "direct/register", "connect", "validate"] {
        let hub = TestHub::with(rules, None).await;
        let alice = hub.token("alice");
        let attempt = || {
            let path = format!("/cloud/environment/env-1/{operation}");
            let request = plain(Method::POST, &path)
                .header("content-type", "application/json")
                .header("authorization", "Bearer exh_forged");
            hub.send(request.body("{}".to_owned()).unwrap())
        };
        for _ in 0..2 {
            assert_eq!(attempt().await.refusal(), (401, "unauthorized"));
        }
        let limited = (429, "too_many_requests");
        assert_eq!(attempt().await.refusal(), limited, "{operation}");
        // Executors treat a refusal as final: those with a valid token are admitted.
        let registered = hub.register("env-1", &alice, &key()).await;
        assert_eq!(registered.status, StatusCode::OK);
    }
}

#[tokio::test]
async fn body_is_not_read_before_authentication() {
    let hub = TestHub::new().await;
    for operation in ["register", "direct/register", "connect", "validate"] {
        let path = format!("/cloud/environment/env-1/{operation}");
        let request = plain(Method::POST, &path)
            .header("content-type", "application/json")
            .header("authorization", "Bearer exh_forged")
            .header("content-length", "1000000")
            .body("x".repeat(1_000_000));
        let reply = hub.send(request.unwrap()).await;
        assert_eq!(reply.refusal(), (401, "unauthorized"), "{operation}");
    }
}

#[tokio::test]
async fn unknown_paths_and_methods_are_refused() {
    let hub = TestHub::new().await;
    let bearer = format!("Bearer {}", hub.token("alice").expose());
    for path in [
        "/cloud/environment/env-1",
        "/cloud/environment/env-1/other",
        "/cloud/",
    ] {
        let request = plain(Method::POST, path).header("authorization", &bearer);
        let reply = hub.send(request.body(String::new()).unwrap()).await;
        assert_eq!(reply.refusal(), (404, "not_found"), "{path}");
    }
    for method in [Method::GET, Method::PUT, Method::DELETE, Method::OPTIONS] {
        let request = plain(method, "/cloud/environment/env-1/register");
        let reply = hub.send(request.body(String::new()).unwrap()).await;
        assert_eq!(reply.refusal(), (405, "method_not_allowed"));
        assert_eq!(reply.headers["allow"], "POST");
    }
}

#[tokio::test]
async fn ids_are_not_decoded_and_must_be_plain() {
    let hub = TestHub::new().await;
    let alice = hub.token("alice");
    let long = "x".repeat(129);
    for id in ["a%20b", "%61", "a.b", "", "..", long.as_str()] {
        let reply = hub.register(id, &alice, &key()).await;
        assert_eq!(reply.refusal(), (400, "invalid_environment_id"), "{id}");
    }
}

#[tokio::test]
async fn body_must_be_json_of_the_expected_shape_and_size() {
    let hub = TestHub::new().await;
    let bearer = format!("Bearer {}", hub.token("alice").expose());
    let send = |kind: &'static str, body: String| {
        let request = plain(Method::POST, "/cloud/environment/env-1/register")
            .header("authorization", &bearer)
            .header("content-type", kind);
        hub.send(request.body(body).unwrap())
    };
    let good = json!({"security_profile": "noise_hybrid_ik_v1", "executor_public_key": key()});
    for kind in ["application/json", "Application/JSON; charset=utf-8"] {
        assert_eq!(send(kind, good.to_string()).await.status, StatusCode::OK);
    }
    for kind in ["text/plain", "application/jsonp", ""] {
        let reply = send(kind, good.to_string()).await;
        assert_eq!(reply.refusal(), (415, "unsupported_media_type"), "{kind}");
    }
    let padded = |bytes: usize| format!("{good}{}", " ".repeat(bytes - good.to_string().len()));
    assert_eq!(
        send("application/json", padded(32 << 10)).await.status,
        StatusCode::OK
    );
    let reply = send("application/json", padded((32 << 10) + 1)).await;
    assert_eq!(reply.refusal(), (413, "payload_too_large"));

    let with = |name: &str, value: Value| {
        let mut body = good.clone();
        body["executor_public_key"][name] = value;
        body.to_string()
    };
    let secret = "very-secret-value";
    let bad = [
        String::new(),
        "{".to_owned(),
        "[]".to_owned(),
        "null".to_owned(),
        json!({"security_profile": "noise_hybrid_ik_v1"}).to_string(),
        format!("{good}{good}"),
        with("suite", json!("other")),
        with("x25519_public_key", json!("AAAA")),
        with("mlkem768_public_key", json!(secret)),
        with("extra", json!(secret)),
    ];
    for body in bad {
        let reply = send("application/json", body.clone()).await;
        assert_eq!(reply.refusal(), (400, "invalid_request"), "{body}");
        assert!(!reply.body.to_string().contains(secret));
    }
}

#[tokio::test]
async fn incomplete_large_bodies_are_bounded_and_small_ones_pass() {
    let budget = BodyBudget::default();
    let headers = HeaderMap::from_iter([(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/json"),
    )]);
    let reading = |body: ScriptedBody| {
        let (headers, budget) = (headers.clone(), budget.clone());
        async move { RequestBody::read(&headers, body, &budget).await }
    };
    let mut unfinished = Vec::new();
    for _ in 0..crate::limits::BODY_BYTES / MAX_BODY_BYTES {
        let mut read = Box::pin(reading(ScriptedBody::half(MAX_BODY_BYTES)));
        assert!(futures_util::poll!(&mut read).is_pending());
        unfinished.push(read);
    }
    let refused = reading(ScriptedBody::half(MAX_BODY_BYTES))
        .await
        .unwrap_err();
    assert_eq!(refused.code, "authentication_service_unavailable");
    assert!(reading(ScriptedBody::complete("{}")).await.is_ok());
    drop(unfinished.pop());
    let mut read = Box::pin(reading(ScriptedBody::half(MAX_BODY_BYTES)));
    assert!(futures_util::poll!(&mut read).is_pending());
}

/// A body with a declared length that never ends unless it is sent as a whole.
struct ScriptedBody {
    remaining: Option<Bytes>,
    length: usize,
    ends: bool,
}

impl ScriptedBody {
    fn half(length: usize) -> Self {
        Self {
            remaining: Some(vec![b' '; length / 2].into()),
            length,
            ends: false,
        }
    }

    fn complete(text: &'static str) -> Self {
        Self {
            remaining: Some(Bytes::from_static(text.as_bytes())),
            length: text.len(),
            ends: true,
        }
    }
}

impl Body for ScriptedBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match self.remaining.take() {
            Some(data) => Poll::Ready(Some(Ok(Frame::data(data)))),
            None if self.ends => Poll::Ready(None),
            None => Poll::Pending,
        }
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.length as u64)
    }
}

#[tokio::test]
async fn request_without_a_valid_host_is_refused() {
    let hub = TestHub::new().await;
    let bearer = format!("Bearer {}", hub.token("alice").expose());
    let body = json!({"security_profile": "noise_hybrid_ik_v1", "executor_public_key": key()});
    for host in [None, Some("a@b"), Some("")] {
        let mut request = http::Request::post("/cloud/environment/env-1/register")
            .header("authorization", &bearer)
            .header("content-type", "application/json");
        if let Some(host) = host {
            request = request.header("host", host);
        }
        let reply = hub.send(request.body(body.to_string()).unwrap()).await;
        assert_eq!(reply.refusal(), (400, "invalid_request"), "{host:?}");
    }
}

#[test]
fn keys_are_compared_by_their_bytes() {
    let own_key = key();
    let json = serde_json::to_string(&own_key).unwrap();
    assert_eq!(
        serde_json::from_str::<NoisePublicKey>(&json).unwrap(),
        own_key
    );
}
