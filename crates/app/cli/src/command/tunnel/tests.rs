//! Forwards between sockets of this machine and a scripted network.

use std::{io, sync::Arc, time::Duration};

use exec_env::{environment::DisconnectReason, tunnel::TunnelError};
use exec_test_support::{
    bounded_wait,
    fake_network::{FakeNetwork, listening_port, shared},
};
use exec_wire::id::ProcessId;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    time::Instant,
};

use crate::command::{
    failure::FailureKind,
    tunnel::{
        TunnelSpec,
        port_forward::{
            ForwardNotice, ForwardSet, ForwardedPort, LocalForward, NoticeReceiver, ReverseForward,
        },
        port_watcher::{PortWatcher, ProcessHost},
    },
};

async fn within<F: Future>(future: F) -> F::Output {
    bounded_wait::within("step of a forward", future).await
}

fn spec(text: &str) -> TunnelSpec {
    text.parse().unwrap()
}

fn web() -> ProcessId {
    ProcessId::new("web").unwrap()
}

/// A forward to a scripted network.
struct Forwarding {
    network: Arc<FakeNetwork>,
    set: ForwardSet,
    notices: NoticeReceiver,
}

impl Forwarding {
    fn new() -> Self {
        let network = Arc::new(FakeNetwork::default());
        let (set, notices) = ForwardSet::new(shared(&network));
        Self {
            network,
            set,
            notices,
        }
    }

    /// Forwards a free port, and connects to it.
    async fn connect(&mut self, text: &str) -> TcpStream {
        let forward = LocalForward::bind(&spec(text), None, Some(web())).unwrap();
        let address = forward.address();
        self.set.forward(forward);
        TcpStream::connect(address).await.unwrap()
    }

    fn watch(&mut self, host: ProcessHost) {
        let watcher = PortWatcher {
            process: web(),
            bind: None,
            host,
        };
        let watching = watcher.run(self.set.context());
        self.set.spawn(watching);
    }

    async fn notice(&mut self) -> ForwardNotice {
        within(self.notices.recv()).await.unwrap()
    }

    async fn opened(&mut self) -> ForwardedPort {
        match self.notice().await {
            ForwardNotice::Opened(opened) => opened,
            ForwardNotice::Problem(problem) => panic!("{problem}"),
        }
    }
}

#[tokio::test]
async fn bytes_and_half_close_pass_in_both_directions() {
    let mut forwarding = Forwarding::new();
    let mut local = forwarding.connect("0:db:5432").await;
    let (target, mut far) = within(forwarding.network.next_opened()).await;
    assert_eq!(target.host.unwrap().as_str(), "db");
    assert_eq!((target.port, target.process), (5432, Some(web())));
    local.write_all(b"question").await.unwrap();
    local.shutdown().await.unwrap();
    let mut read = Vec::new();
    within(far.read_to_end(&mut read)).await.unwrap();
    assert_eq!(read, b"question");
    // The other direction is still open.
    far.write_all(b"answer").await.unwrap();
    far.shutdown().await.unwrap();
    let mut read = Vec::new();
    within(local.read_to_end(&mut read)).await.unwrap();
    assert_eq!(read, b"answer");
}

#[tokio::test]
async fn refused_connection_is_reset_and_reported_once_until_one_succeeds() {
    let mut forwarding = Forwarding::new();
    let refused = TunnelError::Host("connection refused".to_owned());
    let forward = LocalForward::bind(&spec("0:3000"), None, None).unwrap();
    let address = forward.address();
    forwarding.set.forward(forward);
    let problem = ForwardNotice::Problem("localhost:3000: connection refused".to_owned());
    for _ in 0..2 {
        forwarding.network.refuse(Some(refused.clone()));
        for _ in 0..2 {
            let mut local = TcpStream::connect(address).await.unwrap();
            let ended = within(local.read(&mut [0])).await;
            let ended = ended.unwrap_err().kind();
            assert_eq!(ended, io::ErrorKind::ConnectionReset);
        }
        assert_eq!(forwarding.notice().await, problem);
        assert!(forwarding.notices.try_recv().is_err());
        forwarding.network.refuse(None);
        let local = TcpStream::connect(address).await.unwrap();
        within(forwarding.network.next_opened()).await;
        drop(local);
    }
}

#[tokio::test]
async fn port_in_use_is_replaced_unless_it_was_named() {
    let taken = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = taken.local_addr().unwrap().port();
    let other = LocalForward::bind(&spec(&port.to_string()), None, None).unwrap();
    assert_ne!(other.address().port(), port);
    assert!(other.address().ip().is_loopback());
    let named = spec(&format!("{port}:{port}"));
    let failure = LocalForward::bind(&named, None, None).unwrap_err();
    assert_eq!(failure.kind, FailureKind::Failed);
    let text = failure.to_string();
    assert!(text.contains(&format!("127.0.0.1:{port}")), "{text}");
    assert!(text.contains(&format!("`0:{port}`")), "{text}");
    let elsewhere = LocalForward::bind(&spec("192.0.2.1:0:80"), None, None).unwrap_err();
    assert!(elsewhere.to_string().contains("--bind"), "{elsewhere}");
}

#[tokio::test]
async fn reverse_forward_connects_from_this_machine() {
    let mut forwarding = Forwarding::new();
    let service = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = service.local_addr().unwrap().port();
    let spec = spec(&format!("0.0.0.0:0:localhost:{port}"));
    let reverse = ReverseForward::bind(&spec, Some(web()), &*forwarding.network);
    forwarding.set.reverse(reverse.await.unwrap());
    let target = within(forwarding.network.listening(0)).await;
    assert_eq!(target.host.unwrap().as_str(), "0.0.0.0");
    assert_eq!((target.port, target.process), (0, Some(web())));
    let mut far = forwarding.network.connect(0).unwrap();
    let (mut local, _) = within(service.accept()).await.unwrap();
    far.write_all(b"x").await.unwrap();
    within(local.read_exact(&mut [0])).await.unwrap();
    // Nobody listens any more.
    drop((service, local));
    let mut far = forwarding.network.connect(0).unwrap();
    assert_eq!(within(far.read(&mut [0])).await.unwrap(), 0);
    let refused = forwarding.notice().await.to_string();
    assert!(refused.contains("refused"), "{refused}");
}

#[tokio::test]
async fn drain_stops_listening_and_closes_what_remains() {
    let mut forwarding = Forwarding::new();
    let mut local = forwarding.connect("0:3000").await;
    let address = local.peer_addr().unwrap();
    let (_, mut far) = within(forwarding.network.next_opened()).await;
    far.write_all(b"late").await.unwrap();
    let Forwarding { set, .. } = forwarding;
    let drained = tokio::spawn(set.drain());
    let mut read = [0; 4];
    within(local.read_exact(&mut read)).await.unwrap();
    assert_eq!(&read, b"late");
    within(drained).await.unwrap();
    let refused = TcpStream::connect(address).await.unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
    assert_eq!(within(far.read(&mut [0])).await.unwrap(), 0);
    // The far end had not ended, so this is not the end of its data.
    let broken = within(local.read(&mut read)).await.unwrap_err();
    assert_eq!(broken.kind(), io::ErrorKind::ConnectionReset);
}

#[tokio::test(start_paused = true)]
async fn new_ports_of_the_process_are_forwarded_within_a_second() {
    let mut forwarding = Forwarding::new();
    forwarding.watch(ProcessHost::Remote);
    // It is idle for an hour, which costs little.
    tokio::time::sleep(Duration::from_secs(3600)).await;
    let requests = forwarding.network.port_requests();
    assert!((3600..6000).contains(&requests), "{requests}");
    let before = Instant::now();
    forwarding.network.set_ports(Ok(vec![
        listening_port(41_001, "127.0.0.1", "other"),
        listening_port(41_002, "0.0.0.0", "web"),
        listening_port(41_002, "::", "web"),
        listening_port(41_003, "::1", "web"),
    ]));
    let first = forwarding.opened().await;
    let second = forwarding.opened().await;
    assert!(before.elapsed() < Duration::from_secs(1));
    assert_eq!((first.port, second.port), (41_002, 41_003));
    // The port stays when the program restarts, and is not announced again.
    forwarding.network.set_ports(Ok(Vec::new()));
    tokio::time::sleep(Duration::from_secs(5)).await;
    let ports = vec![listening_port(41_002, "0.0.0.0", "web")];
    forwarding.network.set_ports(Ok(ports));
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert!(forwarding.notices.try_recv().is_err());
    tokio::time::resume();
    for (port, host) in [(first, None), (second, Some("::1"))] {
        let local = TcpStream::connect(port.address).await.unwrap();
        let (target, _) = within(forwarding.network.next_opened()).await;
        assert_eq!(target.host.as_ref().map(|host| host.as_str()), host);
        assert_eq!((target.port, target.process), (port.port, Some(web())));
        drop(local);
    }
}

#[tokio::test(start_paused = true)]
async fn port_of_this_machine_is_announced_without_a_tunnel() {
    let mut forwarding = Forwarding::new();
    let ports = vec![listening_port(41_010, "127.0.0.5", "web")];
    forwarding.network.set_ports(Ok(ports));
    forwarding.watch(ProcessHost::Here);
    let opened = forwarding.opened().await;
    assert_eq!(opened.address, "127.0.0.5:41010".parse().unwrap());
    assert!(TcpStream::connect(opened.address).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn watcher_outlives_failed_requests_and_ends_with_the_session() {
    let mut forwarding = Forwarding::new();
    let failed = TunnelError::Host("too many open files".to_owned());
    forwarding.network.set_ports(Err(failed));
    forwarding.watch(ProcessHost::Remote);
    tokio::time::sleep(Duration::from_secs(60)).await;
    let ports = vec![listening_port(41_020, "127.0.0.1", "web")];
    forwarding.network.set_ports(Ok(ports));
    assert_eq!(forwarding.opened().await.port, 41_020);
    let lost = TunnelError::Disconnected(DisconnectReason::Session("expired".to_owned()));
    forwarding.network.set_ports(Err(lost.clone()));
    assert_eq!(within(forwarding.set.failed()).await, lost);
}
