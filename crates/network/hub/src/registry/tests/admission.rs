use std::time::Duration;

use exec_transport::http::site::Peer;
use http::{Method, StatusCode};
use serde_json::json;

use super::{Bench, key, plain};
use crate::rate::{RateRules, Rule};

const FEW: Rule = Rule {
    burst: 2,
    per_second: 1,
};
const MANY: Rule = Rule {
    burst: 1000,
    per_second: 1000,
};

#[tokio::test]
async fn nobody_is_served_without_a_token_and_the_log_says_so() {
    let bench = Bench::new().await;
    bench.token("alice");
    for operation in ["register", "connect", "validate", "direct/register"] {
        for authorization in [None, Some("Bearer exh_forged"), Some("Basic YTpi")] {
            let path = format!("/cloud/environment/env-1/{operation}");
            let mut request = plain(Method::POST, &path).header("content-type", "application/json");
            if let Some(authorization) = authorization {
                request = request.header("authorization", authorization);
            }
            let reply = bench.send(request.body("{}".to_owned()).unwrap()).await;
            assert_eq!(reply.refusal(), (401, "unauthorized"), "{operation}");
            assert_eq!(reply.headers["www-authenticate"], "Bearer");
        }
    }
    let lines = bench.audited();
    assert_eq!(lines.len(), 12);
    for line in lines {
        assert_eq!(line["reason"], "unauthorized");
        assert_eq!(line["peer"], "192.0.2.7:1234");
        assert_eq!(line["environment"], "env-1");
        assert!(!line.to_string().contains("exh_forged"));
    }
}

#[tokio::test]
async fn the_log_tells_who_did_what_and_no_secret() {
    let bench = Bench::new().await;
    let alice = bench.token("alice");
    let registered = bench.register("env-1", &alice, &key()).await;
    bench.attach("env-1", &registered).await;
    let connected = bench.connect("env-1", &alice, &key()).await;
    bench.connect("env-1", &bench.token("bob"), &key()).await;
    let secrets = [
        alice.expose().to_owned(),
        connected.text("harness_key_authorization").to_owned(),
        connected.text("url").to_owned(),
        registered.text("url").to_owned(),
    ];
    let lines = bench.audited();
    let told: Vec<_> = lines
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
    assert_eq!(told, expected);
    assert!(lines[0]["evidence"].as_str().unwrap().starts_with("token:"));
    for (line, secret) in lines
        .iter()
        .flat_map(|line| secrets.iter().map(move |s| (line, s)))
    {
        assert!(!line.to_string().contains(secret.as_str()));
    }
}

#[tokio::test]
async fn one_who_connects_too_often_is_told_when_to_come_back() {
    let rules = RateRules {
        address: MANY,
        principal: FEW,
    };
    let mut bench = Bench::with(rules, None).await;
    let (alice, bob) = (bench.token("alice"), bench.token("bob"));
    for _ in 0..2 {
        let reply = bench.connect("env-1", &alice, &key()).await;
        assert_eq!(reply.status, StatusCode::CONFLICT);
    }
    let reply = bench.connect("env-1", &alice, &key()).await;
    assert_eq!(reply.refusal(), (429, "too_many_requests"));
    assert_eq!(reply.headers["retry-after"], "1");
    assert_eq!(
        bench.connect("env-1", &bob, &key()).await.status,
        StatusCode::CONFLICT
    );
    bench.advance(Duration::from_secs(1));
    assert_eq!(
        bench.connect("env-1", &alice, &key()).await.status,
        StatusCode::CONFLICT
    );
}

#[tokio::test]
async fn an_address_that_asks_too_often_is_refused_before_its_token_is_looked_at() {
    let rules = RateRules {
        address: FEW,
        principal: MANY,
    };
    let bench = Bench::with(rules, None).await;
    let connect = |address: &str| {
        let request = plain(Method::POST, "/cloud/environment/env-1/connect");
        let peer = Peer::Network(address.parse().unwrap());
        bench.send_from(request.body(String::new()).unwrap(), peer)
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
async fn registering_is_never_limited() {
    let rules = RateRules {
        address: FEW,
        principal: FEW,
    };
    let bench = Bench::with(rules, None).await;
    let (alice, mine) = (bench.token("alice"), key());
    for _ in 0..20 {
        let reply = bench.register("env-1", &alice, &mine).await;
        assert_eq!(reply.status, StatusCode::OK);
    }
}

#[tokio::test]
async fn wrong_tokens_are_counted_wherever_they_are_presented() {
    let rules = RateRules {
        address: FEW,
        principal: MANY,
    };
    for operation in ["register", "direct/register", "connect", "validate"] {
        let bench = Bench::with(rules, None).await;
        let alice = bench.token("alice");
        let guess = || {
            let path = format!("/cloud/environment/env-1/{operation}");
            let request = plain(Method::POST, &path)
                .header("content-type", "application/json")
                .header("authorization", "Bearer exh_forged");
            bench.send(request.body("{}".to_owned()).unwrap())
        };
        for _ in 0..2 {
            assert_eq!(guess().await.refusal(), (401, "unauthorized"));
        }
        let limited = (429, "too_many_requests");
        assert_eq!(guess().await.refusal(), limited, "{operation}");
        // An executor takes a refusal for good: who has a token is let in.
        let registered = bench.register("env-1", &alice, &key()).await;
        assert_eq!(registered.status, StatusCode::OK);
    }
}

#[tokio::test]
async fn nobody_is_read_before_they_say_who_they_are() {
    let bench = Bench::new().await;
    for operation in ["register", "direct/register", "connect", "validate"] {
        let path = format!("/cloud/environment/env-1/{operation}");
        let request = plain(Method::POST, &path)
            .header("content-type", "application/json")
            .header("authorization", "Bearer exh_forged")
            .header("content-length", "1000000")
            .body("x".repeat(1_000_000));
        let reply = bench.send(request.unwrap()).await;
        assert_eq!(reply.refusal(), (401, "unauthorized"), "{operation}");
    }
}
