//! Tunnels between a client and a service whose links are cut, in one process: what the tunnels
//! promise does not depend on the transport.
#![expect(clippy::unwrap_used, reason = "a failed assertion panics")]

use std::{
    io,
    net::SocketAddr,
    num::NonZeroUsize,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use exec_client::{
    client::{ExecServerClient, ExecServerClientConnectOptions},
    connect::{BackoffDelay, ServerConnector, SessionContinuity},
};
use exec_env::{
    environment::Environment,
    tunnel::{
        EnvironmentNetwork, TunnelError, TunnelFuture, TunnelListener, TunnelStream, TunnelTarget,
    },
};
use exec_local::tunnel_socket::TunnelSocket;
use exec_service::{Concurrency, Service, ServiceConfig};
use exec_test_support::{bounded_wait::within, fake_environment::FakeBackend};
use exec_transport::{
    connect::ConnectError,
    link::{Link, MessageReader, MessageWriter},
    memory,
    message_pump::pump_messages,
};
use exec_wire::{
    id::ProcessId,
    initialize::{ProtocolExtension, ServerInfo},
    limits,
    tunnel::ListeningPort,
};
use futures_util::future::{BoxFuture, FutureExt, ready};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, copy, split},
    net::{TcpListener, TcpStream},
    sync::Notify,
    task::AbortHandle,
};

/// The loopback of this machine, without sandboxes and names.
#[derive(Debug)]
struct LoopbackNetwork;

impl EnvironmentNetwork for LoopbackNetwork {
    fn open(&self, target: TunnelTarget) -> TunnelFuture<Box<dyn TunnelStream>> {
        async move {
            let stream = TcpStream::connect(("127.0.0.1", target.port)).await;
            let stream = stream.map_err(|error| TunnelError::Host(error.to_string()))?;
            stream.set_nodelay(true).unwrap();
            Ok(Box::new(TunnelSocket::new(stream)) as Box<dyn TunnelStream>)
        }
        .boxed()
    }

    fn listen(&self, target: TunnelTarget) -> TunnelFuture<Box<dyn TunnelListener>> {
        async move {
            let listener = TcpListener::bind(("127.0.0.1", target.port)).await;
            let listener = listener.map_err(|error| TunnelError::Host(error.to_string()))?;
            Ok(Box::new(LoopbackListener(listener)) as Box<dyn TunnelListener>)
        }
        .boxed()
    }

    fn ports(&self, process: Option<ProcessId>) -> TunnelFuture<Vec<ListeningPort>> {
        let port = ListeningPort {
            port: 80,
            address: "127.0.0.1".to_owned(),
            process_id: process,
            os_pid: None,
            program: None,
        };
        ready(Ok(vec![port])).boxed()
    }
}

#[derive(Debug)]
struct LoopbackListener(TcpListener);

impl TunnelListener for LoopbackListener {
    fn port(&self) -> u16 {
        self.0.local_addr().unwrap().port()
    }

    fn accept(&mut self) -> BoxFuture<'_, Result<Box<dyn TunnelStream>, TunnelError>> {
        async move {
            let (stream, _) = self.0.accept().await.unwrap();
            Ok(Box::new(TunnelSocket::new(stream)) as Box<dyn TunnelStream>)
        }
        .boxed()
    }
}

/// Connects to a service over links that can be cut.
#[derive(Debug)]
struct CutConnector {
    service: Service,
    links: Mutex<Vec<AbortHandle>>,
    opened: AtomicUsize,
    opened_another: Notify,
}

impl CutConnector {
    fn new(ttl: Duration) -> Arc<Self> {
        let config = ServiceConfig {
            session_ttl: ttl,
            process_retention: limits::CLOSED_RETENTION,
            max_processes: limits::MAX_PROCESSES,
            allow_direct_exec: true,
            allow_prepared_exec: true,
            concurrency: Concurrency::AtMost(NonZeroUsize::MIN.saturating_add(63)),
            busy_poll: Duration::ZERO,
            durability: None,
            server_name: ServerInfo {
                name: "memory".to_owned(),
                version: "0.0.0".to_owned(),
            },
        };
        let backend = Arc::new(FakeBackend::default());
        let open = move || Environment {
            network: Arc::new(LoopbackNetwork),
            ..backend.environment()
        };
        Arc::new(Self {
            service: Service::new(config, open),
            links: Mutex::default(),
            opened: AtomicUsize::new(0),
            opened_another: Notify::new(),
        })
    }

    async fn connect_client(self: &Arc<Self>) -> ExecServerClient {
        let connector = Arc::clone(self) as Arc<dyn ServerConnector>;
        let options = ExecServerClientConnectOptions::default();
        ExecServerClient::connect_with(connector, options)
            .await
            .unwrap()
    }

    /// Cuts the current link, with whatever is on it, and waits for the next one.
    async fn cut(&self) {
        let opened = self.opened.load(Ordering::SeqCst);
        for link in std::mem::take(&mut *self.links.lock().unwrap()) {
            link.abort();
        }
        let reopened = async {
            loop {
                let another = self.opened_another.notified();
                if self.opened.load(Ordering::SeqCst) > opened {
                    return;
                }
                another.await;
            }
        };
        within("client reconnects", reopened).await;
    }

    fn open(&self) -> Link {
        let (client, near) = memory::pair();
        let (far, server) = memory::pair();
        let service = self.service.clone();
        tokio::spawn(async move { service.serve(server).await });
        let forward = tokio::spawn(async move {
            tokio::join!(
                forward(near.reader, far.writer),
                forward(far.reader, near.writer)
            );
        });
        self.links.lock().unwrap().push(forward.abort_handle());
        self.opened.fetch_add(1, Ordering::SeqCst);
        self.opened_another.notify_waiters();
        client
    }
}

async fn forward(mut reader: Box<dyn MessageReader>, mut writer: Box<dyn MessageWriter>) {
    let all = |_: &_| Ok::<_, io::Error>(true);
    pump_messages(&mut *reader, &mut *writer, None, all).await;
    drop(writer.close().await);
}

impl ServerConnector for CutConnector {
    fn connect(&self) -> BoxFuture<'_, Result<Link, ConnectError>> {
        ready(Ok(self.open())).boxed()
    }

    fn continuity(&self) -> SessionContinuity {
        SessionContinuity::Resumed
    }

    fn backoff(&self, _: u32) -> BackoffDelay {
        BackoffDelay::FromEnd(Duration::from_millis(1))
    }
}

/// A server that sends back what it gets, until the end.
async fn echo_server() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let (mut reader, mut writer) = stream.split();
                drop(copy(&mut reader, &mut writer).await);
                drop(writer.shutdown().await);
            });
        }
    });
    address
}

async fn open(network: &dyn EnvironmentNetwork, port: u16) -> Box<dyn TunnelStream> {
    let opened = network.open(TunnelTarget::loopback(port));
    within("tunnel opens", opened).await.unwrap()
}

/// Waits until a connection breaks.
async fn expect_reset(stream: &mut TcpStream) {
    let read = within("connection breaks", stream.read(&mut [0])).await;
    let error = read.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset, "{error}");
}

fn pattern(bytes: usize, seed: usize) -> Vec<u8> {
    (0..bytes)
        .map(|at| u8::try_from((at / 7 + at + seed) % 251).unwrap())
        .collect()
}

const TTL: Duration = Duration::from_secs(60);

#[tokio::test]
async fn half_closed_tunnel_returns_everything() {
    let client = CutConnector::new(TTL).connect_client().await;
    let network = client.environment().network;
    let mut tunnel = open(&*network, echo_server().await.port()).await;
    tunnel.write_all(b"hello").await.unwrap();
    let mut first = [0; 5];
    within("echo", tunnel.read_exact(&mut first)).await.unwrap();
    assert_eq!(&first, b"hello");
    tunnel.write_all(b" again").await.unwrap();
    tunnel.shutdown().await.unwrap();
    let mut rest = Vec::new();
    within("the end", tunnel.read_to_end(&mut rest))
        .await
        .unwrap();
    assert_eq!(rest, b" again");
}

/// Sends through an echo server while the link is cut, and compares.
async fn transfer_with_cuts(bytes: usize, cuts: usize) {
    let connector = CutConnector::new(TTL);
    let client = connector.connect_client().await;
    let session = client.session().session_id.clone();
    let network = client.environment().network;
    let tunnel = open(&*network, echo_server().await.port()).await;
    let (mut reader, mut writer) = split(tunnel);
    let sent = pattern(bytes, 0);
    let expected = sent.clone();
    let progress = Arc::new(AtomicUsize::new(0));
    let advanced = Arc::new(Notify::new());
    let send = async move {
        writer.write_all(&sent).await.unwrap();
        writer.shutdown().await.unwrap();
    };
    let receive = {
        let (progress, advanced) = (Arc::clone(&progress), Arc::clone(&advanced));
        async move {
            let (mut received, mut buffer) = (Vec::new(), vec![0; 100_000]);
            loop {
                let read = reader.read(&mut buffer).await.unwrap();
                if read == 0 {
                    return received;
                }
                received.extend_from_slice(&buffer[..read]);
                progress.store(received.len(), Ordering::SeqCst);
                advanced.notify_one();
            }
        }
    };
    let cutting = async {
        for number in 1..=cuts {
            // Evenly over the transfer, each in its middle.
            while progress.load(Ordering::SeqCst) < bytes / (cuts + 1) * number {
                advanced.notified().await;
            }
            connector.cut().await;
        }
    };
    let (received, (), ()) =
        within("transfer", async { tokio::join!(receive, send, cutting) }).await;
    assert!(received == expected, "received bytes differ");
    assert_eq!(client.session().session_id, session);
    assert!(connector.opened.load(Ordering::SeqCst) > cuts);
}

#[tokio::test]
async fn fifty_cuts_lose_and_repeat_no_byte() {
    transfer_with_cuts(24 << 20, 50).await;
}

#[tokio::test]
async fn reset_at_the_far_end_is_a_read_error() {
    let client = CutConnector::new(TTL).connect_client().await;
    let network = client.environment().network;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let mut tunnel = open(&*network, port).await;
    let (stream, _) = listener.accept().await.unwrap();
    stream.set_zero_linger().unwrap();
    drop(stream);
    let error = within("reset", tunnel.read(&mut [0])).await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset, "{error}");
}

#[tokio::test]
async fn dropped_tunnel_resets_the_connection_at_the_far_end() {
    let client = CutConnector::new(TTL).connect_client().await;
    let network = client.environment().network;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let tunnel = open(&*network, listener.local_addr().unwrap().port()).await;
    let (mut stream, _) = listener.accept().await.unwrap();
    drop(tunnel);
    expect_reset(&mut stream).await;
}

#[tokio::test]
async fn connection_of_a_lost_session_is_reset() {
    let connector = CutConnector::new(Duration::ZERO);
    let client = connector.connect_client().await;
    let network = client.environment().network;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut tunnel = open(&*network, listener.local_addr().unwrap().port()).await;
    let (mut stream, _) = listener.accept().await.unwrap();
    tunnel.write_all(b"half").await.unwrap();
    let mut half = [0; 4];
    within("data", stream.read_exact(&mut half)).await.unwrap();
    connector.cut().await;
    expect_reset(&mut stream).await;
}

#[tokio::test]
async fn tunnel_dropped_during_a_disconnect_resets_its_connection_too() {
    let connector = CutConnector::new(TTL);
    let client = connector.connect_client().await;
    let network = client.environment().network;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let tunnel = open(&*network, listener.local_addr().unwrap().port()).await;
    let (mut stream, _) = listener.accept().await.unwrap();
    let cut = connector.cut();
    drop(tunnel);
    cut.await;
    expect_reset(&mut stream).await;
}

#[tokio::test]
async fn failed_connection_is_reported_with_its_reason() {
    let client = CutConnector::new(TTL).connect_client().await;
    let network = client.environment().network;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    drop(listener);
    let opened = network.open(TunnelTarget::loopback(port)).await;
    assert!(
        matches!(&opened, Err(TunnelError::Host(text)) if text.contains("refused")),
        "{opened:?}"
    );
}

#[tokio::test]
async fn listener_accepts_across_cuts_and_ends_when_dropped() {
    let connector = CutConnector::new(TTL);
    let client = connector.connect_client().await;
    let network = client.environment().network;
    let mut listener = within("listen", network.listen(TunnelTarget::loopback(0)))
        .await
        .unwrap();
    let port = listener.port();
    for number in 0..3 {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
        // The announcement may be lost on the way.
        connector.cut().await;
        let mut tunnel = within("accept", listener.accept()).await.unwrap();
        let data = pattern(100_000, number);
        let (sent, mut received) = (stream.write_all(&data), vec![0; data.len()]);
        let (sent, read) = within("transfer", async {
            tokio::join!(sent, tunnel.read_exact(&mut received))
        })
        .await;
        sent.unwrap();
        read.unwrap();
        assert!(received == data);
        tunnel.write_all(b"bye").await.unwrap();
        tunnel.shutdown().await.unwrap();
        drop(tunnel);
        let mut said = Vec::new();
        let read = within("end", stream.read_to_end(&mut said)).await;
        assert_eq!(said, b"bye", "{read:?}");
    }
    drop(listener);
    let closed = async {
        while TcpStream::connect(("127.0.0.1", port)).await.is_ok() {
            tokio::task::yield_now().await;
        }
    };
    within("port closes", closed).await;
}

#[tokio::test]
async fn lost_session_is_a_read_error() {
    let connector = CutConnector::new(Duration::ZERO);
    let client = connector.connect_client().await;
    let network = client.environment().network;
    let mut tunnel = open(&*network, echo_server().await.port()).await;
    let mut listener = network.listen(TunnelTarget::loopback(0)).await.unwrap();
    connector.cut().await;
    let error = within("loss", tunnel.read(&mut [0])).await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    assert!(tunnel.write_all(b"x").await.is_err());
    let accepted = within("loss", listener.accept()).await;
    assert!(
        matches!(accepted, Err(TunnelError::Disconnected(_))),
        "{accepted:?}"
    );
}

#[tokio::test]
async fn server_without_tunnels_is_unsupported() {
    let connector = CutConnector::new(TTL);
    let options = ExecServerClientConnectOptions {
        extensions: vec!["binaryData".to_owned()],
        ..ExecServerClientConnectOptions::default()
    };
    let client = ExecServerClient::connect_with(connector, options).await;
    let client = client.unwrap();
    assert_eq!(client.session().extensions, [ProtocolExtension::BinaryData]);
    let network = client.environment().network;
    let opened = network.open(TunnelTarget::loopback(80)).await;
    assert!(matches!(opened, Err(TunnelError::Unsupported)));
    let listening = network.listen(TunnelTarget::loopback(0)).await;
    assert!(matches!(listening, Err(TunnelError::Unsupported)));
}

#[tokio::test]
async fn ports_are_listed() {
    let client = CutConnector::new(TTL).connect_client().await;
    let network = client.environment().network;
    let process = ProcessId::new("p").unwrap();
    let ports = network.ports(Some(process.clone())).await.unwrap();
    assert_eq!((ports[0].port, &ports[0].process_id), (80, &Some(process)));
}

#[tokio::test]
async fn thousand_tunnels_are_open_at_once() {
    let connector = CutConnector::new(TTL);
    let client = connector.connect_client().await;
    let network = client.environment().network;
    let port = echo_server().await.port();
    let mut tunnels = Vec::new();
    for _ in 0..1000 {
        tunnels.push(open(&*network, port).await);
    }
    let everything = async {
        for (number, tunnel) in tunnels.iter_mut().enumerate() {
            tunnel.write_all(&pattern(3000, number)).await.unwrap();
        }
        connector.cut().await;
        for (number, tunnel) in tunnels.iter_mut().enumerate() {
            let mut echoed = vec![0; 3000];
            tunnel.read_exact(&mut echoed).await.unwrap();
            assert!(echoed == pattern(3000, number));
        }
    };
    within("echoes", everything).await;
    for _ in 1000..limits::MAX_TUNNELS {
        tunnels.push(open(&*network, port).await);
    }
    let refused = network.open(TunnelTarget::loopback(port)).await;
    assert!(matches!(refused, Err(TunnelError::Host(_))), "{refused:?}");
    tunnels.pop();
    drop(open(&*network, port).await);
}

#[tokio::test]
async fn slow_reader_does_not_block_other_tunnels() {
    let client = CutConnector::new(TTL).connect_client().await;
    let network = client.environment().network;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    // Nobody reads these, at either end.
    let mut stalled = Vec::new();
    for _ in 0..70 {
        let tunnel = open(&*network, port).await;
        let (stream, _) = listener.accept().await.unwrap();
        let (reader, mut writer) = split(tunnel);
        let (far_reader, mut far_writer) = stream.into_split();
        let flood = tokio::spawn(async move {
            let data = vec![0; 1 << 20];
            tokio::join!(
                async { while writer.write_all(&data).await.is_ok() {} },
                async { while far_writer.write_all(&data).await.is_ok() {} },
            );
        });
        stalled.push((reader, far_reader, flood.abort_handle()));
    }
    let mut tunnel = open(&*network, echo_server().await.port()).await;
    for number in 0..30 {
        let data = pattern(20_000, number);
        tunnel.write_all(&data).await.unwrap();
        let mut echoed = vec![0; data.len()];
        within("echo", tunnel.read_exact(&mut echoed))
            .await
            .unwrap();
        assert!(echoed == data);
    }
    stalled.iter().for_each(|(_, _, flood)| flood.abort());
}
