//! A broker and three nodes, each of which can fail like a machine without power.

use std::{net::SocketAddr, path::Path, process::Stdio, sync::Arc, time::Duration};

use exec_hub::{
    config::HubConfig,
    hub::Hub,
    nats::NatsConfig,
    principal::{EnvironmentGlobs, RoleSet},
    store::Timestamp,
    tokens::{self, NewToken},
};
use exec_registry::{
    credentials::{FixedCredentials, RegistryToken},
    http::{BaseUrl, HttpClient},
    registry::RegistryClient,
};
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt as _, BufReader, copy_bidirectional},
    net::{TcpListener, TcpStream},
    process::{Child, Command},
    runtime::{Builder, Runtime},
    task::JoinSet,
    time::timeout,
};

/// Longer than anything here takes.
pub(crate) const TEST_TIMEOUT: Duration = Duration::from_secs(60);

pub(crate) struct Cluster {
    pub(crate) nodes: Vec<Node>,
    token: String,
    _broker: Child,
    _directory: TempDir,
}

impl Cluster {
    pub(crate) async fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let (broker, url) = broker(&directory.path().join("broker")).await;
        let token_file = directory.path().join("tokens.toml");
        let new = NewToken {
            principal: "alice".parse().unwrap(),
            roles: RoleSet::default(),
            environments: EnvironmentGlobs::default(),
            expires_at: None,
        };
        let (_, token) = tokens::create(&token_file, new, Timestamp::now()).unwrap();
        let mut nodes = Vec::new();
        for name in ["one", "two", "three"] {
            let anywhere = SocketAddr::from(([127, 0, 0, 1], 0));
            nodes.push(
                Node::start(HubConfig {
                    token_file: Some(token_file.clone()),
                    nats: Some(NatsConfig::new(url.parse().unwrap(), name.parse().unwrap())),
                    ..HubConfig::new(anywhere, directory.path().join(name))
                })
                .await,
            );
        }
        Self {
            nodes,
            token: token.expose().to_owned(),
            _broker: broker,
            _directory: directory,
        }
    }

    /// Starts a TCP proxy that tries the nodes in this order.
    pub(crate) async fn proxy(&self, order: [usize; 3]) -> NodeProxy {
        NodeProxy::open(order.map(|index| self.nodes[index].address)).await
    }

    /// Returns a client of the registry behind a proxy.
    pub(crate) fn registry(&self, proxy: &NodeProxy) -> RegistryClient {
        let token = FixedCredentials::registry_token(&RegistryToken::new(&self.token).unwrap());
        let base = BaseUrl::parse(&proxy.url()).unwrap();
        RegistryClient::new(base, Arc::new(token), HttpClient::without_tls().unwrap()).unwrap()
    }
}

/// A hub with its own runtime, which dies with it.
pub(crate) struct Node {
    pub(crate) address: SocketAddr,
    hub: Option<Hub>,
    runtime: Option<Runtime>,
}

impl Node {
    async fn start(config: HubConfig) -> Self {
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let hub = runtime.spawn(Hub::start(config)).await.unwrap().unwrap();
        Self {
            address: hub.address(),
            hub: Some(hub),
            runtime: Some(runtime),
        }
    }

    /// Simulates a power failure, without any notification.
    pub(crate) fn kill(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // A runtime must not be shut down within async code.
            let stop = std::thread::spawn(move || runtime.shutdown_timeout(TEST_TIMEOUT));
            stop.join().unwrap();
        }
    }

    /// Shuts it down gracefully.
    pub(crate) async fn stop(&mut self) {
        if let (Some(hub), Some(runtime)) = (self.hub.take(), &self.runtime) {
            runtime.spawn(hub.stop()).await.unwrap();
        }
        self.kill();
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.kill();
    }
}

async fn broker(directory: &Path) -> (Child, String) {
    // Debian installs it outside the default PATH.
    let debian = Path::new("/usr/sbin/nats-server");
    let program = if debian.exists() {
        debian
    } else {
        Path::new("nats-server")
    };
    let mut child = Command::new(program)
        .args(["-a", "127.0.0.1", "-p", "-1", "-js", "-sd"])
        .arg(directory)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut log = BufReader::new(child.stderr.take().unwrap()).lines();
    let listening = async {
        loop {
            let line = log.next_line().await.unwrap().unwrap();
            if let Some((_, address)) = line.split_once("client connections on ") {
                return format!("nats://{address}");
            }
        }
    };
    let url = timeout(TEST_TIMEOUT, listening).await.unwrap();
    // Drain its output, so that it never blocks on it.
    tokio::spawn(async move { while let Ok(Some(_)) = log.next_line().await {} });
    (child, url)
}

pub(crate) struct NodeProxy {
    address: SocketAddr,
    _task: JoinSet<()>,
}

impl NodeProxy {
    pub(crate) async fn open(nodes: [SocketAddr; 3]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut task = JoinSet::new();
        task.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                connections.spawn(pass(client, nodes));
            }
        });
        Self {
            address,
            _task: task,
        }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }
}

async fn pass(mut client: TcpStream, nodes: [SocketAddr; 3]) {
    for node in nodes {
        if let Ok(mut node) = TcpStream::connect(node).await {
            client.set_nodelay(true).unwrap();
            node.set_nodelay(true).unwrap();
            // Either end may disconnect; the other then sees the end.
            let ended = copy_bidirectional(&mut client, &mut node).await;
            drop(ended);
            return;
        }
    }
}
