//! Tests of redemption: once, by one claimant, within its time.

use std::time::Duration;

use exec_registry::api::SecretString;
use serde_json::{Value, json};

use super::*;
use crate::{
    principal::{EnvironmentGlobs, Role, RoleSet},
    rate_limit::RateLimitConfig,
    registry::tests::TestHub,
    tokens::{self, NewToken},
};

const CLAIM: &str = "0123456789abcdef";

/// Adds an invite for an executor of `box-7`.
fn invite(hub: &TestHub, lifetime: Duration) -> (tokens::TokenEntry, SecretString) {
    let new = NewToken {
        principal: "box-7".parse().unwrap(),
        roles: RoleSet::new([Role::Executor]),
        environments: EnvironmentGlobs::new(vec!["box-7".to_owned()]).unwrap(),
        expires_at: None,
    };
    // The hub does not reload the file before the invite is redeemed.
    tokens::invite(&hub.token_file(), new, lifetime, hub.moment.at).unwrap()
}

fn reload(hub: &TestHub) {
    let authenticator = hub.services.gate.authenticator();
    authenticator.tokens().reload_if_changed();
}

fn service(hub: &TestHub) -> InviteService {
    InviteService::new(hub.services.clone(), hub.invite_signer.clone())
}

async fn redeem(service: &InviteService, hub: &TestHub, invite: &str, claim: &str) -> (u16, Value) {
    let body = json!({"invite": invite, "claim": claim}).to_string();
    let request = Request::post(REDEEM_PATH)
        .header("content-type", "application/json")
        .body(Full::new(Bytes::from(body)))
        .unwrap();
    let peer = HttpPeer::Network("192.0.2.7:1234".parse().unwrap());
    let response = service.serve(request, peer, hub.moment).await;
    let response = response.unwrap_or_else(HttpRefusal::into_response);
    let status = response.status().as_u16();
    let body = http_body_util::BodyExt::collect(response.into_body());
    let body = body.await.unwrap().to_bytes();
    (status, serde_json::from_slice(&body).unwrap())
}

/// Returns the status of a registration with a token.
async fn register(hub: &TestHub, environment: &str, token: &str) -> u16 {
    hub.register_with(environment, token).await
}

#[tokio::test]
async fn invite_yields_a_lasting_token_that_survives_a_restart_until_it_is_revoked() {
    let mut hub = TestHub::new().await;
    let (entry, secret) = invite(&hub, Duration::from_secs(60));
    let (status, body) = redeem(&service(&hub), &hub, secret.expose(), CLAIM).await;
    assert_eq!(status, 200, "{body}");
    assert_eq!(body["roles"], json!(["executor"]));
    assert_eq!(body["environments"], json!(["box-7"]));
    let token = body["token"].as_str().unwrap().to_owned();
    // The invite itself is not a token.
    assert_eq!(register(&hub, "box-7", secret.expose()).await, 401);
    hub.advance(Duration::from_secs(1_000_000));
    assert_eq!(register(&hub, "box-7", &token).await, 200);
    assert_eq!(register(&hub, "box-8", &token).await, 403);
    let moment = hub.moment;
    let mut hub = hub.restart().await;
    hub.moment = moment;
    assert_eq!(register(&hub, "box-7", &token).await, 200);
    for forged in [
        format!("exj_{}.", entry.id),
        format!("exj_{}.{}", entry.id, "A".repeat(43)),
        token.replace(entry.id.as_str(), "0000000000"),
        token[..token.len() - 1].to_owned(),
    ] {
        assert_eq!(register(&hub, "box-7", &forged).await, 401, "{forged}");
    }
    tokens::revoke(&hub.token_file(), &entry.id).unwrap();
    reload(&hub);
    assert_eq!(register(&hub, "box-7", &token).await, 401);
}

#[tokio::test]
async fn only_the_first_claimant_gets_the_token_and_may_ask_again() {
    let hub = TestHub::new().await;
    let (_, secret) = invite(&hub, Duration::from_secs(60));
    let service = service(&hub);
    let first = redeem(&service, &hub, secret.expose(), CLAIM).await;
    let other = redeem(&service, &hub, secret.expose(), "fedcba9876543210").await;
    assert_eq!(
        (other.0, &other.1["error"]["code"]),
        (409, &json!("invite_used"))
    );
    assert_eq!(redeem(&service, &hub, secret.expose(), CLAIM).await, first);
    drop(service);
    let hub = hub.restart().await;
    let service = self::service(&hub);
    let other = redeem(&service, &hub, secret.expose(), "fedcba9876543210").await;
    assert_eq!(other.0, 409);
}

#[tokio::test(flavor = "multi_thread")]
async fn exactly_one_of_many_concurrent_claimants_gets_the_token() {
    let hub = Arc::new(TestHub::new().await);
    let (_, secret) = invite(&hub, Duration::from_secs(60));
    let secret = secret.expose().to_owned();
    let service = service(&hub);
    let claimants = (0..16).map(|claimant| {
        let (hub, service, secret) = (Arc::clone(&hub), service.clone(), secret.clone());
        tokio::spawn(async move {
            let claim = format!("claimant-{claimant:016}");
            redeem(&service, &hub, &secret, &claim).await.0
        })
    });
    let mut statuses = Vec::new();
    for claimant in claimants.collect::<Vec<_>>() {
        statuses.push(claimant.await.unwrap());
    }
    statuses.sort_unstable();
    assert_eq!(statuses[0], 200);
    assert_eq!(statuses[1..], [409; 15]);
}

#[tokio::test]
async fn expired_unknown_and_malformed_invites_are_refused() {
    let mut hub = TestHub::new().await;
    let (_, secret) = invite(&hub, Duration::from_secs(60));
    let token = hub.token("alice");
    let service = service(&hub);
    for unknown in ["exi_unknown", "", token.expose()] {
        let (status, body) = redeem(&service, &hub, unknown, CLAIM).await;
        assert_eq!(
            (status, &body["error"]["code"]),
            (404, &json!("invite_unknown"))
        );
    }
    let (status, _) = redeem(&service, &hub, secret.expose(), "short").await;
    assert_eq!(status, 400);
    hub.advance(Duration::from_secs(60));
    let (status, body) = redeem(&service, &hub, secret.expose(), CLAIM).await;
    assert_eq!(
        (status, &body["error"]["code"]),
        (410, &json!("invite_expired"))
    );
    let line = hub.await_line("redeem_invite").await;
    assert_eq!(line["reason"], "invite_unknown");
    assert!(!line.to_string().contains("exi_"), "{line}");
}

#[tokio::test]
async fn attempts_of_an_address_are_limited() {
    let mut hub = TestHub::with(RateLimitConfig::default(), None).await;
    let service = service(&hub);
    let mut statuses = Vec::new();
    for _ in 0..=limits::INVITE_ATTEMPTS.burst {
        statuses.push(redeem(&service, &hub, "exi_guess", CLAIM).await.0);
    }
    assert_eq!(statuses.pop(), Some(429));
    assert!(statuses.iter().all(|status| *status == 404), "{statuses:?}");
    hub.advance(Duration::from_secs(1));
    assert_eq!(redeem(&service, &hub, "exi_guess", CLAIM).await.0, 404);
}

#[test]
fn invites_live_for_a_month_at_most() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("tokens.toml");
    let new = || NewToken {
        principal: "me".parse().unwrap(),
        roles: RoleSet::default(),
        environments: EnvironmentGlobs::default(),
        expires_at: None,
    };
    let now = crate::store::Timestamp::from_seconds(1_700_000_000);
    for lifetime in [
        Duration::ZERO,
        limits::INVITE_LIFETIME + Duration::from_secs(1),
    ] {
        assert!(tokens::invite(&path, new(), lifetime, now).is_err());
    }
    tokens::invite(&path, new(), limits::INVITE_LIFETIME, now).unwrap();
    let listed = tokens::list(&path).unwrap();
    assert_eq!(
        listed[0].invite_expires_at,
        Some(now.plus(limits::INVITE_LIFETIME))
    );
}
