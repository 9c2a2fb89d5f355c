//! SOCKS5: streams and datagrams.

use std::net::{Ipv4Addr, SocketAddr};

use serde_json::json;
use tokio::{
    io::AsyncWriteExt,
    net::{TcpStream, UdpSocket},
};

use super::{TestProxy, TestProxyBuilder, TestServer, read_all, read_exact, with_timeout};

const V4: &[u8] = &[1, 8, 8, 8, 8];
const V6: &[u8] = &[
    4, 0x26, 6, 0x47, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x11, 0x11,
];
const NAME: &[u8] = b"\x03\x0callowed.test";

/// Sends a greeting and a request; returns the reply code.
async fn socks_request(
    proxy: &TestProxy,
    command: u8,
    address_bytes: &[u8],
    port: u16,
) -> (u8, TcpStream) {
    let mut stream = TcpStream::connect(proxy.socks).await.unwrap();
    let mut message = vec![5, 1, 0, 5, command, 0];
    message.extend_from_slice(address_bytes);
    message.extend_from_slice(&port.to_be_bytes());
    stream.write_all(&message).await.unwrap();
    assert_eq!(read_exact(&mut stream, 2).await, [5, 0]);
    let reply = read_exact(&mut stream, 4).await;
    assert_eq!((reply[0], reply[2], reply[3]), (5, 0, 1));
    (reply[1], stream)
}

#[tokio::test]
async fn socks_connects_by_ipv4_ipv6_and_name() {
    let mut proxy = TestProxyBuilder::new().start();
    for (address_bytes, host, address) in [
        (V4, "8.8.8.8", "8.8.8.8"),
        (V6, "2606:4700::1111", "2606:4700::1111"),
        (NAME, "allowed.test", "93.184.216.34"),
    ] {
        let server = TestServer::start().await;
        let (code, mut client) = socks_request(&proxy, 1, address_bytes, server.port).await;
        assert_eq!((code, read_exact(&mut client, 6).await), (0, vec![0; 6]));
        let mut server_stream = server.accept().await;
        client.write_all(b"ping").await.unwrap();
        client.shutdown().await.unwrap();
        assert_eq!(read_all(&mut server_stream).await, "ping");
        server_stream.write_all(b"pong").await.unwrap();
        drop(server_stream);
        assert_eq!(read_all(&mut client).await, "pong");
        let record = proxy.record().await;
        assert_eq!(
            (record.protocol.as_str(), record.host.as_str()),
            ("socks5_tcp", host)
        );
        assert_eq!((record.method, record.decision.as_str()), (None, "allow"));
        let reached = proxy.connector.connects().last().unwrap().ip();
        assert_eq!(reached.to_string(), address);
    }
}

#[tokio::test]
async fn socks_errors_have_reply_codes() {
    let proxy = TestProxyBuilder::new().start();
    let closed = TestServer::start().await.port;
    for (command, address_bytes, port, expected) in [
        (1, &b"\x03\x0bdenied.test"[..], 80, 2),
        (1, b"\x03\x0aother.test", 80, 2),
        (1, &[1, 127, 0, 0, 1], 80, 2),
        (1, b"\x03\x05127.1", 80, 2),
        (
            1,
            &[4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1],
            80,
            2,
        ),
        (1, b"\x03\x0fxx.allowed.test", 80, 4),
        (1, NAME, closed, 5),
        (1, NAME, 0, 1),
        (1, b"\x03\x03a b", 80, 1),
        (2, NAME, 80, 7),
        (9, NAME, 80, 7),
        (1, &[2, 0, 0, 0, 0], 80, 8),
    ] {
        let (code, mut stream) = socks_request(&proxy, command, address_bytes, port).await;
        assert_eq!(code, expected, "{address_bytes:?}");
        assert_eq!(read_exact(&mut stream, 6).await, [0; 6]);
        assert_eq!(read_all(&mut stream).await, "");
    }
}

#[tokio::test]
async fn other_protocols_on_the_socks_port_are_closed() {
    let proxy = TestProxyBuilder::new().start();
    for (bytes, answer) in [
        (&b"GET / HTTP/1.1\r\n\r\n"[..], &[][..]),
        (&[4, 1, 0, 80, 8, 8, 8, 8, 0], &[]),
        (&[5, 1, 2], &[5, 0xff]),
        (&[5, 0], &[5, 0xff]),
    ] {
        let mut stream = TcpStream::connect(proxy.socks).await.unwrap();
        stream.write_all(bytes).await.unwrap();
        assert_eq!(read_exact(&mut stream, answer.len()).await, answer);
        stream.shutdown().await.unwrap();
        assert_eq!(read_all(&mut stream).await, "");
    }
}

#[tokio::test]
async fn limited_mode_refuses_socks() {
    let mut proxy = TestProxyBuilder::new()
        .with_setting("mode", json!("limited"))
        .start();
    assert_eq!(socks_request(&proxy, 1, NAME, 80).await.0, 2);
    let record = proxy.record().await;
    assert_eq!(
        (record.source.as_str(), record.protocol.as_str()),
        ("mode_guard", "socks5_tcp")
    );
    assert_eq!(socks_request(&proxy, 3, &[1, 0, 0, 0, 0], 0).await.0, 7);
    assert!(proxy.connector.lookups().is_empty());
}

#[tokio::test]
async fn datagrams_need_to_be_enabled() {
    let proxy = TestProxyBuilder::new()
        .with_setting("enableSocks5Udp", json!(false))
        .start();
    assert_eq!(socks_request(&proxy, 3, &[1, 0, 0, 0, 0], 0).await.0, 7);
}

/// Requests a UDP association; returns the relay address and the control connection.
async fn associate(proxy: &TestProxy) -> (SocketAddr, TcpStream) {
    let (code, mut stream) = socks_request(proxy, 3, &[1, 0, 0, 0, 0], 0).await;
    assert_eq!(code, 0);
    let bound = read_exact(&mut stream, 6).await;
    assert_eq!(bound[..4], [127, 0, 0, 1]);
    let port = u16::from_be_bytes([bound[4], bound[5]]);
    ((Ipv4Addr::LOCALHOST, port).into(), stream)
}

#[tokio::test]
async fn datagrams_reach_only_allowed_hosts() {
    let allowed = json!({"127.0.0.1": "allow"});
    let mut proxy = TestProxyBuilder::new()
        .with_setting("domains", allowed)
        .start();
    let server = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let other_socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let client = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let port = server.local_addr().unwrap().port().to_be_bytes();
    let (relay, _control) = associate(&proxy).await;
    for (kind, message) in [
        (
            "a fragment",
            [&[0, 0, 1, 1, 127, 0, 0, 1][..], &port, b"no"].concat(),
        ),
        ("a truncated datagram", vec![0, 0, 0, 1, 127]),
        (
            "a denied host",
            [&[0, 0, 0, 1, 127, 0, 0, 2][..], &port, b"no"].concat(),
        ),
        (
            "an allowed host",
            [&[0, 0, 0, 1, 127, 0, 0, 1][..], &port, b"ping"].concat(),
        ),
    ] {
        client.send_to(&message, relay).await.expect(kind);
    }
    let mut buffer = [0; 100];
    let (length, from) = with_timeout(server.recv_from(&mut buffer)).await.unwrap();
    assert_eq!(&buffer[..length], b"ping");
    let record = proxy.record().await;
    assert_eq!(
        (record.host.as_str(), record.reason.as_str()),
        ("127.0.0.2", "not_allowed_local")
    );
    let record = proxy.record().await;
    assert_eq!(
        (record.protocol.as_str(), record.decision.as_str()),
        ("socks5_udp", "allow")
    );
    let target = SocketAddr::from((Ipv4Addr::LOCALHOST, from.port()));
    other_socket.send_to(b"intruder", target).await.unwrap();
    server.send_to(b"pong", target).await.unwrap();
    let (length, _) = with_timeout(client.recv_from(&mut buffer)).await.unwrap();
    let expected = [&[0, 0, 0, 1, 127, 0, 0, 1][..], &port, b"pong"].concat();
    assert_eq!(&buffer[..length], expected);
}

#[tokio::test]
async fn datagrams_stop_when_the_connection_closes() {
    let proxy = TestProxyBuilder::new()
        .with_setting("domains", json!({"127.0.0.1": "allow"}))
        .start();
    let server = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let port = server.local_addr().unwrap().port().to_be_bytes();
    let client = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let message = |text: &[u8]| [&[0, 0, 0, 1, 127, 0, 0, 1][..], &port, text].concat();
    let (relay, mut control) = associate(&proxy).await;
    client.send_to(&message(b"one"), relay).await.unwrap();
    let mut buffer = [0; 100];
    let (length, first) = with_timeout(server.recv_from(&mut buffer)).await.unwrap();
    assert_eq!(&buffer[..length], b"one");
    control.shutdown().await.unwrap();
    assert_eq!(read_all(&mut control).await, "");
    // Without a control connection, this datagram is dropped.
    client.send_to(&message(b"two"), relay).await.unwrap();
    let (relay, _control) = associate(&proxy).await;
    client.send_to(&message(b"three"), relay).await.unwrap();
    let (length, second) = with_timeout(server.recv_from(&mut buffer)).await.unwrap();
    assert_eq!(&buffer[..length], b"three");
    assert_ne!(first, second);
}
