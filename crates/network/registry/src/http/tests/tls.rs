//! Registries with certificates of their own.

use std::path::Path;

use exec_transport::tls::{Trust, acceptor};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::*;

/// Serves one answer after another over TLS, with a certificate that is in the directory.
async fn server(dir: &TempDir) -> Url {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let path = |name: &str| dir.path().join(name);
    std::fs::write(path("cert.pem"), made.cert.pem()).unwrap();
    std::fs::write(path("key.pem"), made.signing_key.serialize_pem()).unwrap();
    let acceptor = acceptor(&path("cert.pem"), &path("key.pem")).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            // Who does not trust us hangs up.
            let Ok(mut stream) = acceptor.accept(stream).await else {
                continue;
            };
            assert_eq!(stream.get_ref().1.alpn_protocol(), None);
            let mut request = [0; 4096];
            let read = stream.read(&mut request).await.unwrap();
            assert!(request[..read].starts_with(b"GET / HTTP/1.1\r\n"));
            let said = b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nyes";
            stream.write_all(said).await.unwrap();
            stream.shutdown().await.unwrap();
        }
    });
    Url::parse(&format!("https://localhost:{port}")).unwrap()
}

async fn trusting(file: &Path) -> Http {
    let config = Trust::only(file).config().await.unwrap();
    Http::new(&config).unwrap()
}

#[tokio::test]
async fn a_certificate_counts_only_if_it_is_trusted() {
    let dir = tempfile::tempdir().unwrap();
    let url = server(&dir).await;
    let http = trusting(&dir.path().join("cert.pem")).await;
    assert_eq!(http.send(get(url.clone())).await.unwrap().body, "yes");

    let other = dir.path().join("other.pem");
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    std::fs::write(&other, made.cert.pem()).unwrap();
    for http in [trusting(&other).await, super::http()] {
        let error = http.send(get(url.clone())).await.unwrap_err();
        assert!(matches!(error, ExchangeError::Unreachable(_)), "{error:?}");
        // Whoever waits for a server to come up does not wait for this.
        assert!(!error.is_unreachable(), "{error:?}");
    }
}
