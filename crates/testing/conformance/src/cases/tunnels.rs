//! Tunnels into the network of the host, and the list of its ports.

use std::io;

use exec_env::tunnel::{TunnelError, TunnelListener, TunnelStream, TunnelTarget};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, copy, split},
    net::{TcpListener, TcpStream},
};

use crate::{bounded_wait::within, difference::Difference, pattern, subject::Subject};

const LARGE: usize = 4 << 20;

/// Opens a tunnel to a port. Returns `None` where there are no tunnels, which is asserted.
async fn open(subject: &Subject, port: u16) -> Option<Box<dyn TunnelStream>> {
    let opened = subject.network.open(TunnelTarget::loopback(port));
    supported(subject, within("tunnel opens", opened).await)
}

async fn listen(subject: &Subject) -> Option<Box<dyn TunnelListener>> {
    let listening = subject.network.listen(TunnelTarget::loopback(0));
    supported(subject, within("listener opens", listening).await)
}

fn supported<T>(subject: &Subject, result: Result<T, TunnelError>) -> Option<T> {
    match result {
        Err(TunnelError::Unsupported) if subject.differs(Difference::NoTunnels) => None,
        Ok(opened) if !subject.differs(Difference::NoTunnels) => Some(opened),
        Ok(_) => panic!("expected no tunnels"),
        Err(error) => panic!("expected a tunnel: {error}"),
    }
}

/// Listens on a port of this machine, which is the subject's.
async fn listener() -> (TcpListener, u16) {
    let listener = TcpListener::bind("127.0.0.1:0").await;
    let listener = listener.expect("failed to bind a loopback port");
    let address = listener.local_addr().expect("listener has no address");
    (listener, address.port())
}

async fn accept(listener: &TcpListener) -> TcpStream {
    let (stream, _) = within("connection arrives", listener.accept())
        .await
        .expect("failed to accept");
    stream
}

pub async fn tunnel_keeps_a_half_closed_connection(subject: &Subject) {
    let (listener, port) = listener().await;
    let Some(mut tunnel) = open(subject, port).await else {
        return;
    };
    let mut far = accept(&listener).await;
    tunnel.write_all(b"request").await.unwrap();
    tunnel.shutdown().await.unwrap();
    let mut request = Vec::new();
    within("request ends", far.read_to_end(&mut request))
        .await
        .unwrap();
    assert_eq!(request, b"request");
    far.write_all(b"response").await.unwrap();
    drop(far);
    let mut response = Vec::new();
    within("response ends", tunnel.read_to_end(&mut response))
        .await
        .unwrap();
    assert_eq!(response, b"response");
}

pub async fn large_transfers_through_a_tunnel_are_complete(subject: &Subject) {
    let (listener, port) = listener().await;
    let Some(tunnel) = open(subject, port).await else {
        return;
    };
    let far = accept(&listener).await;
    let (mut far_reader, mut far_writer) = far.into_split();
    let (mut reader, mut writer) = split(tunnel);
    let content = pattern::bytes(LARGE);
    let send = async {
        writer.write_all(&content).await.unwrap();
        writer.shutdown().await.unwrap();
    };
    let echo = async {
        copy(&mut far_reader, &mut far_writer).await.unwrap();
        far_writer.shutdown().await.unwrap();
    };
    let mut echoed = Vec::new();
    let receive = async { reader.read_to_end(&mut echoed).await.unwrap() };
    within("transfer", async { tokio::join!(send, echo, receive) }).await;
    assert!(echoed == content, "received bytes differ");
}

pub async fn dropped_tunnel_resets_its_connection(subject: &Subject) {
    let (listener, port) = listener().await;
    let Some(mut tunnel) = open(subject, port).await else {
        return;
    };
    let mut far = accept(&listener).await;
    tunnel.write_all(b"half an upload").await.unwrap();
    let mut data = [0; 14];
    within("data arrives", far.read_exact(&mut data))
        .await
        .unwrap();
    assert_eq!(&data, b"half an upload");
    drop(tunnel);
    // An end of the data would make the upload look complete.
    let error = within("connection breaks", far.read(&mut data)).await;
    let error = error.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset, "{error}");
}

pub async fn tunnel_dropped_after_its_shutdown_delivers_everything(subject: &Subject) {
    let (listener, port) = listener().await;
    let Some(mut tunnel) = open(subject, port).await else {
        return;
    };
    let far = accept(&listener).await;
    let content = pattern::bytes(LARGE);
    let send = async {
        tunnel.write_all(&content).await.unwrap();
        tunnel.shutdown().await.unwrap();
        drop(tunnel);
    };
    // The buffers of the connection are full when the tunnel is dropped.
    let mut received = Vec::new();
    let receive = async {
        let mut slow = far.take(1 << 20);
        slow.read_to_end(&mut received).await.unwrap();
        let mut far = slow.into_inner();
        far.read_to_end(&mut received).await.unwrap();
    };
    within("transfer", async { tokio::join!(send, receive) }).await;
    assert!(received == content, "received bytes differ");
}

pub async fn reset_connection_is_a_read_error_of_its_tunnel(subject: &Subject) {
    let (listener, port) = listener().await;
    let Some(mut tunnel) = open(subject, port).await else {
        return;
    };
    let far = accept(&listener).await;
    far.set_zero_linger().unwrap();
    drop(far);
    let error = within("reset", tunnel.read(&mut [0])).await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset, "{error}");
}

pub async fn tunnel_to_a_closed_port_is_an_error(subject: &Subject) {
    let (listener, port) = listener().await;
    drop(listener);
    let opened = subject.network.open(TunnelTarget::loopback(port));
    let error = within("tunnel fails", opened).await.err();
    if subject.differs(Difference::NoTunnels) {
        assert_eq!(error, Some(TunnelError::Unsupported));
    } else {
        let Some(TunnelError::Host(text)) = error else {
            panic!("{error:?}");
        };
        assert!(text.contains(&port.to_string()), "{text}");
    }
}

pub async fn many_tunnels_are_open_concurrently(subject: &Subject) {
    let (listener, port) = listener().await;
    let mut pairs = Vec::new();
    for number in 0..64_u8 {
        let Some(mut tunnel) = open(subject, port).await else {
            return;
        };
        let mut far = accept(&listener).await;
        tunnel.write_all(&[number]).await.unwrap();
        far.write_all(&[number]).await.unwrap();
        pairs.push((number, tunnel, far));
    }
    for (number, tunnel, far) in &mut pairs {
        let (mut here, mut there) = ([0], [0]);
        within("byte arrives", tunnel.read_exact(&mut here))
            .await
            .unwrap();
        within("byte arrives", far.read_exact(&mut there))
            .await
            .unwrap();
        assert_eq!((here, there), ([*number], [*number]));
    }
}

pub async fn listener_accepts_connections_until_it_is_dropped(subject: &Subject) {
    let Some(mut listener) = listen(subject).await else {
        return;
    };
    let address = ("127.0.0.1", listener.port());
    for _ in 0..2 {
        let mut far = TcpStream::connect(address).await.unwrap();
        far.write_all(b"ping").await.unwrap();
        let accepted = within("connection is accepted", listener.accept()).await;
        let mut tunnel = accepted.expect("failed to accept");
        let mut data = [0; 4];
        within("data arrives", tunnel.read_exact(&mut data))
            .await
            .unwrap();
        assert_eq!(&data, b"ping");
        tunnel.write_all(b"pong").await.unwrap();
        within("data arrives", far.read_exact(&mut data))
            .await
            .unwrap();
        assert_eq!(&data, b"pong");
    }
    drop(listener);
    let closed = async {
        while TcpStream::connect(address).await.is_ok() {
            tokio::task::yield_now().await;
        }
    };
    within("port closes", closed).await;
}

pub async fn listening_ports_are_listed(subject: &Subject) {
    let (_listener, port) = listener().await;
    let ports = within("ports are listed", subject.network.ports(None)).await;
    let Some(ports) = supported(subject, ports) else {
        return;
    };
    let found = ports.iter().find(|listed| listed.port == port);
    assert_eq!(found.expect("port is not listed").address, "127.0.0.1");
}
