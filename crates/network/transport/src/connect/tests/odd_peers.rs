//! Peers that are not what a client hopes for.

use std::time::{Duration, Instant};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
};

use super::{refusal, server};
use crate::connect::{BearerToken, ConnectError, Fault, Headers, WebSocket};

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
