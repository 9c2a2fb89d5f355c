use exec_relay::identity::PublicKey;
use http::{Method, StatusCode};
use serde_json::{Value, json};

use super::{Bench, key, plain};

#[tokio::test]
async fn paths_and_methods_that_do_not_exist_are_refused() {
    let bench = Bench::new().await;
    let bearer = format!("Bearer {}", bench.token("alice").expose());
    for path in [
        "/cloud/environment/env-1",
        "/cloud/environment/env-1/other",
        "/cloud/",
    ] {
        let request = plain(Method::POST, path).header("authorization", &bearer);
        let reply = bench.send(request.body(String::new()).unwrap()).await;
        assert_eq!(reply.refusal(), (404, "not_found"), "{path}");
    }
    for method in [Method::GET, Method::PUT, Method::DELETE, Method::OPTIONS] {
        let request = plain(method, "/cloud/environment/env-1/register");
        let reply = bench.send(request.body(String::new()).unwrap()).await;
        assert_eq!(reply.refusal(), (405, "method_not_allowed"));
        assert_eq!(reply.headers["allow"], "POST");
    }
}

#[tokio::test]
async fn ids_are_not_decoded_and_must_be_plain() {
    let bench = Bench::new().await;
    let alice = bench.token("alice");
    let long = "x".repeat(129);
    for id in ["a%20b", "%61", "a.b", "", "..", long.as_str()] {
        let reply = bench.register(id, &alice, &key()).await;
        assert_eq!(reply.refusal(), (400, "invalid_environment_id"), "{id}");
    }
}

#[tokio::test]
async fn bodies_are_json_of_the_right_shape_and_size() {
    let bench = Bench::new().await;
    let bearer = format!("Bearer {}", bench.token("alice").expose());
    let send = |kind: &'static str, body: String| {
        let request = plain(Method::POST, "/cloud/environment/env-1/register")
            .header("authorization", &bearer)
            .header("content-type", kind);
        bench.send(request.body(body).unwrap())
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
        send("application/json", padded(64 << 10)).await.status,
        StatusCode::OK
    );
    let reply = send("application/json", padded((64 << 10) + 1)).await;
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
async fn a_request_without_a_usable_host_is_refused() {
    let bench = Bench::new().await;
    let bearer = format!("Bearer {}", bench.token("alice").expose());
    let body = json!({"security_profile": "noise_hybrid_ik_v1", "executor_public_key": key()});
    for host in [None, Some("a@b"), Some("")] {
        let mut request = http::Request::post("/cloud/environment/env-1/register")
            .header("authorization", &bearer)
            .header("content-type", "application/json");
        if let Some(host) = host {
            request = request.header("host", host);
        }
        let reply = bench.send(request.body(body.to_string()).unwrap()).await;
        assert_eq!(reply.refusal(), (400, "invalid_request"), "{host:?}");
    }
}

#[test]
fn keys_are_compared_by_their_bytes() {
    let mine = key();
    let json = serde_json::to_string(&mine).unwrap();
    assert_eq!(serde_json::from_str::<PublicKey>(&json).unwrap(), mine);
}
