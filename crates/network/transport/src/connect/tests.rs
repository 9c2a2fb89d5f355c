//! Links to servers that are there, to such that are not what they should be, and to programs.

mod program;
mod tls;

use std::{
    future::Future,
    path::Path,
    sync::{Arc, atomic::AtomicBool},
    time::{Duration, Instant},
};

use bytes::Bytes;
use exec_wire::outgoing::Outgoing;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
    sync::mpsc,
};

use super::{Address, BearerToken, ConnectError, Fault, Headers, WebSocket};
use crate::{
    auth::{Auth, TokenDigest},
    http::{AllowedHosts, Door, PendingLimits},
    link::{Encoding, Link},
    listener::Listener,
};

/// Waits, but not forever.
async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(30), future)
        .await
        .unwrap_or_else(|_| panic!("{what}: not in time"))
}

/// A server at a URL.
fn server(url: &str) -> WebSocket {
    WebSocket::new(url.parse().unwrap())
}

/// The error of a link that could not be opened, with its sources.
async fn refusal(server: &WebSocket) -> (ConnectError, String) {
    let error = within("an error", server.open())
        .await
        .expect_err("no link");
    let text = chain(&error);
    (error, text)
}

fn chain(error: &dyn std::error::Error) -> String {
    let sources = std::iter::successors(Some(error), |error| error.source());
    let texts: Vec<String> = sources.map(ToString::to_string).collect();
    texts.join(": ")
}

/// Runs a listener; returns the links that are opened to it.
fn listen(listener: Listener, auth: Auth) -> mpsc::Receiver<Link> {
    listen_secure(listener, auth, None)
}

fn listen_secure(
    listener: Listener,
    auth: Auth,
    tls: Option<tokio_rustls::TlsAcceptor>,
) -> mpsc::Receiver<Link> {
    let door = Door {
        metrics: None,
        auth: Arc::new(auth),
        draining: Arc::new(AtomicBool::new(false)),
        hosts: AllowedHosts::new([]),
        pending: PendingLimits::default(),
    };
    let (links, accepted) = mpsc::channel(1);
    tokio::spawn(listener.run(door, tls, links));
    accepted
}

async fn loopback(address: &str) -> (Listener, String) {
    let listener = Listener::bind_tcp(address.parse().unwrap(), false)
        .await
        .unwrap();
    let url = listener.address().to_string();
    (listener, url)
}

/// Sends a message each way.
async fn talk(near: &mut Link, accepted: &mut mpsc::Receiver<Link>) {
    let mut far = within("a link", accepted.recv()).await.unwrap();
    for (from, to) in [(&mut *near, &mut far)] {
        say(from, to, "there").await;
        say(to, from, "back").await;
    }
}

async fn say(from: &mut Link, to: &mut Link, what: &str) {
    from.writer
        .push(Outgoing::notification(what, &()), Encoding::Text);
    within("flushed", from.writer.flush()).await.unwrap();
    let message = within("a message", to.reader.next()).await.unwrap();
    let text = format!(r#"{{"method":"{what}","params":null}}"#);
    assert_eq!(message, Some(Bytes::from(text)));
}

#[tokio::test]
async fn a_websocket_carries_messages_both_ways() {
    for address in ["127.0.0.1:0", "[::1]:0"] {
        let (listener, url) = loopback(address).await;
        let mut accepted = listen(listener, Auth::Open);
        let mut link = within("a link", server(&url).open()).await.unwrap();
        assert_eq!(link.peer, url);
        talk(&mut link, &mut accepted).await;
        let by_name = url.replace(address.strip_suffix(":0").unwrap(), "localhost");
        if address.starts_with('1') {
            let mut link = within("a link", server(&by_name).open()).await.unwrap();
            talk(&mut link, &mut accepted).await;
        }
    }
}

#[tokio::test]
async fn a_unix_socket_carries_messages_both_ways() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a socket");
    let mut accepted = listen(Listener::bind_unix(&path).unwrap(), Auth::Open);
    let url = format!("unix://{}", path.display());
    let mut link = within("a link", server(&url).open()).await.unwrap();
    assert_eq!(link.peer, url);
    talk(&mut link, &mut accepted).await;
    let nobody = WebSocket::new(Address::Unix(dir.path().join("none")));
    let (error, text) = refusal(&nobody).await;
    assert_eq!(error.fault(), Fault::Transport);
    assert!(
        text.contains("none") && text.contains("No such file"),
        "{text}"
    );
    expect_file_gone_is_told(dir.path()).await;
}

async fn expect_file_gone_is_told(dir: &Path) {
    std::fs::write(dir.join("file"), "").unwrap();
    let (error, text) = refusal(&WebSocket::new(Address::Unix(dir.join("file")))).await;
    assert!(matches!(error, ConnectError::Unreachable { .. }), "{text}");
}

#[tokio::test]
async fn a_bearer_token_opens_the_door_and_a_wrong_one_does_not() {
    let (listener, url) = loopback("127.0.0.1:0").await;
    let auth = Auth::CapabilityToken(TokenDigest::of_token("s3cret é"));
    let mut accepted = listen(listener, auth);
    let with = |token: &str| WebSocket {
        bearer_token: Some(BearerToken::new(token).unwrap()),
        ..server(&url)
    };
    let mut link = within("a link", with(" s3cret é\n").open()).await.unwrap();
    talk(&mut link, &mut accepted).await;
    for (client, body) in [
        (with("another"), "401 invalid websocket bearer token"),
        (server(&url), "401 missing websocket bearer token"),
    ] {
        let (error, text) = refusal(&client).await;
        assert_eq!((error.fault(), error.is_passing()), (Fault::Peer, false));
        assert!(text.ends_with(body) && !text.contains("another"), "{text}");
    }
}

#[tokio::test]
async fn a_token_does_not_leave_this_machine_in_the_clear() {
    for url in ["ws://a.test:1", "ws://192.0.2.1:1", "ws://[2001:db8::1]:1"] {
        let client = WebSocket {
            bearer_token: Some(BearerToken::new("s3cret").unwrap()),
            ..server(url)
        };
        let (error, text) = refusal(&client).await;
        assert_eq!(error.fault(), Fault::Caller);
        assert!(matches!(error, ConnectError::TokenInTheClear(_)), "{text}");
        assert!(!text.contains("s3cret") && text.contains(url), "{text}");
        assert!(!format!("{client:?}").contains("s3cret"));
    }
}

#[tokio::test]
async fn headers_are_sent_and_no_origin_is() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let asked = tokio::spawn(async move {
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
    let client = WebSocket {
        headers: Headers::new([("X-Tenant", "blue"), ("Cookie", "k=v")]).unwrap(),
        bearer_token: Some(BearerToken::new("s3cret").unwrap()),
        ..server(&format!("ws://{address}/door?role=harness&x=%20"))
    };
    let (_, text) = refusal(&client).await;
    assert!(text.ends_with("418 Teapot"), "{text}");
    let request = within("the request", asked).await.unwrap();
    let (first, rest) = request.split_once("\r\n").unwrap();
    assert_eq!(first, "GET /door?role=harness&x=%20 HTTP/1.1");
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
async fn nobody_there_and_no_such_host_are_told_apart() {
    let free = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = free.local_addr().unwrap();
    drop(free);
    let (error, text) = refusal(&server(&format!("ws://{address}"))).await;
    assert_eq!(
        (error.fault(), error.is_passing()),
        (Fault::Transport, true)
    );
    assert!(
        text.contains(&address.to_string()) && text.contains("refused"),
        "{text}"
    );
    let (error, text) = refusal(&server("ws://no-such-host.invalid:1")).await;
    assert_eq!(error.fault(), Fault::Transport);
    assert!(matches!(error, ConnectError::Resolve { .. }), "{text}");
    assert!(
        text.starts_with("cannot resolve `no-such-host.invalid`: "),
        "{text}"
    );
}

#[test]
fn a_bad_url_is_the_callers_fault_and_says_what_would_do() {
    let error = ConnectError::from("http://x".parse::<Address>().unwrap_err());
    assert_eq!(error.fault(), Fault::Caller);
    assert!(
        chain(&error).contains("wss://HOST:PORT"),
        "{}",
        chain(&error)
    );
}

/// A peer that reads the request, answers some bytes and hangs up; returns its URL.
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
        // In two writes, so that the answer comes in parts.
        let (one, two) = answer.split_at(answer.len() / 2);
        stream.write_all(one).await.unwrap();
        stream.flush().await.unwrap();
        tokio::task::yield_now().await;
        stream.write_all(two).await.unwrap();
    });
    url
}

#[tokio::test]
async fn a_refusal_is_told_with_its_text() {
    let long = "y".repeat(5000);
    let shown = format!("404 {}", "y".repeat(500));
    for (answer, text) in [
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
        let (error, told) = refusal(&server(&peer(answer).await)).await;
        assert_eq!(error.fault(), Fault::Peer);
        assert_eq!(told, format!("server refused the connection: {text}"));
        assert_eq!(error.is_passing(), text.starts_with('5'), "{told}");
    }
}

#[tokio::test]
async fn a_refusal_that_repeats_a_secret_is_told_without_its_text() {
    for repeated in ["/p-s3cret?key=s3cret", "t-s3cret", "h-s3cret"] {
        for answer in [
            format!("HTTP/1.1 404 Not Found\r\n\r\nCannot GET {repeated}, sorry"),
            format!("HTTP/1.1 404 {repeated}\r\n\r\n"),
        ] {
            let url = format!("{}/p-s3cret?key=s3cret", peer(answer).await);
            let client = WebSocket {
                bearer_token: Some(BearerToken::new("t-s3cret").unwrap()),
                headers: Headers::new([("x-key", "h-s3cret"), ("x-a", "a")]).unwrap(),
                ..server(&url)
            };
            let (error, told) = refusal(&client).await;
            assert!(!told.contains("s3cret"), "{told}");
            assert!(!format!("{error:?}").contains("s3cret"), "{error:?}");
            assert_eq!(told, "server refused the connection: 404 Not Found");
        }
    }
}

#[tokio::test]
async fn who_does_not_speak_websocket_is_told_so() {
    let endless = format!("HTTP/1.1 101 X\r\nx: {}", "y".repeat(64 << 10));
    let switched = "HTTP/1.1 101 X\r\nConnection: upgrade\r\nUpgrade: websocket\r\n";
    for (answer, reason) in [
        (
            "SSH-2.0-OpenSSH_9.9\r\n".to_owned(),
            "its answer is not HTTP",
        ),
        (endless, "its answer is too long"),
        (
            "HTTP/1.1 101 X\r\nUpgrade: h2c\r\n\r\n".to_owned(),
            "it switches to another protocol",
        ),
        (
            format!("{switched}Sec-WebSocket-Accept: AAAA\r\n\r\n"),
            "it answers another request",
        ),
        (format!("{switched}\r\n"), "it answers another request"),
    ] {
        let (error, told) = refusal(&server(&peer(answer).await)).await;
        assert_eq!(error.fault(), Fault::Peer);
        assert_eq!(told, format!("server does not speak websocket: {reason}"));
    }
}

#[tokio::test]
async fn who_hangs_up_before_the_end_of_its_answer_may_answer_the_next_time() {
    for answer in [
        "",
        "HTTP/1.1 101 Swi",
        "HTTP/1.1 101 X\r\nUpgrade: websocket\r\n",
    ] {
        let (error, told) = refusal(&server(&peer(answer).await)).await;
        assert!(matches!(error, ConnectError::Closed), "{answer:?}: {told}");
        assert_eq!((error.fault(), error.is_passing()), (Fault::Peer, true));
    }
}

#[tokio::test]
async fn who_never_answers_is_given_up_in_time() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let short = Duration::from_millis(50);
    for scheme in ["ws", "wss"] {
        let client = WebSocket {
            connect_timeout: short,
            ..server(&format!("{scheme}://{address}/secret"))
        };
        let asked = Instant::now();
        let (error, told) = refusal(&client).await;
        assert!(asked.elapsed() >= short);
        assert_eq!(
            (error.fault(), error.is_passing()),
            (Fault::Transport, true)
        );
        let expected = format!("connecting to `{scheme}://{address}` took longer than 50ms");
        assert_eq!(told, expected);
    }
}

#[tokio::test]
async fn a_refusal_whose_text_never_ends_is_told_all_the_same() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("ws://{}", listener.local_addr().unwrap());
    let open = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let head = b"HTTP/1.1 401 Unauthorized\r\ncontent-length: 100\r\n\r\nnot you";
        stream.write_all(head).await.unwrap();
        stream
    });
    let (_, told) = refusal(&server(&url)).await;
    assert_eq!(told, "server refused the connection: 401 not you");
    drop(open.await.unwrap());
}
