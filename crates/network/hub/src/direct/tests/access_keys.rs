use std::{fs, time::Duration};

use exec_registry::api::{
    SecretString,
    sigv4::{self, AwsKeys, SigV4Timestamp, SigningScope},
};
use http::{HeaderMap, HeaderName, Request, header::CONTENT_TYPE};
use url::Url;

use super::{refused, request_upgrade, upgrade};
use crate::{
    direct::{AccessKeys, AccessKeysError},
    rate_limit::{RateLimitConfig, RateRule},
    registry::tests::{Reply, TestHub},
};

const BODY: &str = r#"{"transport":"direct_jsonrpc_v1"}"#;
const FILE: &str = "[[key]]\nid = \"AKID\"\nsecret = \"s3cret\"\nprincipal = \"farm\"\n\
    environments = [\"build-*\"]\n";

async fn hub() -> TestHub {
    TestHub::with(
        RateLimitConfig::default(),
        Some(AccessKeys::parse(FILE).unwrap()),
    )
    .await
}

fn keys(id: &str, secret: &str) -> AwsKeys {
    AwsKeys {
        access_key_id: id.to_owned(),
        secret_key: SecretString::new(secret),
        session_token: None,
    }
}

/// Signs a request as an executor does.
fn sign(
    hub: &TestHub,
    keys: &AwsKeys,
    service: &str,
    method: &str,
    url: &str,
    body: &str,
) -> HeaderMap {
    let json = [(CONTENT_TYPE, "application/json")];
    let headers: &[(HeaderName, &str)] = if body.is_empty() { &[] } else { &json };
    let request = sigv4::SigningRequest {
        method,
        url: &Url::parse(url).unwrap(),
        headers,
        body: body.as_bytes(),
    };
    let scope = SigningScope {
        region: "eu-west-1".to_owned(),
        service: service.to_owned(),
    };
    let at = std::time::UNIX_EPOCH + Duration::from_millis(hub.moment.at.millis());
    sigv4::sign(request, keys, &scope, &SigV4Timestamp::new(at)).unwrap()
}

async fn register(hub: &TestHub, environment: &str, signed: HeaderMap, body: &str) -> Reply {
    let mut request = Request::post(format!("/cloud/environment/{environment}/direct/register"))
        .header("host", "hub.example:8765")
        .header("content-type", "application/json")
        .body(body.to_owned())
        .unwrap();
    request.headers_mut().extend(signed);
    hub.send(request).await
}

fn url(environment: &str) -> String {
    format!("http://hub.example:8765/cloud/environment/{environment}/direct/register")
}

#[tokio::test]
async fn signed_requests_register_and_dial() {
    let mut hub = hub().await;
    let farm_keys = keys("AKID", "s3cret");
    let signed = sign(
        &hub,
        &farm_keys,
        "execute-api",
        "POST",
        &url("build-1"),
        BODY,
    );
    let registered = register(&hub, "build-1", signed, BODY).await;
    let dialled = registered.text("url").replace("ws://", "http://");
    let signed = sign(&hub, &farm_keys, "execute-api", "GET", &dialled, "");
    let path = super::path(&registered);
    let parts = upgrade(&path, signed);
    assert!(request_upgrade(&hub, &parts).await.is_ok());
    let elsewhere = upgrade("/direct/build-1", parts.headers.clone());
    assert_eq!(
        refused(&hub, &elsewhere).await.0,
        401,
        "it was signed for another path"
    );
    hub.advance(Duration::from_secs(301));
    assert_eq!(refused(&hub, &parts).await.0, 401, "it was signed long ago");
}

#[tokio::test]
async fn forged_and_foreign_signatures_are_refused() {
    let hub = hub().await;
    let farm_keys = keys("AKID", "s3cret");
    let unauthorized = (401, "unauthorized");
    let attempts = [
        sign(
            &hub,
            &keys("AKID", "guess"),
            "execute-api",
            "POST",
            &url("build-1"),
            BODY,
        ),
        sign(
            &hub,
            &keys("OTHER", "s3cret"),
            "execute-api",
            "POST",
            &url("build-1"),
            BODY,
        ),
        sign(&hub, &farm_keys, "s3", "POST", &url("build-1"), BODY),
        sign(
            &hub,
            &farm_keys,
            "execute-api",
            "POST",
            &url("build-2"),
            BODY,
        ),
        sign(
            &hub,
            &farm_keys,
            "execute-api",
            "POST",
            &url("build-1"),
            "{}",
        ),
    ];
    for signed in attempts {
        let reply = register(&hub, "build-1", signed, BODY).await;
        assert_eq!(reply.refusal(), unauthorized);
    }
    let signed = sign(&hub, &farm_keys, "execute-api", "POST", &url("other"), BODY);
    let reply = register(&hub, "other", signed, BODY).await;
    assert_eq!(
        reply.refusal(),
        (403, "forbidden"),
        "the key is for other environments"
    );

    let without = TestHub::new().await;
    let signed = sign(
        &without,
        &farm_keys,
        "execute-api",
        "POST",
        &url("build-1"),
        BODY,
    );
    assert_eq!(
        register(&without, "build-1", signed, BODY).await.refusal(),
        unauthorized
    );
}

#[tokio::test]
async fn access_key_has_the_executor_role_only() {
    let hub = hub().await;
    let farm_keys = keys("AKID", "s3cret");
    let signed = sign(
        &hub,
        &farm_keys,
        "execute-api",
        "POST",
        &url("build-1"),
        BODY,
    );
    register(&hub, "build-1", signed, BODY).await;
    let harness = "http://hub.example:8765/direct/build-1";
    let signed = sign(&hub, &farm_keys, "execute-api", "GET", harness, "");
    let parts = upgrade("/direct/build-1", signed);
    assert_eq!(refused(&hub, &parts).await, (403, "forbidden"));
}

#[test]
fn invalid_files_are_rejected_without_showing_secrets() {
    let refused = |text: &str| {
        let error = AccessKeys::parse(text).unwrap_err();
        assert!(
            !format!("{error} {error:?}").contains("s3cret"),
            "{error:?}"
        );
        error
    };
    assert!(matches!(
        refused("key = 7"),
        AccessKeysError::Syntax { line: 1 }
    ));
    let extra = format!("{FILE}s3cret = 1\n");
    assert!(matches!(refused(&extra), AccessKeysError::Syntax { .. }));
    let empty = FILE.replace("\"AKID\"", "\"\"");
    assert!(matches!(
        refused(&empty),
        AccessKeysError::Empty { index: 1 }
    ));
    let twice = format!("{FILE}{FILE}");
    assert!(matches!(
        refused(&twice),
        AccessKeysError::Repeated { index: 2 }
    ));
    let glob = FILE.replace("build-*", "[");
    assert!(matches!(
        refused(&glob),
        AccessKeysError::Environments { index: 1, .. }
    ));
    let known = AccessKeys::parse(FILE).unwrap();
    assert!(!format!("{known:?}").contains("s3cret"));

    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("keys.toml");
    assert!(matches!(
        AccessKeys::read(&path),
        Err(AccessKeysError::Io { .. })
    ));
    fs::write(&path, FILE).unwrap();
    assert!(AccessKeys::read(&path).is_ok());
}

#[tokio::test]
async fn body_is_read_only_if_the_signature_names_a_known_key() {
    let hub = hub().await;
    let large = "x".repeat(1 << 20);
    for (id, expected) in [("OTHER", 401), ("AKID", 413)] {
        let signed = sign(
            &hub,
            &keys(id, "guess"),
            "execute-api",
            "POST",
            &url("build-1"),
            BODY,
        );
        let reply = register(&hub, "build-1", signed, &large).await;
        assert_eq!(reply.refusal().0, expected, "{id}");
    }
}

#[tokio::test]
async fn forged_signatures_are_rate_limited() {
    let few = RateRule {
        burst: 2,
        per_second: 1,
    };
    let rules = RateLimitConfig {
        address: few,
        principal: few,
    };
    let hub = TestHub::with(rules, Some(AccessKeys::parse(FILE).unwrap())).await;
    let mut answers = Vec::new();
    for _ in 0..3 {
        let forged = keys("AKID", "guess");
        let signed = sign(&hub, &forged, "execute-api", "POST", &url("build-1"), BODY);
        let reply = register(&hub, "build-1", signed, BODY).await;
        answers.push(reply.refusal().0);
    }
    assert_eq!(answers, [401, 401, 429]);
}
