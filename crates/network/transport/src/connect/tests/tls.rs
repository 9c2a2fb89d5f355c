//! Websockets over TLS with generated certificates.

use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    date_time_ymd,
};
use tokio::{net::TcpListener, sync::mpsc};

use super::{connect_error, exchange, listen_secure, server, within};
use crate::{
    auth::{AuthPolicy, TokenDigest},
    connect::{BearerToken, CertificateFault, ConnectError, ConnectFault, WebSocketConnector},
    link::Link,
    listener::Listener,
    tls::{self, TrustStore},
};

/// A certificate authority and the file with its certificate.
struct TestAuthority {
    issuer: Issuer<'static, KeyPair>,
    file: PathBuf,
}

impl TestAuthority {
    fn new(dir: &Path, name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages.push(KeyUsagePurpose::KeyCertSign);
        let key = KeyPair::generate().unwrap();
        let file = dir.join(name);
        std::fs::write(&file, params.self_signed(&key).unwrap().pem()).unwrap();
        let issuer = Issuer::new(params, key);
        Self { issuer, file }
    }

    /// Runs a listener with a certificate for `name` and returns its URL.
    async fn listen(
        &self,
        name: &str,
        change: impl FnOnce(&mut CertificateParams),
    ) -> (String, mpsc::Receiver<Link>) {
        let mut params = CertificateParams::new([name.to_owned()]).unwrap();
        change(&mut params);
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let path = |extension| self.file.with_extension(extension);
        std::fs::write(path("cert"), certificate.pem()).unwrap();
        std::fs::write(path("key"), key.serialize_pem()).unwrap();
        let acceptor = tls::acceptor(&path("cert"), &path("key")).unwrap();
        let listener = Listener::bind_tcp("127.0.0.1:0".parse().unwrap(), true)
            .await
            .unwrap();
        let url = listener.address().to_string();
        let auth = AuthPolicy::CapabilityToken(TokenDigest::of_token("s3cret"));
        (url, listen_secure(listener, auth, Some(acceptor)))
    }
}

fn client(url: &str, trust: TrustStore) -> WebSocketConnector {
    WebSocketConnector {
        trust,
        bearer_token: Some(BearerToken::new("s3cret").unwrap()),
        ..server(url)
    }
}

#[tokio::test]
async fn server_certificate_is_trusted_through_its_issuer() {
    let dir = tempfile::tempdir().unwrap();
    let (ours, other) = (
        TestAuthority::new(dir.path(), "ours"),
        TestAuthority::new(dir.path(), "other"),
    );
    for name in ["127.0.0.1", "localhost"] {
        let (url, mut accepted) = ours.listen(name, |_| {}).await;
        let url = url.replace("127.0.0.1", name);
        for trust in [
            TrustStore::only(&ours.file),
            TrustStore::only(&other.file).and(&ours.file),
            TrustStore::platform().and(&ours.file),
        ] {
            let client = client(&url, trust);
            for _ in 0..2 {
                let mut link = within("a link", client.open()).await.unwrap();
                exchange(&mut link, &mut accepted).await;
            }
        }
    }
}

#[tokio::test]
async fn rejected_certificate_is_reported_with_its_reason() {
    let dir = tempfile::tempdir().unwrap();
    let (ours, other) = (
        TestAuthority::new(dir.path(), "ours"),
        TestAuthority::new(dir.path(), "other"),
    );
    let other_dir = tempfile::tempdir().unwrap();
    let remade = TestAuthority::new(other_dir.path(), "ours");
    let good = ours.listen("127.0.0.1", |_| {}).await;
    let misnamed = ours.listen("else.test", |_| {}).await;
    let expired = ours
        .listen("127.0.0.1", |params| {
            params.not_after = date_time_ymd(2001, 1, 1)
        })
        .await;
    let early = ours
        .listen("127.0.0.1", |params| {
            params.not_before = date_time_ymd(4000, 1, 1)
        })
        .await;
    for ((url, _), trust, expected, words) in [
        (
            &good,
            TrustStore::only(&other.file),
            CertificateFault::UnknownIssuer,
            "not trusted",
        ),
        (
            &good,
            TrustStore::platform().and(&other.file),
            CertificateFault::UnknownIssuer,
            "not trusted",
        ),
        (
            &good,
            TrustStore::only(&remade.file),
            CertificateFault::UnknownIssuer,
            "not trusted",
        ),
        (
            &misnamed,
            TrustStore::only(&ours.file),
            CertificateFault::WrongName,
            "not for this host",
        ),
        (
            &expired,
            TrustStore::only(&ours.file),
            CertificateFault::Expired,
            "expired",
        ),
        (
            &early,
            TrustStore::only(&ours.file),
            CertificateFault::NotYetValid,
            "not valid yet",
        ),
    ] {
        let (error, text) = connect_error(&client(url, trust)).await;
        assert_eq!(
            (error.fault(), error.is_transient()),
            (ConnectFault::Peer, false)
        );
        let ConnectError::Certificate { fault, .. } = error else {
            panic!("{text}");
        };
        assert_eq!(fault, expected);
        assert!(
            text.starts_with("certificate of `127.0.0.1`") && text.contains(words),
            "{text}"
        );
    }
}

#[tokio::test]
async fn peer_without_tls_is_reported() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("wss://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let answer = b"HTTP/1.1 400 Bad Request\r\n\r\n";
        tokio::io::AsyncWriteExt::write_all(&mut stream, answer)
            .await
            .unwrap();
        let mut sink = tokio::io::sink();
        drop(tokio::io::copy(&mut stream, &mut sink).await);
    });
    let dir = tempfile::tempdir().unwrap();
    let trust = TrustStore::only(&TestAuthority::new(dir.path(), "ours").file);
    let (error, text) = connect_error(&client(&url, trust)).await;
    assert!(matches!(error, ConnectError::Tls { .. }), "{text}");
    assert!(text.starts_with("TLS with `127.0.0.1` failed: "), "{text}");
}

#[tokio::test]
async fn unreadable_trust_file_is_named_and_retried_on_the_next_connect() {
    let dir = tempfile::tempdir().unwrap();
    let ours = TestAuthority::new(dir.path(), "ours");
    let (url, mut accepted) = ours.listen("127.0.0.1", |_| {}).await;
    let late = dir.path().join("late.pem");
    let client = client(&url, TrustStore::only(&late));
    let (error, text) = connect_error(&client).await;
    assert_eq!(error.fault(), ConnectFault::Caller);
    assert!(
        text.contains("late.pem") && text.contains("No such file"),
        "{text}"
    );
    std::fs::copy(&ours.file, &late).unwrap();
    let mut link = within("a link", client.open()).await.unwrap();
    exchange(&mut link, &mut accepted).await;
}
