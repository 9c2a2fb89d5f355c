//! Tests of direct executors and harnesses over in-memory websockets.

mod access_keys;

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use exec_registry::api::SecretString;
use exec_transport::{
    http::service::HttpPeer,
    link::{DataEncoding, Link, LinkRole as End},
    websocket::{LinkOptions, UpgradedStream},
};
use exec_wire::outgoing_message::OutgoingMessage;
use http::{HeaderMap, Method, Request, StatusCode, header::AUTHORIZATION, request::Parts};
use serde_json::json;
use tokio::{
    io::{DuplexStream, split},
    task::JoinHandle,
    time::Instant,
};

use super::{DirectService, DirectUpgrade, slot_table::CAPACITY};
use crate::{
    principal::Role,
    rate_limit::{RateLimitConfig, RateRule},
    registry::{
        HttpRefusal,
        tests::{Reply, TestHub, key},
    },
};

/// Builds a websocket upgrade request.
fn upgrade(path: &str, headers: HeaderMap) -> Parts {
    let request = Request::get(path)
        .header("host", "hub.example:8765")
        .header("connection", "Upgrade")
        .header("upgrade", "websocket");
    let (mut parts, ()) = request.body(()).unwrap().into_parts();
    parts.headers.extend(headers);
    parts
}

fn bearer(token: &SecretString) -> HeaderMap {
    let value = format!("Bearer {}", token.expose()).parse().unwrap();
    HeaderMap::from_iter([(http::header::AUTHORIZATION, value)])
}

async fn request_upgrade(hub: &TestHub, parts: &Parts) -> Result<DirectUpgrade, HttpRefusal> {
    let peer = HttpPeer::Network("192.0.2.8:8".parse().unwrap());
    hub.direct.upgrade(parts, peer, hub.moment).await
}

async fn refused(hub: &TestHub, parts: &Parts) -> (u16, &'static str) {
    let refusal = request_upgrade(hub, parts).await.unwrap_err();
    (refusal.status.as_u16(), refusal.code)
}

async fn register(hub: &TestHub, environment: &str, token: &SecretString) -> Reply {
    let body = json!({"transport": "direct_jsonrpc_v1"});
    hub.post(&format!("{environment}/direct/register"), token, &body)
        .await
}

/// Returns the path and query of the URL in a registration response.
fn path(registered: &Reply) -> String {
    let url = url::Url::parse(registered.text("url")).unwrap();
    format!("{}?{}", url.path(), url.query().unwrap())
}

/// Makes a link of one end of a connection.
fn websocket(stream: DuplexStream, role: End, peer: &str) -> Link {
    let stream = UpgradedStream::new(split(stream), Bytes::new());
    stream.into_link(role, peer.to_owned(), LinkOptions::of(role))
}

/// Opens a websocket that the hub serves and returns the client's end.
fn open(direct: &Arc<DirectService>, upgrade: DirectUpgrade) -> (Link, JoinHandle<()>) {
    let (near, far) = tokio::io::duplex(64 << 10);
    let client = websocket(near, End::Client, "hub");
    let server = websocket(far, End::Server, "client");
    let direct = Arc::clone(direct);
    let served = tokio::spawn(async move { direct.serve(upgrade, server).await });
    (client, served)
}

/// Registers and opens an executor's websocket; returns once it waits for a harness.
async fn executor(hub: &TestHub, token: &SecretString) -> (Link, JoinHandle<()>) {
    let registered = register(hub, "env-1", token).await;
    dial(hub, token, &path(&registered)).await
}

async fn dial(hub: &TestHub, token: &SecretString, path: &str) -> (Link, JoinHandle<()>) {
    let mut arrivals = hub.direct.arrivals.subscribe();
    arrivals.mark_unchanged();
    let admitted = request_upgrade(hub, &upgrade(path, bearer(token)))
        .await
        .unwrap();
    let opened = open(&hub.direct, admitted);
    arrivals.changed().await.unwrap();
    opened
}

async fn harness(hub: &TestHub, token: &SecretString) -> Link {
    let admitted = request_upgrade(hub, &upgrade("/direct/env-1", bearer(token)))
        .await
        .unwrap();
    open(&hub.direct, admitted).0
}

async fn send_text(link: &mut Link, text: &str) {
    link.writer
        .push(OutgoingMessage::Text(text.into()), DataEncoding::Text);
    link.writer.flush().await.unwrap();
}

async fn receive_text(link: &mut Link) -> Option<String> {
    let message = link.reader.next().await.ok()??;
    Some(String::from_utf8(message.to_vec()).unwrap())
}

/// Returns whether the executor of alice is connected.
fn is_online(hub: &TestHub) -> bool {
    let (environment, alice) = ("env-1".parse().unwrap(), "alice".parse().unwrap());
    let found = hub.direct.find(&environment, &alice);
    found.is_some_and(|found| found.online)
}

#[tokio::test]
async fn registration_returns_the_websocket_url() {
    let hub = TestHub::new().await;
    let reply = register(&hub, "env-1", &hub.token("alice")).await;
    assert_eq!(reply.status, StatusCode::OK);
    let id = reply.text("registration_id");
    let url = format!("ws://hub.example:8765/direct/env-1/executor?registration={id}");
    let expected = json!({"environment_id": "env-1", "transport": "direct_jsonrpc_v1",
        "registration_id": id, "url": url});
    assert_eq!(reply.body, expected);
}

#[tokio::test]
async fn other_transports_are_refused() {
    let hub = TestHub::new().await;
    let alice = hub.token("alice");
    let reply = hub
        .post("env-1/direct/register", &alice, &json!({"transport": "x"}))
        .await;
    assert_eq!(reply.refusal(), (400, "unsupported_transport"));
    let reply = hub.post("env-1/direct/register", &alice, &json!({})).await;
    assert_eq!(reply.refusal(), (400, "invalid_request"));
}

#[tokio::test]
async fn environment_has_one_owner_for_all_transports() {
    let hub = TestHub::new().await;
    let (alice, bob) = (hub.token("alice"), hub.token("bob"));
    let forbidden = (403, "forbidden");
    assert_eq!(register(&hub, "env-1", &alice).await.status, StatusCode::OK);
    assert_eq!(register(&hub, "env-1", &bob).await.refusal(), forbidden);
    assert_eq!(
        hub.register("env-1", &bob, &key()).await.refusal(),
        forbidden
    );
    assert_eq!(
        hub.register("env-1", &alice, &key()).await.status,
        StatusCode::OK
    );
    assert_eq!(
        hub.register("env-2", &bob, &key()).await.status,
        StatusCode::OK
    );
    assert_eq!(register(&hub, "env-2", &alice).await.refusal(), forbidden);
    let harness = hub.token_for("carol", &[Role::Harness], &["*"]);
    assert_eq!(register(&hub, "env-3", &harness).await.refusal(), forbidden);
}

#[tokio::test]
async fn newer_executor_replaces_the_older() {
    let hub = TestHub::new().await;
    let alice = hub.token("alice");
    let first = register(&hub, "env-1", &alice).await;
    let (mut old, _served) = dial(&hub, &alice, &path(&first)).await;
    let (_young, _served) = executor(&hub, &alice).await;
    assert_eq!(receive_text(&mut old).await, None);
    let again = upgrade(&path(&first), bearer(&alice));
    assert_eq!(
        refused(&hub, &again).await,
        (410, "registration_superseded")
    );
}

#[tokio::test]
async fn websocket_of_the_same_registration_replaces_the_previous() {
    let hub = TestHub::new().await;
    let alice = hub.token("alice");
    let registered = register(&hub, "env-1", &alice).await;
    let (mut old, _served) = dial(&hub, &alice, &path(&registered)).await;
    let (_new, _served) = dial(&hub, &alice, &path(&registered)).await;
    assert_eq!(receive_text(&mut old).await, None);
    assert!(is_online(&hub));
}

#[tokio::test]
async fn forged_foreign_and_invalid_upgrades_are_refused() {
    let hub = TestHub::new().await;
    let (alice, bob) = (hub.token("alice"), hub.token("bob"));
    let registered = register(&hub, "env-1", &alice).await;
    let path = path(&registered);
    // A restarted hub has no registrations: the executor registers again.
    for unknown in [
        "/direct/env-1/executor?registration=reg-x",
        "/direct/env-1/executor",
    ] {
        let reply = refused(&hub, &upgrade(unknown, bearer(&alice))).await;
        assert_eq!(reply, (409, "registration_unknown"));
    }
    assert_eq!(
        refused(&hub, &upgrade(&path, bearer(&bob))).await,
        (403, "forbidden")
    );
    assert_eq!(
        refused(&hub, &upgrade("/direct/env-1", bearer(&bob))).await,
        (404, "environment_not_found")
    );
    let no_token = http::HeaderMap::new();
    for path in [path.as_str(), "/direct/env-1"] {
        let reply = refused(&hub, &upgrade(path, no_token.clone())).await;
        assert_eq!(reply, (401, "unauthorized"));
    }
    let odd = refused(&hub, &upgrade("/direct/env-1/other", bearer(&alice))).await;
    assert_eq!(odd, (404, "not_found"));
    let odd = refused(&hub, &upgrade("/direct/a.b", bearer(&alice))).await;
    assert_eq!(odd, (400, "invalid_environment_id"));
    let mut post = upgrade(&path, bearer(&alice));
    post.method = Method::POST;
    assert_eq!(refused(&hub, &post).await, (405, "method_not_allowed"));
    let mut page = upgrade(&path, bearer(&alice));
    page.headers.remove("upgrade");
    assert_eq!(refused(&hub, &page).await, (426, "upgrade_required"));
    assert!(
        request_upgrade(&hub, &upgrade(&path, bearer(&alice)))
            .await
            .is_ok()
    );
}

#[tokio::test]
async fn removing_an_environment_closes_its_websocket() {
    let hub = TestHub::new().await;
    let (mut executor, served) = executor(&hub, &hub.token("alice")).await;
    assert!(hub.direct.remove(&"env-1".parse().unwrap()));
    assert_eq!(receive_text(&mut executor).await, None);
    drop(executor);
    served.await.unwrap();
    assert_eq!(hub.direct.table().len(), 0);
}

#[tokio::test]
async fn full_table_evicts_slots_without_a_websocket() {
    let hub = TestHub::new().await;
    let alice = hub.token("alice");
    let (_executor, _served) = executor(&hub, &alice).await;
    let others: Vec<_> = (0..5).map(|n| hub.token(&format!("other-{n}"))).collect();
    for n in 0..CAPACITY + 10 {
        let reply = register(&hub, &format!("many-{n}"), &others[n / 1000]).await;
        assert_eq!(reply.status, StatusCode::OK);
    }
    assert_eq!(hub.direct.table().len(), CAPACITY);
    assert!(is_online(&hub), "a connected executor stays");
}

#[tokio::test]
async fn invalid_executor_tokens_are_rate_limited() {
    let few = RateRule {
        burst: 2,
        per_second: 1,
    };
    let rules = RateLimitConfig {
        address: few,
        principal: few,
    };
    let hub = TestHub::with(rules, None).await;
    let alice = hub.token("alice");
    let registered = register(&hub, "env-1", &alice).await;
    let forged = [(AUTHORIZATION, "Bearer exh_forged".parse().unwrap())];
    let forged = upgrade(&path(&registered), HeaderMap::from_iter(forged));
    for _ in 0..2 {
        assert_eq!(refused(&hub, &forged).await, (401, "unauthorized"));
    }
    assert_eq!(refused(&hub, &forged).await, (429, "too_many_requests"));
    let own = upgrade(&path(&registered), bearer(&alice));
    assert!(request_upgrade(&hub, &own).await.is_ok());
}

#[tokio::test]
async fn messages_pass_both_ways_whole_and_in_order() {
    let hub = TestHub::new().await;
    let alice = hub.token("alice");
    let (mut executor, _served) = executor(&hub, &alice).await;
    let mut harness = harness(&hub, &alice).await;
    send_text(&mut harness, r#"{"id":1,"method":"initialize"}"#).await;
    assert_eq!(
        receive_text(&mut executor).await.unwrap(),
        r#"{"id":1,"method":"initialize"}"#
    );
    let large = "x".repeat(3 << 20);
    let send = async {
        for text in ["a", &large, "b"] {
            send_text(&mut executor, text).await;
        }
    };
    let receive = async {
        for text in ["a", &large, "b"] {
            assert!(receive_text(&mut harness).await.unwrap() == text);
        }
    };
    tokio::join!(send, receive);
}

#[tokio::test]
async fn when_the_harness_ends_the_executor_is_closed_and_dials_again() {
    let hub = TestHub::new().await;
    let alice = hub.token("alice");
    let registered = register(&hub, "env-1", &alice).await;
    for _ in 0..2 {
        let (mut executor, served) = dial(&hub, &alice, &path(&registered)).await;
        let mut harness = harness(&hub, &alice).await;
        send_text(&mut harness, "hello").await;
        assert_eq!(receive_text(&mut executor).await.unwrap(), "hello");
        drop(harness);
        assert_eq!(receive_text(&mut executor).await, None);
        drop(executor);
        served.await.unwrap();
    }
}

#[tokio::test]
async fn when_the_executor_ends_the_harness_is_closed() {
    let hub = TestHub::new().await;
    let alice = hub.token("alice");
    let (executor, served) = executor(&hub, &alice).await;
    let mut harness = harness(&hub, &alice).await;
    drop(executor);
    assert_eq!(receive_text(&mut harness).await, None);
    drop(harness);
    served.await.unwrap();
    assert!(!is_online(&hub));
}

#[tokio::test]
async fn one_harness_at_a_time() {
    let hub = TestHub::new().await;
    let (alice, bob) = (
        hub.token("alice"),
        hub.token_for("bob", &[Role::Harness], &["*"]),
    );
    let (mut executor, _served) = executor(&hub, &alice).await;
    let mut first = harness(&hub, &alice).await;
    // Also while the first harness is still completing its upgrade.
    let second = upgrade("/direct/env-1", bearer(&bob));
    assert_eq!(refused(&hub, &second).await, (409, "environment_busy"));
    send_text(&mut first, "still here").await;
    assert_eq!(receive_text(&mut executor).await.unwrap(), "still here");
}

#[tokio::test]
async fn reconnecting_harness_replaces_its_old_websocket() {
    let hub = TestHub::new().await;
    let alice = hub.token("alice");
    let registered = register(&hub, "env-1", &alice).await;
    let (mut executor, _served) = dial(&hub, &alice, &path(&registered)).await;
    let mut old = harness(&hub, &alice).await;
    let again = async {
        // The executor is closed and dials again.
        assert_eq!(receive_text(&mut executor).await, None);
        dial(&hub, &alice, &path(&registered)).await
    };
    let (mut new, (mut executor, _served)) = tokio::join!(harness(&hub, &alice), again);
    assert_eq!(receive_text(&mut old).await, None);
    send_text(&mut new, "back").await;
    assert_eq!(receive_text(&mut executor).await.unwrap(), "back");
}

#[tokio::test(start_paused = true)]
async fn harness_waits_for_an_executor_with_a_timeout() {
    let hub = TestHub::new().await;
    let alice = hub.token("alice");
    let unknown = refused(&hub, &upgrade("/direct/env-1", bearer(&alice))).await;
    assert_eq!(unknown, (404, "environment_not_found"));
    let registered = register(&hub, "env-1", &alice).await;
    let start = Instant::now();
    let offline = refused(&hub, &upgrade("/direct/env-1", bearer(&alice))).await;
    assert_eq!(offline, (409, "environment_offline"));
    assert_eq!(start.elapsed().as_secs(), 5);

    let late = async {
        tokio::time::sleep(Duration::from_secs(2)).await;
        dial(&hub, &alice, &path(&registered)).await
    };
    let (mut harness, (mut executor, _served)) = tokio::join!(harness(&hub, &alice), late);
    send_text(&mut harness, "hello").await;
    assert_eq!(receive_text(&mut executor).await.unwrap(), "hello");
}

#[tokio::test]
async fn failed_upgrade_of_a_harness_releases_the_executor() {
    let hub = TestHub::new().await;
    let alice = hub.token("alice");
    let (mut executor, _served) = executor(&hub, &alice).await;
    let admitted = request_upgrade(&hub, &upgrade("/direct/env-1", bearer(&alice))).await;
    drop(admitted.unwrap());
    let mut harness = harness(&hub, &alice).await;
    send_text(&mut harness, "hello").await;
    assert_eq!(receive_text(&mut executor).await.unwrap(), "hello");
}

#[tokio::test]
async fn executor_that_sends_first_is_closed() {
    let hub = TestHub::new().await;
    let (mut executor, served) = executor(&hub, &hub.token("alice")).await;
    send_text(&mut executor, "hello").await;
    assert_eq!(receive_text(&mut executor).await, None);
    drop(executor);
    served.await.unwrap();
}

#[tokio::test]
async fn binary_message_closes_both_websockets() {
    let hub = TestHub::new().await;
    let alice = hub.token("alice");
    let (mut executor, _served) = executor(&hub, &alice).await;
    let mut harness = harness(&hub, &alice).await;
    let output = OutgoingMessage::command_output(
        &exec_wire::id::ProcessId::new("p1").unwrap(),
        exec_wire::process::OutputStream::Stdout,
        Bytes::from_static(&[0xff, 0xfe]),
    );
    harness.writer.push(output, DataEncoding::Binary);
    harness.writer.flush().await.unwrap();
    assert_eq!(receive_text(&mut executor).await, None);
    assert_eq!(receive_text(&mut harness).await, None);
}

#[tokio::test(start_paused = true)]
async fn waiting_executor_is_pinged_every_half_minute() {
    let hub = TestHub::new().await;
    let (mut executor, _served) = executor(&hub, &hub.token("alice")).await;
    let start = Instant::now();
    let ping = std::future::poll_fn(|cx| {
        assert!(executor.reader.poll_message(cx).is_pending());
        // A received ping makes a pong due.
        executor.writer.poll_keepalive(cx)
    });
    ping.await;
    assert_eq!(start.elapsed().as_secs(), 30);
}

#[tokio::test]
async fn connecting_does_not_reveal_environments_of_others() {
    let hub = TestHub::new().await;
    let _executor = executor(&hub, &hub.token("alice")).await;
    for globs in [&[][..], &["box-*"]] {
        let bob = hub.token_for("bob", &[Role::Harness], globs);
        let foreign = refused(&hub, &upgrade("/direct/env-1", bearer(&bob))).await;
        let unknown = refused(&hub, &upgrade("/direct/env-2", bearer(&bob))).await;
        assert_eq!(foreign, unknown);
    }
}

const FORBIDDEN: (u16, &str) = (403, "forbidden");

#[tokio::test]
async fn restarted_hub_keeps_owners() {
    let hub = TestHub::new().await;
    let (alice, bob) = (hub.token("alice"), hub.token("bob"));
    register(&hub, "box", &alice).await;
    let hub = hub.restart().await;
    assert_eq!(register(&hub, "box", &bob).await.refusal(), FORBIDDEN);
    assert_eq!(hub.register("box", &bob, &key()).await.refusal(), FORBIDDEN);
    assert_eq!(register(&hub, "box", &alice).await.status, StatusCode::OK);
}

#[tokio::test]
async fn full_table_evicts_registrations_but_keeps_owners() {
    let hub = TestHub::new().await;
    let alice = hub.token("alice");
    // The first in order is evicted first.
    register(&hub, "a-box", &alice).await;
    let other_tokens: Vec<_> = (0..5).map(|n| hub.token(&format!("mallory-{n}"))).collect();
    for n in 0..=CAPACITY {
        let reply = register(&hub, &format!("b-{n}"), &other_tokens[n / 1000]).await;
        assert_eq!(reply.status, StatusCode::OK, "{n}");
    }
    let (environment, owner) = ("a-box".parse().unwrap(), "alice".parse().unwrap());
    let found = hub.direct.find(&environment, &owner);
    assert_eq!(found, None, "its registration was evicted");
    assert_eq!(
        register(&hub, "a-box", &other_tokens[0]).await.refusal(),
        FORBIDDEN
    );
    assert_eq!(register(&hub, "a-box", &alice).await.status, StatusCode::OK);
}

#[tokio::test]
async fn ownership_holds_on_all_nodes() {
    let hub = TestHub::new().await;
    let (alice, bob) = (hub.token("alice"), hub.token("bob"));
    let (node, _) = hub.second_node();
    register(&hub, "box", &alice).await;
    let body = json!({"transport": "direct_jsonrpc_v1"});
    let foreign = hub.post_to(&node, "box/direct/register", &bob, &body).await;
    assert_eq!(foreign.refusal(), FORBIDDEN);
    let own = hub
        .post_to(&node, "box/direct/register", &alice, &body)
        .await;
    assert_eq!(own.status, StatusCode::OK);
}

#[tokio::test]
async fn executor_is_never_joined_with_a_harness_of_the_next_owner() {
    let hub = TestHub::new().await;
    let (alice, bob) = (hub.token("alice"), hub.token("bob"));
    let (_executor, _served) = executor(&hub, &alice).await;
    let (node, _) = hub.second_node();
    // Removed and claimed on another node, which does not notify this one.
    let environment = "env-1".parse().unwrap();
    assert!(hub.services.store.remove(&environment).await.unwrap());
    let body = json!({"transport": "direct_jsonrpc_v1"});
    let claimed = hub
        .post_to(&node, "env-1/direct/register", &bob, &body)
        .await;
    assert_eq!(claimed.status, StatusCode::OK);
    tokio::time::pause();
    let harness = upgrade("/direct/env-1", bearer(&bob));
    assert_eq!(refused(&hub, &harness).await, (409, "environment_offline"));
}

#[tokio::test]
async fn registration_of_the_next_owner_closes_the_previous_executor() {
    let hub = TestHub::new().await;
    let (alice, bob) = (hub.token("alice"), hub.token("bob"));
    let registered = register(&hub, "env-1", &alice).await;
    let (mut executor, _served) = dial(&hub, &alice, &path(&registered)).await;
    let environment = "env-1".parse().unwrap();
    assert!(hub.services.store.remove(&environment).await.unwrap());
    let again = upgrade(&path(&registered), bearer(&alice));
    assert_eq!(refused(&hub, &again).await, (409, "registration_unknown"));
    assert_eq!(register(&hub, "env-1", &bob).await.status, StatusCode::OK);
    assert_eq!(receive_text(&mut executor).await, None);
    assert_eq!(refused(&hub, &again).await, (409, "registration_unknown"));
}
