//! Getting into a broker.

use std::fs;

use super::*;
use crate::nats::NatsError;

async fn join(config: &NatsConfig) -> Result<Mesh, NatsError> {
    within(Mesh::join(config, Arc::new(Switch::default()))).await
}

#[tokio::test]
async fn a_user_gets_in_with_the_right_password_only() {
    let broker = Broker::with(&["--user", "hub", "--pass", "p@ss"]).await;
    join(&broker.config_at("nats://hub:p%40ss@127.0.0.1:PORT"))
        .await
        .unwrap();
    for wrong in ["nats://hub:guess@127.0.0.1:PORT", "nats://127.0.0.1:PORT"] {
        let error = join(&broker.config_at(wrong)).await.unwrap_err();
        assert!(matches!(error, NatsError::Login { .. }), "{error:?}");
        assert!(!format!("{error:?} {error}").contains("guess"), "{error:?}");
    }
}

#[tokio::test]
async fn a_token_gets_in() {
    let broker = Broker::with(&["--auth", "s3cret"]).await;
    join(&broker.config_at("nats://s3cret@127.0.0.1:PORT"))
        .await
        .unwrap();
    let error = join(&broker.config_at("nats://guess@127.0.0.1:PORT"))
        .await
        .unwrap_err();
    assert!(matches!(error, NatsError::Login { .. }), "{error:?}");
}

#[tokio::test]
async fn tls_needs_a_trusted_certificate() {
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str, content: String| {
        let path = directory.path().join(name);
        fs::write(&path, content).unwrap();
        path
    };
    let certified = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let certificate = file("cert.pem", certified.cert.pem());
    let key = file("key.pem", certified.signing_key.serialize_pem());
    let arguments = [
        "--tls",
        "--tlscert",
        certificate.to_str().unwrap(),
        "--tlskey",
    ];
    let arguments = [&arguments[..], &[key.to_str().unwrap()]].concat();
    let broker = Broker::with(&arguments).await;
    for url in ["tls://localhost:PORT", "nats://localhost:PORT"] {
        let mut config = broker.config_at(url);
        let error = join(&config).await.unwrap_err();
        assert!(matches!(error, NatsError::Tls { .. }), "{error:?}");
        config.ca_file = Some(certificate.clone());
        join(&config).await.unwrap();
    }
}

#[tokio::test]
async fn a_credentials_file_must_be_one() {
    let broker = Broker::start().await;
    let mut config = broker.config();
    config.credentials_file = Some("/nonexistent/hub.creds".into());
    let error = join(&config).await.unwrap_err();
    assert!(matches!(error, NatsError::Credentials(_)), "{error:?}");
}

#[tokio::test]
async fn a_broker_without_jetstream_is_named_as_the_reason() {
    let broker = Broker::without_jetstream().await;
    let error = join(&broker.config()).await.unwrap_err();
    assert!(matches!(error, NatsError::Bucket { .. }), "{error:?}");
    assert!(error.to_string().contains("JetStream"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_broker_that_is_not_there_is_named_in_the_end() {
    let free = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let url = format!("nats://user:hidden@{free}");
    let config = NatsConfig::new(url.parse().unwrap(), "node".parse().unwrap());
    let error = join(&config).await.unwrap_err();
    assert!(matches!(error, NatsError::Unreachable { .. }), "{error:?}");
    assert_eq!(
        error.to_string(),
        format!("no NATS server answers at nats://{free}")
    );
    assert!(!format!("{error:?}").contains("hidden"), "{error:?}");
}

#[tokio::test]
async fn a_broker_that_takes_no_frames_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("broker.conf");
    fs::write(&file, "max_payload: 65536").unwrap();
    let broker = Broker::with(&["-c", file.to_str().unwrap()]).await;
    let error = join(&broker.config()).await.unwrap_err();
    assert!(
        matches!(error, NatsError::Payload { limit: 65_536 }),
        "{error:?}"
    );
}
