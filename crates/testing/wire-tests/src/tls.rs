//! Websockets over TLS.

use std::{path::Path, sync::Arc};

use tokio_rustls::{
    TlsConnector,
    rustls::{ClientConfig, RootCertStore, pki_types::ServerName},
};

use crate::{
    client::Client,
    server::{Server, Transport, run},
};

/// Writes a new certificate and its key, and returns a client that trusts it.
fn certificate(dir: &Path) -> TlsConnector {
    let certified = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    std::fs::write(dir.join("cert.pem"), certified.cert.pem()).unwrap();
    std::fs::write(dir.join("key.pem"), certified.signing_key.serialize_pem()).unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(certified.cert.der().clone()).unwrap();
    let config = ClientConfig::builder()
        .with_root_certificates(roots)
        .with_no_client_auth();
    TlsConnector::from(Arc::new(config))
}

#[tokio::test]
async fn websocket_over_tls_is_served() {
    let dir = tempfile::TempDir::new().unwrap();
    let connector = certificate(dir.path());
    let (cert, key) = (dir.path().join("cert.pem"), dir.path().join("key.pem"));
    let flags = [
        "--listen",
        "wss://127.0.0.1:0",
        "--tls-cert",
        cert.to_str().unwrap(),
        "--tls-key",
        key.to_str().unwrap(),
    ];
    let mut server = Server::start(Transport::WebSocket, &flags).await;
    let name = ServerName::try_from("127.0.0.1").unwrap();
    let stream = connector
        .connect(name, server.stream().await)
        .await
        .unwrap();
    let mut client = Client::upgrade(Box::new(stream), None).await;
    client.handshake().await;
    client.start("p", "head -c 2000000 /dev/zero; exit 3").await;
    let events = client.finish("p").await;
    assert_eq!((events.stdout().len(), events.code()), (2_000_000, 3));
    // Plain connections are not served.
    let mut plain = server.stream().await;
    tokio::io::AsyncWriteExt::write_all(&mut plain, b"GET /readyz HTTP/1.1\r\n\r\n")
        .await
        .unwrap();
    let mut answer = Vec::new();
    drop(tokio::io::AsyncReadExt::read_to_end(&mut plain, &mut answer).await);
    assert!(!answer.starts_with(b"HTTP"), "{answer:?}");
    server.signal(rustix::process::Signal::TERM);
    assert_eq!(server.ended().await.0.code(), Some(0));
}

#[tokio::test]
async fn invalid_certificate_is_refused() {
    let dir = tempfile::TempDir::new().unwrap();
    drop(certificate(dir.path()));
    std::fs::write(dir.path().join("bad.pem"), "nothing").unwrap();
    for (cert, key) in [
        ("bad.pem", "key.pem"),
        ("cert.pem", "bad.pem"),
        ("none.pem", "key.pem"),
    ] {
        let flags = [
            "--listen",
            "wss://127.0.0.1:0",
            "--tls-cert",
            cert,
            "--tls-key",
            key,
        ];
        let output = run(dir.path(), &flags).await;
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{text}");
        let file = if cert == "cert.pem" { key } else { cert };
        assert!(text.starts_with("Error: ") && text.contains(file), "{text}");
        assert!(output.stdout.is_empty());
    }
}
