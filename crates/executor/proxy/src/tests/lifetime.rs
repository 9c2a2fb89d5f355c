//! How many connections there are, and how long they live.
//!
//! The bridge to a proxy of the client's.

use std::{
    net::{Ipv4Addr, SocketAddr, TcpListener},
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use super::{Script, Server, Stage, read_all, read_exact, read_until, within};
use crate::{limits::Limits, proxy::Bridge};

async fn tunnel(stage: &Stage, server: &Server) -> (TcpStream, TcpStream) {
    let text = format!("CONNECT allowed.test:{} HTTP/1.1\r\n\r\n", server.port);
    let mut client = stage.say(&text).await;
    read_until(&mut client, "\r\n\r\n").await;
    (client, server.accept().await)
}

#[tokio::test]
async fn one_connection_too_many_is_told_so() {
    assert_eq!(Limits::default().connections, 256);
    let mut script = Script::new();
    script.limits.connections = 2;
    let (stage, server) = (script.start(), Server::start().await);
    let mut first = tunnel(&stage, &server).await;
    let second = tunnel(&stage, &server).await;
    let answer = stage.ask("GET http://allowed.test/ HTTP/1.1\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
    let mut socks = TcpStream::connect(stage.socks).await.unwrap();
    socks
        .write_all(b"\x05\x01\0\x05\x01\0\x03\x0callowed.test\0\x50")
        .await
        .unwrap();
    assert_eq!(read_exact(&mut socks, 4).await, [5, 0, 5, 1]);
    // A place that becomes free can be taken.
    first.0.shutdown().await.unwrap();
    first.1.shutdown().await.unwrap();
    assert_eq!(read_all(&mut first.0).await, "");
    let third = within(async {
        loop {
            let text = format!("CONNECT allowed.test:{} HTTP/1.1\r\n\r\n", server.port);
            let mut client = stage.say(&text).await;
            if read_until(&mut client, "\r\n").await.contains("200") {
                break client;
            }
        }
    });
    drop((third.await, second));
}

#[tokio::test]
async fn dropping_the_proxy_ends_everything() {
    let (stage, server) = (Script::new().start(), Server::start().await);
    let (mut client, mut far) = tunnel(&stage, &server).await;
    let mut silent = stage.say("GET ").await;
    let (http, socks) = (stage.http, stage.socks);
    drop(stage);
    for stream in [&mut client, &mut far, &mut silent] {
        let mut bytes = Vec::new();
        // A reset is as good an end as any.
        drop(within(stream.read_to_end(&mut bytes)).await);
        assert!(bytes.is_empty());
    }
    for address in [http, socks] {
        assert!(TcpStream::connect(address).await.is_err());
    }
}

#[tokio::test]
async fn a_tunnel_without_a_byte_ends() {
    let mut script = Script::new();
    script.limits.idle = Duration::from_millis(50);
    let (stage, server) = (script.start(), Server::start().await);
    let (mut client, mut far) = tunnel(&stage, &server).await;
    assert_eq!(read_all(&mut client).await, "");
    assert_eq!(read_all(&mut far).await, "");
}

#[tokio::test]
async fn a_server_that_never_answers_is_given_up() {
    let mut script = Script::new();
    script.limits.idle = Duration::from_millis(50);
    let (stage, server) = (script.start(), Server::start().await);
    let text = format!("GET http://allowed.test:{}/ HTTP/1.1\r\n\r\n", server.port);
    let mut client = stage.say(&text).await;
    let (_, _far) = server.request().await;
    let mut bytes = Vec::new();
    // The end is a reset, so that nobody takes it for a response.
    assert!(within(client.read_to_end(&mut bytes)).await.is_err());
}

fn listener() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

#[tokio::test]
async fn each_socket_leads_to_its_port() {
    let (one, two) = (Server::start().await, Server::start().await);
    let ((first, to_one), (second, to_two)) = (listener(), listener());
    let ports = vec![(first, one.port), (second, two.port)];
    let _bridge = Bridge::start(ports, Limits::default()).unwrap();
    for (address, server) in [(to_one, &one), (to_two, &two)] {
        let mut near = TcpStream::connect(address).await.unwrap();
        near.write_all(b"ping").await.unwrap();
        near.shutdown().await.unwrap();
        let mut far = server.accept().await;
        assert_eq!(read_all(&mut far).await, "ping");
        far.write_all(b"pong").await.unwrap();
        drop(far);
        assert_eq!(read_all(&mut near).await, "pong");
    }
}

#[tokio::test]
async fn too_many_connections_and_dead_ports_are_closed() {
    let server = Server::start().await;
    let (socket, address) = listener();
    let limits = Limits {
        connections: 1,
        ..Limits::default()
    };
    let _bridge = Bridge::start(vec![(socket, server.port)], limits).unwrap();
    let mut near = TcpStream::connect(address).await.unwrap();
    near.write_all(b"x").await.unwrap();
    let mut far = server.accept().await;
    assert_eq!(read_exact(&mut far, 1).await, b"x");
    assert_eq!(
        read_all(&mut TcpStream::connect(address).await.unwrap()).await,
        ""
    );

    let dead = Server::start().await.port;
    let (socket, address) = listener();
    let _bridge = Bridge::start(vec![(socket, dead)], limits).unwrap();
    assert_eq!(
        read_all(&mut TcpStream::connect(address).await.unwrap()).await,
        ""
    );
}

#[tokio::test]
async fn dropping_the_bridge_ends_everything() {
    let server = Server::start().await;
    let (socket, address) = listener();
    let bridge = Bridge::start(vec![(socket, server.port)], Limits::default()).unwrap();
    let mut near = TcpStream::connect(address).await.unwrap();
    let mut far = server.accept().await;
    drop(bridge);
    for stream in [&mut near, &mut far] {
        let mut bytes = Vec::new();
        // A reset is as good an end as any.
        drop(within(stream.read_to_end(&mut bytes)).await);
    }
    assert!(TcpStream::connect(address).await.is_err());
}
