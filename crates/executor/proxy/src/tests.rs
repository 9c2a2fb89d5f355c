//! Proxy and bridge over real loopback sockets, with a fake connector: names have the addresses
//! that a test defines, and every address leads to the loopback.

mod decisions;
mod http;
mod lifetime;
mod socks;

use std::{
    collections::HashMap,
    io,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::{Arc, Mutex},
    time::Duration,
};

use exec_env::environment::NetworkPolicyHook;
use exec_wire::{
    id::ProcessId,
    network::{NetworkDecision, NetworkDestination, NetworkProxy, PolicyDecision},
};
use futures_util::future::BoxFuture;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::mpsc,
};

use crate::{
    limits::ProxyLimits,
    policy_gate::Connector,
    proxy::{ProxyConfig, ProxyListeners, ProxyServer, check_settings},
};

/// A public address.
const PUBLIC: IpAddr = IpAddr::V4(Ipv4Addr::new(93, 184, 216, 34));

/// A running proxy with its fixtures.
#[derive(Debug)]
struct TestProxy {
    _proxy: ProxyServer,
    http: SocketAddr,
    socks: SocketAddr,
    connector: Arc<FakeConnector>,
    records: mpsc::UnboundedReceiver<PolicyDecision>,
}

impl TestProxy {
    /// Waits for the next decision record.
    async fn record(&mut self) -> PolicyDecision {
        with_timeout(self.records.recv()).await.unwrap()
    }

    /// Returns whether all records were consumed.
    fn has_no_records(&mut self) -> bool {
        self.records.try_recv().is_err()
    }

    /// Connects to the HTTP port and sends `text`.
    async fn send_http(&self, text: &str) -> TcpStream {
        let mut stream = TcpStream::connect(self.http).await.unwrap();
        stream.write_all(text.as_bytes()).await.unwrap();
        stream
    }

    /// Sends `text` to the HTTP port and returns the whole response.
    async fn request_http(&self, text: &str) -> String {
        let mut stream = self.send_http(text).await;
        read_all(&mut stream).await
    }
}

/// Decides about a destination.
type Decider = fn(NetworkDestination) -> BoxFuture<'static, NetworkDecision>;

/// Configuration of a test proxy.
#[derive(Clone, Debug)]
struct TestProxyBuilder {
    settings: Value,
    limits: ProxyLimits,
    decider: Decider,
    names: HashMap<String, Vec<IpAddr>>,
}

impl TestProxyBuilder {
    /// Allows `allowed.test` with a public address, and its subdomains.
    fn new() -> Self {
        let settings = json!({"proxy": {
            "enabled": true, "enableSocks5": true, "enableSocks5Udp": true,
            "allowUpstreamProxy": false, "dangerouslyAllowAllUnixSockets": false,
            "allowLocalBinding": false, "mode": "full",
            "domains": {"**.allowed.test": "allow", "denied.test": "deny", "8.8.8.8": "allow",
                "2606:4700::1111": "allow"},
        }});
        let limits = ProxyLimits {
            decision_grace: Duration::ZERO,
            ..ProxyLimits::default()
        };
        let decider: Decider = |_| panic!("decider must not be called");
        Self {
            settings,
            limits,
            decider,
            names: HashMap::new(),
        }
        .with_host("allowed.test", &[PUBLIC])
    }

    fn with_setting(mut self, member: &str, value: Value) -> Self {
        self.settings["proxy"][member] = value;
        self
    }

    fn with_host(mut self, name: &str, addresses: &[IpAddr]) -> Self {
        self.names.insert(name.to_owned(), addresses.to_vec());
        self
    }

    /// Calls `decider` for undecided hosts.
    fn with_decider(mut self, decider: Decider) -> Self {
        self.settings["policyDecisionTimeoutMs"] = json!(5000);
        self.decider = decider;
        self
    }

    fn start(self) -> TestProxy {
        let settings: NetworkProxy = serde_json::from_value(self.settings).unwrap();
        let settings = check_settings(&settings).unwrap();
        let listeners = ProxyListeners::on_loopback(&settings).unwrap();
        let at = |port: u16| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let http = at(listeners.http_port().unwrap());
        let socks = at(listeners.socks_port().unwrap().unwrap_or(0));
        let (sender, records) = mpsc::unbounded_channel();
        let connector = Arc::new(FakeConnector {
            names: self.names,
            lookups: Mutex::default(),
            connects: Mutex::default(),
        });
        let config = ProxyConfig {
            settings,
            process_id: ProcessId::new("p1").unwrap(),
            policy_hook: Some(Arc::new(RecordingPolicyHook {
                decider: self.decider,
                records: sender,
            })),
            connector: connector.clone(),
            limits: self.limits,
        };
        TestProxy {
            _proxy: ProxyServer::start(config, listeners).unwrap(),
            http,
            socks,
            connector,
            records,
        }
    }
}

/// Connects every address to the loopback.
#[derive(Debug)]
struct FakeConnector {
    names: HashMap<String, Vec<IpAddr>>,
    lookups: Mutex<Vec<String>>,
    connects: Mutex<Vec<SocketAddr>>,
}

impl FakeConnector {
    fn lookups(&self) -> Vec<String> {
        self.lookups.lock().unwrap().clone()
    }

    fn connects(&self) -> Vec<SocketAddr> {
        self.connects.lock().unwrap().clone()
    }
}

impl Connector for FakeConnector {
    fn resolve(&self, name: &str) -> BoxFuture<'static, io::Result<Vec<IpAddr>>> {
        self.lookups.lock().unwrap().push(name.to_owned());
        let addresses = self.names.get(name).cloned();
        Box::pin(async move { addresses.ok_or_else(|| io::ErrorKind::NotFound.into()) })
    }

    fn connect(&self, address: SocketAddr) -> BoxFuture<'static, io::Result<TcpStream>> {
        self.connects.lock().unwrap().push(address);
        Box::pin(TcpStream::connect((Ipv4Addr::LOCALHOST, address.port())))
    }
}

#[derive(Debug)]
struct RecordingPolicyHook {
    decider: Decider,
    records: mpsc::UnboundedSender<PolicyDecision>,
}

impl NetworkPolicyHook for RecordingPolicyHook {
    fn decide(&self, destination: NetworkDestination) -> BoxFuture<'static, NetworkDecision> {
        (self.decider)(destination)
    }

    fn record(&self, decision: PolicyDecision) {
        // The test may have ended already.
        drop(self.records.send(decision));
    }
}

/// A loopback server.
#[derive(Debug)]
struct TestServer {
    listener: TcpListener,
    port: u16,
}

impl TestServer {
    async fn start() -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        Self { listener, port }
    }

    async fn accept(&self) -> TcpStream {
        with_timeout(self.listener.accept()).await.unwrap().0
    }

    /// Accepts a connection and reads a head.
    async fn request(&self) -> (String, TcpStream) {
        let mut stream = self.accept().await;
        (read_until(&mut stream, "\r\n\r\n").await, stream)
    }
}

/// Limits every wait of a test.
async fn with_timeout<F: Future>(future: F) -> F::Output {
    let limit = Duration::from_secs(20);
    tokio::time::timeout(limit, future)
        .await
        .expect("test timed out")
}

async fn read_all(stream: &mut TcpStream) -> String {
    let mut text = String::new();
    with_timeout(stream.read_to_string(&mut text))
        .await
        .unwrap();
    text
}

async fn read_exact(stream: &mut TcpStream, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    with_timeout(stream.read_exact(&mut bytes)).await.unwrap();
    bytes
}

/// Reads byte by byte, to leave everything after `end` unread.
async fn read_until(stream: &mut TcpStream, end: &str) -> String {
    let mut text = String::new();
    while !text.ends_with(end) {
        let byte = read_exact(stream, 1).await;
        text.push(char::from(byte[0]));
    }
    text
}
