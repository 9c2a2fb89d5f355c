//! Connection limits and lifetimes, of the proxy and the bridge.

use std::{
    net::{Ipv4Addr, SocketAddr, TcpListener},
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use super::{
    TestProxy, TestProxyBuilder, TestServer, read_all, read_exact, read_until, with_timeout,
};
use crate::{limits::ProxyLimits, proxy::ProxyBridge};

async fn tunnel(proxy: &TestProxy, server: &TestServer) -> (TcpStream, TcpStream) {
    let text = format!("CONNECT allowed.test:{} HTTP/1.1\r\n\r\n", server.port);
    let mut client = proxy.send_http(&text).await;
    read_until(&mut client, "\r\n\r\n").await;
    (client, server.accept().await)
}

#[tokio::test]
async fn excess_connection_is_rejected_with_an_error() {
    assert_eq!(ProxyLimits::default().max_connections, 256);
    let mut builder = TestProxyBuilder::new();
    builder.limits.max_connections = 2;
    let (proxy, server) = (builder.start(), TestServer::start().await);
    let mut first = tunnel(&proxy, &server).await;
    let second = tunnel(&proxy, &server).await;
    let answer = proxy
        .request_http("GET http://allowed.test/ HTTP/1.1\r\n\r\n")
        .await;
    assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
    let mut socks = TcpStream::connect(proxy.socks).await.unwrap();
    socks
        .write_all(b"\x05\x01\0\x05\x01\0\x03\x0callowed.test\0\x50")
        .await
        .unwrap();
    assert_eq!(read_exact(&mut socks, 4).await, [5, 0, 5, 1]);
    // A released slot can be used again.
    first.0.shutdown().await.unwrap();
    first.1.shutdown().await.unwrap();
    assert_eq!(read_all(&mut first.0).await, "");
    let third = with_timeout(async {
        loop {
            let text = format!("CONNECT allowed.test:{} HTTP/1.1\r\n\r\n", server.port);
            let mut client = proxy.send_http(&text).await;
            if read_until(&mut client, "\r\n").await.contains("200") {
                break client;
            }
        }
    });
    drop((third.await, second));
}

#[tokio::test]
async fn dropping_the_proxy_closes_everything() {
    let (proxy, server) = (TestProxyBuilder::new().start(), TestServer::start().await);
    let (mut client, mut server_stream) = tunnel(&proxy, &server).await;
    let mut silent = proxy.send_http("GET ").await;
    let (http, socks) = (proxy.http, proxy.socks);
    drop(proxy);
    for stream in [&mut client, &mut server_stream, &mut silent] {
        let mut bytes = Vec::new();
        // A reset is also a valid end.
        drop(with_timeout(stream.read_to_end(&mut bytes)).await);
        assert!(bytes.is_empty());
    }
    for address in [http, socks] {
        assert!(TcpStream::connect(address).await.is_err());
    }
}

#[tokio::test]
async fn idle_tunnel_is_closed() {
    let mut builder = TestProxyBuilder::new();
    builder.limits.idle_timeout = Duration::from_millis(50);
    let (proxy, server) = (builder.start(), TestServer::start().await);
    let (mut client, mut server_stream) = tunnel(&proxy, &server).await;
    assert_eq!(read_all(&mut client).await, "");
    assert_eq!(read_all(&mut server_stream).await, "");
}

#[tokio::test]
async fn silent_server_times_out() {
    let mut builder = TestProxyBuilder::new();
    builder.limits.idle_timeout = Duration::from_millis(50);
    let (proxy, server) = (builder.start(), TestServer::start().await);
    let text = format!("GET http://allowed.test:{}/ HTTP/1.1\r\n\r\n", server.port);
    let mut client = proxy.send_http(&text).await;
    let (_, _far) = server.request().await;
    let mut bytes = Vec::new();
    // The connection is reset, so that the response does not look complete.
    assert!(with_timeout(client.read_to_end(&mut bytes)).await.is_err());
}

fn listener() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

#[tokio::test]
async fn each_bridge_listener_connects_to_its_port() {
    let (one, two) = (TestServer::start().await, TestServer::start().await);
    let ((first, to_one), (second, to_two)) = (listener(), listener());
    let ports = vec![(first, one.port), (second, two.port)];
    let _bridge = ProxyBridge::start(ports, ProxyLimits::default()).unwrap();
    for (address, server) in [(to_one, &one), (to_two, &two)] {
        let mut client = TcpStream::connect(address).await.unwrap();
        client.write_all(b"ping").await.unwrap();
        client.shutdown().await.unwrap();
        let mut server_stream = server.accept().await;
        assert_eq!(read_all(&mut server_stream).await, "ping");
        server_stream.write_all(b"pong").await.unwrap();
        drop(server_stream);
        assert_eq!(read_all(&mut client).await, "pong");
    }
}

#[tokio::test]
async fn bridge_closes_excess_connections_and_dead_ports() {
    let server = TestServer::start().await;
    let (socket, address) = listener();
    let limits = ProxyLimits {
        max_connections: 1,
        ..ProxyLimits::default()
    };
    let _bridge = ProxyBridge::start(vec![(socket, server.port)], limits).unwrap();
    let mut client = TcpStream::connect(address).await.unwrap();
    client.write_all(b"x").await.unwrap();
    let mut server_stream = server.accept().await;
    assert_eq!(read_exact(&mut server_stream, 1).await, b"x");
    assert_eq!(
        read_all(&mut TcpStream::connect(address).await.unwrap()).await,
        ""
    );

    let closed_port = TestServer::start().await.port;
    let (socket, address) = listener();
    let _bridge = ProxyBridge::start(vec![(socket, closed_port)], limits).unwrap();
    assert_eq!(
        read_all(&mut TcpStream::connect(address).await.unwrap()).await,
        ""
    );
}

#[tokio::test]
async fn dropping_the_bridge_closes_everything() {
    let server = TestServer::start().await;
    let (socket, address) = listener();
    let bridge = ProxyBridge::start(vec![(socket, server.port)], ProxyLimits::default()).unwrap();
    let mut client = TcpStream::connect(address).await.unwrap();
    let mut server_stream = server.accept().await;
    drop(bridge);
    for stream in [&mut client, &mut server_stream] {
        let mut bytes = Vec::new();
        // A reset is also a valid end.
        drop(with_timeout(stream.read_to_end(&mut bytes)).await);
    }
    assert!(TcpStream::connect(address).await.is_err());
}
