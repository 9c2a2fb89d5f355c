use exec_registry::api::SecretString;
use exec_transport::http::service::HttpPeer;
use http::{Request, StatusCode};
use std::sync::Arc;

use super::{AdminService, EnvironmentList, ExecutorTransport};
use crate::{
    principal::Role,
    registry::{
        RequestTime,
        tests::{Reply, TestHub, key},
    },
};

async fn send(hub: &TestHub, method: &str, path: &str, token: &SecretString) -> Reply {
    let admin = AdminService::new(hub.services.clone(), Arc::clone(&hub.direct));
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header("authorization", format!("Bearer {}", token.expose()));
    let (parts, ()) = request.body(()).unwrap().into_parts();
    let peer = HttpPeer::Network("192.0.2.9:9".parse().unwrap());
    let moment: RequestTime = hub.moment;
    Reply::of(admin.serve(&parts, peer, moment).await).await
}

fn ids(reply: &Reply) -> Vec<String> {
    let list: EnvironmentList = serde_json::from_value(reply.body.clone()).unwrap();
    list.environments
        .into_iter()
        .map(|one| one.environment_id)
        .collect()
}

const PATH: &str = "/hub/v1/environments";

#[tokio::test]
async fn admins_see_all_and_others_their_own() {
    let hub = TestHub::new().await;
    let (alice, bob) = (hub.token("alice"), hub.token("bob"));
    let root = hub.token_for("root", &[Role::Admin], &[]);
    let registered = hub.register("env-a", &alice, &key()).await;
    hub.attach("env-a", &registered).await;
    hub.register("env-b", &bob, &key()).await;
    let body = serde_json::json!({"transport": "direct_jsonrpc_v1"});
    hub.post("env-aa/direct/register", &bob, &body).await;

    assert_eq!(
        ids(&send(&hub, "GET", PATH, &root).await),
        ["env-a", "env-aa", "env-b"]
    );
    assert_eq!(
        ids(&send(&hub, "GET", PATH, &bob).await),
        ["env-aa", "env-b"]
    );
    assert!(ids(&send(&hub, "GET", PATH, &hub.token("carol")).await).is_empty());

    let reply = send(&hub, "GET", PATH, &alice).await;
    let list: EnvironmentList = serde_json::from_value(reply.body).unwrap();
    let only = &list.environments[0];
    assert_eq!((only.owner.as_str(), only.online), ("alice", true));
    assert_eq!(
        (only.node.as_deref(), only.transport),
        (Some("n1"), ExecutorTransport::Noise)
    );
    assert_eq!(
        only.registered_at.as_deref(),
        Some("2023-11-14T22:13:20.000Z")
    );
    assert_eq!(list.next, None);
}

#[tokio::test]
async fn long_lists_are_paginated() {
    let hub = TestHub::new().await;
    let (alice, bob, own_key) = (hub.token("alice"), hub.token("bob"), key());
    let root = hub.token_for("root", &[Role::Admin], &[]);
    let registrations = (0..1200).map(|n| {
        let (hub, own_key) = (&hub, &own_key);
        let owner = if n % 2 == 0 { &alice } else { &bob };
        async move { hub.register(&format!("env-{n:04}"), owner, own_key).await }
    });
    futures_util::future::join_all(registrations).await;
    let (mut seen, mut path) = (Vec::new(), PATH.to_owned());
    loop {
        let reply = send(&hub, "GET", &path, &root).await;
        assert_eq!(reply.status, StatusCode::OK);
        seen.extend(ids(&reply));
        let Some(next) = reply.body["next"].as_str() else {
            break;
        };
        path = format!("{PATH}?after={next}");
    }
    assert_eq!(seen.len(), 1200);
    assert!(seen.is_sorted());
}

#[tokio::test]
async fn only_owners_and_admins_may_remove() {
    let hub = TestHub::new().await;
    let (alice, bob) = (hub.token("alice"), hub.token("bob"));
    let root = hub.token_for("root", &[Role::Admin], &[]);
    let registered = hub.register("env-a", &alice, &key()).await;
    hub.attach("env-a", &registered).await;
    let path = format!("{PATH}/env-a");
    let not_found = (404, "environment_not_found");
    assert_eq!(send(&hub, "DELETE", &path, &bob).await.refusal(), not_found);
    hub.sockets.superseded();
    assert_eq!(
        send(&hub, "DELETE", &path, &alice).await.status,
        StatusCode::OK
    );
    assert_eq!(hub.sockets.superseded(), [("env-a".parse().unwrap(), None)]);
    assert_eq!(
        send(&hub, "DELETE", &path, &alice).await.refusal(),
        not_found
    );
    assert_eq!(
        hub.register("env-a", &bob, &key()).await.status,
        StatusCode::OK
    );
    assert_eq!(
        send(&hub, "DELETE", &path, &root).await.status,
        StatusCode::OK
    );
}

#[tokio::test]
async fn removal_completes_after_the_client_disconnects() {
    let hub = TestHub::new().await;
    let alice = hub.token("alice");
    hub.register("env-a", &alice, &key()).await;
    hub.sockets.superseded();
    let path = format!("{PATH}/env-a");
    let mut request = Box::pin(send(&hub, "DELETE", &path, &alice));
    // The store has recorded it, but the response is not sent yet.
    assert!(futures_util::poll!(&mut request).is_pending());
    drop(request);
    let line = hub.await_line("remove").await;
    assert_eq!(line["outcome"], "allowed");
    assert_eq!(hub.sockets.superseded(), [("env-a".parse().unwrap(), None)]);
}

#[tokio::test]
async fn invalid_requests_are_refused() {
    let hub = TestHub::new().await;
    let alice = hub.token("alice");
    let not_found = (404, "not_found");
    assert_eq!(
        send(&hub, "GET", "/hub/v1/other", &alice).await.refusal(),
        not_found
    );
    assert_eq!(
        send(&hub, "GET", "/hub/v1/environmentsx", &alice)
            .await
            .refusal(),
        not_found
    );
    let method = (405, "method_not_allowed");
    assert_eq!(send(&hub, "POST", PATH, &alice).await.refusal(), method);
    assert_eq!(
        send(&hub, "GET", &format!("{PATH}/a"), &alice)
            .await
            .refusal(),
        method
    );
    let id = (400, "invalid_environment_id");
    assert_eq!(
        send(&hub, "DELETE", &format!("{PATH}/a/b"), &alice)
            .await
            .refusal(),
        id
    );
    let query = format!("{PATH}?limit=7");
    assert_eq!(
        send(&hub, "GET", &query, &alice).await.refusal(),
        (400, "invalid_request")
    );
    let unknown_token = TestHub::new().await.token("mallory");
    assert_eq!(
        send(&hub, "GET", PATH, &unknown_token).await.refusal(),
        (401, "unauthorized")
    );
}

#[tokio::test]
async fn direct_environment_without_executor_is_listed_and_removed() {
    let hub = TestHub::new().await;
    let (alice, bob) = (hub.token("alice"), hub.token("bob"));
    let body = serde_json::json!({"transport": "direct_jsonrpc_v1"});
    hub.post("box/direct/register", &alice, &body).await;
    let hub = hub.restart().await;
    let reply = send(&hub, "GET", PATH, &alice).await;
    let list: EnvironmentList = serde_json::from_value(reply.body).unwrap();
    let only = &list.environments[0];
    assert_eq!(
        (only.transport, only.online),
        (ExecutorTransport::Direct, false)
    );
    assert_eq!(only.registration_id, None);
    let removed = send(&hub, "DELETE", &format!("{PATH}/box"), &alice).await;
    assert_eq!(removed.status, StatusCode::OK);
    let claimed = hub.post("box/direct/register", &bob, &body).await;
    assert_eq!(claimed.status, StatusCode::OK);
}

#[tokio::test]
async fn removing_does_not_reveal_environments_of_others() {
    let hub = TestHub::new().await;
    hub.register("env-a", &hub.token("alice"), &key()).await;
    let bob = hub.token_for("bob", &[Role::Harness], &[]);
    let foreign = send(&hub, "DELETE", &format!("{PATH}/env-a"), &bob).await;
    let unknown = send(&hub, "DELETE", &format!("{PATH}/env-b"), &bob).await;
    assert_eq!(
        (foreign.status, foreign.body),
        (unknown.status, unknown.body)
    );
}
