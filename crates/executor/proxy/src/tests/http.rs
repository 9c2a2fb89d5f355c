//! CONNECT and plain HTTP.

use std::time::Duration;

use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::{PUBLIC, TestProxyBuilder, TestServer, read_all, read_exact, read_until, with_timeout};

const ESTABLISHED: &str = "HTTP/1.1 200 Connection established\r\n\r\n";

#[tokio::test]
async fn tunnel_copies_both_ways_and_supports_half_close() {
    let mut proxy = TestProxyBuilder::new()
        .with_host("a.allowed.test", &[PUBLIC])
        .start();
    let server = TestServer::start().await;
    let head = format!(
        "CONNECT a.allowed.test:{} HTTP/1.1\r\n\r\nearly",
        server.port
    );
    let mut client = proxy.send_http(&head).await;
    let mut server_stream = server.accept().await;
    assert_eq!(read_until(&mut client, "\r\n\r\n").await, ESTABLISHED);
    assert_eq!(read_exact(&mut server_stream, 5).await, b"early");
    server_stream.write_all(b"hello").await.unwrap();
    assert_eq!(read_exact(&mut client, 5).await, b"hello");
    client.write_all(b"bye").await.unwrap();
    client.shutdown().await.unwrap();
    assert_eq!(read_all(&mut server_stream).await, "bye");
    // The other direction stays open.
    server_stream.write_all(&vec![b'x'; 300_000]).await.unwrap();
    drop(server_stream);
    assert_eq!(read_all(&mut client).await.len(), 300_000);
    let record = proxy.record().await;
    assert_eq!(
        (record.decision.as_str(), record.reason.as_str()),
        ("allow", "allowed")
    );
    assert_eq!(
        (record.protocol.as_str(), record.source.as_str()),
        ("https_connect", "baseline_policy")
    );
    assert_eq!(
        (record.host.as_str(), record.port),
        ("a.allowed.test", server.port)
    );
    assert_eq!(
        (record.method.as_deref(), record.scope.as_str()),
        (Some("CONNECT"), "domain")
    );
    assert_eq!(
        record.client,
        Some(client.local_addr().unwrap().to_string())
    );
    assert!(!record.policy_override && proxy.has_no_records());
    assert_eq!(record.timestamp.len(), "2026-01-01T00:00:00.000Z".len());
}

#[tokio::test]
async fn get_is_forwarded_with_the_host_of_its_url() {
    let (proxy, server) = (TestProxyBuilder::new().start(), TestServer::start().await);
    let request_http = format!(
        "GET http://allowed.test:{}/x?y HTTP/1.1\r\nHost: evil.test\r\nProxy-Authorization: z\r\n\
         Connection: keep-alive\r\nAccept: */*\r\n\r\nGET http://evil.test/ HTTP/1.1\r\n\r\n",
        server.port
    );
    let serve = async {
        let (head, mut server_stream) = server.request().await;
        // A response with a length, from a server that keeps the connection open.
        let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: keep-alive\r\n\r\nhello";
        server_stream.write_all(answer).await.unwrap();
        (head, read_all(&mut server_stream).await)
    };
    let (answer, (head, more)) = tokio::join!(proxy.request_http(&request_http), serve);
    let port = server.port;
    assert_eq!(
        head,
        format!(
            "GET /x?y HTTP/1.1\r\nHost: allowed.test:{port}\r\nAccept: */*\r\nConnection: close\r\n\r\n"
        )
    );
    assert_eq!(more, "");
    assert_eq!(
        answer,
        "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 5\r\n\r\nhello"
    );
}

#[tokio::test]
async fn body_is_forwarded_without_trailing_bytes() {
    let chunks = "4\r\nabcd\r\n0\r\n\r\n";
    for (field, body) in [
        ("Content-Length: 4", "abcd"),
        ("Transfer-Encoding: chunked", chunks),
    ] {
        let (proxy, server) = (TestProxyBuilder::new().start(), TestServer::start().await);
        let port = server.port;
        let head = format!("POST http://allowed.test:{port}/ HTTP/1.1\r\n{field}\r\n\r\n");
        let mut client = proxy.send_http(&head).await;
        let (seen, mut server_stream) = server.request().await;
        assert!(seen.contains(field), "{seen}");
        // The body arrives in pieces, followed by another request.
        for piece in [
            &body[..3],
            &body[3..],
            "GET / HTTP/1.1\r\nHost: evil.test\r\n\r\n",
        ] {
            client.write_all(piece.as_bytes()).await.unwrap();
        }
        assert_eq!(
            read_exact(&mut server_stream, body.len()).await,
            body.as_bytes()
        );
        let answer =
            "HTTP/1.1 201 Made\r\nTransfer-Encoding: chunked\r\n\r\n2;x\r\nok\r\n0\r\nT: u\r\n\r\n";
        server_stream.write_all(answer.as_bytes()).await.unwrap();
        assert_eq!(
            read_all(&mut client).await,
            answer.replacen("\r\n", "\r\nConnection: close\r\n", 1)
        );
        assert_eq!(read_all(&mut server_stream).await, "");
    }
}

#[tokio::test]
async fn response_may_end_with_the_connection() {
    let (proxy, server) = (TestProxyBuilder::new().start(), TestServer::start().await);
    let request_http = format!("GET http://allowed.test:{}/ HTTP/1.0\r\n\r\n", server.port);
    let serve = async {
        let (head, mut server_stream) = server.request().await;
        assert!(head.starts_with("GET / HTTP/1.0\r\n"));
        let answer = format!("HTTP/1.0 200 OK\n\n{}", "x".repeat(200_000));
        server_stream.write_all(answer.as_bytes()).await.unwrap();
    };
    let (answer, ()) = tokio::join!(proxy.request_http(&request_http), serve);
    assert_eq!(
        answer.len(),
        "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n".len() + 200_000
    );
}

#[tokio::test]
async fn expect_continue_is_forwarded() {
    let (proxy, server) = (TestProxyBuilder::new().start(), TestServer::start().await);
    let port = server.port;
    let mut client = proxy
        .send_http(&format!(
            "POST http://allowed.test:{port}/ HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n"
        ))
        .await;
    let (head, mut server_stream) = server.request().await;
    assert!(head.contains("Expect: 100-continue"));
    server_stream
        .write_all(b"HTTP/1.1 100 Continue\r\n\r\n")
        .await
        .unwrap();
    assert_eq!(
        read_until(&mut client, "\r\n\r\n").await,
        "HTTP/1.1 100 Continue\r\n\r\n"
    );
    client.write_all(b"ok").await.unwrap();
    assert_eq!(read_exact(&mut server_stream, 2).await, b"ok");
    server_stream
        .write_all(b"HTTP/1.1 204 No Content\r\n\r\n")
        .await
        .unwrap();
    assert!(
        read_all(&mut client)
            .await
            .starts_with("HTTP/1.1 204 No Content\r\n")
    );
}

#[tokio::test]
async fn accepted_websocket_upgrade_becomes_a_tunnel() {
    let (proxy, server) = (TestProxyBuilder::new().start(), TestServer::start().await);
    let port = server.port;
    let mut client = proxy
        .send_http(&format!(
            "GET http://allowed.test:{port}/ HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
             Sec-WebSocket-Key: k\r\n\r\nearly"
        ))
        .await;
    let (head, mut server_stream) = server.request().await;
    assert!(
        head.ends_with("Sec-WebSocket-Key: k\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
    );
    let answer =
        "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
    server_stream
        .write_all(format!("{answer}first").as_bytes())
        .await
        .unwrap();
    assert_eq!(read_until(&mut client, "\r\n\r\n").await, answer);
    assert_eq!(read_exact(&mut client, 5).await, b"first");
    assert_eq!(read_exact(&mut server_stream, 5).await, b"early");
    client.write_all(b"more").await.unwrap();
    assert_eq!(read_exact(&mut server_stream, 4).await, b"more");
}

#[tokio::test]
async fn unrequested_upgrade_is_a_bad_gateway() {
    let (proxy, server) = (TestProxyBuilder::new().start(), TestServer::start().await);
    let request_http = format!("GET http://allowed.test:{}/ HTTP/1.1\r\n\r\n", server.port);
    let serve = async {
        let (_, mut server_stream) = server.request().await;
        server_stream
            .write_all(b"HTTP/1.1 101 Ha\r\nUpgrade: h2c\r\n\r\n")
            .await
            .unwrap();
        read_all(&mut server_stream).await
    };
    let (answer, _) = tokio::join!(proxy.request_http(&request_http), serve);
    assert!(answer.starts_with("HTTP/1.1 502 "), "{answer}");
}

#[tokio::test]
async fn limited_mode_allows_safe_methods_only() {
    let mut proxy = TestProxyBuilder::new()
        .with_setting("mode", json!("limited"))
        .start();
    let server = TestServer::start().await;
    let port = server.port;
    for line in [
        format!("CONNECT allowed.test:{port}"),
        format!("POST http://allowed.test:{port}/"),
        format!("DELETE http://allowed.test:{port}/"),
        format!("get http://allowed.test:{port}/"),
    ] {
        let answer = proxy
            .request_http(&format!("{line} HTTP/1.1\r\n\r\n"))
            .await;
        assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
        let record = proxy.record().await;
        assert_eq!(
            (record.decision.as_str(), record.source.as_str()),
            ("deny", "mode_guard")
        );
        assert_eq!(record.reason, "method_not_allowed");
    }
    assert!(proxy.connector.lookups().is_empty());
    for method in ["GET", "HEAD", "OPTIONS"] {
        let request_http = format!(
            "{method} http://allowed.test:{port}/ HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
        );
        let serve = async {
            let (head, mut server_stream) = server.request().await;
            server_stream
                .write_all(b"HTTP/1.1 204 No Content\r\n\r\n")
                .await
                .unwrap();
            head
        };
        let (answer, head) = tokio::join!(proxy.request_http(&request_http), serve);
        assert!(answer.starts_with("HTTP/1.1 204 "), "{answer}");
        assert!(!head.contains("Upgrade"), "{head}");
    }
}

#[tokio::test]
async fn denied_hosts_are_refused_with_the_reason() {
    let mut proxy = TestProxyBuilder::new().start();
    for (target, reason) in [
        ("denied.test", "denied"),
        ("other.test", "not_allowed"),
        ("localhost", "not_allowed_local"),
        ("127.0.0.1", "not_allowed_local"),
        ("2130706433", "not_allowed_local"),
        ("[::ffff:7f00:1]", "not_allowed_local"),
        ("169.254.169.254", "not_allowed_local"),
    ] {
        for head in [
            format!("CONNECT {target}:1 HTTP/1.1\r\n\r\n"),
            format!("POST http://{target}/ HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc"),
        ] {
            let answer = proxy.request_http(&head).await;
            assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
            assert!(
                answer.contains("\r\nx-proxy-error: blocked-by-allowlist\r\n"),
                "{answer}"
            );
            let text = format!("\r\n\r\nblocked by the network policy: {reason}\n");
            assert!(answer.ends_with(&text), "{answer}");
            let record = proxy.record().await;
            assert_eq!(
                (record.decision.as_str(), record.reason.as_str()),
                ("deny", reason)
            );
        }
    }
    assert!(proxy.connector.lookups().is_empty() && proxy.connector.connects().is_empty());
}

#[tokio::test]
async fn invalid_requests_are_refused() {
    let mut proxy = TestProxyBuilder::new().start();
    let smuggled = "POST http://allowed.test/ HTTP/1.1\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n";
    let many = format!(
        "GET http://allowed.test/ HTTP/1.1\r\n{}\r\n",
        "A: b\r\n".repeat(101)
    );
    let large = format!(
        "GET http://allowed.test/ HTTP/1.1\r\nA: {}",
        "b".repeat(65536)
    );
    for (text, status) in [
        ("GET / HTTP/1.1\r\nHost: allowed.test\r\n\r\n", "400"),
        ("\u{5}\u{1}\0\n\n", "400"),
        ("GET http://allowed.test/ HTTP/1.1\n\n", "400"),
        (smuggled, "400"),
        (&many, "400"),
        (&large, "431"),
    ] {
        let answer = proxy.request_http(text).await;
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status} ")),
            "{answer}"
        );
    }
    assert!(proxy.has_no_records() && proxy.connector.connects().is_empty());
}

#[tokio::test]
async fn silent_client_gets_a_request_timeout() {
    let mut builder = TestProxyBuilder::new();
    builder.limits.handshake_timeout = Duration::from_millis(30);
    let proxy = builder.start();
    assert!(
        proxy
            .request_http("GET http://")
            .await
            .starts_with("HTTP/1.1 408 ")
    );
}

#[tokio::test]
async fn malformed_body_never_looks_complete_to_the_server() {
    let (proxy, server) = (TestProxyBuilder::new().start(), TestServer::start().await);
    let port = server.port;
    let mut client = proxy
        .send_http(&format!(
            "POST http://allowed.test:{port}/ HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n"
        ))
        .await;
    let (_, mut server_stream) = server.request().await;
    assert_eq!(read_exact(&mut server_stream, 8).await, b"3\r\nabc\r\n");
    client.write_all(b"0\n\n").await.unwrap();
    let mut rest = Vec::new();
    let end = with_timeout(server_stream.read_to_end(&mut rest)).await;
    assert!(end.is_err(), "{rest:?}");
    assert!(!rest.windows(2).any(|pair| pair == b"\n\n"));
}

#[tokio::test]
async fn server_failures_have_distinct_errors() {
    let proxy = TestProxyBuilder::new()
        .with_host("lonely.allowed.test", &[])
        .start();
    let server = TestServer::start().await;
    let request_http = format!("GET http://allowed.test:{}/ HTTP/1.1\r\n\r\n", server.port);
    let (answer, ()) = tokio::join!(proxy.request_http(&request_http), async {
        drop(server.request().await)
    });
    assert!(
        answer.contains("502 Bad Gateway") && answer.contains("bad-gateway"),
        "{answer}"
    );
    let closed = server.port;
    drop(server);
    for (host, error) in [
        ("allowed.test", "unreachable"),
        ("unheard.allowed.test", "unknown-host"),
        ("lonely.allowed.test", "unknown-host"),
    ] {
        let answer = proxy
            .request_http(&format!("CONNECT {host}:{closed} HTTP/1.1\r\n\r\n"))
            .await;
        assert!(
            answer.starts_with("HTTP/1.1 502 ") && answer.contains(error),
            "{answer}"
        );
    }
}
