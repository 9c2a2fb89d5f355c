//! How a hub starts and stops.

use exec_hub::{
    config::{HubConfig, JwtConfig, TlsFiles},
    hub::{Hub, StartError},
};
use exec_registry::{
    credentials::{Bearer, Token},
    http::{BaseUrl, Http},
    registry::Registry,
};
use exec_relay::identity::Identity;
use exec_transport::tls::Trust;
use tempfile::tempdir;

use crate::rig::{Client, Rig, config, id, resume, token};

#[tokio::test]
async fn a_stopping_hub_tells_everybody_to_come_back_and_they_can() {
    let rig = Rig::start().await;
    let url = rig.register("env", &Identity::generate()).await;
    let mut executor = Client::open(&url).await.unwrap();
    let mut harness = rig.harness("env").await;
    harness.send(resume("s")).await;
    assert_eq!(executor.next().await, Ok(resume("s")));
    let (rig, told) = tokio::join!(rig.restart(), async {
        (executor.next().await, harness.next().await)
    });
    assert_eq!(told, (Err(Some(1012)), Err(Some(1012))));
    // Registrations and the key that signs URLs outlive the process.
    let mut executor = Client::open(&url).await.unwrap();
    let mut harness = rig.harness("env").await;
    harness.send(resume("t")).await;
    assert_eq!(executor.next().await, Ok(resume("t")));
}

#[tokio::test]
async fn a_hub_that_is_dropped_closes_its_sockets() {
    let rig = Rig::start().await;
    let mut executor = rig.executor("env").await;
    let mut harness = rig.harness("env").await;
    let mut waiting = rig.executor("other").await;
    drop(rig);
    let told = tokio::join!(executor.next(), harness.next(), waiting.next());
    assert_eq!(told, (Err(Some(1012)), Err(Some(1012)), Err(Some(1012))));
}

#[tokio::test]
async fn an_idle_hub_stops_at_once() {
    let rig = Rig::start().await;
    let before = std::time::Instant::now();
    rig.hub.stop().await;
    assert!(before.elapsed() < exec_hub::limits::STOP);
}

#[tokio::test]
async fn tls_is_served_and_goes_into_the_urls() {
    let directory = tempdir().unwrap();
    let certified = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let tls = TlsFiles {
        certificates: directory.path().join("cert.pem"),
        key: directory.path().join("key.pem"),
    };
    std::fs::write(&tls.certificates, certified.cert.pem()).unwrap();
    std::fs::write(&tls.key, certified.signing_key.serialize_pem()).unwrap();
    let trust = Trust::only(&tls.certificates).config().await.unwrap();
    let config = HubConfig {
        tls: Some(tls),
        ..config(&directory)
    };
    let token = Bearer::new(Token::new(&token(&config, "somebody")).unwrap());
    let hub = Hub::start(config).await.unwrap();
    assert!(hub.url().starts_with("https://127.0.0.1:"), "{}", hub.url());
    let base = format!("https://localhost:{}", hub.address().port());
    let base = BaseUrl::parse(&base).unwrap();
    let registry =
        Registry::new(base, std::sync::Arc::new(token), Http::new(&trust).unwrap()).unwrap();
    let key = Identity::generate();
    let registered = registry
        .register(&id("env"), key.public_key())
        .await
        .unwrap();
    let expected = format!("wss://localhost:{}/rendezvous/env?", hub.address().port());
    assert!(registered.url.expose().starts_with(&expected));
}

#[tokio::test]
async fn what_keeps_a_hub_from_serving_is_an_error_of_its_start() {
    let rig = Rig::start().await;
    let other = tempdir().unwrap();
    let taken = HubConfig {
        listen: rig.hub.address(),
        ..config(&other)
    };
    let error = Hub::start(taken).await.unwrap_err();
    assert!(matches!(error, StartError::Listen { .. }), "{error:?}");
    let in_use = config(&rig.directory);
    let error = Hub::start(in_use).await.unwrap_err();
    assert!(matches!(error, StartError::Open(_)), "{error:?}");

    let broken = tempdir().unwrap();
    let file = broken.path().join("tokens.toml");
    std::fs::write(&file, "this is no token file").unwrap();
    let with = |change: &dyn Fn(&mut HubConfig)| {
        let mut config = config(&broken);
        change(&mut config);
        Hub::start(config)
    };
    let tokens = with(&|config| config.token_file = Some(file.clone())).await;
    assert!(matches!(tokens, Err(StartError::Tokens(_))), "{tokens:?}");
    let tls = TlsFiles {
        certificates: file.clone(),
        key: file.clone(),
    };
    let tls = with(&|config| config.tls = Some(tls.clone())).await;
    assert!(matches!(tls, Err(StartError::Tls(_))), "{tls:?}");
    let jwt = |secret_file| JwtConfig {
        secret_file,
        issuer: None,
        audience: None,
    };
    let weak = with(&|config| config.jwt = Some(jwt(file.clone()))).await;
    assert!(
        matches!(weak, Err(StartError::WeakJwtSecret { .. })),
        "{weak:?}"
    );
    let missing = with(&|config| config.jwt = Some(jwt("/nowhere/secret".into()))).await;
    assert!(
        matches!(missing, Err(StartError::JwtSecret { .. })),
        "{missing:?}"
    );
    let keys = with(&|config| config.access_keys = Some(file.clone())).await;
    assert!(matches!(keys, Err(StartError::AccessKeys(_))), "{keys:?}");
}
