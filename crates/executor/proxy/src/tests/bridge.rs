//! The bridge to a proxy of the client's.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use super::stage::{Server, read_all, read_exact, within};
use crate::{bridge::Bridge, limits::Limits};

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
