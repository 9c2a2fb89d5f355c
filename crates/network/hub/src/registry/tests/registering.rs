use std::{sync::Arc, time::Duration};

use exec_registry::api::Registered;
use http::StatusCode;
use serde_json::json;

use super::{Bench, key};
use crate::{
    exchange::Exchange,
    principal::Role,
    registry::{Registry, Services},
    store::ConnectionId,
    switch::Switch,
    url::Pass,
};

#[tokio::test]
async fn an_executor_gets_a_url_that_is_signed_for_its_registration() {
    let bench = Bench::new().await;
    let reply = bench.register("env-1", &bench.token("alice"), &key()).await;
    assert_eq!(reply.status, StatusCode::OK);
    let registered: Registered = serde_json::from_value(reply.body).unwrap();
    assert_eq!(registered.environment_id, "env-1");
    assert_eq!(registered.security_profile, "noise_hybrid_ik_v1");
    let url = url::Url::parse(registered.url.expose()).unwrap();
    assert_eq!(url.origin().ascii_serialization(), "ws://hub.example:8765");
    let pass = bench
        .services
        .signer
        .check(url.path(), url.query(), bench.moment.at);
    let expected = Pass::Executor {
        environment: "env-1".parse().unwrap(),
        registration: registered.executor_registration_id.parse().unwrap(),
    };
    assert_eq!(pass, Ok(expected));
    assert_eq!(reply.headers["cache-control"], "no-store");
}

#[tokio::test]
async fn an_executor_that_registers_twice_supersedes_itself() {
    let bench = Bench::new().await;
    let (alice, mine) = (bench.token("alice"), key());
    let first = bench.register("env-1", &alice, &mine).await;
    bench.attach("env-1", &first).await;
    let second = bench.register("env-1", &alice, &mine).await;
    let id = second.text("executor_registration_id");
    assert_ne!(first.text("executor_registration_id"), id);
    let told = bench.sockets.told();
    let last = ("env-1".parse().unwrap(), Some(id.parse().unwrap()));
    assert_eq!(
        told.last(),
        Some(&last),
        "sockets of other registrations are closed"
    );
}

#[tokio::test]
async fn of_two_executors_the_newer_wins_and_the_older_waits_until_it_is_gone() {
    let mut bench = Bench::new().await;
    let (alice, old, young) = (bench.token("alice"), key(), key());
    let first = bench.register("env-1", &alice, &old).await;
    bench.attach("env-1", &first).await;
    let second = bench.register("env-1", &alice, &young).await;
    assert_eq!(second.status, StatusCode::OK);
    let conflict = (503, "registration_conflict");
    assert_eq!(
        bench.register("env-1", &alice, &old).await.refusal(),
        conflict
    );
    bench.attach("env-1", &second).await;
    bench.advance(Duration::from_secs(3600));
    assert_eq!(
        bench.register("env-1", &alice, &old).await.refusal(),
        conflict
    );

    let environment = "env-1".parse().unwrap();
    let presence = bench
        .services
        .store
        .presence(&environment)
        .await
        .unwrap()
        .unwrap();
    bench
        .services
        .store
        .detach(&presence, bench.moment.at)
        .await
        .unwrap();
    // It may be on its way back.
    assert_eq!(
        bench.register("env-1", &alice, &old).await.refusal(),
        conflict
    );
    bench.advance(Duration::from_secs(30));
    assert_eq!(
        bench.register("env-1", &alice, &old).await.status,
        StatusCode::OK
    );
}

#[tokio::test]
async fn a_registration_whose_executor_hung_up_is_made_to_its_end() {
    let bench = Bench::new().await;
    let (alice, mine) = (bench.token("alice"), key());
    let mut request = Box::pin(bench.register("env-1", &alice, &mine));
    // The store has it; the answer is not there yet.
    assert!(futures_util::poll!(&mut request).is_pending());
    drop(request);
    let line = bench.await_line("register").await;
    assert_eq!(line["outcome"], "allowed");
    let environment = "env-1".parse().unwrap();
    let current = bench.services.store.registration(&environment).await;
    let current = current.unwrap().unwrap().id;
    assert_eq!(line["registration"], current.as_str());
    assert_eq!(bench.sockets.told(), [(environment, Some(current))]);
}

#[tokio::test]
async fn only_the_owner_registers_and_globs_bound_what_may_be_claimed() {
    let bench = Bench::new().await;
    let forbidden = (403, "forbidden");
    let alice = bench.token("alice");
    assert_eq!(
        bench.register("env-1", &alice, &key()).await.status,
        StatusCode::OK
    );
    let bob = bench.token_for("bob", &[Role::Executor, Role::Admin], &["*"]);
    assert_eq!(
        bench.register("env-1", &bob, &key()).await.refusal(),
        forbidden
    );
    let narrow = bench.token_for("carol", &[Role::Executor], &["box-*"]);
    assert_eq!(
        bench.register("env-2", &narrow, &key()).await.refusal(),
        forbidden
    );
    assert_eq!(
        bench.register("box-2", &narrow, &key()).await.status,
        StatusCode::OK
    );
    let harness = bench.token_for("dave", &[Role::Harness], &[]);
    assert_eq!(
        bench.register("env-3", &harness, &key()).await.refusal(),
        forbidden
    );
    let same_person = bench.token_for("alice", &[Role::Harness], &[]);
    assert_eq!(
        bench
            .register("env-1", &same_person, &key())
            .await
            .refusal(),
        forbidden
    );
}

#[tokio::test]
async fn another_security_profile_is_refused() {
    let bench = Bench::new().await;
    let body = json!({"security_profile": "plain", "executor_public_key": key()});
    let reply = bench
        .post("env-1/register", &bench.token("alice"), &body)
        .await;
    assert_eq!(reply.refusal(), (400, "unsupported_security_profile"));
}

#[tokio::test]
async fn one_principal_has_so_many_environments_and_the_others_have_theirs() {
    let bench = Bench::new().await;
    let (mallory, bob, mine) = (bench.token("mallory"), bench.token("bob"), key());
    let direct = json!({"transport": "direct_jsonrpc_v1"});
    let claims = (0..1024).map(|n| {
        let (bench, mallory, mine, direct) = (&bench, &mallory, &mine, &direct);
        async move {
            if n % 2 == 0 {
                bench.register(&format!("env-{n}"), mallory, mine).await
            } else {
                let path = format!("env-{n}/direct/register");
                bench.post(&path, mallory, direct).await
            }
        }
    });
    for reply in futures_util::future::join_all(claims).await {
        assert_eq!(reply.status, StatusCode::OK);
    }
    let limit = (403, "environment_limit");
    let more = bench.register("more", &mallory, &mine).await;
    assert_eq!(more.refusal(), limit);
    let more = bench.post("more/direct/register", &mallory, &direct).await;
    assert_eq!(more.refusal(), limit);
    // What is there already is registered again, and others are not disturbed.
    let again = bench.register("env-0", &mallory, &mine).await;
    assert_eq!(again.status, StatusCode::OK);
    let other = bench.register("more", &bob, &mine).await;
    assert_eq!(other.status, StatusCode::OK);
    let removed = bench.services.store.remove(&"env-7".parse().unwrap()).await;
    assert!(removed.unwrap());
    let room = bench.register("room", &mallory, &mine).await;
    assert_eq!(room.status, StatusCode::OK);
    let bench = bench.restart().await;
    let more = bench.register("more-still", &mallory, &mine).await;
    assert_eq!(more.refusal(), limit, "a restart counts the same");
}

#[tokio::test]
async fn a_registration_that_is_answered_late_leaves_a_newer_one_alone() {
    let bench = Bench::new().await;
    let switch = Arc::new(Switch::default());
    let services = Services {
        exchange: Arc::clone(&switch) as Arc<dyn Exchange>,
        ..bench.services.clone()
    };
    let registry = Registry::new(services, Arc::clone(&bench.direct));
    let alice = bench.token("alice");
    let register = |key| {
        let body = json!({"security_profile": "noise_hybrid_ik_v1", "executor_public_key": key});
        let (bench, registry, alice) = (&bench, &registry, &alice);
        async move {
            bench
                .post_to(registry, "env-1/register", alice, &body)
                .await
        }
    };
    let mut late = Box::pin(register(key()));
    assert!(futures_util::poll!(&mut late).is_pending());
    let newer = register(key()).await;
    let mut attachment = switch.attach(
        "env-1".parse().unwrap(),
        newer.text("executor_registration_id").parse().unwrap(),
        ConnectionId::generate(),
    );
    assert_eq!(late.await.status, StatusCode::OK);
    assert!(attachment.evicted.try_recv().is_err());
}
