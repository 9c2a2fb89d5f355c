//! CONNECT and plain HTTP.

use std::time::Duration;

use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::{PUBLIC, Script, Server, read_all, read_exact, read_until, within};

const ESTABLISHED: &str = "HTTP/1.1 200 Connection established\r\n\r\n";

#[tokio::test]
async fn a_tunnel_carries_bytes_both_ways_and_closes_by_halves() {
    let mut stage = Script::new().name("a.allowed.test", &[PUBLIC]).start();
    let server = Server::start().await;
    let head = format!(
        "CONNECT a.allowed.test:{} HTTP/1.1\r\n\r\nearly",
        server.port
    );
    let mut client = stage.say(&head).await;
    let mut far = server.accept().await;
    assert_eq!(read_until(&mut client, "\r\n\r\n").await, ESTABLISHED);
    assert_eq!(read_exact(&mut far, 5).await, b"early");
    far.write_all(b"hello").await.unwrap();
    assert_eq!(read_exact(&mut client, 5).await, b"hello");
    client.write_all(b"bye").await.unwrap();
    client.shutdown().await.unwrap();
    assert_eq!(read_all(&mut far).await, "bye");
    // The other half goes on.
    far.write_all(&vec![b'x'; 300_000]).await.unwrap();
    drop(far);
    assert_eq!(read_all(&mut client).await.len(), 300_000);
    let record = stage.record().await;
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
    assert!(!record.policy_override && stage.is_quiet());
    assert_eq!(record.timestamp.len(), "2026-01-01T00:00:00.000Z".len());
}

#[tokio::test]
async fn a_get_reaches_the_server_with_the_host_of_its_url() {
    let (stage, server) = (Script::new().start(), Server::start().await);
    let ask = format!(
        "GET http://allowed.test:{}/x?y HTTP/1.1\r\nHost: evil.test\r\nProxy-Authorization: z\r\n\
         Connection: keep-alive\r\nAccept: */*\r\n\r\nGET http://evil.test/ HTTP/1.1\r\n\r\n",
        server.port
    );
    let serve = async {
        let (head, mut far) = server.request().await;
        // An answer with a length, from a server that does not close.
        let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: keep-alive\r\n\r\nhello";
        far.write_all(answer).await.unwrap();
        (head, read_all(&mut far).await)
    };
    let (answer, (head, more)) = tokio::join!(stage.ask(&ask), serve);
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
async fn a_body_goes_on_and_nothing_behind_it() {
    let chunks = "4\r\nabcd\r\n0\r\n\r\n";
    for (field, body) in [
        ("Content-Length: 4", "abcd"),
        ("Transfer-Encoding: chunked", chunks),
    ] {
        let (stage, server) = (Script::new().start(), Server::start().await);
        let port = server.port;
        let head = format!("POST http://allowed.test:{port}/ HTTP/1.1\r\n{field}\r\n\r\n");
        let mut client = stage.say(&head).await;
        let (seen, mut far) = server.request().await;
        assert!(seen.contains(field), "{seen}");
        // The body comes in pieces, with another request behind it.
        for piece in [
            &body[..3],
            &body[3..],
            "GET / HTTP/1.1\r\nHost: evil.test\r\n\r\n",
        ] {
            client.write_all(piece.as_bytes()).await.unwrap();
        }
        assert_eq!(read_exact(&mut far, body.len()).await, body.as_bytes());
        let answer =
            "HTTP/1.1 201 Made\r\nTransfer-Encoding: chunked\r\n\r\n2;x\r\nok\r\n0\r\nT: u\r\n\r\n";
        far.write_all(answer.as_bytes()).await.unwrap();
        assert_eq!(
            read_all(&mut client).await,
            answer.replacen("\r\n", "\r\nConnection: close\r\n", 1)
        );
        assert_eq!(read_all(&mut far).await, "");
    }
}

#[tokio::test]
async fn an_answer_may_end_with_the_connection() {
    let (stage, server) = (Script::new().start(), Server::start().await);
    let ask = format!("GET http://allowed.test:{}/ HTTP/1.0\r\n\r\n", server.port);
    let serve = async {
        let (head, mut far) = server.request().await;
        assert!(head.starts_with("GET / HTTP/1.0\r\n"));
        let answer = format!("HTTP/1.0 200 OK\n\n{}", "x".repeat(200_000));
        far.write_all(answer.as_bytes()).await.unwrap();
    };
    let (answer, ()) = tokio::join!(stage.ask(&ask), serve);
    assert_eq!(
        answer.len(),
        "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n".len() + 200_000
    );
}

#[tokio::test]
async fn a_client_that_waits_for_a_word_gets_it() {
    let (stage, server) = (Script::new().start(), Server::start().await);
    let port = server.port;
    let mut client = stage
        .say(&format!(
            "POST http://allowed.test:{port}/ HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n"
        ))
        .await;
    let (head, mut far) = server.request().await;
    assert!(head.contains("Expect: 100-continue"));
    far.write_all(b"HTTP/1.1 100 Continue\r\n\r\n")
        .await
        .unwrap();
    assert_eq!(
        read_until(&mut client, "\r\n\r\n").await,
        "HTTP/1.1 100 Continue\r\n\r\n"
    );
    client.write_all(b"ok").await.unwrap();
    assert_eq!(read_exact(&mut far, 2).await, b"ok");
    far.write_all(b"HTTP/1.1 204 No Content\r\n\r\n")
        .await
        .unwrap();
    assert!(
        read_all(&mut client)
            .await
            .starts_with("HTTP/1.1 204 No Content\r\n")
    );
}

#[tokio::test]
async fn a_websocket_is_a_tunnel_once_the_server_agrees() {
    let (stage, server) = (Script::new().start(), Server::start().await);
    let port = server.port;
    let mut client = stage
        .say(&format!(
            "GET http://allowed.test:{port}/ HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
             Sec-WebSocket-Key: k\r\n\r\nearly"
        ))
        .await;
    let (head, mut far) = server.request().await;
    assert!(
        head.ends_with("Sec-WebSocket-Key: k\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
    );
    let answer =
        "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
    far.write_all(format!("{answer}first").as_bytes())
        .await
        .unwrap();
    assert_eq!(read_until(&mut client, "\r\n\r\n").await, answer);
    assert_eq!(read_exact(&mut client, 5).await, b"first");
    assert_eq!(read_exact(&mut far, 5).await, b"early");
    client.write_all(b"more").await.unwrap();
    assert_eq!(read_exact(&mut far, 4).await, b"more");
}

#[tokio::test]
async fn a_switch_that_nobody_asked_for_is_no_response() {
    let (stage, server) = (Script::new().start(), Server::start().await);
    let ask = format!("GET http://allowed.test:{}/ HTTP/1.1\r\n\r\n", server.port);
    let serve = async {
        let (_, mut far) = server.request().await;
        far.write_all(b"HTTP/1.1 101 Ha\r\nUpgrade: h2c\r\n\r\n")
            .await
            .unwrap();
        read_all(&mut far).await
    };
    let (answer, _) = tokio::join!(stage.ask(&ask), serve);
    assert!(answer.starts_with("HTTP/1.1 502 "), "{answer}");
}

#[tokio::test]
async fn the_limited_mode_takes_harmless_requests_only() {
    let mut stage = Script::new().set("mode", json!("limited")).start();
    let server = Server::start().await;
    let port = server.port;
    for line in [
        format!("CONNECT allowed.test:{port}"),
        format!("POST http://allowed.test:{port}/"),
        format!("DELETE http://allowed.test:{port}/"),
        format!("get http://allowed.test:{port}/"),
    ] {
        let answer = stage.ask(&format!("{line} HTTP/1.1\r\n\r\n")).await;
        assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
        let record = stage.record().await;
        assert_eq!(
            (record.decision.as_str(), record.source.as_str()),
            ("deny", "mode_guard")
        );
        assert_eq!(record.reason, "method_not_allowed");
    }
    assert!(stage.outside.lookups().is_empty());
    for method in ["GET", "HEAD", "OPTIONS"] {
        let ask = format!(
            "{method} http://allowed.test:{port}/ HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
        );
        let serve = async {
            let (head, mut far) = server.request().await;
            far.write_all(b"HTTP/1.1 204 No Content\r\n\r\n")
                .await
                .unwrap();
            head
        };
        let (answer, head) = tokio::join!(stage.ask(&ask), serve);
        assert!(answer.starts_with("HTTP/1.1 204 "), "{answer}");
        assert!(!head.contains("Upgrade"), "{head}");
    }
}

#[tokio::test]
async fn denied_hosts_are_refused_with_the_reason() {
    let mut stage = Script::new().start();
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
            let answer = stage.ask(&head).await;
            assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
            assert!(
                answer.contains("\r\nx-proxy-error: blocked-by-allowlist\r\n"),
                "{answer}"
            );
            let text = format!("\r\n\r\nblocked by the network policy: {reason}\n");
            assert!(answer.ends_with(&text), "{answer}");
            let record = stage.record().await;
            assert_eq!(
                (record.decision.as_str(), record.reason.as_str()),
                ("deny", reason)
            );
        }
    }
    assert!(stage.outside.lookups().is_empty() && stage.outside.connects().is_empty());
}

#[tokio::test]
async fn what_is_no_request_is_refused() {
    let mut stage = Script::new().start();
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
        let answer = stage.ask(text).await;
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status} ")),
            "{answer}"
        );
    }
    assert!(stage.is_quiet() && stage.outside.connects().is_empty());
}

#[tokio::test]
async fn a_client_that_says_nothing_is_sent_away() {
    let mut script = Script::new();
    script.limits.handshake = Duration::from_millis(30);
    let stage = script.start();
    assert!(stage.ask("GET http://").await.starts_with("HTTP/1.1 408 "));
}

#[tokio::test]
async fn a_malformed_body_never_looks_whole_to_the_server() {
    let (stage, server) = (Script::new().start(), Server::start().await);
    let port = server.port;
    let mut client = stage
        .say(&format!(
            "POST http://allowed.test:{port}/ HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n"
        ))
        .await;
    let (_, mut far) = server.request().await;
    assert_eq!(read_exact(&mut far, 8).await, b"3\r\nabc\r\n");
    client.write_all(b"0\n\n").await.unwrap();
    let mut rest = Vec::new();
    let end = within(far.read_to_end(&mut rest)).await;
    assert!(end.is_err(), "{rest:?}");
    assert!(!rest.windows(2).any(|pair| pair == b"\n\n"));
}

#[tokio::test]
async fn servers_that_fail_are_told_apart() {
    let stage = Script::new().name("lonely.allowed.test", &[]).start();
    let server = Server::start().await;
    let ask = format!("GET http://allowed.test:{}/ HTTP/1.1\r\n\r\n", server.port);
    let (answer, ()) = tokio::join!(stage.ask(&ask), async { drop(server.request().await) });
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
        let answer = stage
            .ask(&format!("CONNECT {host}:{closed} HTTP/1.1\r\n\r\n"))
            .await;
        assert!(
            answer.starts_with("HTTP/1.1 502 ") && answer.contains(error),
            "{answer}"
        );
    }
}
