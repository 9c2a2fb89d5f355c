//! An HTTP service on loopback, with raw requests and with this crate's client.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use http_body_util::{BodyExt, Limited};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::mpsc,
    task::JoinHandle,
};
use tokio_rustls::TlsAcceptor;

use super::*;
use crate::{
    connect::{ConnectError, WebSocketConnector},
    listener::Listener,
    tls::{self, TrustStore},
    websocket::socket::RawMessage,
};

/// Echoes bodies, upgrades `/socket`, and never responds to `/slow`.
struct EchoService;

impl HttpService for EchoService {
    type Upgrade = String;

    fn respond(
        &self,
        request: Request<Incoming>,
        _: HttpPeer,
    ) -> BoxFuture<'_, HttpOutcome<String>> {
        Box::pin(async move {
            let path = request.uri().path().to_owned();
            match path.as_str() {
                "/socket" => HttpOutcome::Upgrade(path),
                "/slow" => std::future::pending().await,
                _ => match Limited::new(request.into_body(), 8).collect().await {
                    Ok(body) => HttpOutcome::Reply(Response::new(Full::new(body.to_bytes()))),
                    Err(_) => HttpOutcome::Reply(text_response(StatusCode::PAYLOAD_TOO_LARGE, "")),
                },
            }
        })
    }
}

struct RunningService {
    address: String,
    sockets: mpsc::UnboundedReceiver<(String, BinarySocket)>,
    task: JoinHandle<()>,
}

async fn serve_echo(options: HttpServiceOptions) -> RunningService {
    serve_echo_with_tls(options, None).await
}

async fn serve_echo_with_tls(
    options: HttpServiceOptions,
    tls: Option<TlsAcceptor>,
) -> RunningService {
    let bind = Listener::bind_tcp("127.0.0.1:0".parse().unwrap(), tls.is_some());
    let listener = bind.await.unwrap();
    let url = listener.address().to_string();
    let address = url.split_once("://").unwrap().1.to_owned();
    let (send, sockets) = mpsc::unbounded_channel();
    let on_upgrade = move |what, socket| drop(send.send((what, socket)));
    let serving = listener.serve_http(Arc::new(EchoService), tls, options, on_upgrade);
    RunningService {
        address,
        sockets,
        task: tokio::spawn(serving),
    }
}

/// Sends a raw request; returns the first and the last line of the response.
async fn send_request(address: &str, request: &str) -> (String, String) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let first = answer.lines().next().unwrap_or("").to_owned();
    (first, answer.lines().last().unwrap_or("").to_owned())
}

#[tokio::test]
async fn service_reads_bodies_and_requests_with_origin_are_refused() {
    let served = serve_echo(HttpServiceOptions::default()).await;
    let post = |path: &str, headers: &str, body: &str| {
        format!(
            "POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{headers}Content-Length: {}\r\n\r\n{body}",
            body.len()
        )
    };
    let (status, body) = send_request(&served.address, &post("/x", "", "12345678")).await;
    assert_eq!(
        (status.as_str(), body.as_str()),
        ("HTTP/1.1 200 OK", "12345678")
    );
    let (status, _) = send_request(&served.address, &post("/x", "", "123456789")).await;
    assert_eq!(status, "HTTP/1.1 413 Payload Too Large");
    let (status, _) = send_request(&served.address, &post("/x", "Origin: http://a\r\n", "")).await;
    assert_eq!(status, "HTTP/1.1 403 Forbidden");
    let (status, _) = send_request(&served.address, &post("/socket", "", "")).await;
    assert_eq!(status, "HTTP/1.1 426 Upgrade Required");
}

#[tokio::test]
async fn upgraded_socket_is_handed_over_with_its_context() {
    let mut served = serve_echo(HttpServiceOptions::default()).await;
    let url = format!("ws://{}/socket", served.address);
    let mut client = WebSocketConnector::new(url.parse().unwrap())
        .open_socket(None)
        .await
        .unwrap();
    let (what, mut server) = served.sockets.recv().await.unwrap();
    assert_eq!(what, "/socket");
    let message = Bytes::from(vec![7; 200_000]);
    client.writer.push(message.clone());
    let (sent, received) = tokio::join!(client.writer.flush(), server.reader.next());
    sent.unwrap();
    assert!(received.unwrap() == Some(RawMessage::Binary(message)));
    let refused = WebSocketConnector::new(url.replace("socket", "x").parse().unwrap());
    let error = refused.open_socket(None).await.unwrap_err();
    assert!(
        matches!(error, ConnectError::Refused { status: 200, .. }),
        "{error}"
    );
}

#[tokio::test]
async fn connection_slot_is_released_when_both_socket_halves_are_dropped() {
    let options = HttpServiceOptions {
        max_connections: 1,
        ..HttpServiceOptions::default()
    };
    let mut served = serve_echo(options).await;
    let url = format!("ws://{}/socket", served.address);
    let client = WebSocketConnector::new(url.parse().unwrap());
    let _first = client.open_socket(None).await.unwrap();
    let (_, BinarySocket { reader, writer }) = served.sockets.recv().await.unwrap();
    drop(reader);
    let refused = client.open_socket(None).await.unwrap_err();
    assert!(
        matches!(refused, ConnectError::Refused { status: 503, .. }),
        "{refused}"
    );
    // A request that is not an upgrade needs no slot.
    let request = "GET /x HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    assert_eq!(
        send_request(&served.address, request).await.0,
        "HTTP/1.1 200 OK"
    );
    drop(writer);
    client.open_socket(None).await.unwrap();
}

#[tokio::test]
async fn slow_request_times_out_and_dropping_the_service_closes_connections() {
    let options = HttpServiceOptions {
        request_timeout: Duration::from_millis(20),
        ..HttpServiceOptions::default()
    };
    let served = serve_echo(options).await;
    let request = "GET /slow HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    let (status, _) = send_request(&served.address, request).await;
    assert_eq!(status, "HTTP/1.1 408 Request Timeout");

    let served = serve_echo(HttpServiceOptions::default()).await;
    let mut stream = TcpStream::connect(&served.address).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let (status, _) = send_request(&served.address, &request.replace("slow", "x")).await;
    assert_eq!(status, "HTTP/1.1 200 OK");
    served.task.abort();
    let mut rest = Vec::new();
    assert!(stream.read_to_end(&mut rest).await.is_err() || rest.is_empty());
}

#[tokio::test]
async fn sockets_carry_messages_over_tls() {
    let dir = tempfile::tempdir().unwrap();
    let (certificate, key) = (dir.path().join("cert"), dir.path().join("key"));
    let pair = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    std::fs::write(&certificate, pair.cert.pem()).unwrap();
    std::fs::write(&key, pair.signing_key.serialize_pem()).unwrap();
    let acceptor = tls::acceptor(&certificate, &key).unwrap();
    let mut served = serve_echo_with_tls(HttpServiceOptions::default(), Some(acceptor)).await;
    let url = format!("wss://{}/socket", served.address);
    let client = WebSocketConnector {
        trust: TrustStore::only(&certificate),
        ..WebSocketConnector::new(url.parse().unwrap())
    };
    let mut client = client.open_socket(None).await.unwrap();
    let (_, mut server) = served.sockets.recv().await.unwrap();
    let messages: Vec<Bytes> = (1..20).map(|n| Bytes::from(vec![n; 60_000])).collect();
    for _ in 0..2 {
        let (from, to) = (&mut client, &mut server);
        let send = async {
            messages
                .iter()
                .for_each(|one| from.writer.push(one.clone()));
            from.writer.flush().await.unwrap();
        };
        let receive = async {
            for message in &messages {
                let next = to.reader.next().await.unwrap();
                assert!(next == Some(RawMessage::Binary(message.clone())));
            }
        };
        tokio::join!(send, receive);
        std::mem::swap(&mut client, &mut server);
    }
}

#[tokio::test]
async fn idle_connections_are_evicted_and_time_out() {
    let options = HttpServiceOptions {
        pending: PendingLimits {
            max_connections: 8,
            max_per_address: 4,
            timeout: Duration::from_millis(300),
        },
        ..HttpServiceOptions::default()
    };
    let mut served = serve_echo(options).await;
    let request = "GET /x HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let mut idle = Vec::new();
    for _ in 0..5 {
        let mut stream = TcpStream::connect(&served.address).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = [0; 15];
        stream.read_exact(&mut answer).await.unwrap();
        assert_eq!(&answer, b"HTTP/1.1 200 OK");
        idle.push(stream);
    }
    // Upgraded connections are neither counted nor timed out.
    let url = format!("ws://{}/socket", served.address);
    let mut client = WebSocketConnector::new(url.parse().unwrap())
        .open_socket(None)
        .await
        .unwrap();
    let (_, mut server) = served.sockets.recv().await.unwrap();
    let mut rest = Vec::new();
    let first = timeout(Duration::from_millis(150), idle[0].read_to_end(&mut rest)).await;
    assert!(first.is_ok(), "the oldest was closed at once");
    for stream in &mut idle {
        let end = timeout(Duration::from_secs(5), stream.read_to_end(&mut rest)).await;
        assert!(end.is_ok(), "every connection ends");
    }
    client.writer.push(Bytes::from_static(b"alive"));
    client.writer.flush().await.unwrap();
    let alive = RawMessage::Binary(Bytes::from_static(b"alive"));
    assert_eq!(server.reader.next().await.unwrap(), Some(alive));
}

#[tokio::test]
async fn requests_need_exactly_one_allowed_host() {
    let served = serve_echo(HttpServiceOptions::default()).await;
    for (head, status) in [
        ("GET /x HTTP/1.1\r\nHost: localhost:99", "200 OK"),
        ("GET /x HTTP/1.1\r\nHost: [::1]:99", "200 OK"),
        ("GET /x HTTP/1.1\r\nHost: evil.example", "403 Forbidden"),
        (
            "GET http://evil.example/x HTTP/1.1\r\nHost: localhost",
            "403 Forbidden",
        ),
        ("GET /x HTTP/1.1", "400 Bad Request"),
        (
            "GET /x HTTP/1.1\r\nHost: localhost\r\nHost: localhost",
            "400 Bad Request",
        ),
        ("GET /x HTTP/1.1\r\nHost: a@localhost", "400 Bad Request"),
        (
            "GET /x HTTP/1.1\r\nHost: localhost\r\nAuthorization: a\r\nAuthorization: a",
            "400 Bad Request",
        ),
    ] {
        let request = format!("{head}\r\nConnection: close\r\n\r\n");
        let (came, _) = send_request(&served.address, &request).await;
        assert_eq!(came, format!("HTTP/1.1 {status}"), "{head}");
    }
}
