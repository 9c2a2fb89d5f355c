//! HTTP routes and websocket upgrade of a listener.

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    time::timeout,
};

use crate::{
    client::Duplex,
    over_every_socket,
    server::{Server, TIMEOUT, Transport},
};

over_every_socket!(
    health_and_readiness_answer_get_and_head,
    other_http_methods_are_not_allowed_on_health_routes,
    other_paths_are_not_found,
    requests_with_an_origin_are_forbidden_everywhere,
    request_without_upgrade_is_a_bad_request,
    invalid_websocket_handshake_is_refused,
    request_must_have_exactly_one_host,
    two_authorization_headers_are_refused,
    upgrade_may_have_a_query,
    websocket_accept_key_is_correct,
    garbage_closes_the_connection,
);

/// HTTP response.
#[derive(Debug)]
pub(crate) struct HttpResponse {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

/// Sends a request such as `GET /readyz` with extra header lines, and reads the whole response.
pub(crate) async fn request(server: &Server, line: &str, headers: &str) -> HttpResponse {
    let mut stream = server.stream().await;
    let text = format!("{line} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{headers}\r\n");
    exchange(&mut stream, &text).await
}

/// Requests an upgrade with extra header lines and returns the head of the response.
pub(crate) async fn upgrade(stream: &mut Box<dyn Duplex>, headers: &str) -> String {
    stream
        .write_all(upgrade_text("/", headers).as_bytes())
        .await
        .unwrap();
    let mut head = Vec::new();
    let read = async {
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await.unwrap());
        }
    };
    timeout(TIMEOUT, read).await.expect("no response in time");
    String::from_utf8(head).unwrap()
}

/// Requests an upgrade that must be refused.
pub(crate) async fn refused_upgrade(server: &Server, headers: &str) -> HttpResponse {
    let mut stream = server.stream().await;
    stream
        .write_all(upgrade_text("/", headers).as_bytes())
        .await
        .unwrap();
    read_response(&mut stream).await
}

fn upgrade_text(path: &str, headers: &str) -> String {
    format!(
        "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: keep-alive, Upgrade\r\n\
         Upgrade: WebSocket\r\nSec-WebSocket-Version: 13\r\n\
         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n{headers}\r\n"
    )
}

async fn exchange(stream: &mut Box<dyn Duplex>, text: &str) -> HttpResponse {
    stream.write_all(text.as_bytes()).await.unwrap();
    read_response(stream).await
}

/// Reads the head, and the body by its content length.
async fn read_response(stream: &mut Box<dyn Duplex>) -> HttpResponse {
    let mut head = Vec::new();
    let read = async {
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await.unwrap());
        }
        let head = String::from_utf8(head).unwrap().to_ascii_lowercase();
        let length = head
            .lines()
            .find_map(|line| line.strip_prefix("content-length: "));
        let mut body = vec![0; length.map_or(0, |length| length.parse().unwrap())];
        stream.read_exact(&mut body).await.unwrap();
        (head, String::from_utf8(body).unwrap())
    };
    let (head, body) = timeout(TIMEOUT, read).await.expect("no response in time");
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    HttpResponse { status, head, body }
}

async fn health_and_readiness_answer_get_and_head(transport: Transport) {
    let server = Server::start(transport, &[]).await;
    for path in ["/readyz", "/healthz", "/readyz?verbose=1"] {
        for method in ["GET", "HEAD"] {
            let answer = request(&server, &format!("{method} {path}"), "").await;
            assert_eq!(
                (answer.status, answer.body.as_str()),
                (200, ""),
                "{method} {path}"
            );
        }
    }
}

async fn other_http_methods_are_not_allowed_on_health_routes(transport: Transport) {
    let server = Server::start(transport, &[]).await;
    for path in ["/readyz", "/healthz"] {
        for method in ["POST", "PUT", "DELETE", "OPTIONS"] {
            let answer = request(&server, &format!("{method} {path}"), "").await;
            assert_eq!(
                (answer.status, answer.body.as_str()),
                (405, ""),
                "{method} {path}"
            );
            assert!(answer.head.contains("allow: get, head"), "{}", answer.head);
        }
    }
}

async fn other_paths_are_not_found(transport: Transport) {
    let server = Server::start(transport, &[]).await;
    for path in [
        "/nope",
        "/readyz/",
        "/healthz/x",
        "//",
        "/.",
        "/READYZ",
        "/metrics/",
    ] {
        let answer = request(&server, &format!("GET {path}"), "").await;
        assert_eq!((answer.status, answer.body.as_str()), (404, ""), "{path}");
    }
    let upgrade = "Connection: Upgrade\r\nUpgrade: websocket\r\n";
    assert_eq!(request(&server, "GET /other", upgrade).await.status, 404);
}

async fn requests_with_an_origin_are_forbidden_everywhere(transport: Transport) {
    let server = Server::start(transport, &[]).await;
    for origin in [
        "Origin: http://evil.example\r\n",
        "origin: null\r\n",
        "ORIGIN:\r\n",
    ] {
        for line in [
            "GET /",
            "GET /readyz",
            "HEAD /healthz",
            "GET /nope",
            "POST /readyz",
        ] {
            let answer = request(&server, line, origin).await;
            assert_eq!(
                (answer.status, answer.body.as_str()),
                (403, ""),
                "{line} {origin}"
            );
        }
        let answer = refused_upgrade(&server, origin).await;
        assert_eq!((answer.status, answer.body.as_str()), (403, ""));
    }
}

async fn request_without_upgrade_is_a_bad_request(transport: Transport) {
    let server = Server::start(transport, &[]).await;
    let answer = request(&server, "GET /", "").await;
    assert_eq!(answer.status, 400);
    assert!(!answer.body.is_empty());
}

async fn invalid_websocket_handshake_is_refused(transport: Transport) {
    let server = Server::start(transport, &[]).await;
    let good = upgrade_text("/", "");
    for (what, text, status) in [
        ("POST", good.replace("GET", "POST"), 405),
        ("HTTP/1.0", good.replace("HTTP/1.1", "HTTP/1.0"), 505),
        (
            "old version",
            good.replace("Version: 13", "Version: 8"),
            426,
        ),
        (
            "no version",
            good.replace("Sec-WebSocket-Version: 13\r\n", ""),
            426,
        ),
        (
            "two versions",
            upgrade_text("/", "Sec-WebSocket-Version: 13\r\n"),
            426,
        ),
        (
            "no key",
            good.replace("Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n", ""),
            400,
        ),
        (
            "two keys",
            upgrade_text("/", "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"),
            400,
        ),
        (
            "short key",
            good.replace("dGhlIHNhbXBsZSBub25jZQ==", "c2hvcnQ="),
            400,
        ),
        (
            "long key",
            good.replace("dGhlIHNhbXBsZSBub25jZQ==", "dGhlIHNhbXBsZSBub25jZSE="),
            400,
        ),
        ("key that is not base64", good.replace("dGhl", "!Ghl"), 400),
        (
            "body",
            upgrade_text("/", "Content-Length: 2\r\n") + "{}",
            400,
        ),
        (
            "chunked body",
            upgrade_text("/", "Transfer-Encoding: chunked\r\n") + "0\r\n\r\n",
            400,
        ),
    ] {
        let answer = exchange(&mut server.stream().await, &text).await;
        assert_eq!(answer.status, status, "{what}");
        let names_version = answer.head.contains("sec-websocket-version: 13");
        assert_eq!(names_version, status == 426, "{what}: {}", answer.head);
    }
    let empty_body = upgrade_text("/", "Content-Length: 0\r\n");
    let answer = exchange(&mut server.stream().await, &empty_body).await;
    assert_eq!(answer.status, 101);
}

async fn request_must_have_exactly_one_host(transport: Transport) {
    let server = Server::start(transport, &["--allowed-host", "box.example,other"]).await;
    let status = async |line: &str, hosts: &str| {
        let text = format!("{line} HTTP/1.1\r\n{hosts}Connection: close\r\n\r\n");
        exchange(&mut server.stream().await, &text).await.status
    };
    for line in ["GET /healthz", "GET /readyz", "GET /metrics"] {
        for host in [
            "127.0.0.1:80",
            "[::1]",
            "localhost:1",
            "LOCALHOST.",
            "box.example",
            "other",
        ] {
            assert_eq!(
                status(line, &format!("Host: {host}\r\n")).await,
                200,
                "{line} {host}"
            );
        }
        assert_eq!(status(line, "").await, 400, "{line} without a host");
        let two = "Host: localhost\r\nHost: localhost\r\n";
        assert_eq!(status(line, two).await, 400, "{line} with two hosts");
        // DNS rebinding: a web page whose name resolves to this host sends that name. No name
        // resolves to a unix socket.
        let foreign = if transport == Transport::Unix {
            200
        } else {
            403
        };
        assert_eq!(
            status(line, "Host: evil.example\r\n").await,
            foreign,
            "{line}"
        );
        let line = line.replace(" /", " http://evil.example/");
        assert_eq!(
            status(&line, "Host: localhost\r\n").await,
            foreign,
            "{line}"
        );
    }
    let rebound = upgrade_text("/", "").replace("Host: localhost", "Host: evil.example");
    let answer = exchange(&mut server.stream().await, &rebound).await;
    assert_eq!(
        answer.status,
        if transport == Transport::Unix {
            101
        } else {
            403
        }
    );
}

async fn two_authorization_headers_are_refused(transport: Transport) {
    let server = Server::start(transport, &[]).await;
    let two = "Authorization: Bearer a\r\nAuthorization: Bearer b\r\n";
    assert_eq!(refused_upgrade(&server, two).await.status, 400);
    assert_eq!(request(&server, "GET /metrics", two).await.status, 400);
}

async fn upgrade_may_have_a_query(transport: Transport) {
    let server = Server::start(transport, &[]).await;
    let mut stream = server.stream().await;
    let answer = exchange(&mut stream, &upgrade_text("/?a=b&token=x", "")).await;
    assert_eq!(answer.status, 101);
}

async fn websocket_accept_key_is_correct(transport: Transport) {
    let server = Server::start(transport, &[]).await;
    let head = upgrade(&mut server.stream().await, "").await;
    assert!(head.contains("s3pPLMBiTxaQ9kYGzzhZRbK+xOo="), "{head}");
}

async fn garbage_closes_the_connection(transport: Transport) {
    let mut server = Server::start(transport, &[]).await;
    for garbage in [
        &b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03"[..],
        b"hello\r\n\r\n",
        b"\0\0\0\0\r\n\r\n",
    ] {
        let mut stream = server.stream().await;
        stream.write_all(garbage).await.unwrap();
        stream.shutdown().await.unwrap();
        let mut rest = Vec::new();
        // A reset counts as a close.
        drop(
            timeout(TIMEOUT, stream.read_to_end(&mut rest))
                .await
                .expect("connection did not close in time"),
        );
        assert!(
            rest.is_empty() || rest.starts_with(b"HTTP/1.1 4"),
            "{rest:?}"
        );
    }
    server.ready().await.expect_alive().await;
}

#[tokio::test]
async fn idle_connections_do_not_exhaust_the_connection_limit() {
    let mut server = Server::start(Transport::WebSocket, &[]).await;
    let mut client = server.ready().await;
    let request = "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let mut idle = Vec::new();
    for _ in 0..260 {
        let mut stream = server.stream().await;
        assert_eq!(exchange(&mut stream, request).await.status, 200);
        idle.push(stream);
    }
    // The oldest idle connection was closed; websockets were not.
    let mut rest = Vec::new();
    let end = timeout(TIMEOUT / 2, idle[0].read_to_end(&mut rest)).await;
    end.expect("oldest idle connection was not closed").unwrap();
    client.expect_alive().await;
    server.ready().await.expect_alive().await;
}
