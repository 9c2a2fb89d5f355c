//! Tests of serving, starting and stopping a hub, and of relaying through it.

use std::{sync::Arc, time::Duration};

use exec_hub::{
    config::{HubConfig, JwtConfig, TlsFiles},
    hub::{Hub, HubStartError},
    rate_limit::{RateLimitConfig, RateRule},
};
use exec_registry::{
    credentials::{FixedCredentials, RegistryToken},
    executor::{DialOptions, ExecutorSettings, RemoteExecutor},
    harness::RegistryGrants,
    http::{BaseUrl, HttpClient},
    registry::RegistryClient,
};
use exec_relay::{frame::FrameBody, identity::NoiseIdentity};
use exec_transport::{
    link::{DataEncoding, Link},
    relay::harness::{HarnessOptions, open},
    tls::TrustStore,
};
use exec_wire::outgoing_message::OutgoingMessage;
use tempfile::tempdir;
use tokio::{sync::mpsc, time::timeout};

use crate::fixture::{Client, HubFixture, config, frame, id, resume, token};

#[tokio::test]
async fn health_readiness_and_metrics_need_no_token() {
    let fixture = HubFixture::start().await;
    assert_eq!(fixture.ask("GET", "/healthz").await.0, 200);
    assert_eq!(fixture.ask("GET", "/readyz").await.0, 200);
    assert_eq!(fixture.ask("POST", "/healthz").await.0, 405);
    let (status, metrics) = fixture.ask("GET", "/metrics").await;
    assert_eq!(status, 200);
    let counted = "exec_hub_requests_total{route=\"health\",status=\"200\"} 1";
    assert!(metrics.contains(counted), "{metrics}");
    for unknown in ["/", "/metrics/", "/rendezvous", "/cloud", "/hub/v1/nothing"] {
        assert_eq!(fixture.ask("GET", unknown).await.0, 404, "{unknown}");
    }
    let refused = fixture.ask("POST", "/cloud/environment/e/connect").await.0;
    assert_eq!(refused, 401);
    assert_eq!(fixture.ask("GET", "/hub/v1/environments").await.0, 401);
}

#[tokio::test]
async fn frames_are_relayed_and_counted_and_websockets_audited() {
    let fixture = HubFixture::start().await;
    let mut executor = fixture.executor("env").await;
    let mut harness = fixture.harness("env").await;
    harness.send(resume("s")).await;
    assert_eq!(executor.next().await, Ok(resume("s")));
    let answer = frame("s", FrameBody::Handshake("m2".into()));
    executor.send(answer.clone()).await;
    assert_eq!(harness.next().await, Ok(answer));
    let metrics = fixture.ask("GET", "/metrics").await.1;
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
    let log = fixture.directory.path().join("audit.jsonl");
    fixture.hub.stop().await;
    let log = std::fs::read_to_string(log).unwrap();
    for action in ["register", "executor_socket", "connect", "harness_socket"] {
        assert!(log.contains(action), "{action}\n{log}");
    }
    assert!(!log.contains("sig="), "{log}");
}

#[tokio::test]
async fn refused_urls_get_the_status_of_their_role() {
    let fixture = HubFixture::start().await;
    let identity = NoiseIdentity::generate();
    let executor = fixture.register("env", &identity).await;
    let socket = Client::open(&executor).await.unwrap();
    let harness = fixture.harness_url("env").await;
    let forged = |url: &str| url.replace("sig=", "sig=x");
    assert_eq!(Client::open(&forged(&executor)).await.err(), Some(403));
    assert_eq!(Client::open(&forged(&harness)).await.err(), Some(401));
    let path = harness.split_once("/rendezvous").unwrap().1;
    let path = format!("/rendezvous{path}");
    assert_eq!(fixture.ask("GET", &path).await.0, 426);
    assert_eq!(fixture.ask("POST", &path).await.0, 405);
    drop(socket);
    let renewed = fixture.register("env", &identity).await;
    assert_eq!(Client::open(&executor).await.err(), Some(410));
    assert!(Client::open(&renewed).await.is_ok());
}

#[tokio::test]
async fn registering_again_closes_the_previous_websocket() {
    let fixture = HubFixture::start().await;
    let mut old = fixture.executor("env").await;
    let mut harness = fixture.harness("env").await;
    let mut new = fixture.executor("env").await;
    assert_eq!(old.next().await, Err(Some(1012)));
    assert_eq!(harness.next().await, Err(Some(1012)));
    let mut harness = fixture.harness("env").await;
    harness.send(resume("s")).await;
    assert_eq!(new.next().await, Ok(resume("s")));
}

#[tokio::test]
async fn invalid_urls_are_rate_limited() {
    let few = RateRule {
        burst: 2,
        per_second: 1,
    };
    let rates = RateLimitConfig {
        address: few,
        ..RateLimitConfig::default()
    };
    let fixture = HubFixture::start_with(rates).await;
    let executor = fixture.register("env", &NoiseIdentity::generate()).await;
    let forged = executor.replace("sig=", "sig=x");
    let mut answers = Vec::new();
    // The limit refills one per second, and this takes less than ten.
    while answers.len() < 12 && !answers.contains(&Some(429)) {
        answers.push(Client::open(&forged).await.err());
    }
    assert!(answers.contains(&Some(429)), "{answers:?}");
    assert!(Client::open(&executor).await.is_ok());
}

#[tokio::test]
async fn executor_is_online_once_its_upgrade_is_answered() {
    let fixture = HubFixture::start().await;
    let mut sockets = Vec::new();
    for round in 0..50 {
        let environment = format!("env-{round}");
        sockets.push(fixture.executor(&environment).await);
        fixture.harness_url(&environment).await;
    }
}

#[tokio::test]
async fn stopping_hub_closes_with_restart_code_and_clients_reconnect() {
    let fixture = HubFixture::start().await;
    let url = fixture.register("env", &NoiseIdentity::generate()).await;
    let mut executor = Client::open(&url).await.unwrap();
    let mut harness = fixture.harness("env").await;
    harness.send(resume("s")).await;
    assert_eq!(executor.next().await, Ok(resume("s")));
    let (fixture, results) = tokio::join!(fixture.restart(), async {
        (executor.next().await, harness.next().await)
    });
    assert_eq!(results, (Err(Some(1012)), Err(Some(1012))));
    // Registrations and the signing key survive the process.
    let mut executor = Client::open(&url).await.unwrap();
    let mut harness = fixture.harness("env").await;
    harness.send(resume("t")).await;
    assert_eq!(executor.next().await, Ok(resume("t")));
}

#[tokio::test]
async fn dropped_hub_closes_its_websockets() {
    let fixture = HubFixture::start().await;
    let mut executor = fixture.executor("env").await;
    let mut harness = fixture.harness("env").await;
    let mut waiting = fixture.executor("other").await;
    drop(fixture);
    let results = tokio::join!(executor.next(), harness.next(), waiting.next());
    assert_eq!(results, (Err(Some(1012)), Err(Some(1012)), Err(Some(1012))));
}

#[tokio::test]
async fn idle_hub_stops_immediately() {
    let fixture = HubFixture::start().await;
    let before = std::time::Instant::now();
    fixture.hub.stop().await;
    assert!(before.elapsed() < exec_hub::limits::STOP);
}

#[tokio::test]
async fn tls_is_served_and_reflected_in_urls() {
    let directory = tempdir().unwrap();
    let certified = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let tls = TlsFiles {
        certificates: directory.path().join("cert.pem"),
        key: directory.path().join("key.pem"),
    };
    std::fs::write(&tls.certificates, certified.cert.pem()).unwrap();
    std::fs::write(&tls.key, certified.signing_key.serialize_pem()).unwrap();
    let trust = TrustStore::only(&tls.certificates).config().await.unwrap();
    let config = HubConfig {
        tls: Some(tls),
        ..config(&directory)
    };
    let token =
        FixedCredentials::registry_token(&RegistryToken::new(&token(&config, "alice")).unwrap());
    let hub = Hub::start(config).await.unwrap();
    assert!(hub.url().starts_with("https://127.0.0.1:"), "{}", hub.url());
    let base = format!("https://localhost:{}", hub.address().port());
    let base = BaseUrl::parse(&base).unwrap();
    let registry = RegistryClient::new(
        base,
        std::sync::Arc::new(token),
        HttpClient::new(&trust).unwrap(),
    )
    .unwrap();
    let key = NoiseIdentity::generate();
    let registered = registry
        .register(&id("env"), key.public_key())
        .await
        .unwrap();
    let expected = format!("wss://localhost:{}/rendezvous/env?", hub.address().port());
    assert!(registered.url.expose().starts_with(&expected));
}

#[tokio::test]
async fn failures_to_serve_are_start_errors() {
    let fixture = HubFixture::start().await;
    let other = tempdir().unwrap();
    let address_in_use = HubConfig {
        listen: fixture.hub.address(),
        ..config(&other)
    };
    let error = Hub::start(address_in_use).await.unwrap_err();
    assert!(matches!(error, HubStartError::Listen { .. }), "{error:?}");
    let in_use = config(&fixture.directory);
    let error = Hub::start(in_use).await.unwrap_err();
    assert!(matches!(error, HubStartError::Open(_)), "{error:?}");

    let broken = tempdir().unwrap();
    let file = broken.path().join("tokens.toml");
    std::fs::write(&file, "this is no token file").unwrap();
    let with = |change: &dyn Fn(&mut HubConfig)| {
        let mut config = config(&broken);
        change(&mut config);
        Hub::start(config)
    };
    let tokens = with(&|config| config.token_file = Some(file.clone())).await;
    assert!(
        matches!(tokens, Err(HubStartError::Tokens(_))),
        "{tokens:?}"
    );
    let tls = TlsFiles {
        certificates: file.clone(),
        key: file.clone(),
    };
    let tls = with(&|config| config.tls = Some(tls.clone())).await;
    assert!(matches!(tls, Err(HubStartError::Tls(_))), "{tls:?}");
    let jwt = |secret_file| JwtConfig {
        secret_file,
        issuer: None,
        audience: None,
    };
    let weak = with(&|config| config.jwt = Some(jwt(file.clone()))).await;
    assert!(
        matches!(weak, Err(HubStartError::WeakJwtSecret { .. })),
        "{weak:?}"
    );
    let missing = with(&|config| config.jwt = Some(jwt("/nowhere/secret".into()))).await;
    assert!(
        matches!(missing, Err(HubStartError::JwtSecret { .. })),
        "{missing:?}"
    );
    let keys = with(&|config| config.access_keys = Some(file.clone())).await;
    assert!(
        matches!(keys, Err(HubStartError::AccessKeys(_))),
        "{keys:?}"
    );
}

const TEST_TIMEOUT: Duration = Duration::from_secs(20);

/// Starts an executor that echoes every message.
async fn echo(fixture: &HubFixture, environment: &str) {
    let settings = ExecutorSettings {
        registry: fixture.registry(),
        environment: id(environment),
        identity: Arc::new(NoiseIdentity::generate()),
        dial_options: DialOptions::default(),
    };
    let (links, mut accepted) = mpsc::channel::<Link>(4);
    tokio::spawn(RemoteExecutor::new(settings).run(links, std::future::pending()));
    tokio::spawn(async move {
        while let Some(mut link) = accepted.recv().await {
            tokio::spawn(async move {
                while let Ok(Some(message)) = link.reader.next().await {
                    let message = OutgoingMessage::Text(message.to_vec());
                    link.writer.push(message, DataEncoding::Text);
                    link.writer.flush().await.unwrap();
                }
            });
        }
    });
    fixture.executors(1).await;
}

/// Connects a harness.
async fn connect(fixture: &HubFixture, environment: &str) -> Link {
    let identity = Arc::new(NoiseIdentity::generate());
    let tickets = RegistryGrants::new(fixture.registry(), id(environment), Arc::clone(&identity));
    let opened = open(identity, Arc::new(tickets), HarnessOptions::default());
    timeout(TEST_TIMEOUT, opened).await.unwrap().unwrap()
}

async fn send_message(link: &mut Link, message: &[u8]) {
    link.writer
        .push(OutgoingMessage::Text(message.to_vec()), DataEncoding::Text);
    link.writer.flush().await.unwrap();
    let received = timeout(TEST_TIMEOUT, link.reader.next()).await.unwrap();
    assert_eq!(received.unwrap().unwrap(), message);
}

#[tokio::test]
async fn messages_of_any_size_are_echoed() {
    let fixture = HubFixture::start().await;
    echo(&fixture, "env").await;
    let mut link = connect(&fixture, "env").await;
    for size in [1, 1000, 61_440, 61_441, 3_000_000] {
        send_message(&mut link, &vec![b'x'; size]).await;
    }
    let mut other = connect(&fixture, "env").await;
    send_message(&mut other, b"another harness").await;
    send_message(&mut link, b"the first one").await;
}

#[tokio::test]
async fn link_survives_a_hub_restart() {
    let fixture = HubFixture::start().await;
    echo(&fixture, "env").await;
    let mut link = connect(&fixture, "env").await;
    send_message(&mut link, b"before").await;
    let fixture = fixture.restart().await;
    send_message(&mut link, b"after").await;
    fixture.hub.stop().await;
}
