//! An HTTP server for tests, and tests of the client against it.

use std::{
    convert::Infallible,
    net::SocketAddr,
    path::Path,
    sync::{Arc, Mutex},
    time::Duration,
};

use bytes::Bytes;
use exec_transport::tls::{TrustStore, acceptor};
use http::{HeaderMap, Method, Request, Response, header};
use http_body_util::{BodyExt, Full};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
    task::{AbortHandle, JoinSet},
    time::Instant,
};
use url::Url;

use super::*;

/// A received request.
#[derive(Clone, Debug)]
pub(crate) struct ReceivedRequest {
    pub(crate) method: Method,
    pub(crate) target: String,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    /// Remote address: another port means another connection.
    pub(crate) peer: SocketAddr,
}

impl ReceivedRequest {
    /// Returns the body as JSON.
    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap()
    }
}

/// Answers a request, given the number of requests before it.
type ResponseScript = dyn Fn(usize, &ReceivedRequest) -> Response<Full<Bytes>> + Send + Sync;

/// An HTTP server on loopback. It stops when dropped.
pub(crate) struct Server {
    port: u16,
    seen: Arc<Mutex<Vec<ReceivedRequest>>>,
    task: AbortHandle,
}

impl Server {
    pub(crate) async fn start(
        answers: impl Fn(usize, &ReceivedRequest) -> Response<Full<Bytes>> + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let shared: (Arc<ResponseScript>, _) = (Arc::new(answers), Arc::clone(&seen));
        let task = tokio::spawn(async move {
            // Connections end with this task.
            let mut connections = JoinSet::new();
            loop {
                let (stream, peer) = listener.accept().await.unwrap();
                let (answers, seen) = shared.clone();
                let service = service_fn(move |request: Request<Incoming>| {
                    let (answers, seen) = (Arc::clone(&answers), Arc::clone(&seen));
                    async move {
                        let (head, body) = request.into_parts();
                        let request = ReceivedRequest {
                            method: head.method,
                            target: head.uri.to_string(),
                            headers: head.headers,
                            body: body.collect().await.unwrap().to_bytes(),
                            peer,
                        };
                        let number = {
                            let mut seen = seen.lock().unwrap();
                            seen.push(request.clone());
                            seen.len() - 1
                        };
                        Ok::<_, Infallible>(answers(number, &request))
                    }
                });
                let serve = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
                connections.spawn(serve);
            }
        });
        Self {
            port,
            seen,
            task: task.abort_handle(),
        }
    }

    /// Returns its base URL.
    pub(crate) fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Returns the requests received so far.
    pub(crate) fn seen(&self) -> Vec<ReceivedRequest> {
        self.seen.lock().unwrap().clone()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Creates a response.
pub(crate) fn answer(status: u16, body: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let response = Response::builder().status(status);
    response.body(Full::new(body.into())).unwrap()
}

/// Creates a client.
pub(crate) fn http() -> HttpClient {
    HttpClient::without_tls().unwrap()
}

/// Accepts connections, reads once, writes `response`, and then keeps the connection open or
/// closes it.
async fn raw_server(response: &'static [u8], then: AfterResponse) -> Url {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        let mut open_streams = Vec::new();
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = [0; 4096];
            let _: usize = stream.read(&mut request).await.unwrap();
            stream.write_all(response).await.unwrap();
            match then {
                AfterResponse::Keep => open_streams.push(stream),
                AfterResponse::Close => {}
            }
        }
    });
    Url::parse(&format!("http://127.0.0.1:{port}")).unwrap()
}

#[derive(Clone, Copy)]
enum AfterResponse {
    Keep,
    Close,
}

fn get(url: Url) -> HttpCall {
    HttpCall {
        method: Method::GET,
        url,
        headers: HeaderMap::new(),
        body: None,
        connection: ConnectionReuse::Pooled,
        within: Duration::from_secs(10),
        limit: 100,
    }
}

#[tokio::test]
async fn requests_have_no_extra_headers() {
    let server = Server::start(|_, _| answer(200, "yes")).await;
    let reply = http().send(get(Url::parse(&server.url()).unwrap())).await;
    assert_eq!(reply.unwrap().body, "yes");
    let seen = &server.seen()[0];
    let mut names: Vec<_> = seen
        .headers
        .keys()
        .map(header::HeaderName::as_str)
        .collect();
    names.sort_unstable();
    assert_eq!(names, ["accept", "host"]);
    assert_eq!(seen.headers[header::ACCEPT], "*/*");
}

#[tokio::test]
async fn redirects_are_not_followed() {
    let server = Server::start(|_, _| {
        let mut response = answer(307, "there");
        let location = header::HeaderValue::from_static("/elsewhere");
        response.headers_mut().insert(header::LOCATION, location);
        response
    })
    .await;
    let reply = http().send(get(Url::parse(&server.url()).unwrap())).await;
    assert_eq!(reply.unwrap().status, 307);
    assert_eq!(server.seen().len(), 1);
}

#[tokio::test]
async fn localhost_resolves_to_loopback() {
    let server = Server::start(|_, _| answer(200, "yes")).await;
    let url = server.url().replace("127.0.0.1", "localhost");
    let reply = http().send(get(Url::parse(&url).unwrap())).await;
    assert_eq!(reply.unwrap().body, "yes");
}

#[tokio::test]
async fn long_responses_are_rejected() {
    let server = Server::start(|number, _| answer(200, vec![b'x'; 100 + number])).await;
    let url = Url::parse(&server.url()).unwrap();
    let fits = http().send(get(url.clone())).await.unwrap();
    assert_eq!(fits.body.len(), 100);
    let error = http().send(get(url)).await.unwrap_err();
    assert!(matches!(error, ExchangeError::TooLarge(100)));
    assert!(!error.is_transient());
}

#[tokio::test]
async fn long_error_response_keeps_its_status() {
    let server = Server::start(|_, _| answer(503, vec![b'x'; 101])).await;
    let url = Url::parse(&server.url()).unwrap();
    let reply = http().send(get(url)).await.unwrap();
    assert_eq!((reply.status.as_u16(), reply.body.len()), (503, 0));
}

#[tokio::test]
async fn unreachable_server_is_reported_without_the_url() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    drop(listener);
    let url = format!("http://127.0.0.1:{port}/secret-path");
    let error = http()
        .send(get(Url::parse(&url).unwrap()))
        .await
        .unwrap_err();
    assert!(matches!(error, ExchangeError::Unreachable(_)));
    assert!(error.is_transient());
    assert!(!format!("{error:?}").contains("secret-path"));
}

#[tokio::test]
async fn truncated_response_is_interrupted() {
    for response in [
        &b""[..],
        b"HTTP/1.1 200 OK\r\ncontent-le",
        b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nabc",
    ] {
        let url = raw_server(response, AfterResponse::Close).await;
        let error = http().send(get(url)).await.unwrap_err();
        assert!(matches!(error, ExchangeError::Interrupted(_)), "{error:?}");
        assert!(error.is_transient());
    }
}

#[tokio::test(start_paused = true)]
async fn one_deadline_covers_head_and_body() {
    for response in [&b""[..], b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nabc"] {
        let url = raw_server(response, AfterResponse::Keep).await;
        let started_at = Instant::now();
        let error = http().send(get(url)).await.unwrap_err();
        assert!(matches!(error, ExchangeError::Timeout(_)), "{error:?}");
        assert!(error.is_transient());
        assert_eq!(started_at.elapsed().as_secs(), 10);
    }
}

/// Serves responses over TLS with a certificate that it writes to the directory.
async fn server(dir: &TempDir) -> Url {
    let certificate = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let path = |name: &str| dir.path().join(name);
    std::fs::write(path("cert.pem"), certificate.cert.pem()).unwrap();
    std::fs::write(path("key.pem"), certificate.signing_key.serialize_pem()).unwrap();
    let acceptor = acceptor(&path("cert.pem"), &path("key.pem")).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            // Clients that do not trust the certificate disconnect.
            let Ok(mut stream) = acceptor.accept(stream).await else {
                continue;
            };
            assert_eq!(stream.get_ref().1.alpn_protocol(), None);
            let mut request = [0; 4096];
            let read = stream.read(&mut request).await.unwrap();
            assert!(request[..read].starts_with(b"GET / HTTP/1.1\r\n"));
            let response = b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nyes";
            stream.write_all(response).await.unwrap();
            stream.shutdown().await.unwrap();
        }
    });
    Url::parse(&format!("https://localhost:{port}")).unwrap()
}

async fn trusting(file: &Path) -> HttpClient {
    let config = TrustStore::only(file).config().await.unwrap();
    HttpClient::new(&config).unwrap()
}

#[tokio::test]
async fn only_trusted_certificates_are_accepted() {
    let dir = tempfile::tempdir().unwrap();
    let url = server(&dir).await;
    let client = trusting(&dir.path().join("cert.pem")).await;
    assert_eq!(client.send(get(url.clone())).await.unwrap().body, "yes");

    let other = dir.path().join("other.pem");
    let certificate = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    std::fs::write(&other, certificate.cert.pem()).unwrap();
    for client in [trusting(&other).await, http()] {
        let error = client.send(get(url.clone())).await.unwrap_err();
        assert!(matches!(error, ExchangeError::Unreachable(_)), "{error:?}");
        // Waiting for the server to come up must not wait for this.
        assert!(!error.is_unreachable(), "{error:?}");
    }
}

fn operation(base: &str, environment: &str) -> String {
    let environment = RegistryEnvironmentId::new(environment).unwrap();
    let base = BaseUrl::parse(base).unwrap();
    base.operation(&environment, "register").unwrap().into()
}

#[test]
fn paths_are_appended_as_text() {
    let all = [
        (
            " https://a.test/ \n",
            "env-1",
            "https://a.test/cloud/environment/env-1/register",
        ),
        (
            "http://a.test:81/x//",
            "e",
            "http://a.test:81/x/cloud/environment/e/register",
        ),
        (
            "https://a.test",
            "a/b c",
            "https://a.test/cloud/environment/a/b%20c/register",
        ),
    ];
    for (base, environment, expected) in all {
        assert_eq!(operation(base, environment), expected);
    }
}

#[test]
fn invalid_base_urls_are_rejected() {
    use BaseUrlError as Error;
    assert_eq!(BaseUrl::parse(" / "), Err(Error::Empty));
    assert!(matches!(BaseUrl::parse("a.test"), Err(Error::Malformed(_))));
    assert_eq!(
        BaseUrl::parse("ws://a.test"),
        Err(Error::Scheme("ws".to_owned()))
    );
    assert_eq!(BaseUrl::parse("https://me:pw@a.test"), Err(Error::UserInfo));
    assert_eq!(BaseUrl::parse("https://a.test/?a"), Err(Error::Query));
    assert_eq!(BaseUrl::parse("https://a.test#a"), Err(Error::Query));
}

#[test]
fn only_loopback_literals_and_localhost_are_local() {
    let is_local = |text| is_loopback(&Url::parse(text).unwrap());
    for text in [
        "http://localhost:1",
        "http://LOCALHOST",
        "http://127.9.0.1",
        "http://[::1]",
        "http://[::ffff:127.0.0.1]",
    ] {
        assert!(is_local(text), "{text}");
    }
    for text in [
        "http://localhost.test",
        "http://10.0.0.1",
        "http://[::2]",
        "http://127.0.0.1.test",
    ] {
        assert!(!is_local(text), "{text}");
    }
}
