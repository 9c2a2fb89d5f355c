//! Whose an environment is outlives every table of sockets.

use http::StatusCode;
use serde_json::json;

use super::{bearer, dial, hear, path, refused, register, upgrade};
use crate::{
    direct::table::CAPACITY,
    registry::tests::{Bench, key},
};

const FORBIDDEN: (u16, &str) = (403, "forbidden");

#[tokio::test]
async fn a_hub_that_was_restarted_still_knows_whose_an_environment_is() {
    let bench = Bench::new().await;
    let (alice, bob) = (bench.token("alice"), bench.token("bob"));
    register(&bench, "box", &alice).await;
    let bench = bench.restart().await;
    assert_eq!(register(&bench, "box", &bob).await.refusal(), FORBIDDEN);
    assert_eq!(
        bench.register("box", &bob, &key()).await.refusal(),
        FORBIDDEN
    );
    assert_eq!(register(&bench, "box", &alice).await.status, StatusCode::OK);
}

#[tokio::test]
async fn a_full_table_forgets_who_waits_and_not_whose_it_is() {
    let bench = Bench::new().await;
    let alice = bench.token("alice");
    // The first in order is the first to go.
    register(&bench, "a-box", &alice).await;
    let crowd: Vec<_> = (0..5)
        .map(|n| bench.token(&format!("mallory-{n}")))
        .collect();
    for n in 0..=CAPACITY {
        let reply = register(&bench, &format!("b-{n}"), &crowd[n / 1000]).await;
        assert_eq!(reply.status, StatusCode::OK, "{n}");
    }
    let (environment, owner) = ("a-box".parse().unwrap(), "alice".parse().unwrap());
    let found = bench.direct.find(&environment, &owner);
    assert_eq!(found, None, "its registration had to make room");
    assert_eq!(
        register(&bench, "a-box", &crowd[0]).await.refusal(),
        FORBIDDEN
    );
    assert_eq!(
        register(&bench, "a-box", &alice).await.status,
        StatusCode::OK
    );
}

#[tokio::test]
async fn what_one_node_registered_another_gives_to_nobody_else() {
    let bench = Bench::new().await;
    let (alice, bob) = (bench.token("alice"), bench.token("bob"));
    let (node, _) = bench.second_node();
    register(&bench, "box", &alice).await;
    let body = json!({"transport": "direct_jsonrpc_v1"});
    let foreign = bench
        .post_to(&node, "box/direct/register", &bob, &body)
        .await;
    assert_eq!(foreign.refusal(), FORBIDDEN);
    let own = bench
        .post_to(&node, "box/direct/register", &alice, &body)
        .await;
    assert_eq!(own.status, StatusCode::OK);
}

#[tokio::test]
async fn an_executor_is_never_joined_with_a_harness_of_the_next_owner() {
    let bench = Bench::new().await;
    let (alice, bob) = (bench.token("alice"), bench.token("bob"));
    let (_executor, _served) = super::executor(&bench, &alice).await;
    let (node, _) = bench.second_node();
    // Removed and claimed on another node: this one is not told.
    let environment = "env-1".parse().unwrap();
    assert!(bench.services.store.remove(&environment).await.unwrap());
    let body = json!({"transport": "direct_jsonrpc_v1"});
    let claimed = bench
        .post_to(&node, "env-1/direct/register", &bob, &body)
        .await;
    assert_eq!(claimed.status, StatusCode::OK);
    tokio::time::pause();
    let harness = upgrade("/direct/env-1", bearer(&bob));
    assert_eq!(
        refused(&bench, &harness).await,
        (409, "environment_offline")
    );
}

#[tokio::test]
async fn a_registration_of_the_next_owner_ends_the_executor_of_the_one_before() {
    let bench = Bench::new().await;
    let (alice, bob) = (bench.token("alice"), bench.token("bob"));
    let registered = register(&bench, "env-1", &alice).await;
    let (mut executor, _served) = dial(&bench, &alice, &path(&registered)).await;
    let environment = "env-1".parse().unwrap();
    assert!(bench.services.store.remove(&environment).await.unwrap());
    let again = upgrade(&path(&registered), bearer(&alice));
    assert_eq!(refused(&bench, &again).await, (409, "registration_unknown"));
    assert_eq!(register(&bench, "env-1", &bob).await.status, StatusCode::OK);
    assert_eq!(hear(&mut executor).await, None);
    assert_eq!(refused(&bench, &again).await, (409, "registration_unknown"));
}
