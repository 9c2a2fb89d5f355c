//! Hubs, executors, a NATS server and a load balancer, for subjects that are reached through a hub.

use std::{
    net::SocketAddr,
    path::Path,
    process::Stdio,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use exec_client::connect::RelayExecServerConnectArgs;
use serde_json::Value;
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt, BufReader, copy_bidirectional},
    net::{TcpListener, TcpStream},
    process::{Child, Command},
    task::{AbortHandle, JoinSet},
    time::sleep,
};

use crate::{
    bounded_wait::within,
    server::{self, executable},
    subject::HOST_ENVIRONMENT,
};

/// The environment that executors offer.
pub const ENVIRONMENT: &str = "conformance";

/// A hub on a free port, with a store of its own. It is killed when it is dropped.
#[derive(Debug)]
pub struct Hub {
    /// Its registry, as it printed it.
    pub url: String,
    /// A token for all that is done here.
    pub token: String,
    _child: Child,
    _data: TempDir,
}

impl Hub {
    /// Starts a hub.
    pub async fn start() -> Self {
        let data = server::home();
        let token = token(&data).await;
        let (child, url) = Self::node(&data, &["--listen", "127.0.0.1:0"]).await;
        Self {
            url,
            token,
            _child: child,
            _data: data,
        }
    }

    /// Starts one hub with these flags on a data directory; returns it and its URL.
    pub async fn node(data: &TempDir, flags: &[&str]) -> (Child, String) {
        let mut child = clean(Command::new(executable()))
            .arg("hub")
            .args(flags)
            .arg("--data-dir")
            .arg(data.path())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the hub starts");
        let url = first_line("the hub prints its URL", &mut child).await;
        (child, url)
    }

    /// Starts our executor and waits until it is there.
    pub async fn executor(&self) -> Executor {
        Executor::start(&self.url, &self.token, ENVIRONMENT).await
    }

    /// What connects to the environment.
    pub fn args(&self) -> RelayExecServerConnectArgs {
        RelayExecServerConnectArgs::new(&self.url, ENVIRONMENT, &self.token, "conformance")
    }
}

/// An executor of ours. It is killed when it is dropped.
#[derive(Debug)]
pub struct Executor {
    /// The process.
    pub child: Child,
    _home: TempDir,
}

impl Executor {
    /// Starts an executor and waits for the line that says that it is there.
    pub async fn start(registry: &str, token: &str, environment: &str) -> Self {
        let home = server::home();
        let mut child = clean(Command::new(executable()))
            .args(["--remote", registry, "--environment-id", environment])
            .envs(HOST_ENVIRONMENT)
            .env("HOME", home.path())
            .env("EXEC_SERVER_REMOTE_TOKEN", token)
            .stdout(Stdio::piped())
            .spawn()
            .expect("the executor starts");
        first_line("the executor is online", &mut child).await;
        Self { child, _home: home }
    }
}

/// Makes a token that may do everything, in the token file of a data directory.
pub async fn token(data: &TempDir) -> String {
    let made = clean(Command::new(executable()))
        .args(["hub", "token", "create", "--name", "conformance"])
        .args(["--role", "executor", "--role", "harness", "--role", "admin"])
        .arg("--data-dir")
        .arg(data.path())
        .output()
        .await
        .expect("the program runs");
    assert!(made.status.success(), "{made:?}");
    let text = String::from_utf8(made.stdout).expect("a token is text");
    let token = text.lines().last().expect("a token is printed");
    token.trim().to_owned()
}

fn clean(mut command: Command) -> Command {
    command
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .stdin(Stdio::null())
        .kill_on_drop(true);
    command
}

/// Waits for the first line that a child prints.
pub async fn first_line(what: &str, child: &mut Child) -> String {
    let mut lines = BufReader::new(child.stdout.take().expect("stdout is piped")).lines();
    let line = within(what, lines.next_line()).await;
    line.expect("stdout can be read").expect("one line comes")
}

/// The server. It is killed when it is dropped.
#[derive(Debug)]
pub struct Nats {
    /// Where it listens.
    pub url: String,
    _child: Child,
    _data: TempDir,
}

impl Nats {
    /// Starts a server on a free port and waits until it is ready.
    pub async fn start() -> Self {
        let data = tempfile::tempdir().expect("a temporary directory can be made");
        let child = Command::new(nats_program())
            .args(["--addr", "127.0.0.1", "--port", "-1", "--jetstream"])
            .arg("--store_dir")
            .arg(data.path().join("store"))
            .arg("--ports_file_dir")
            .arg(data.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .expect("nats-server is installed and starts");
        let url = within("nats-server tells its port", nats_url(data.path())).await;
        Self {
            url,
            _child: child,
            _data: data,
        }
    }
}

/// Debian puts it where only administrators look.
fn nats_program() -> &'static str {
    let there = "/usr/sbin/nats-server";
    if Path::new(there).exists() {
        there
    } else {
        "nats-server"
    }
}

/// Waits for the file in which the server writes its URLs when it is ready.
async fn nats_url(directory: &Path) -> String {
    loop {
        let files = std::fs::read_dir(directory).into_iter().flatten().flatten();
        let ports = files
            .map(|file| file.path())
            .filter(|path| path.extension().is_some_and(|kind| kind == "ports"))
            .find_map(|path| serde_json::from_slice::<Value>(&std::fs::read(path).ok()?).ok());
        if let Some(url) = ports.and_then(|ports| Some(ports["nats"][0].as_str()?.to_owned())) {
            return url;
        }
        // The server signals nothing else; a watch on the directory would see half of the file.
        sleep(Duration::from_millis(20)).await;
    }
}

/// The balancer. Dropping it cuts everything.
#[derive(Debug)]
pub struct Balancer {
    address: SocketAddr,
    accepting: AbortHandle,
}

impl Balancer {
    /// Spreads connections over `nodes`, in turns.
    pub async fn start(nodes: Vec<SocketAddr>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("a bound address");
        let accepting = tokio::spawn(accept(listener, nodes.into())).abort_handle();
        Self { address, accepting }
    }

    /// The registry behind it.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }
}

impl Drop for Balancer {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn accept(listener: TcpListener, nodes: Arc<[SocketAddr]>) {
    let turn = Arc::new(AtomicUsize::new(0));
    let mut connections = JoinSet::new();
    while let Ok((client, _)) = listener.accept().await {
        connections.spawn(forward(client, Arc::clone(&nodes), Arc::clone(&turn)));
        while connections.try_join_next().is_some() {}
    }
}

async fn forward(mut client: TcpStream, nodes: Arc<[SocketAddr]>, turn: Arc<AtomicUsize>) {
    for _ in 0..nodes.len() {
        let node = nodes[turn.fetch_add(1, Ordering::Relaxed) % nodes.len()];
        if let Ok(mut server) = TcpStream::connect(node).await {
            drop((client.set_nodelay(true), server.set_nodelay(true)));
            // However it ends, both are closed then.
            drop(copy_bidirectional(&mut client, &mut server).await);
            return;
        }
    }
}
