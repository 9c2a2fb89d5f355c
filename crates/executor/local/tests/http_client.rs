//! What a client on this machine does beyond what every client does: variables, proxies, certificates.
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

async fn within<F: Future>(future: F) -> F::Output {
    let limit = Duration::from_secs(20);
    timeout(limit, future).await.expect("it happens in time")
}

async fn listen() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    (listener, address)
}

/// Reads the head of a request, and answers it.
async fn answer(mut socket: impl AsyncRead + AsyncWrite + Unpin, answer: &str) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(socket.read_u8().await.unwrap());
    }
    socket.write_all(answer.as_bytes()).await.unwrap();
    socket.flush().await.unwrap();
    String::from_utf8(head).unwrap()
}

const FINE: &str = "HTTP/1.1 200 OK\r\ncontent-length: 4\r\nconnection: close\r\n\r\nfine";

fn with_variable(url: &str, variable: &str) -> HttpRequest {
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
async fn credentials_of_the_server_are_not_sent() {
    let client = client(&[
        ("OPENAI_API_KEY", "secret"),
        ("aws_session_token", "secret"),
    ]);
    for variable in [
        "OPENAI_API_KEY",
        "aws_session_token",
        "EXEC_SERVER_REMOTE_TOKEN",
    ] {
        let refusal = client
            .request(with_variable("http://127.0.0.1:1/", variable))
            .await
            .unwrap_err();
        let text = format!(
            "http/request header authorization cannot use executor environment variable {variable}"
        );
        assert_eq!(refusal, HttpError::Refused(text));
    }
}

#[tokio::test]
async fn a_variable_that_is_unset_empty_or_no_header_value_is_refused() {
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
        let refusal = client
            .request(with_variable("http://127.0.0.1:1/", variable))
            .await
            .unwrap_err();
        let text = format!("http/request {text}");
        assert_eq!(refusal, HttpError::Refused(text));
    }
}

#[tokio::test]
async fn a_variable_of_the_host_does_not_follow_a_redirection_to_another_host() {
    let ((first, here), (second, there)) = (listen().await, listen().await);
    let client = client(&[("SVC", "secret")]);
    let moved = format!(
        "HTTP/1.1 307 Moved\r\nlocation: http://{there}/\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
    );
    // In a header that the library knows it is taken out.
    let request = client.request(with_variable(&format!("http://{here}/path?token=1"), "SVC"));
    let serve = async {
        let asked = answer(first.accept().await.unwrap().0, &moved).await;
        (asked, answer(second.accept().await.unwrap().0, FINE).await)
    };
    let (response, (asked, landed)) = within(async { tokio::join!(request, serve) }).await;
    assert_eq!(response.unwrap().status, 200);
    assert!(
        asked.contains("authorization: Bearer secret\r\n"),
        "{asked}"
    );
    assert!(
        !landed.contains("secret") && !landed.contains("token"),
        "{landed}"
    );
    // In any other it would go along.
    let mut request = with_variable(&format!("http://{here}/"), "SVC");
    request.headers[0].name = "x-key".to_owned();
    let serve = async { answer(first.accept().await.unwrap().0, &moved).await };
    let (response, _) = within(async { tokio::join!(client.request(request), serve) }).await;
    let text = "http/request failed: error following redirect: it would send a host variable to another host";
    assert_eq!(response.unwrap_err(), HttpError::Host(text.to_owned()));
}

#[tokio::test]
async fn a_length_that_is_not_the_bodys_is_refused() {
    let request = HttpRequest {
        headers: vec![HttpHeader {
            name: "Content-Length".to_owned(),
            value: "7".to_owned(),
            value_env_var: None,
        }],
        body: Some("four".into()),
        ..HttpRequest::new("POST", "http://127.0.0.1:1/")
    };
    let refusal = client(&[]).request(request).await.unwrap_err();
    let text = "header content-length must match the body length 4".to_owned();
    assert_eq!(refusal, HttpError::Refused(text));
}

#[tokio::test]
async fn a_body_that_is_too_large_is_refused_before_it_is_read() {
    let (listener, address) = listen().await;
    let client = client(&[]);
    let most = limits::MAX_HTTP_BODY_BYTES;
    let request = client.request(HttpRequest::new("GET", &format!("http://{address}/")));
    let serve = async {
        let (socket, _) = listener.accept().await.unwrap();
        let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", most + 1);
        answer(socket, &head).await
    };
    let (response, _) = within(async { tokio::join!(request, serve) }).await;
    let text = format!("body is larger than {most} bytes: stream it");
    assert_eq!(response.unwrap_err(), HttpError::Host(text));
}

#[tokio::test]
async fn the_hosts_proxy_is_used_unless_the_url_is_exempt() {
    let (proxy, address) = listen().await;
    let (direct, exempt) = listen().await;
    let proxied = client(&[
        ("http_proxy", &format!("http://name:pass@{address}")),
        ("NO_PROXY", "127.0.0.1"),
    ]);
    let request = proxied.request(HttpRequest::new("GET", "http://upstream.invalid/path"));
    let serve = async { answer(proxy.accept().await.unwrap().0, FINE).await };
    let (response, head) = within(async { tokio::join!(request, serve) }).await;
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
    let serve = async { answer(direct.accept().await.unwrap().0, FINE).await };
    let (response, head) = within(async { tokio::join!(request, serve) }).await;
    assert_eq!(response.unwrap().status, 200);
    assert!(head.starts_with("GET /path HTTP/1.1\r\n"), "{head}");
}

#[tokio::test]
async fn a_proxy_that_cannot_be_used_is_not_gone_around() {
    let client = client(&[("ALL_PROXY", "http://[broken:secret")]);
    let error = within(client.request(HttpRequest::new("GET", "http://127.0.0.1:1/"))).await;
    let text = "environment variable `ALL_PROXY` is not a valid proxy URL".to_owned();
    assert_eq!(error.unwrap_err(), HttpError::Host(text));
}

#[tokio::test]
async fn certificates_are_those_of_the_file_that_the_host_names() {
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
    let (listener, address) = listen().await;
    let port = address.rsplit(':').next().unwrap();
    let url = format!("https://localhost:{port}/");

    let trusting = client(&[("SSL_CERT_FILE", file.path().to_str().unwrap())]);
    let request = trusting.request(HttpRequest::new("GET", &url));
    let serve = async {
        let (socket, _) = listener.accept().await.unwrap();
        let socket = acceptor.accept(socket).await.unwrap();
        answer(socket, FINE).await
    };
    let (response, _) = within(async { tokio::join!(request, serve) }).await;
    assert_eq!(&response.unwrap().body[..], b"fine");

    // A private CA is trusted beside the others.
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
                Ok(socket) => drop(answer(socket, FINE).await),
                Err(error) => panic!("{env:?}: {error}"),
            }
        };
        let (response, ()) = within(async { tokio::join!(request, serve) }).await;
        assert_eq!(&response.unwrap().body[..], b"fine", "{env:?}");
    }

    let strange = client(&[]);
    let request = strange.request(HttpRequest::new("GET", &url));
    let serve = async {
        let (socket, _) = listener.accept().await.unwrap();
        acceptor.accept(socket).await.map(drop)
    };
    let (response, _) = within(async { tokio::join!(request, serve) }).await;
    let Err(HttpError::Host(text)) = response else {
        unreachable!("nobody has signed it");
    };
    assert!(text.contains("certificate"), "{text}");
}

#[tokio::test]
async fn a_file_of_certificates_that_has_none_fails_every_request() {
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
        // Nobody listens there: the error comes before anything is sent.
        let request = HttpRequest::new("GET", "http://127.0.0.1:1/");
        let Err(HttpError::Host(text)) = within(client(env).request(request)).await else {
            unreachable!("no request is made");
        };
        assert!(text.contains(variable) && text.contains(path), "{text}");
    }
}
