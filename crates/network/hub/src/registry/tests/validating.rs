use std::time::Duration;

use exec_relay::identity::PublicKey;
use http::StatusCode;
use serde_json::json;

use super::{Bench, Reply, key};
use crate::{principal::Role, tokens::Token};

/// An executor that is connected, and a harness that has its bundle.
struct Scene {
    bench: Bench,
    alice: Token,
    harness: PublicKey,
    registration: String,
    authorization: String,
}

impl Scene {
    async fn new() -> Self {
        let bench = Bench::new().await;
        let (alice, harness) = (bench.token("alice"), key());
        let registered = bench.register("env-1", &alice, &key()).await;
        bench.attach("env-1", &registered).await;
        let connected = bench.connect("env-1", &alice, &harness).await;
        Self {
            registration: registered.text("executor_registration_id").to_owned(),
            authorization: connected.text("harness_key_authorization").to_owned(),
            bench,
            alice,
            harness,
        }
    }

    async fn ask(
        &self,
        environment: &str,
        token: &Token,
        registration: &str,
        harness: &PublicKey,
        authorization: &str,
    ) -> Reply {
        let body = json!({"executor_registration_id": registration,
            "harness_public_key": harness, "harness_key_authorization": authorization});
        self.bench
            .post(&format!("{environment}/validate"), token, &body)
            .await
    }

    async fn validate(&self) -> Reply {
        let (registration, authorization) = (&self.registration, &self.authorization);
        self.ask(
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
async fn an_authorization_counts_once() {
    let scene = Scene::new().await;
    assert_valid(&scene.validate().await, true);
    assert_valid(&scene.validate().await, false);
    let validations: Vec<_> = scene.bench.audited().into_iter().rev().take(2).collect();
    assert_eq!(validations[1]["outcome"], "allowed");
    assert_eq!(validations[1]["harness"], "alice");
    assert_eq!(validations[0]["reason"], "invalid_authorization");
}

#[tokio::test]
async fn of_many_at_once_one_is_let_in() {
    let scene = Scene::new().await;
    let all = futures_util::future::join_all((0..16).map(|_| scene.validate())).await;
    let valid = all
        .iter()
        .filter(|reply| reply.body["valid"] == true)
        .count();
    assert_eq!(valid, 1);
}

#[tokio::test]
async fn an_authorization_expires_after_a_minute() {
    let mut scene = Scene::new().await;
    scene.bench.advance(Duration::from_secs(60));
    assert_valid(&scene.validate().await, false);
    let mut scene = Scene::new().await;
    scene.bench.advance(Duration::from_millis(59_999));
    assert_valid(&scene.validate().await, true);
}

#[tokio::test]
async fn forged_and_borrowed_authorizations_are_refused() {
    let scene = Scene::new().await;
    let (registration, authorization) = (&scene.registration, &scene.authorization);
    let mut forged = authorization.clone();
    forged.replace_range(..1, if forged.starts_with('A') { "B" } else { "A" });
    for text in [forged.as_str(), "", " ", &"x".repeat(5000)] {
        let reply = scene
            .ask("env-1", &scene.alice, registration, &scene.harness, text)
            .await;
        assert_valid(&reply, false);
    }
    // None of that has used it up.
    assert_valid(&scene.validate().await, true);
}

#[tokio::test]
async fn asking_with_another_key_or_registration_uses_the_authorization_up() {
    let scene = Scene::new().await;
    let (registration, authorization) = (&scene.registration, &scene.authorization);
    let stolen = scene
        .ask("env-1", &scene.alice, registration, &key(), authorization)
        .await;
    assert_valid(&stolen, false);
    assert_valid(&scene.validate().await, false);

    let scene = Scene::new().await;
    let (harness, authorization) = (&scene.harness, &scene.authorization);
    let other = scene
        .ask("env-1", &scene.alice, "reg-other", harness, authorization)
        .await;
    assert_valid(&other, false);
    assert_valid(&scene.validate().await, false);
    let lines = scene.bench.audited();
    let reason = &lines[lines.len() - 2]["reason"];
    assert_eq!(reason, "registration_superseded");
}

#[tokio::test]
async fn an_authorization_means_nothing_in_another_environment() {
    let scene = Scene::new().await;
    let other = scene.bench.register("env-2", &scene.alice, &key()).await;
    let registration = other.text("executor_registration_id");
    let (harness, authorization) = (&scene.harness, &scene.authorization);
    let reply = scene
        .ask("env-2", &scene.alice, registration, harness, authorization)
        .await;
    assert_valid(&reply, false);
    assert_valid(&scene.validate().await, true);
}

#[tokio::test]
async fn an_authorization_does_not_outlive_its_registration() {
    let scene = Scene::new().await;
    let newer = scene.bench.register("env-1", &scene.alice, &key()).await;
    assert_valid(&scene.validate().await, false);
    let current = newer.text("executor_registration_id");
    let (harness, authorization) = (&scene.harness, &scene.authorization);
    let reply = scene
        .ask("env-1", &scene.alice, current, harness, authorization)
        .await;
    assert_valid(&reply, false);
}

#[tokio::test]
async fn only_the_owner_validates() {
    let scene = Scene::new().await;
    let bob = scene.bench.token("bob");
    let (registration, authorization) = (&scene.registration, &scene.authorization);
    let reply = scene
        .ask("env-1", &bob, registration, &scene.harness, authorization)
        .await;
    assert_eq!(reply.refusal(), (404, "environment_not_found"));
    assert_valid(&scene.validate().await, true);
}

#[tokio::test]
async fn validating_tells_nobody_which_environments_of_others_exist() {
    let scene = Scene::new().await;
    let bob = scene.bench.token("bob");
    let harness = scene.bench.token_for("carol", &[Role::Harness], &[]);
    let narrow = scene.bench.token_for("dave", &[Role::Executor], &["box-*"]);
    let (registration, authorization) = (&scene.registration, &scene.authorization);
    for token in [&bob, &harness, &narrow] {
        let ask = |environment| {
            scene.ask(
                environment,
                token,
                registration,
                &scene.harness,
                authorization,
            )
        };
        let (foreign, missing) = (ask("env-1").await, ask("env-9").await);
        assert_eq!(
            (foreign.status, foreign.body),
            (missing.status, missing.body)
        );
    }
    let lines = scene.bench.audited();
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
    assert_eq!(reasons, expected, "the log tells");
}
