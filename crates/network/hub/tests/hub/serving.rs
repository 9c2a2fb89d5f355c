//! What a hub answers.

use exec_hub::rate::{RateRules, Rule};
use exec_relay::{frame::Body, identity::Identity};

use crate::rig::{Client, Rig, frame, resume};

#[tokio::test]
async fn health_readiness_and_metrics_need_no_token() {
    let rig = Rig::start().await;
    assert_eq!(rig.ask("GET", "/healthz").await.0, 200);
    assert_eq!(rig.ask("GET", "/readyz").await.0, 200);
    assert_eq!(rig.ask("POST", "/healthz").await.0, 405);
    let (status, metrics) = rig.ask("GET", "/metrics").await;
    assert_eq!(status, 200);
    let counted = "exec_hub_requests_total{route=\"health\",status=\"200\"} 1";
    assert!(metrics.contains(counted), "{metrics}");
    for unknown in ["/", "/metrics/", "/rendezvous", "/cloud", "/hub/v1/nothing"] {
        assert_eq!(rig.ask("GET", unknown).await.0, 404, "{unknown}");
    }
    let refused = rig.ask("POST", "/cloud/environment/e/connect").await.0;
    assert_eq!(refused, 401);
    assert_eq!(rig.ask("GET", "/hub/v1/environments").await.0, 401);
}

#[tokio::test]
async fn frames_go_through_and_are_counted_and_sockets_are_in_the_audit_log() {
    let rig = Rig::start().await;
    let mut executor = rig.executor("env").await;
    let mut harness = rig.harness("env").await;
    harness.send(resume("s")).await;
    assert_eq!(executor.next().await, Ok(resume("s")));
    let answer = frame("s", Body::Handshake("m2".into()));
    executor.send(answer.clone()).await;
    assert_eq!(harness.next().await, Ok(answer));
    let metrics = rig.ask("GET", "/metrics").await.1;
    for line in [
        "exec_hub_sockets{role=\"executor\"} 1",
        "exec_hub_sockets{role=\"harness\"} 1",
        "exec_hub_frames_total{to=\"executor\"} 1",
        "exec_hub_frames_total{to=\"harness\"} 1",
    ] {
        assert!(metrics.contains(line), "{line}\n{metrics}");
    }
    drop(executor);
    assert_eq!(harness.next().await, Err(Some(1012)));
    let log = rig.directory.path().join("audit.jsonl");
    rig.hub.stop().await;
    let log = std::fs::read_to_string(log).unwrap();
    for action in ["register", "executor_socket", "connect", "harness_socket"] {
        assert!(log.contains(action), "{action}\n{log}");
    }
    assert!(!log.contains("sig="), "{log}");
}

#[tokio::test]
async fn urls_are_refused_as_their_role_expects() {
    let rig = Rig::start().await;
    let identity = Identity::generate();
    let executor = rig.register("env", &identity).await;
    let socket = Client::open(&executor).await.unwrap();
    let harness = rig.harness_url("env").await;
    let forged = |url: &str| url.replace("sig=", "sig=x");
    assert_eq!(Client::open(&forged(&executor)).await.err(), Some(403));
    assert_eq!(Client::open(&forged(&harness)).await.err(), Some(401));
    let path = harness.split_once("/rendezvous").unwrap().1;
    let path = format!("/rendezvous{path}");
    assert_eq!(rig.ask("GET", &path).await.0, 426);
    assert_eq!(rig.ask("POST", &path).await.0, 405);
    drop(socket);
    let renewed = rig.register("env", &identity).await;
    assert_eq!(Client::open(&executor).await.err(), Some(410));
    assert!(Client::open(&renewed).await.is_ok());
}

#[tokio::test]
async fn registering_again_closes_the_socket_of_the_registration_before() {
    let rig = Rig::start().await;
    let mut old = rig.executor("env").await;
    let mut harness = rig.harness("env").await;
    let mut new = rig.executor("env").await;
    assert_eq!(old.next().await, Err(Some(1012)));
    assert_eq!(harness.next().await, Err(Some(1012)));
    let mut harness = rig.harness("env").await;
    harness.send(resume("s")).await;
    assert_eq!(new.next().await, Ok(resume("s")));
}

#[tokio::test]
async fn urls_that_open_nothing_are_counted() {
    let few = Rule {
        burst: 2,
        per_second: 1,
    };
    let rates = RateRules {
        address: few,
        ..RateRules::default()
    };
    let rig = Rig::start_with(rates).await;
    let executor = rig.register("env", &Identity::generate()).await;
    let forged = executor.replace("sig=", "sig=x");
    let mut answers = Vec::new();
    // One more may come each second, and this takes less than ten.
    while answers.len() < 12 && !answers.contains(&Some(429)) {
        answers.push(Client::open(&forged).await.err());
    }
    assert!(answers.contains(&Some(429)), "{answers:?}");
    assert!(Client::open(&executor).await.is_ok());
}

#[tokio::test]
async fn an_executor_is_online_as_soon_as_its_upgrade_is_answered() {
    let rig = Rig::start().await;
    let mut sockets = Vec::new();
    for round in 0..50 {
        let environment = format!("env-{round}");
        sockets.push(rig.executor(&environment).await);
        rig.harness_url(&environment).await;
    }
}
