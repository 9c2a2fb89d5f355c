//! Header variables, proxies and certificates of the local HTTP client.
#![expect(
    clippy::expect_used,
    clippy::unwrap_used,
    reason = "a panic is how a test fails"
)]

use std::{collections::BTreeMap, ffi::OsString, io::Write, sync::Arc, time::Duration};

use exec_env::http::{HttpClient, HttpError, HttpRequest};
use exec_local::http_client::LocalHttpClient;
use exec_wire::{http::HttpHeader, limits};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::TcpListener,
    time::timeout,
};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{
        ServerConfig,
        crypto::aws_lc_rs,
        pki_types::{PrivateKeyDer, pem::PemObject},
    },
};

fn client(env: &[(&str, &str)]) -> LocalHttpClient {
    let pairs = env.iter().map(|(name, value)| (name.into(), value.into()));
    LocalHttpClient::new(pairs.collect::<BTreeMap<OsString, OsString>>())
}

async fn with_timeout<F: Future>(future: F) -> F::Output {
    let limit = Duration::from_secs(20);
    timeout(limit, future)
        .await
        .expect("no result before the timeout")
}

async fn bind() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    (listener, address)
}

/// Reads the head of a request and sends a response. Returns the head.
async fn respond(mut socket: impl AsyncRead + AsyncWrite + Unpin, response: &str) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(socket.read_u8().await.unwrap());
    }
    socket.write_all(response.as_bytes()).await.unwrap();
    socket.flush().await.unwrap();
    String::from_utf8(head).unwrap()
}

const OK_RESPONSE: &str = "HTTP/1.1 200 OK\r\ncontent-length: 4\r\nconnection: close\r\n\r\nfine";

fn request_with_variable(url: &str, variable: &str) -> HttpRequest {
    HttpRequest {
        headers: vec![HttpHeader {
            name: "authorization".to_owned(),
            value: "Bearer ".to_owned(),
            value_env_var: Some(variable.to_owned()),
        }],
        ..HttpRequest::new("GET", url)
    }
}

#[tokio::test]
async fn server_credentials_are_not_sent_in_headers() {
    let client = client(&[
        ("OPENAI_API_KEY", "secret"),
        ("aws_session_token", "secret"),
    ]);
    for variable in [
        "OPENAI_API_KEY",
        "aws_session_token",
        "EXEC_SERVER_REMOTE_TOKEN",
    ] {
        let error = client
            .request(request_with_variable("http://127.0.0.1:1/", variable))
            .await
            .unwrap_err();
        let text = format!(
            "http/request header authorization cannot use executor environment variable {variable}"
        );
        assert_eq!(error, HttpError::Refused(text));
    }
}

#[tokio::test]
async fn unset_empty_or_invalid_header_variable_is_rejected() {
    let client = client(&[("EMPTY", ""), ("LINES", "one\ntwo")]);
    let texts = [
        (
            "UNSET",
            "header authorization requires executor environment variable UNSET",
        ),
        (
            "EMPTY",
            "header authorization requires a non-empty executor environment variable EMPTY",
        ),
        (
            "LINES",
            "header value is invalid for authorization: failed to parse header value",
        ),
    ];
    for (variable, text) in texts {
        let error = client
            .request(request_with_variable("http://127.0.0.1:1/", variable))
            .await
            .unwrap_err();
        let text = format!("http/request {text}");
        assert_eq!(error, HttpError::Refused(text));
    }
}

#[tokio::test]
async fn host_variable_is_not_sent_on_cross_host_redirect() {
    let ((first, here), (second, there)) = (bind().await, bind().await);
    let client = client(&[("SVC", "secret")]);
    let moved = format!(
        "HTTP/1.1 307 Moved\r\nlocation: http://{there}/\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
    );
    // The library removes the `authorization` header.
    let request = client.request(request_with_variable(
        &format!("http://{here}/path?token=1"),
        "SVC",
    ));
    let serve = async {
        let first_request = respond(first.accept().await.unwrap().0, &moved).await;
        (
            first_request,
            respond(second.accept().await.unwrap().0, OK_RESPONSE).await,
        )
    };
    let (response, (first_request, second_request)) =
        with_timeout(async { tokio::join!(request, serve) }).await;
    assert_eq!(response.unwrap().status, 200);
    assert!(
        first_request.contains("authorization: Bearer secret\r\n"),
        "{first_request}"
    );
    assert!(
        !second_request.contains("secret") && !second_request.contains("token"),
        "{second_request}"
    );
    // It would keep any other header.
    let mut request = request_with_variable(&format!("http://{here}/"), "SVC");
    request.headers[0].name = "x-key".to_owned();
    let serve = async { respond(first.accept().await.unwrap().0, &moved).await };
    let (response, _) = with_timeout(async { tokio::join!(client.request(request), serve) }).await;
    let text = "http/request failed: error following redirect: it would send a host variable to another host";
    assert_eq!(response.unwrap_err(), HttpError::Host(text.to_owned()));
}

#[tokio::test]
async fn wrong_content_length_is_rejected() {
    let request = HttpRequest {
        headers: vec![HttpHeader {
            name: "Content-Length".to_owned(),
            value: "7".to_owned(),
            value_env_var: None,
        }],
        body: Some("four".into()),
        ..HttpRequest::new("POST", "http://127.0.0.1:1/")
    };
    let error = client(&[]).request(request).await.unwrap_err();
    let text = "header content-length must match the body length 4".to_owned();
    assert_eq!(error, HttpError::Refused(text));
}

#[tokio::test]
async fn too_large_body_is_rejected_before_reading() {
    let (listener, address) = bind().await;
    let client = client(&[]);
    let max = limits::MAX_HTTP_BODY_BYTES;
    let request = client.request(HttpRequest::new("GET", &format!("http://{address}/")));
    let serve = async {
        let (socket, _) = listener.accept().await.unwrap();
        let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", max + 1);
        respond(socket, &head).await
    };
    let (response, _) = with_timeout(async { tokio::join!(request, serve) }).await;
    let text = format!("body is larger than {max} bytes: stream it");
    assert_eq!(response.unwrap_err(), HttpError::Host(text));
}

#[tokio::test]
async fn host_proxy_is_used_unless_the_url_is_exempt() {
    let (proxy, address) = bind().await;
    let (direct, exempt) = bind().await;
    let proxied = client(&[
        ("http_proxy", &format!("http://name:pass@{address}")),
        ("NO_PROXY", "127.0.0.1"),
    ]);
    let request = proxied.request(HttpRequest::new("GET", "http://upstream.invalid/path"));
    let serve = async { respond(proxy.accept().await.unwrap().0, OK_RESPONSE).await };
    let (response, head) = with_timeout(async { tokio::join!(request, serve) }).await;
    assert_eq!(&response.unwrap().body[..], b"fine");
    assert!(
        head.starts_with("GET http://upstream.invalid/path HTTP/1.1\r\n"),
        "{head}"
    );
    assert!(
        head.contains("proxy-authorization: Basic bmFtZTpwYXNz\r\n"),
        "{head}"
    );
    let request = proxied.request(HttpRequest::new("GET", &format!("http://{exempt}/path")));
    let serve = async { respond(direct.accept().await.unwrap().0, OK_RESPONSE).await };
    let (response, head) = with_timeout(async { tokio::join!(request, serve) }).await;
    assert_eq!(response.unwrap().status, 200);
    assert!(head.starts_with("GET /path HTTP/1.1\r\n"), "{head}");
}

#[tokio::test]
async fn invalid_proxy_is_not_bypassed() {
    let client = client(&[("ALL_PROXY", "http://[broken:secret")]);
    let error = with_timeout(client.request(HttpRequest::new("GET", "http://127.0.0.1:1/"))).await;
    let text = "environment variable `ALL_PROXY` is not a valid proxy URL".to_owned();
    assert_eq!(error.unwrap_err(), HttpError::Host(text));
}

#[tokio::test]
async fn configured_certificate_files_are_trusted() {
    let signed = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let key = PrivateKeyDer::from_pem_slice(signed.signing_key.serialize_pem().as_bytes()).unwrap();
    let config = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![signed.cert.der().clone()], key)
        .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(signed.cert.pem().as_bytes()).unwrap();
    let (listener, address) = bind().await;
    let port = address.rsplit(':').next().unwrap();
    let url = format!("https://localhost:{port}/");

    let trusting = client(&[("SSL_CERT_FILE", file.path().to_str().unwrap())]);
    let request = trusting.request(HttpRequest::new("GET", &url));
    let serve = async {
        let (socket, _) = listener.accept().await.unwrap();
        let socket = acceptor.accept(socket).await.unwrap();
        respond(socket, OK_RESPONSE).await
    };
    let (response, _) = with_timeout(async { tokio::join!(request, serve) }).await;
    assert_eq!(&response.unwrap().body[..], b"fine");

    // A private CA is trusted additionally.
    let mut other = tempfile::NamedTempFile::new().unwrap();
    let unrelated = rcgen::generate_simple_self_signed(["other.test".to_owned()]).unwrap();
    other.write_all(unrelated.cert.pem().as_bytes()).unwrap();
    let (own, other) = (
        file.path().to_str().unwrap(),
        other.path().to_str().unwrap(),
    );
    for env in [
        &[("CODEX_CA_CERTIFICATE", own)][..],
        &[("CODEX_CA_CERTIFICATE", own), ("SSL_CERT_FILE", other)],
        &[("CODEX_CA_CERTIFICATE", other), ("SSL_CERT_FILE", own)],
        &[("CODEX_CA_CERTIFICATE", ""), ("SSL_CERT_FILE", own)],
    ] {
        let trusting = client(env);
        let request = trusting.request(HttpRequest::new("GET", &url));
        let serve = async {
            let (socket, _) = listener.accept().await.unwrap();
            match acceptor.accept(socket).await {
                Ok(socket) => drop(respond(socket, OK_RESPONSE).await),
                Err(error) => panic!("{env:?}: {error}"),
            }
        };
        let (response, ()) = with_timeout(async { tokio::join!(request, serve) }).await;
        assert_eq!(&response.unwrap().body[..], b"fine", "{env:?}");
    }

    let untrusting = client(&[]);
    let request = untrusting.request(HttpRequest::new("GET", &url));
    let serve = async {
        let (socket, _) = listener.accept().await.unwrap();
        acceptor.accept(socket).await.map(drop)
    };
    let (response, _) = with_timeout(async { tokio::join!(request, serve) }).await;
    let Err(HttpError::Host(text)) = response else {
        unreachable!("the certificate is not signed by a trusted root");
    };
    assert!(text.contains("certificate"), "{text}");
}

#[tokio::test]
async fn certificate_file_without_certificates_fails_every_request() {
    let empty = tempfile::NamedTempFile::new().unwrap();
    let empty = empty.path().to_str().unwrap();
    for (env, variable, path) in [
        (
            &[("CODEX_CA_CERTIFICATE", "/nothing/of/this/name")][..],
            "CODEX_CA_CERTIFICATE",
            "/nothing",
        ),
        (
            &[("CODEX_CA_CERTIFICATE", empty)],
            "CODEX_CA_CERTIFICATE",
            empty,
        ),
        (
            &[("SSL_CERT_FILE", "/nothing/of/this/name")],
            "SSL_CERT_FILE",
            "/nothing",
        ),
        (&[("SSL_CERT_FILE", empty)], "SSL_CERT_FILE", empty),
    ] {
        // Port 1 has no listener: the error must occur before sending.
        let request = HttpRequest::new("GET", "http://127.0.0.1:1/");
        let Err(HttpError::Host(text)) = with_timeout(client(env).request(request)).await else {
            unreachable!("the request must fail before sending");
        };
        assert!(text.contains(variable) && text.contains(path), "{text}");
    }
}
