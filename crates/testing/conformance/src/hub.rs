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
use exec_test_support::workspace_program::workspace_program;
use serde_json::Value;
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt, BufReader, copy_bidirectional},
    net::{TcpListener, TcpStream},
    process::{Child, Command},
    task::{AbortHandle, JoinSet},
    time::sleep,
};

use crate::{bounded_wait::within, server, subject::HOST_ENVIRONMENT};

/// Environment id of the executors.
pub const ENVIRONMENT: &str = "conformance";

/// Hub on a free port with its own data directory. Dropping it kills the process.
#[derive(Debug)]
pub struct Hub {
    /// Registry URL that the hub printed.
    pub url: String,
    /// Token with all roles.
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

    /// Starts a hub node with these flags on a data directory, and returns it with its URL.
    pub async fn node(data: &TempDir, flags: &[&str]) -> (Child, String) {
        let mut child = clean(Command::new(workspace_program("exec-server")))
            .arg("hub")
            .args(flags)
            .arg("--data-dir")
            .arg(data.path())
            .stdout(Stdio::piped())
            .spawn()
            .expect("failed to start the hub");
        let url = first_line("the hub prints its URL", &mut child).await;
        (child, url)
    }

    /// Starts our executor and waits until it is online.
    pub async fn executor(&self) -> Executor {
        Executor::start(&self.url, &self.token, ENVIRONMENT).await
    }

    /// Returns the arguments for connecting to the environment.
    pub fn args(&self) -> RelayExecServerConnectArgs {
        RelayExecServerConnectArgs::new(&self.url, ENVIRONMENT, &self.token, "conformance")
    }
}

/// Our executor as a child process. Dropping it kills the process.
#[derive(Debug)]
pub struct Executor {
    /// Child process.
    pub child: Child,
    _home: TempDir,
}

impl Executor {
    /// Starts an executor and waits until it prints that it is online.
    pub async fn start(registry: &str, token: &str, environment: &str) -> Self {
        let home = server::home();
        let mut child = clean(Command::new(workspace_program("exec-server")))
            .args(["--remote", registry, "--environment-id", environment])
            .envs(HOST_ENVIRONMENT)
            .env("HOME", home.path())
            .env("EXEC_SERVER_REMOTE_TOKEN", token)
            .stdout(Stdio::piped())
            .spawn()
            .expect("failed to start the executor");
        first_line("executor is online", &mut child).await;
        Self { child, _home: home }
    }
}

/// Creates a token with all roles in the token file of a data directory.
pub async fn token(data: &TempDir) -> String {
    let made = clean(Command::new(workspace_program("exec-server")))
        .args(["hub", "token", "create", "--name", "conformance"])
        .args(["--role", "executor", "--role", "harness", "--role", "admin"])
        .arg("--data-dir")
        .arg(data.path())
        .output()
        .await
        .expect("failed to run exec-server");
    assert!(made.status.success(), "{made:?}");
    let text = String::from_utf8(made.stdout).expect("token is not UTF-8");
    let token = text.lines().last().expect("no token was printed");
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

/// Waits for the first line of a child's stdout.
pub async fn first_line(what: &str, child: &mut Child) -> String {
    let mut lines = BufReader::new(child.stdout.take().expect("stdout is not piped")).lines();
    let line = within(what, lines.next_line()).await;
    line.expect("failed to read stdout")
        .expect("stdout closed without a line")
}

/// NATS server with JetStream as a child process. Dropping it kills the process.
#[derive(Debug)]
pub struct NatsServer {
    /// URL of the server.
    pub url: String,
    _child: Child,
    _data: TempDir,
}

impl NatsServer {
    /// Starts a server on a free port and waits until it is ready.
    pub async fn start() -> Self {
        let data = tempfile::tempdir().expect("failed to create a temporary directory");
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
            .expect("failed to start nats-server; is it installed?");
        let url = within("nats-server writes its ports file", nats_url(data.path())).await;
        Self {
            url,
            _child: child,
            _data: data,
        }
    }
}

/// Debian installs it in `/usr/sbin`, which may not be in `PATH`.
fn nats_program() -> &'static str {
    let there = "/usr/sbin/nats-server";
    if Path::new(there).exists() {
        there
    } else {
        "nats-server"
    }
}

/// Waits for the file into which the server writes its URLs once it is ready.
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
        // The ports file is the only readiness signal, and an inotify watch could see it
        // half-written.
        sleep(Duration::from_millis(20)).await;
    }
}

/// TCP load balancer in front of several hub nodes. Forwards each connection to the next node that
/// accepts it, without looking at the bytes. Dropping it closes every connection.
#[derive(Debug)]
pub struct LoadBalancer {
    address: SocketAddr,
    accepting: AbortHandle,
}

impl LoadBalancer {
    /// Distributes connections over `nodes` round-robin.
    pub async fn start(nodes: Vec<SocketAddr>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0")
            .await
            .expect("failed to bind a loopback port");
        let address = listener
            .local_addr()
            .expect("failed to read the local address");
        let accepting = tokio::spawn(accept(listener, nodes.into())).abort_handle();
        Self { address, accepting }
    }

    /// Returns the registry URL of the nodes behind the balancer.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }
}

impl Drop for LoadBalancer {
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
            // Both sockets close here, with or without an error.
            drop(copy_bidirectional(&mut client, &mut server).await);
            return;
        }
    }
}
