//! A site on loopback, asked by clients that nobody here wrote and by ours.

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
    connect::{ConnectError, WebSocket},
    listener::Listener,
    tls::{self, Trust},
    websocket::socket::Raw,
};

/// Repeats bodies, opens `/door`, and never answers `/slow`.
struct Echo;

impl Site for Echo {
    type Upgrade = String;

    fn answer(&self, request: Request<Incoming>, _: Peer) -> BoxFuture<'_, Answer<String>> {
        Box::pin(async move {
            let path = request.uri().path().to_owned();
            match path.as_str() {
                "/door" => Answer::Upgrade(path),
                "/slow" => std::future::pending().await,
                _ => match Limited::new(request.into_body(), 8).collect().await {
                    Ok(body) => Answer::Reply(Response::new(Full::new(body.to_bytes()))),
                    Err(_) => Answer::Reply(plain(StatusCode::PAYLOAD_TOO_LARGE, "")),
                },
            }
        })
    }
}

struct Served {
    address: String,
    sockets: mpsc::UnboundedReceiver<(String, Socket)>,
    task: JoinHandle<()>,
}

async fn serve_echo(options: SiteOptions) -> Served {
    serve_echo_by(options, None).await
}

async fn serve_echo_by(options: SiteOptions, tls: Option<TlsAcceptor>) -> Served {
    let bind = Listener::bind_tcp("127.0.0.1:0".parse().unwrap(), tls.is_some());
    let listener = bind.await.unwrap();
    let url = listener.address().to_string();
    let address = url.split_once("://").unwrap().1.to_owned();
    let (send, sockets) = mpsc::unbounded_channel();
    let on_upgrade = move |what, socket| drop(send.send((what, socket)));
    let site = listener.serve_site(Arc::new(Echo), tls, options, on_upgrade);
    Served {
        address,
        sockets,
        task: tokio::spawn(site),
    }
}

/// Sends a request by hand; returns the first line of the answer, and its last.
async fn ask(address: &str, request: &str) -> (String, String) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let first = answer.lines().next().unwrap_or("").to_owned();
    (first, answer.lines().last().unwrap_or("").to_owned())
}

#[tokio::test]
async fn bodies_are_the_sites_business_and_pages_are_refused() {
    let served = serve_echo(SiteOptions::default()).await;
    let post = |path: &str, headers: &str, body: &str| {
        format!(
            "POST {path} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n{headers}Content-Length: {}\r\n\r\n{body}",
            body.len()
        )
    };
    let (status, body) = ask(&served.address, &post("/x", "", "12345678")).await;
    assert_eq!(
        (status.as_str(), body.as_str()),
        ("HTTP/1.1 200 OK", "12345678")
    );
    let (status, _) = ask(&served.address, &post("/x", "", "123456789")).await;
    assert_eq!(status, "HTTP/1.1 413 Payload Too Large");
    let (status, _) = ask(&served.address, &post("/x", "Origin: http://a\r\n", "")).await;
    assert_eq!(status, "HTTP/1.1 403 Forbidden");
    let (status, _) = ask(&served.address, &post("/door", "", "")).await;
    assert_eq!(status, "HTTP/1.1 426 Upgrade Required");
}

#[tokio::test]
async fn a_websocket_is_handed_over_with_what_the_site_knows() {
    let mut served = serve_echo(SiteOptions::default()).await;
    let url = format!("ws://{}/door", served.address);
    let mut client = WebSocket::new(url.parse().unwrap())
        .open_socket()
        .await
        .unwrap();
    let (what, mut server) = served.sockets.recv().await.unwrap();
    assert_eq!(what, "/door");
    let message = Bytes::from(vec![7; 200_000]);
    client.writer.push(message.clone());
    let (sent, received) = tokio::join!(client.writer.flush(), server.reader.next());
    sent.unwrap();
    assert!(received.unwrap() == Some(Raw::Binary(message)));
    let refused = WebSocket::new(url.replace("door", "x").parse().unwrap());
    let error = refused.open_socket().await.unwrap_err();
    assert!(
        matches!(error, ConnectError::Refused { status: 200, .. }),
        "{error}"
    );
}

#[tokio::test]
async fn a_connection_keeps_its_place_until_both_halves_of_its_socket_are_gone() {
    let options = SiteOptions {
        max_connections: 1,
        ..SiteOptions::default()
    };
    let mut served = serve_echo(options).await;
    let url = format!("ws://{}/door", served.address);
    let client = WebSocket::new(url.parse().unwrap());
    let _first = client.open_socket().await.unwrap();
    let (_, Socket { reader, writer }) = served.sockets.recv().await.unwrap();
    drop(reader);
    let second = client.open_socket();
    tokio::pin!(second);
    let early = timeout(Duration::from_millis(100), &mut second).await;
    assert!(early.is_err(), "there is no place");
    drop(writer);
    second.await.unwrap();
}

#[tokio::test]
async fn a_request_is_given_up_in_time_and_dropping_the_site_ends_it() {
    let options = SiteOptions {
        request_timeout: Duration::from_millis(20),
        ..SiteOptions::default()
    };
    let served = serve_echo(options).await;
    let request = "GET /slow HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n";
    let (status, _) = ask(&served.address, request).await;
    assert_eq!(status, "HTTP/1.1 408 Request Timeout");

    let served = serve_echo(SiteOptions::default()).await;
    let mut stream = TcpStream::connect(&served.address).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let (status, _) = ask(&served.address, "GET /x HTTP/1.0\r\n\r\n").await;
    assert_eq!(status, "HTTP/1.0 200 OK");
    served.task.abort();
    let mut rest = Vec::new();
    assert!(stream.read_to_end(&mut rest).await.is_err() || rest.is_empty());
}

#[tokio::test]
async fn sockets_carry_messages_over_tls_too() {
    let dir = tempfile::tempdir().unwrap();
    let (certificate, key) = (dir.path().join("cert"), dir.path().join("key"));
    let pair = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    std::fs::write(&certificate, pair.cert.pem()).unwrap();
    std::fs::write(&key, pair.signing_key.serialize_pem()).unwrap();
    let acceptor = tls::acceptor(&certificate, &key).unwrap();
    let mut served = serve_echo_by(SiteOptions::default(), Some(acceptor)).await;
    let url = format!("wss://{}/door", served.address);
    let client = WebSocket {
        trust: Trust::only(&certificate),
        ..WebSocket::new(url.parse().unwrap())
    };
    let mut client = client.open_socket().await.unwrap();
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
                assert!(next == Some(Raw::Binary(message.clone())));
            }
        };
        tokio::join!(send, receive);
        std::mem::swap(&mut client, &mut server);
    }
}
