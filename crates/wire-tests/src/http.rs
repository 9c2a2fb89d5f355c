//! The HTTP face of a listener.

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    time::timeout,
};

use crate::{
    client::Duplex,
    over_every_socket,
    server::{PATIENCE, Server, Transport},
};

over_every_socket!(
    health_and_readiness_answer_get_and_head,
    other_methods_are_not_allowed_there,
    other_paths_are_not_found,
    an_origin_is_forbidden_everywhere,
    a_request_without_upgrade_is_bad,
    an_upgrade_may_have_a_query,
    a_key_gets_its_answer,
    garbage_is_not_served,
);

/// An answer over HTTP.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

/// Sends a request such as `GET /readyz` with some more header lines, and reads all of the answer.
pub(crate) async fn request(server: &Server, line: &str, headers: &str) -> Answer {
    let mut stream = server.stream().await;
    let text = format!("{line} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{headers}\r\n");
    exchange(&mut stream, &text).await
}

/// Asks for an upgrade with some more header lines; returns the head of the answer.
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
    timeout(PATIENCE, read).await.expect("an answer in time");
    String::from_utf8(head).unwrap()
}

/// Asks for an upgrade that is refused.
pub(crate) async fn refused_upgrade(server: &Server, headers: &str) -> Answer {
    let mut stream = server.stream().await;
    stream
        .write_all(upgrade_text("/", headers).as_bytes())
        .await
        .unwrap();
    read_answer(&mut stream).await
}

fn upgrade_text(path: &str, headers: &str) -> String {
    format!(
        "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: keep-alive, Upgrade\r\n\
         Upgrade: WebSocket\r\nSec-WebSocket-Version: 13\r\n\
         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n{headers}\r\n"
    )
}

async fn exchange(stream: &mut Box<dyn Duplex>, text: &str) -> Answer {
    stream.write_all(text.as_bytes()).await.unwrap();
    read_answer(stream).await
}

/// Reads a head, and as much body as it tells of.
async fn read_answer(stream: &mut Box<dyn Duplex>) -> Answer {
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
    let (head, body) = timeout(PATIENCE, read).await.expect("an answer in time");
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    Answer { status, head, body }
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

async fn other_methods_are_not_allowed_there(transport: Transport) {
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

async fn an_origin_is_forbidden_everywhere(transport: Transport) {
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

async fn a_request_without_upgrade_is_bad(transport: Transport) {
    let server = Server::start(transport, &[]).await;
    let answer = request(&server, "GET /", "").await;
    assert_eq!(answer.status, 400);
    assert!(!answer.body.is_empty());
    let old = "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 8\r\n";
    assert_eq!(request(&server, "GET /", old).await.status, 400);
}

async fn an_upgrade_may_have_a_query(transport: Transport) {
    let server = Server::start(transport, &[]).await;
    let mut stream = server.stream().await;
    let answer = exchange(&mut stream, &upgrade_text("/?a=b&token=x", "")).await;
    assert_eq!(answer.status, 101);
}

async fn a_key_gets_its_answer(transport: Transport) {
    let server = Server::start(transport, &[]).await;
    let head = upgrade(&mut server.stream().await, "").await;
    assert!(head.contains("s3pPLMBiTxaQ9kYGzzhZRbK+xOo="), "{head}");
}

async fn garbage_is_not_served(transport: Transport) {
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
        // A reset is an end as good as any.
        drop(
            timeout(PATIENCE, stream.read_to_end(&mut rest))
                .await
                .expect("an end in time"),
        );
        assert!(
            rest.is_empty() || rest.starts_with(b"HTTP/1.1 4"),
            "{rest:?}"
        );
    }
    server.ready().await.expect_alive().await;
}
