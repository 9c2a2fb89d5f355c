//! Links to websocket servers over loopback and unix sockets, and to peers that violate the
//! protocol.

mod program;
mod tls;

use std::{
    path::Path,
    sync::{Arc, atomic::AtomicBool},
    time::{Duration, Instant},
};

use bytes::Bytes;
use exec_test_support::bounded_wait::within;
use exec_wire::{error::error_chain, outgoing_message::OutgoingMessage};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
    sync::mpsc,
};

use super::{
    BearerToken, ConnectError, ConnectFault, RequestHeaders, ServerAddress, WebSocketConnector,
};
use crate::{
    auth::{AuthPolicy, TokenDigest},
    http::{AllowedHosts, HttpEndpoint, PendingLimits},
    link::{DataEncoding, Link},
    listener::Listener,
};

/// Returns a connector for a URL.
fn server(url: &str) -> WebSocketConnector {
    WebSocketConnector::new(url.parse().unwrap())
}

/// Returns the error of a failed connect, and its text with all sources.
async fn connect_error(server: &WebSocketConnector) -> (ConnectError, String) {
    let error = within("an error", server.open())
        .await
        .expect_err("no link");
    let text = error_chain(&error);
    (error, text)
}

/// Runs a listener and returns the links opened to it.
fn listen(listener: Listener, auth: AuthPolicy) -> mpsc::Receiver<Link> {
    listen_secure(listener, auth, None)
}

fn listen_secure(
    listener: Listener,
    auth: AuthPolicy,
    tls: Option<tokio_rustls::TlsAcceptor>,
) -> mpsc::Receiver<Link> {
    let endpoint = HttpEndpoint {
        metrics: None,
        auth: Arc::new(auth),
        draining: Arc::new(AtomicBool::new(false)),
        hosts: AllowedHosts::new([]),
        pending: PendingLimits::default(),
    };
    let (links, accepted) = mpsc::channel(1);
    tokio::spawn(listener.run(endpoint, tls, links));
    accepted
}

async fn loopback(address: &str) -> (Listener, String) {
    let listener = Listener::bind_tcp(address.parse().unwrap(), false)
        .await
        .unwrap();
    let url = listener.address().to_string();
    (listener, url)
}

/// Sends a message in each direction.
async fn exchange(near: &mut Link, accepted: &mut mpsc::Receiver<Link>) {
    let mut far = within("a link", accepted.recv()).await.unwrap();
    for (from, to) in [(&mut *near, &mut far)] {
        send_and_expect(from, to, "there").await;
        send_and_expect(to, from, "back").await;
    }
}

async fn send_and_expect(from: &mut Link, to: &mut Link, what: &str) {
    from.writer
        .push(OutgoingMessage::notification(what, &()), DataEncoding::Text);
    within("flushed", from.writer.flush()).await.unwrap();
    let message = within("a message", to.reader.next()).await.unwrap();
    let text = format!(r#"{{"method":"{what}","params":null}}"#);
    assert_eq!(message, Some(Bytes::from(text)));
}

#[tokio::test]
async fn a_websocket_carries_messages_both_ways() {
    for address in ["127.0.0.1:0", "[::1]:0"] {
        let (listener, url) = loopback(address).await;
        let mut accepted = listen(listener, AuthPolicy::Open);
        let mut link = within("a link", server(&url).open()).await.unwrap();
        assert_eq!(link.peer, url);
        exchange(&mut link, &mut accepted).await;
        let by_name = url.replace(address.strip_suffix(":0").unwrap(), "localhost");
        if address.starts_with('1') {
            let mut link = within("a link", server(&by_name).open()).await.unwrap();
            exchange(&mut link, &mut accepted).await;
        }
    }
}

#[tokio::test]
async fn a_unix_socket_carries_messages_both_ways() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a socket");
    let mut accepted = listen(Listener::bind_unix(&path).unwrap(), AuthPolicy::Open);
    let url = format!("unix://{}", path.display());
    let mut link = within("a link", server(&url).open()).await.unwrap();
    assert_eq!(link.peer, url);
    exchange(&mut link, &mut accepted).await;
    let no_listener = WebSocketConnector::new(ServerAddress::Unix(dir.path().join("none")));
    let (error, text) = connect_error(&no_listener).await;
    assert_eq!(error.fault(), ConnectFault::Transport);
    assert!(
        text.contains("none") && text.contains("No such file"),
        "{text}"
    );
    expect_regular_file_is_unreachable(dir.path()).await;
}

async fn expect_regular_file_is_unreachable(dir: &Path) {
    std::fs::write(dir.join("file"), "").unwrap();
    let (error, text) = connect_error(&WebSocketConnector::new(ServerAddress::Unix(
        dir.join("file"),
    )))
    .await;
    assert!(matches!(error, ConnectError::Unreachable { .. }), "{text}");
}

#[tokio::test]
async fn only_the_right_bearer_token_is_accepted() {
    let (listener, url) = loopback("127.0.0.1:0").await;
    let auth = AuthPolicy::CapabilityToken(TokenDigest::of_token("s3cret é"));
    let mut accepted = listen(listener, auth);
    let with = |token: &str| WebSocketConnector {
        bearer_token: Some(BearerToken::new(token).unwrap()),
        ..server(&url)
    };
    let mut link = within("a link", with(" s3cret é\n").open()).await.unwrap();
    exchange(&mut link, &mut accepted).await;
    for (client, body) in [
        (with("another"), "401 invalid websocket bearer token"),
        (server(&url), "401 missing websocket bearer token"),
    ] {
        let (error, text) = connect_error(&client).await;
        assert_eq!(
            (error.fault(), error.is_transient()),
            (ConnectFault::Peer, false)
        );
        assert!(text.ends_with(body) && !text.contains("another"), "{text}");
    }
}

#[tokio::test]
async fn bearer_token_is_never_sent_unencrypted_to_another_host() {
    for url in ["ws://a.test:1", "ws://192.0.2.1:1", "ws://[2001:db8::1]:1"] {
        let client = WebSocketConnector {
            bearer_token: Some(BearerToken::new("s3cret").unwrap()),
            ..server(url)
        };
        let (error, text) = connect_error(&client).await;
        assert_eq!(error.fault(), ConnectFault::Caller);
        assert!(
            matches!(error, ConnectError::TokenOverPlaintext(_)),
            "{text}"
        );
        assert!(!text.contains("s3cret") && text.contains(url), "{text}");
        assert!(!format!("{client:?}").contains("s3cret"));
    }
}

#[tokio::test]
async fn custom_headers_are_sent_without_an_origin() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let request_task = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut request = Vec::new();
        while !request.ends_with(b"\r\n\r\n") {
            stream.read_buf(&mut request).await.unwrap();
        }
        stream
            .write_all(b"HTTP/1.1 418 Teapot\r\ncontent-length: 0\r\n\r\n")
            .await
            .unwrap();
        String::from_utf8(request).unwrap()
    });
    let client = WebSocketConnector {
        headers: RequestHeaders::new([("X-Tenant", "blue"), ("Cookie", "k=v")]).unwrap(),
        bearer_token: Some(BearerToken::new("s3cret").unwrap()),
        ..server(&format!("ws://{address}/socket?role=harness&x=%20"))
    };
    let (_, text) = connect_error(&client).await;
    assert!(text.ends_with("418 Teapot"), "{text}");
    let request = within("the request", request_task).await.unwrap();
    let (first, rest) = request.split_once("\r\n").unwrap();
    assert_eq!(first, "GET /socket?role=harness&x=%20 HTTP/1.1");
    for line in [
        &format!("Host: {address}"),
        "Authorization: Bearer s3cret",
        "x-tenant: blue",
        "cookie: k=v",
        "Sec-WebSocket-Version: 13",
    ] {
        assert!(rest.lines().any(|sent| sent == line), "{line}: {rest}");
    }
    assert!(!rest.to_ascii_lowercase().contains("origin"), "{rest}");
}

#[tokio::test]
async fn refused_connection_and_unknown_host_are_distinct_errors() {
    let free = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = free.local_addr().unwrap();
    drop(free);
    let (error, text) = connect_error(&server(&format!("ws://{address}"))).await;
    assert_eq!(
        (error.fault(), error.is_transient()),
        (ConnectFault::Transport, true)
    );
    assert!(
        text.contains(&address.to_string()) && text.contains("refused"),
        "{text}"
    );
    let (error, text) = connect_error(&server("ws://no-such-host.invalid:1")).await;
    assert_eq!(error.fault(), ConnectFault::Transport);
    assert!(matches!(error, ConnectError::Resolve { .. }), "{text}");
    assert!(
        text.starts_with("cannot resolve `no-such-host.invalid`: "),
        "{text}"
    );
}

#[test]
fn invalid_url_is_a_caller_error_that_names_valid_schemes() {
    let error = ConnectError::from("http://x".parse::<ServerAddress>().unwrap_err());
    assert_eq!(error.fault(), ConnectFault::Caller);
    assert!(
        error_chain(&error).contains("wss://HOST:PORT"),
        "{}",
        error_chain(&error)
    );
}

/// Starts a peer that reads the request, sends some bytes and closes the connection; returns its
/// URL.
async fn peer(answer: impl Into<Vec<u8>>) -> String {
    let (answer, listener) = (
        answer.into(),
        TcpListener::bind("127.0.0.1:0").await.unwrap(),
    );
    let url = format!("ws://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut request = Vec::new();
        while !request.ends_with(b"\r\n\r\n") {
            stream.read_buf(&mut request).await.unwrap();
        }
        // Two writes, so that the response arrives in parts.
        let (one, two) = answer.split_at(answer.len() / 2);
        stream.write_all(one).await.unwrap();
        stream.flush().await.unwrap();
        tokio::task::yield_now().await;
        stream.write_all(two).await.unwrap();
    });
    url
}

#[tokio::test]
async fn refusal_includes_the_response_text() {
    let long = "y".repeat(5000);
    let shown = format!("404 {}", "y".repeat(500));
    for (answer, expected) in [
        ("HTTP/1.1 403 Forbidden\r\n\r\n", "403 Forbidden"),
        (
            "HTTP/1.1 400 Bad Request\r\ncontent-length: 6\r\n\r\nno way ignored",
            "400 no way",
        ),
        (
            "HTTP/1.1 502 Bad Gateway\r\n\r\n<p>two\r\n\tlines \x1b[31m</p>\n",
            "502 <p>two lines [31m</p>",
        ),
        (
            "HTTP/1.1 503 X\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nserve\r\n6;x=y\r\nr away\r\n0\r\n\r\n",
            "503 server away",
        ),
        (
            "HTTP/1.1 500 Oops\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nnot a chunk",
            "500 Oops",
        ),
        (&format!("HTTP/1.1 404 Not Found\r\n\r\n{long}"), &shown),
    ] {
        let (error, text) = connect_error(&server(&peer(answer).await)).await;
        assert_eq!(error.fault(), ConnectFault::Peer);
        assert_eq!(text, format!("server refused the connection: {expected}"));
        assert_eq!(error.is_transient(), expected.starts_with('5'), "{text}");
    }
}

#[tokio::test]
async fn refusal_that_echoes_a_secret_hides_the_response_text() {
    for repeated in ["/p-s3cret?key=s3cret", "t-s3cret", "h-s3cret"] {
        for answer in [
            format!("HTTP/1.1 404 Not Found\r\n\r\nCannot GET {repeated}, sorry"),
            format!("HTTP/1.1 404 {repeated}\r\n\r\n"),
        ] {
            let url = format!("{}/p-s3cret?key=s3cret", peer(answer).await);
            let client = WebSocketConnector {
                bearer_token: Some(BearerToken::new("t-s3cret").unwrap()),
                headers: RequestHeaders::new([("x-key", "h-s3cret"), ("x-a", "a")]).unwrap(),
                ..server(&url)
            };
            let (error, text) = connect_error(&client).await;
            assert!(!text.contains("s3cret"), "{text}");
            assert!(!format!("{error:?}").contains("s3cret"), "{error:?}");
            assert_eq!(text, "server refused the connection: 404 Not Found");
        }
    }
}

#[tokio::test]
async fn peer_that_is_not_a_websocket_server_is_reported() {
    let endless = format!("HTTP/1.1 101 X\r\nx: {}", "y".repeat(64 << 10));
    let switched = "HTTP/1.1 101 X\r\nConnection: upgrade\r\nUpgrade: websocket\r\n";
    for (answer, reason) in [
        (
            "SSH-2.0-OpenSSH_9.9\r\n".to_owned(),
            "its response is not HTTP",
        ),
        (endless, "its response is too long"),
        (
            "HTTP/1.1 101 X\r\nUpgrade: h2c\r\n\r\n".to_owned(),
            "it switched to another protocol",
        ),
        (
            format!("{switched}Sec-WebSocket-Accept: AAAA\r\n\r\n"),
            "its response belongs to another request",
        ),
        (
            format!("{switched}\r\n"),
            "its response belongs to another request",
        ),
    ] {
        let (error, text) = connect_error(&server(&peer(answer).await)).await;
        assert_eq!(error.fault(), ConnectFault::Peer);
        assert_eq!(text, format!("server does not speak websocket: {reason}"));
    }
}

#[tokio::test]
async fn connection_closed_before_the_response_is_a_transient_error() {
    for answer in [
        "",
        "HTTP/1.1 101 Swi",
        "HTTP/1.1 101 X\r\nUpgrade: websocket\r\n",
    ] {
        let (error, text) = connect_error(&server(&peer(answer).await)).await;
        assert!(matches!(error, ConnectError::Closed), "{answer:?}: {text}");
        assert_eq!(
            (error.fault(), error.is_transient()),
            (ConnectFault::Peer, true)
        );
    }
}

#[tokio::test]
async fn silent_peer_times_out() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let short = Duration::from_millis(50);
    for scheme in ["ws", "wss"] {
        let client = WebSocketConnector {
            connect_timeout: short,
            ..server(&format!("{scheme}://{address}/secret"))
        };
        let request_task = Instant::now();
        let (error, text) = connect_error(&client).await;
        assert!(request_task.elapsed() >= short);
        assert_eq!(
            (error.fault(), error.is_transient()),
            (ConnectFault::Transport, true)
        );
        let expected = format!("connecting to `{scheme}://{address}` took longer than 50ms");
        assert_eq!(text, expected);
    }
}

#[tokio::test]
async fn refusal_with_an_unfinished_body_is_reported() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("ws://{}", listener.local_addr().unwrap());
    let open = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let head = b"HTTP/1.1 401 Unauthorized\r\ncontent-length: 100\r\n\r\nnot you";
        stream.write_all(head).await.unwrap();
        stream
    });
    let (_, text) = connect_error(&server(&url)).await;
    assert_eq!(text, "server refused the connection: 401 not you");
    drop(open.await.unwrap());
}
