//! Tests with real processes and sockets. The module `reach` also runs as an unprivileged account.

mod policy;
mod ports;
mod reach;

use std::{
    collections::BTreeMap,
    io,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::Path,
    sync::{Arc, Mutex},
    time::Duration,
};

use exec_core::output_log::RetentionLimits;
use exec_env::{
    environment::{Command, CommandNetwork, ExecBackend},
    process::{ExecProcess, OutputReadRequest},
};
use exec_sandbox::SandboxSettings;
use exec_wire::{
    network::ManagedNetwork, path_uri::PathUri, process::TerminateMode, tunnel::TunnelHost,
};
use futures_util::future::BoxFuture;
use serde_json::json;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

use super::*;
use crate::{backend::LocalConfig, host::HostDescription};

/// An environment with its own processes.
struct TestMachine {
    backend: LocalBackend,
    network: LocalNetwork,
}

impl TestMachine {
    fn new() -> Self {
        let host = HostDescription::new(&crate::host::HostFacts {
            env: &BTreeMap::new(),
            passwd: "",
            uid: 0,
            cwd: Path::new("/"),
            exists: &|path: &Path| path.exists(),
        });
        let backend = LocalBackend::new(LocalConfig {
            env: BTreeMap::new(),
            host,
            version: "0.0.0".to_owned(),
            retention: RetentionLimits::default(),
            sandbox: SandboxSettings::default(),
        });
        let network = LocalNetwork::new(&backend);
        Self { backend, network }
    }

    /// As [`Self::new`], with names that lead to addresses without a resolver.
    fn with_names(names: &[(&str, &[IpAddr])]) -> (Self, Arc<RecordingConnector>) {
        let names = names
            .iter()
            .map(|(name, to)| ((*name).to_owned(), to.to_vec()));
        let connector = Arc::new(RecordingConnector {
            names: names.collect(),
            lookups: Mutex::default(),
            connects: Mutex::default(),
        });
        let mut machine = Self::new();
        machine.backend.connector = connector.clone();
        machine.network = LocalNetwork::new(&machine.backend);
        (machine, connector)
    }

    async fn start(&self, id: &str, argv: &[&str], confinement: Confinement) -> TestProcess {
        let cwd = PathUri::from_native(Path::new("/")).unwrap();
        let argv = argv.iter().map(|word| (*word).to_owned()).collect();
        let mut command = Command::new(ProcessId::new(id).unwrap(), argv, cwd);
        command.env.insert("PATH".into(), "/usr/bin:/bin".into());
        if matches!(confinement, Confinement::ClientProxy) {
            let proxy = "http://127.0.0.1:3128".to_owned();
            command.env.insert("HTTP_PROXY".into(), proxy);
        }
        (command.sandbox, command.network) = confinement.parts();
        let started = with_timeout(self.backend.start(command)).await.unwrap();
        TestProcess {
            process: started.process,
        }
    }

    async fn open(&self, target: TunnelTarget) -> Result<Box<dyn TunnelStream>, TunnelError> {
        with_timeout(self.network.open(target)).await
    }

    /// Opens a tunnel that is expected to fail, and returns why.
    async fn refusal(&self, target: TunnelTarget) -> String {
        self.open(target).await.unwrap_err().to_string()
    }

    /// Sends a text through a tunnel to an echo server, and expects it back with the end.
    async fn expect_echo(&self, target: TunnelTarget) {
        let mut stream = self.open(target).await.unwrap();
        let text = "through the tunnel";
        with_timeout(stream.write_all(text.as_bytes()))
            .await
            .unwrap();
        with_timeout(stream.shutdown()).await.unwrap();
        let mut echo = String::new();
        with_timeout(stream.read_to_string(&mut echo))
            .await
            .unwrap();
        assert_eq!(echo, text);
    }
}

/// A process that is killed at the end of its test.
struct TestProcess {
    process: Arc<dyn ExecProcess>,
}

impl TestProcess {
    /// Waits until the output has this number of lines, and returns them.
    async fn lines(&self, count: usize) -> Vec<String> {
        let mut text = String::new();
        let mut after = Default::default();
        while text.lines().count() < count || !text.ends_with('\n') {
            let read = OutputReadRequest {
                after,
                max_bytes: None,
                wait: Duration::from_secs(20),
            };
            let page = with_timeout(self.process.read(read)).await.unwrap();
            assert!(
                !page.chunks.is_empty() || !page.closed,
                "the output ends after: {text}"
            );
            after = page.exit_seq.unwrap_or(after);
            for chunk in page.chunks {
                after = chunk.seq;
                text.push_str(str::from_utf8(&chunk.data).unwrap());
            }
        }
        text.lines().map(str::to_owned).collect()
    }

    /// Waits until the output has a line with a port.
    async fn port(&self) -> u16 {
        let lines = self.lines(1).await;
        lines[0]
            .parse()
            .unwrap_or_else(|_| panic!("no port: {lines:?}"))
    }

    async fn kill(&self) {
        self.process.terminate(TerminateMode::Force).await.unwrap();
        let closed = self
            .process
            .wait(exec_wire::process::WaitUntil::Closed, None);
        with_timeout(closed).await.unwrap();
    }
}

/// What confines a command.
#[derive(Clone, Copy, Debug)]
enum Confinement {
    /// Nothing.
    Nothing,
    /// A sandbox whose network is its own loopback.
    OwnLoopback,
    /// A sandbox without network, which may not create sockets either.
    NoSockets,
    /// A sandbox whose network is managed by these settings.
    Managed(fn() -> serde_json::Value),
    /// A sandbox whose network is managed by a proxy of the client.
    ClientProxy,
}

impl Confinement {
    fn parts(self) -> (Option<Box<SandboxPolicy>>, CommandNetwork) {
        let mut network = CommandNetwork::default();
        match self {
            Self::Nothing => return (None, network),
            Self::OwnLoopback => {
                network.managed = Some(ManagedNetwork {
                    allow_local_binding: true,
                    ..ManagedNetwork::default()
                });
            }
            Self::NoSockets => {}
            Self::Managed(settings) => {
                network.proxy = Some(serde_json::from_value(settings()).unwrap());
            }
            Self::ClientProxy => {
                network.enforced = true;
                network.managed = Some(ManagedNetwork {
                    loopback_ports: vec![3128],
                    ..ManagedNetwork::default()
                });
            }
        }
        (Some(Box::new(policy("restricted"))), network)
    }
}

/// A policy that allows reading everything, with this network.
fn policy(network: &str) -> SandboxPolicy {
    let root = json!({"path": {"type": "special", "value": {"kind": "root"}}, "access": "read"});
    serde_json::from_value(json!({
        "permissions": {
            "type": "managed",
            "file_system": {"type": "restricted", "entries": [root]},
            "network": network,
        },
        "windowsSandboxLevel": "disabled",
    }))
    .unwrap()
}

/// A target on the loopback of a process.
fn in_process(id: &str, port: u16) -> TunnelTarget {
    TunnelTarget {
        process: Some(ProcessId::new(id).unwrap()),
        ..TunnelTarget::loopback(port)
    }
}

/// A target with a host of the environment.
fn at(host: &str, port: u16) -> TunnelTarget {
    TunnelTarget {
        host: Some(TunnelHost::new(host).unwrap()),
        ..TunnelTarget::loopback(port)
    }
}

/// An echo server on the loopback of its network, which prints its port.
const ECHO_SERVER: [&str; 3] = [
    "perl",
    "-e",
    r#"use Socket; $| = 1;
       socket(S, AF_INET, SOCK_STREAM, 0) or die "socket: $!\n";
       bind(S, pack_sockaddr_in(0, INADDR_LOOPBACK)) or die "bind: $!\n";
       listen(S, 64) or die "listen: $!\n";
       my ($port) = unpack_sockaddr_in(getsockname(S)); print "$port\n";
       while (accept(C, S)) { while (sysread(C, $b, 4096)) { syswrite(C, $b) } close C }"#,
];

/// Limits every wait of a test.
async fn with_timeout<F: Future>(future: F) -> F::Output {
    let limit = Duration::from_secs(30);
    tokio::time::timeout(limit, future)
        .await
        .expect("test timed out")
}

/// Knows names without a resolver, records what it is asked for, and connects to loopback only.
#[derive(Debug)]
struct RecordingConnector {
    names: BTreeMap<String, Vec<IpAddr>>,
    lookups: Mutex<Vec<String>>,
    connects: Mutex<Vec<SocketAddr>>,
}

impl RecordingConnector {
    /// Returns the names and addresses that were asked for since the last call.
    fn take(&self) -> (Vec<String>, Vec<SocketAddr>) {
        let lookups = std::mem::take(&mut *self.lookups.lock().unwrap());
        (lookups, std::mem::take(&mut *self.connects.lock().unwrap()))
    }
}

impl Connector for RecordingConnector {
    fn resolve(&self, name: &str) -> BoxFuture<'static, io::Result<Vec<IpAddr>>> {
        self.lookups.lock().unwrap().push(name.to_owned());
        let addresses = self.names.get(name).cloned();
        async move { addresses.ok_or_else(|| io::ErrorKind::NotFound.into()) }.boxed()
    }

    fn connect(&self, address: SocketAddr) -> BoxFuture<'static, io::Result<TcpStream>> {
        self.connects.lock().unwrap().push(address);
        TcpStream::connect((Ipv4Addr::LOCALHOST, address.port())).boxed()
    }
}
