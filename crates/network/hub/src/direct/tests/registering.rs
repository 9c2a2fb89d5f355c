use http::{HeaderMap, Method, StatusCode, header::AUTHORIZATION};
use serde_json::json;

use super::{ask, bearer, dial, executor, hear, is_online, path, refused, register, upgrade};
use crate::{
    direct::table::CAPACITY,
    principal::Role,
    rate::{RateRules, Rule},
    registry::tests::{Bench, key},
};

#[tokio::test]
async fn a_registration_says_where_to_dial() {
    let bench = Bench::new().await;
    let reply = register(&bench, "env-1", &bench.token("alice")).await;
    assert_eq!(reply.status, StatusCode::OK);
    let id = reply.text("registration_id");
    let url = format!("ws://hub.example:8765/direct/env-1/executor?registration={id}");
    let expected = json!({"environment_id": "env-1", "transport": "direct_jsonrpc_v1",
        "registration_id": id, "url": url});
    assert_eq!(reply.body, expected);
}

#[tokio::test]
async fn other_transports_are_refused() {
    let bench = Bench::new().await;
    let alice = bench.token("alice");
    let reply = bench
        .post("env-1/direct/register", &alice, &json!({"transport": "x"}))
        .await;
    assert_eq!(reply.refusal(), (400, "unsupported_transport"));
    let reply = bench
        .post("env-1/direct/register", &alice, &json!({}))
        .await;
    assert_eq!(reply.refusal(), (400, "invalid_request"));
}

#[tokio::test]
async fn an_environment_has_one_owner_whichever_way_it_was_registered() {
    let bench = Bench::new().await;
    let (alice, bob) = (bench.token("alice"), bench.token("bob"));
    let forbidden = (403, "forbidden");
    assert_eq!(
        register(&bench, "env-1", &alice).await.status,
        StatusCode::OK
    );
    assert_eq!(register(&bench, "env-1", &bob).await.refusal(), forbidden);
    assert_eq!(
        bench.register("env-1", &bob, &key()).await.refusal(),
        forbidden
    );
    assert_eq!(
        bench.register("env-1", &alice, &key()).await.status,
        StatusCode::OK
    );
    assert_eq!(
        bench.register("env-2", &bob, &key()).await.status,
        StatusCode::OK
    );
    assert_eq!(register(&bench, "env-2", &alice).await.refusal(), forbidden);
    let harness = bench.token_for("carol", &[Role::Harness], &["*"]);
    assert_eq!(
        register(&bench, "env-3", &harness).await.refusal(),
        forbidden
    );
}

#[tokio::test]
async fn the_newer_executor_wins_and_the_older_is_told_to_end() {
    let bench = Bench::new().await;
    let alice = bench.token("alice");
    let first = register(&bench, "env-1", &alice).await;
    let (mut old, _served) = dial(&bench, &alice, &path(&first)).await;
    let (_young, _served) = executor(&bench, &alice).await;
    assert_eq!(hear(&mut old).await, None);
    let again = upgrade(&path(&first), bearer(&alice));
    assert_eq!(
        refused(&bench, &again).await,
        (410, "registration_superseded")
    );
}

#[tokio::test]
async fn a_socket_of_the_same_registration_replaces_the_one_before() {
    let bench = Bench::new().await;
    let alice = bench.token("alice");
    let registered = register(&bench, "env-1", &alice).await;
    let (mut old, _served) = dial(&bench, &alice, &path(&registered)).await;
    let (_new, _served) = dial(&bench, &alice, &path(&registered)).await;
    assert_eq!(hear(&mut old).await, None);
    assert!(is_online(&bench));
}

#[tokio::test]
async fn forged_foreign_and_odd_sockets_are_refused() {
    let bench = Bench::new().await;
    let (alice, bob) = (bench.token("alice"), bench.token("bob"));
    let registered = register(&bench, "env-1", &alice).await;
    let path = path(&registered);
    // A hub that was restarted knows nobody: the executor registers again.
    for unknown in [
        "/direct/env-1/executor?registration=reg-x",
        "/direct/env-1/executor",
    ] {
        let reply = refused(&bench, &upgrade(unknown, bearer(&alice))).await;
        assert_eq!(reply, (409, "registration_unknown"));
    }
    assert_eq!(
        refused(&bench, &upgrade(&path, bearer(&bob))).await,
        (403, "forbidden")
    );
    assert_eq!(
        refused(&bench, &upgrade("/direct/env-1", bearer(&bob))).await,
        (404, "environment_not_found")
    );
    let nobody = http::HeaderMap::new();
    for path in [path.as_str(), "/direct/env-1"] {
        let reply = refused(&bench, &upgrade(path, nobody.clone())).await;
        assert_eq!(reply, (401, "unauthorized"));
    }
    let odd = refused(&bench, &upgrade("/direct/env-1/other", bearer(&alice))).await;
    assert_eq!(odd, (404, "not_found"));
    let odd = refused(&bench, &upgrade("/direct/a.b", bearer(&alice))).await;
    assert_eq!(odd, (400, "invalid_environment_id"));
    let mut post = upgrade(&path, bearer(&alice));
    post.method = Method::POST;
    assert_eq!(refused(&bench, &post).await, (405, "method_not_allowed"));
    let mut page = upgrade(&path, bearer(&alice));
    page.headers.remove("upgrade");
    assert_eq!(refused(&bench, &page).await, (426, "upgrade_required"));
    assert!(ask(&bench, &upgrade(&path, bearer(&alice))).await.is_ok());
}

#[tokio::test]
async fn removing_an_environment_closes_its_socket() {
    let bench = Bench::new().await;
    let (mut executor, served) = executor(&bench, &bench.token("alice")).await;
    assert!(bench.direct.remove(&"env-1".parse().unwrap()));
    assert_eq!(hear(&mut executor).await, None);
    drop(executor);
    served.await.unwrap();
    assert_eq!(bench.direct.table().len(), 0);
}

#[tokio::test]
async fn the_table_is_bounded_and_those_without_a_socket_make_room() {
    let bench = Bench::new().await;
    let alice = bench.token("alice");
    let (_executor, _served) = executor(&bench, &alice).await;
    let others: Vec<_> = (0..5).map(|n| bench.token(&format!("other-{n}"))).collect();
    for n in 0..CAPACITY + 10 {
        let reply = register(&bench, &format!("many-{n}"), &others[n / 1000]).await;
        assert_eq!(reply.status, StatusCode::OK);
    }
    assert_eq!(bench.direct.table().len(), CAPACITY);
    assert!(is_online(&bench), "who is connected stays");
}

#[tokio::test]
async fn executors_with_wrong_tokens_are_counted() {
    let few = Rule {
        burst: 2,
        per_second: 1,
    };
    let rules = RateRules {
        address: few,
        principal: few,
    };
    let bench = Bench::with(rules, None).await;
    let alice = bench.token("alice");
    let registered = register(&bench, "env-1", &alice).await;
    let forged = [(AUTHORIZATION, "Bearer exh_forged".parse().unwrap())];
    let forged = upgrade(&path(&registered), HeaderMap::from_iter(forged));
    for _ in 0..2 {
        assert_eq!(refused(&bench, &forged).await, (401, "unauthorized"));
    }
    assert_eq!(refused(&bench, &forged).await, (429, "too_many_requests"));
    let own = upgrade(&path(&registered), bearer(&alice));
    assert!(ask(&bench, &own).await.is_ok());
}
