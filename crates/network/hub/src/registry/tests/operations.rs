use std::{sync::Arc, time::Duration};

use exec_registry::api::{HarnessConnectResponse, RegisterResponse, SecretString};
use exec_relay::identity::NoisePublicKey;
use http::StatusCode;
use serde_json::json;

use super::{Reply, TestHub, key};
use crate::{
    circuit::CircuitDialer,
    executor_table::ExecutorTable,
    principal::Role,
    registry::{HubServices, RegistryService},
    store::ConnectionId,
    url::{RendezvousUrlError, UrlClaims},
};

#[tokio::test]
async fn executor_url_is_signed_for_its_registration() {
    let hub = TestHub::new().await;
    let reply = hub.register("env-1", &hub.token("alice"), &key()).await;
    assert_eq!(reply.status, StatusCode::OK);
    let registered: RegisterResponse = serde_json::from_value(reply.body).unwrap();
    assert_eq!(registered.environment_id, "env-1");
    assert_eq!(registered.security_profile, "noise_hybrid_ik_v1");
    let url = url::Url::parse(registered.url.expose()).unwrap();
    assert_eq!(url.origin().ascii_serialization(), "ws://hub.example:8765");
    let claims = hub
        .services
        .signer
        .check(url.path(), url.query(), hub.moment.at);
    let expected = UrlClaims::Executor {
        environment: "env-1".parse().unwrap(),
        registration: registered.executor_registration_id.parse().unwrap(),
    };
    assert_eq!(claims, Ok(expected));
    assert_eq!(reply.headers["cache-control"], "no-store");
}

#[tokio::test]
async fn second_registration_supersedes_the_first() {
    let hub = TestHub::new().await;
    let (alice, own_key) = (hub.token("alice"), key());
    let first = hub.register("env-1", &alice, &own_key).await;
    hub.attach("env-1", &first).await;
    let second = hub.register("env-1", &alice, &own_key).await;
    let id = second.text("executor_registration_id");
    assert_ne!(first.text("executor_registration_id"), id);
    let superseded = hub.sockets.superseded();
    let last = ("env-1".parse().unwrap(), Some(id.parse().unwrap()));
    assert_eq!(
        superseded.last(),
        Some(&last),
        "sockets of other registrations are closed"
    );
}

#[tokio::test]
async fn newer_executor_wins_and_the_older_waits_until_it_disconnects() {
    let mut hub = TestHub::new().await;
    let (alice, old, young) = (hub.token("alice"), key(), key());
    let first = hub.register("env-1", &alice, &old).await;
    hub.attach("env-1", &first).await;
    let second = hub.register("env-1", &alice, &young).await;
    assert_eq!(second.status, StatusCode::OK);
    let conflict = (503, "registration_conflict");
    assert_eq!(
        hub.register("env-1", &alice, &old).await.refusal(),
        conflict
    );
    hub.attach("env-1", &second).await;
    hub.advance(Duration::from_secs(3600));
    assert_eq!(
        hub.register("env-1", &alice, &old).await.refusal(),
        conflict
    );

    let environment = "env-1".parse().unwrap();
    let presence = hub
        .services
        .store
        .presence(&environment)
        .await
        .unwrap()
        .unwrap();
    hub.services
        .store
        .detach(&presence, hub.moment.at)
        .await
        .unwrap();
    // The executor may be reconnecting.
    assert_eq!(
        hub.register("env-1", &alice, &old).await.refusal(),
        conflict
    );
    hub.advance(Duration::from_secs(30));
    assert_eq!(
        hub.register("env-1", &alice, &old).await.status,
        StatusCode::OK
    );
}

#[tokio::test]
async fn registration_completes_after_the_client_disconnects() {
    let hub = TestHub::new().await;
    let (alice, own_key) = (hub.token("alice"), key());
    let mut request = Box::pin(hub.register("env-1", &alice, &own_key));
    // The store has recorded it, but the response is not sent yet.
    assert!(futures_util::poll!(&mut request).is_pending());
    drop(request);
    let line = hub.await_line("register").await;
    assert_eq!(line["outcome"], "allowed");
    let environment = "env-1".parse().unwrap();
    let current = hub.services.store.registration(&environment).await;
    let current = current.unwrap().unwrap().id;
    assert_eq!(line["registration"], current.as_str());
    assert_eq!(hub.sockets.superseded(), [(environment, Some(current))]);
}

#[tokio::test]
async fn only_the_owner_registers_and_globs_restrict_claims() {
    let hub = TestHub::new().await;
    let forbidden = (403, "forbidden");
    let alice = hub.token("alice");
    assert_eq!(
        hub.register("env-1", &alice, &key()).await.status,
        StatusCode::OK
    );
    let bob = hub.token_for("bob", &[Role::Executor, Role::Admin], &["*"]);
    assert_eq!(
        hub.register("env-1", &bob, &key()).await.refusal(),
        forbidden
    );
    let narrow = hub.token_for("carol", &[Role::Executor], &["box-*"]);
    assert_eq!(
        hub.register("env-2", &narrow, &key()).await.refusal(),
        forbidden
    );
    assert_eq!(
        hub.register("box-2", &narrow, &key()).await.status,
        StatusCode::OK
    );
    let harness = hub.token_for("dave", &[Role::Harness], &[]);
    assert_eq!(
        hub.register("env-3", &harness, &key()).await.refusal(),
        forbidden
    );
    let same_person = hub.token_for("alice", &[Role::Harness], &[]);
    assert_eq!(
        hub.register("env-1", &same_person, &key()).await.refusal(),
        forbidden
    );
}

#[tokio::test]
async fn another_security_profile_is_refused() {
    let hub = TestHub::new().await;
    let body = json!({"security_profile": "plain", "executor_public_key": key()});
    let reply = hub.post("env-1/register", &hub.token("alice"), &body).await;
    assert_eq!(reply.refusal(), (400, "unsupported_security_profile"));
}

#[tokio::test]
async fn environment_quota_is_per_principal() {
    let hub = TestHub::new().await;
    let (mallory, bob, own_key) = (hub.token("mallory"), hub.token("bob"), key());
    let direct = json!({"transport": "direct_jsonrpc_v1"});
    let claims = (0..1024).map(|n| {
        let (hub, mallory, own_key, direct) = (&hub, &mallory, &own_key, &direct);
        async move {
            if n % 2 == 0 {
                hub.register(&format!("env-{n}"), mallory, own_key).await
            } else {
                let path = format!("env-{n}/direct/register");
                hub.post(&path, mallory, direct).await
            }
        }
    });
    for reply in futures_util::future::join_all(claims).await {
        assert_eq!(reply.status, StatusCode::OK);
    }
    let limit = (403, "environment_limit");
    let more = hub.register("more", &mallory, &own_key).await;
    assert_eq!(more.refusal(), limit);
    let more = hub.post("more/direct/register", &mallory, &direct).await;
    assert_eq!(more.refusal(), limit);
    // Existing environments can be registered again, and other principals are not affected.
    let again = hub.register("env-0", &mallory, &own_key).await;
    assert_eq!(again.status, StatusCode::OK);
    let other = hub.register("more", &bob, &own_key).await;
    assert_eq!(other.status, StatusCode::OK);
    let removed = hub.services.store.remove(&"env-7".parse().unwrap()).await;
    assert!(removed.unwrap());
    let reply = hub.register("room", &mallory, &own_key).await;
    assert_eq!(reply.status, StatusCode::OK);
    let hub = hub.restart().await;
    let more = hub.register("more-still", &mallory, &own_key).await;
    assert_eq!(more.refusal(), limit, "the quota survives a restart");
}

#[tokio::test]
async fn late_registration_response_keeps_a_newer_registration() {
    let hub = TestHub::new().await;
    let executor_table = Arc::new(ExecutorTable::default());
    let services = HubServices {
        dialer: Arc::clone(&executor_table) as Arc<dyn CircuitDialer>,
        ..hub.services.clone()
    };
    let registry = RegistryService::new(services, Arc::clone(&hub.direct));
    let alice = hub.token("alice");
    let register = |key| {
        let body = json!({"security_profile": "noise_hybrid_ik_v1", "executor_public_key": key});
        let (hub, registry, alice) = (&hub, &registry, &alice);
        async move { hub.post_to(registry, "env-1/register", alice, &body).await }
    };
    let mut late = Box::pin(register(key()));
    assert!(futures_util::poll!(&mut late).is_pending());
    let newer = register(key()).await;
    let mut attachment = executor_table.attach(
        "env-1".parse().unwrap(),
        newer.text("executor_registration_id").parse().unwrap(),
        ConnectionId::generate(),
    );
    assert_eq!(late.await.status, StatusCode::OK);
    assert!(attachment.evicted.try_recv().is_err());
}

#[tokio::test]
async fn connect_response_belongs_to_one_registration() {
    let hub = TestHub::new().await;
    let (alice, executor, harness) = (hub.token("alice"), key(), key());
    let registered = hub.register("env-1", &alice, &executor).await;
    hub.attach("env-1", &registered).await;
    let reply = hub.connect("env-1", &alice, &harness).await;
    assert_eq!(reply.status, StatusCode::OK);
    let connected: HarnessConnectResponse = serde_json::from_value(reply.body).unwrap();
    assert_eq!(connected.environment_id, "env-1");
    assert_eq!(connected.executor_public_key, executor);
    let id = registered.text("executor_registration_id");
    assert_eq!(connected.executor_registration_id, id);
    assert!(connected.harness_key_authorization.expose().len() >= 43);

    let url = url::Url::parse(connected.url.expose()).unwrap();
    let check = |now| hub.services.signer.check(url.path(), url.query(), now);
    assert!(matches!(
        check(hub.moment.at),
        Ok(UrlClaims::Harness { .. })
    ));
    let late = hub.moment.at.plus(Duration::from_secs(61));
    assert_eq!(check(late), Err(RendezvousUrlError::Expired));
}

#[tokio::test]
async fn environment_is_offline_without_an_executor_of_the_current_registration() {
    let hub = TestHub::new().await;
    let (alice, executor) = (hub.token("alice"), key());
    let offline = (409, "environment_offline");
    let unknown = hub.connect("env-1", &alice, &key()).await;
    assert_eq!(unknown.refusal(), offline, "not registered yet");
    for token in [
        hub.token_for("bob", &[Role::Executor], &[]),
        hub.token_for("bob", &[Role::Harness], &["box-*"]),
    ] {
        let never = hub.connect("env-1", &token, &key()).await;
        assert_eq!(never.refusal(), (403, "forbidden"));
    }

    let first = hub.register("env-1", &alice, &executor).await;
    assert_eq!(
        hub.connect("env-1", &alice, &key()).await.refusal(),
        offline
    );
    hub.attach("env-1", &first).await;
    assert_eq!(
        hub.connect("env-1", &alice, &key()).await.status,
        StatusCode::OK
    );
    // The websocket of the first registration is still open; it could not complete handshakes of
    // the second.
    hub.register("env-1", &alice, &executor).await;
    assert_eq!(
        hub.connect("env-1", &alice, &key()).await.refusal(),
        offline
    );
}

#[tokio::test]
async fn owners_and_matching_tokens_may_connect() {
    let hub = TestHub::new().await;
    let alice = hub.token("alice");
    let registered = hub.register("env-1", &alice, &key()).await;
    hub.attach("env-1", &registered).await;
    let named = hub.token_for("bob", &[Role::Harness], &["env-*"]);
    assert_eq!(
        hub.connect("env-1", &named, &key()).await.status,
        StatusCode::OK
    );
    let limit_failure = hub.token_for("bob", &[Role::Harness], &[]);
    assert_eq!(
        hub.connect("env-1", &limit_failure, &key()).await.refusal(),
        (409, "environment_offline")
    );
    let refused = [
        hub.token_for("bob", &[Role::Harness], &["box-*"]),
        hub.token_for("alice", &[Role::Executor], &[]),
        hub.token_for("root", &[Role::Admin], &["*"]),
    ];
    for token in refused {
        let reply = hub.connect("env-1", &token, &key()).await;
        assert_eq!(reply.refusal(), (403, "forbidden"));
    }
}

#[tokio::test]
async fn unused_authorizations_are_limited_per_principal() {
    let mut hub = TestHub::new().await;
    let (alice, mallory) = (
        hub.token("alice"),
        hub.token_for("mallory", &[Role::Harness], &["*"]),
    );
    let registered = hub.register("env-1", &alice, &key()).await;
    hub.attach("env-1", &registered).await;
    let harness = key();
    for _ in 0..1024 {
        let reply = hub.connect("env-1", &mallory, &harness).await;
        assert_eq!(reply.status, StatusCode::OK);
    }
    let reply = hub.connect("env-1", &mallory, &harness).await;
    assert_eq!(reply.refusal(), (429, "too_many_requests"));
    assert!(reply.headers.contains_key("retry-after"));
    let other = hub.connect("env-1", &alice, &harness).await;
    assert_eq!(other.status, StatusCode::OK);
    hub.advance(Duration::from_secs(60));
    let later = hub.connect("env-1", &mallory, &harness).await;
    assert_eq!(later.status, StatusCode::OK);
}

#[tokio::test]
async fn connect_does_not_reveal_environments_of_others() {
    let hub = TestHub::new().await;
    let alice = hub.token("alice");
    let registered = hub.register("env-1", &alice, &key()).await;
    hub.attach("env-1", &registered).await;
    for token in [
        hub.token_for("bob", &[Role::Harness], &[]),
        hub.token_for("bob", &[Role::Harness], &["box-*"]),
    ] {
        let foreign = hub.connect("env-1", &token, &key()).await;
        let unknown = hub.connect("env-2", &token, &key()).await;
        assert_eq!(
            (foreign.status, foreign.body),
            (unknown.status, unknown.body)
        );
    }
    let lines = hub.audit_lines();
    let reasons: Vec<_> = lines.iter().map(|line| &line["reason"]).collect();
    let expected = ["forbidden", "environment_offline", "forbidden", "forbidden"];
    assert_eq!(reasons[1..], expected, "the audit log shows the reason");
}

/// A connected executor, and a harness with a connect response for it.
struct ConnectedPair {
    hub: TestHub,
    alice: SecretString,
    harness: NoisePublicKey,
    registration: String,
    authorization: String,
}

impl ConnectedPair {
    async fn new() -> Self {
        let hub = TestHub::new().await;
        let (alice, harness) = (hub.token("alice"), key());
        let registered = hub.register("env-1", &alice, &key()).await;
        hub.attach("env-1", &registered).await;
        let connected = hub.connect("env-1", &alice, &harness).await;
        Self {
            registration: registered.text("executor_registration_id").to_owned(),
            authorization: connected.text("harness_key_authorization").to_owned(),
            hub,
            alice,
            harness,
        }
    }

    async fn validate_with(
        &self,
        environment: &str,
        token: &SecretString,
        registration: &str,
        harness: &NoisePublicKey,
        authorization: &str,
    ) -> Reply {
        let body = json!({"executor_registration_id": registration,
            "harness_public_key": harness, "harness_key_authorization": authorization});
        self.hub
            .post(&format!("{environment}/validate"), token, &body)
            .await
    }

    async fn validate(&self) -> Reply {
        let (registration, authorization) = (&self.registration, &self.authorization);
        self.validate_with(
            "env-1",
            &self.alice,
            registration,
            &self.harness,
            authorization,
        )
        .await
    }
}

#[track_caller]
fn assert_valid(reply: &Reply, valid: bool) {
    assert_eq!(
        (reply.status, &reply.body),
        (StatusCode::OK, &json!({"valid": valid}))
    );
}

#[tokio::test]
async fn authorization_is_valid_once() {
    let pair = ConnectedPair::new().await;
    assert_valid(&pair.validate().await, true);
    assert_valid(&pair.validate().await, false);
    let validations: Vec<_> = pair.hub.audit_lines().into_iter().rev().take(2).collect();
    assert_eq!(validations[1]["outcome"], "allowed");
    assert_eq!(validations[1]["harness"], "alice");
    assert_eq!(validations[0]["reason"], "invalid_authorization");
}

#[tokio::test]
async fn one_of_many_concurrent_validations_succeeds() {
    let pair = ConnectedPair::new().await;
    let all = futures_util::future::join_all((0..16).map(|_| pair.validate())).await;
    let valid = all
        .iter()
        .filter(|reply| reply.body["valid"] == true)
        .count();
    assert_eq!(valid, 1);
}

#[tokio::test]
async fn authorization_expires_after_a_minute() {
    let mut pair = ConnectedPair::new().await;
    pair.hub.advance(Duration::from_secs(60));
    assert_valid(&pair.validate().await, false);
    let mut pair = ConnectedPair::new().await;
    pair.hub.advance(Duration::from_millis(59_999));
    assert_valid(&pair.validate().await, true);
}

#[tokio::test]
async fn forged_and_borrowed_authorizations_are_refused() {
    let pair = ConnectedPair::new().await;
    let (registration, authorization) = (&pair.registration, &pair.authorization);
    let mut forged = authorization.clone();
    forged.replace_range(..1, if forged.starts_with('A') { "B" } else { "A" });
    for text in [forged.as_str(), "", " ", &"x".repeat(5000)] {
        let reply = pair
            .validate_with("env-1", &pair.alice, registration, &pair.harness, text)
            .await;
        assert_valid(&reply, false);
    }
    // None of these attempts consumed it.
    assert_valid(&pair.validate().await, true);
}

#[tokio::test]
async fn validation_with_another_key_or_registration_consumes_the_authorization() {
    let pair = ConnectedPair::new().await;
    let (registration, authorization) = (&pair.registration, &pair.authorization);
    let stolen = pair
        .validate_with("env-1", &pair.alice, registration, &key(), authorization)
        .await;
    assert_valid(&stolen, false);
    assert_valid(&pair.validate().await, false);

    let pair = ConnectedPair::new().await;
    let (harness, authorization) = (&pair.harness, &pair.authorization);
    let other = pair
        .validate_with("env-1", &pair.alice, "reg-other", harness, authorization)
        .await;
    assert_valid(&other, false);
    assert_valid(&pair.validate().await, false);
    let lines = pair.hub.audit_lines();
    let reason = &lines[lines.len() - 2]["reason"];
    assert_eq!(reason, "registration_superseded");
}

#[tokio::test]
async fn authorization_is_invalid_in_another_environment() {
    let pair = ConnectedPair::new().await;
    let other = pair.hub.register("env-2", &pair.alice, &key()).await;
    let registration = other.text("executor_registration_id");
    let (harness, authorization) = (&pair.harness, &pair.authorization);
    let reply = pair
        .validate_with("env-2", &pair.alice, registration, harness, authorization)
        .await;
    assert_valid(&reply, false);
    assert_valid(&pair.validate().await, true);
}

#[tokio::test]
async fn authorization_ends_with_its_registration() {
    let pair = ConnectedPair::new().await;
    let newer = pair.hub.register("env-1", &pair.alice, &key()).await;
    assert_valid(&pair.validate().await, false);
    let current = newer.text("executor_registration_id");
    let (harness, authorization) = (&pair.harness, &pair.authorization);
    let reply = pair
        .validate_with("env-1", &pair.alice, current, harness, authorization)
        .await;
    assert_valid(&reply, false);
}

#[tokio::test]
async fn only_the_owner_validates() {
    let pair = ConnectedPair::new().await;
    let bob = pair.hub.token("bob");
    let (registration, authorization) = (&pair.registration, &pair.authorization);
    let reply = pair
        .validate_with("env-1", &bob, registration, &pair.harness, authorization)
        .await;
    assert_eq!(reply.refusal(), (404, "environment_not_found"));
    assert_valid(&pair.validate().await, true);
}

#[tokio::test]
async fn validate_does_not_reveal_environments_of_others() {
    let pair = ConnectedPair::new().await;
    let bob = pair.hub.token("bob");
    let harness = pair.hub.token_for("carol", &[Role::Harness], &[]);
    let narrow = pair.hub.token_for("dave", &[Role::Executor], &["box-*"]);
    let (registration, authorization) = (&pair.registration, &pair.authorization);
    for token in [&bob, &harness, &narrow] {
        let validate = |environment| {
            pair.validate_with(
                environment,
                token,
                registration,
                &pair.harness,
                authorization,
            )
        };
        let (foreign, missing) = (validate("env-1").await, validate("env-9").await);
        assert_eq!(
            (foreign.status, foreign.body),
            (missing.status, missing.body)
        );
    }
    let lines = pair.hub.audit_lines();
    let reasons: Vec<_> = lines[lines.len() - 6..]
        .iter()
        .map(|line| line["reason"].as_str().unwrap())
        .collect();
    let forbidden = "forbidden";
    let expected = [
        forbidden,
        "environment_not_found",
        forbidden,
        forbidden,
        forbidden,
        forbidden,
    ];
    assert_eq!(reasons, expected, "the audit log shows the reasons");
}
