use std::time::Duration;

use exec_registry::api::Connected;
use http::StatusCode;

use super::{Bench, key};
use crate::{
    principal::Role,
    url::{Pass, PassError},
};

#[tokio::test]
async fn a_harness_gets_everything_of_one_registration() {
    let bench = Bench::new().await;
    let (alice, executor, harness) = (bench.token("alice"), key(), key());
    let registered = bench.register("env-1", &alice, &executor).await;
    bench.attach("env-1", &registered).await;
    let reply = bench.connect("env-1", &alice, &harness).await;
    assert_eq!(reply.status, StatusCode::OK);
    let connected: Connected = serde_json::from_value(reply.body).unwrap();
    assert_eq!(connected.environment_id, "env-1");
    assert_eq!(connected.executor_public_key, executor);
    let id = registered.text("executor_registration_id");
    assert_eq!(connected.executor_registration_id, id);
    assert!(connected.harness_key_authorization.expose().len() >= 43);

    let url = url::Url::parse(connected.url.expose()).unwrap();
    let check = |now| bench.services.signer.check(url.path(), url.query(), now);
    assert!(matches!(check(bench.moment.at), Ok(Pass::Harness { .. })));
    let late = bench.moment.at.plus(Duration::from_secs(61));
    assert_eq!(check(late), Err(PassError::Expired));
}

#[tokio::test]
async fn without_an_executor_of_the_current_registration_the_environment_is_offline() {
    let bench = Bench::new().await;
    let (alice, executor) = (bench.token("alice"), key());
    let offline = (409, "environment_offline");
    let unknown = bench.connect("env-1", &alice, &key()).await;
    assert_eq!(unknown.refusal(), offline, "nobody has registered it yet");
    for token in [
        bench.token_for("bob", &[Role::Executor], &[]),
        bench.token_for("bob", &[Role::Harness], &["box-*"]),
    ] {
        let never = bench.connect("env-1", &token, &key()).await;
        assert_eq!(never.refusal(), (403, "forbidden"));
    }

    let first = bench.register("env-1", &alice, &executor).await;
    assert_eq!(
        bench.connect("env-1", &alice, &key()).await.refusal(),
        offline
    );
    bench.attach("env-1", &first).await;
    assert_eq!(
        bench.connect("env-1", &alice, &key()).await.status,
        StatusCode::OK
    );
    // The socket of the first one is still there; it could not answer the second one's handshakes.
    bench.register("env-1", &alice, &executor).await;
    assert_eq!(
        bench.connect("env-1", &alice, &key()).await.refusal(),
        offline
    );
}

#[tokio::test]
async fn owners_and_tokens_that_name_the_environment_may_connect() {
    let bench = Bench::new().await;
    let alice = bench.token("alice");
    let registered = bench.register("env-1", &alice, &key()).await;
    bench.attach("env-1", &registered).await;
    let named = bench.token_for("bob", &[Role::Harness], &["env-*"]);
    assert_eq!(
        bench.connect("env-1", &named, &key()).await.status,
        StatusCode::OK
    );
    let stranger = bench.token_for("bob", &[Role::Harness], &[]);
    assert_eq!(
        bench.connect("env-1", &stranger, &key()).await.refusal(),
        (409, "environment_offline")
    );
    let refused = [
        bench.token_for("bob", &[Role::Harness], &["box-*"]),
        bench.token_for("alice", &[Role::Executor], &[]),
        bench.token_for("root", &[Role::Admin], &["*"]),
    ];
    for token in refused {
        let reply = bench.connect("env-1", &token, &key()).await;
        assert_eq!(reply.refusal(), (403, "forbidden"));
    }
}

#[tokio::test]
async fn one_who_uses_no_authorization_gets_no_more_and_others_get_theirs() {
    let mut bench = Bench::new().await;
    let (alice, mallory) = (
        bench.token("alice"),
        bench.token_for("mallory", &[Role::Harness], &["*"]),
    );
    let registered = bench.register("env-1", &alice, &key()).await;
    bench.attach("env-1", &registered).await;
    let harness = key();
    for _ in 0..1024 {
        let reply = bench.connect("env-1", &mallory, &harness).await;
        assert_eq!(reply.status, StatusCode::OK);
    }
    let reply = bench.connect("env-1", &mallory, &harness).await;
    assert_eq!(reply.refusal(), (429, "too_many_requests"));
    assert!(reply.headers.contains_key("retry-after"));
    let other = bench.connect("env-1", &alice, &harness).await;
    assert_eq!(other.status, StatusCode::OK);
    bench.advance(Duration::from_secs(60));
    let later = bench.connect("env-1", &mallory, &harness).await;
    assert_eq!(later.status, StatusCode::OK);
}

#[tokio::test]
async fn nobody_learns_which_environments_of_others_exist() {
    let bench = Bench::new().await;
    let alice = bench.token("alice");
    let registered = bench.register("env-1", &alice, &key()).await;
    bench.attach("env-1", &registered).await;
    for token in [
        bench.token_for("bob", &[Role::Harness], &[]),
        bench.token_for("bob", &[Role::Harness], &["box-*"]),
    ] {
        let foreign = bench.connect("env-1", &token, &key()).await;
        let unknown = bench.connect("env-2", &token, &key()).await;
        assert_eq!(
            (foreign.status, foreign.body),
            (unknown.status, unknown.body)
        );
    }
    let lines = bench.audited();
    let reasons: Vec<_> = lines.iter().map(|line| &line["reason"]).collect();
    let expected = ["forbidden", "environment_offline", "forbidden", "forbidden"];
    assert_eq!(reasons[1..], expected, "the log tells the operator");
}
