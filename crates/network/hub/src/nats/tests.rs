//! Tests of several nodes in one process with a real NATS server.

mod circuits;
mod failures;
mod store;

use std::{
    path::Path,
    pin::Pin,
    process::Stdio,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use exec_relay::identity::{NoiseIdentity, NoisePublicKey};
use tempfile::TempDir;
use tokio::{
    io::{
        AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader, copy_bidirectional,
    },
    net::{TcpListener, TcpStream},
    process::{Child, Command},
    runtime::{Builder, Runtime},
    sync::watch,
    task::JoinHandle,
};

use super::{NatsConfig, NatsMesh};
use crate::{
    circuit::{
        Circuit, CircuitDialer as _, CloseReason, ClusterNode as _, DialError, DialRequest,
        HarnessTag,
    },
    executor_table::{ExecutorTable, TableAttachment},
    store::{
        ConnectionId, EnvironmentId, NewRegistration, Presence, Registration, RegistrationId,
        Store as _, Timestamp,
    },
};

/// Longer than anything here takes, even on a busy machine.
const TEST_TIMEOUT: Duration = Duration::from_secs(30);

/// A hub process without websockets. It has its own runtime, so that dropping a node simulates a
/// power failure without any notification.
struct Node {
    mesh: Arc<NatsMesh>,
    executor_table: Arc<ExecutorTable>,
    runtime: Option<Runtime>,
}

impl Drop for Node {
    fn drop(&mut self) {
        // Its tasks end before anything else is dropped, so that none can announce the shutdown.
        // Another thread waits, because a runtime must not be shut down within async code.
        if let Some(runtime) = self.runtime.take() {
            let stop = std::thread::spawn(move || runtime.shutdown_timeout(TEST_TIMEOUT));
            stop.join().unwrap();
        }
    }
}

/// An attached executor without its websocket.
struct Executor {
    attachment: TableAttachment,
    presence: Presence,
}

impl Node {
    async fn join(config: &NatsConfig) -> Self {
        let executor_table = Arc::new(ExecutorTable::default());
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let (config, shared) = (config.clone(), Arc::clone(&executor_table));
        let joined = runtime.spawn(async move { NatsMesh::join(&config, shared).await });
        let mesh = Arc::new(joined.await.unwrap().unwrap());
        Self {
            mesh,
            executor_table,
            runtime: Some(runtime),
        }
    }

    async fn register(&self, environment: &str) -> Registration {
        let new = new(environment, "alice", &key());
        self.mesh.store().register(new).await.unwrap()
    }

    /// Connects an executor to this node.
    async fn connect(&self, registration: &Registration) -> Executor {
        let presence = Presence {
            environment: registration.environment.clone(),
            registration: registration.id.clone(),
            node: self.mesh.name().clone(),
            connection: ConnectionId::generate(),
        };
        let attachment = self.executor_table.attach(
            presence.environment.clone(),
            presence.registration.clone(),
            presence.connection.clone(),
        );
        self.mesh.store().attach(presence.clone()).await.unwrap();
        Executor {
            attachment,
            presence,
        }
    }

    /// Connects a harness to this node.
    async fn dial(&self, registration: &Registration) -> Result<Circuit, DialError> {
        let dial = DialRequest {
            environment: registration.environment.clone(),
            registration: registration.id.clone(),
            harness: HarnessTag::from_bytes([7; HarnessTag::LEN]),
        };
        // Tasks spawned by a dial belong to this node.
        let mesh = Arc::clone(&self.mesh);
        let dialled = self
            .runtime
            .as_ref()
            .unwrap()
            .spawn(async move { mesh.dial(dial).await });
        within(AbortOnDrop(dialled)).await
    }

    async fn presence(&self, environment: &EnvironmentId) -> Option<Presence> {
        self.mesh.store().presence(environment).await.unwrap()
    }
}

impl Executor {
    /// Returns the executor's end of the next circuit.
    async fn accept(&mut self) -> Circuit {
        within(self.attachment.arrivals.recv())
            .await
            .unwrap()
            .circuit
    }
}

/// A task that is aborted when its waiter is dropped.
struct AbortOnDrop<T>(JoinHandle<T>);

impl<T> Future for AbortOnDrop<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        Pin::new(&mut self.0).poll(cx).map(Result::unwrap)
    }
}

impl<T> Drop for AbortOnDrop<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Three nodes, an executor at the first, and a circuit to it from the second.
struct BridgedCluster {
    nodes: [Node; 3],
    registration: Registration,
    executor: Executor,
    /// The harness's end, at the second node.
    harness_end: Circuit,
    /// The executor's end, at the first node.
    executor_end: Circuit,
}

impl BridgedCluster {
    async fn new(broker: &Broker) -> Self {
        Self::over([broker.config(), broker.config(), broker.config()]).await
    }

    /// The same, with a separate broker address for each node.
    async fn over([first, second, third]: [NatsConfig; 3]) -> Self {
        let nodes = [
            Node::join(&first).await,
            Node::join(&second).await,
            Node::join(&third).await,
        ];
        let registration = nodes[2].register("env").await;
        let mut executor = nodes[0].connect(&registration).await;
        let harness_end = nodes[1].dial(&registration).await.unwrap();
        let executor_end = executor.accept().await;
        Self {
            nodes,
            registration,
            executor,
            harness_end,
            executor_end,
        }
    }
}

fn key() -> NoisePublicKey {
    NoiseIdentity::generate().public_key().clone()
}

fn new(environment: &str, principal: &str, key: &NoisePublicKey) -> NewRegistration {
    NewRegistration {
        environment: environment.parse().unwrap(),
        id: RegistrationId::generate(),
        executor_key: key.clone(),
        principal: principal.parse().unwrap(),
        at: Timestamp::now(),
    }
}

/// Sends a frame there and another back.
async fn echo(harness_end: &mut Circuit, executor_end: &mut Circuit) {
    harness_end
        .sender
        .send(Bytes::from_static(b"ping"))
        .await
        .unwrap();
    assert_eq!(
        within(executor_end.receiver.frame()).await,
        Ok(Bytes::from_static(b"ping"))
    );
    executor_end
        .sender
        .send(Bytes::from_static(b"pong"))
        .await
        .unwrap();
    assert_eq!(
        within(harness_end.receiver.frame()).await,
        Ok(Bytes::from_static(b"pong"))
    );
}

/// Returns the close reason as seen by one end.
async fn close_reason(end: &mut Circuit) -> CloseReason {
    within(async {
        loop {
            if let Err(close_reason) = end.receiver.frame().await {
                return close_reason;
            }
        }
    })
    .await
}

async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(TEST_TIMEOUT, future)
        .await
        .expect("timed out")
}

/// Polls for a condition that no event reports.
async fn eventually<F: Future<Output = bool>>(mut condition: impl FnMut() -> F) {
    let mut pause = tokio::time::interval(Duration::from_millis(20));
    within(async {
        while !condition().await {
            pause.tick().await;
        }
    })
    .await;
}

/// A TCP proxy to a broker that can cut connections. It ends with the test's runtime.
struct CuttableProxy {
    port: u16,
    disconnects: watch::Sender<()>,
}

impl CuttableProxy {
    async fn to(broker: &Broker) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (server_address, disconnects) = (broker.address(), watch::Sender::new(()));
        let disconnector = disconnects.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let server = TcpStream::connect(&server_address).await.unwrap();
                tokio::spawn(forward(client, server, disconnector.subscribe()));
            }
        });
        Self { port, disconnects }
    }

    /// Returns the proxied address of the broker.
    fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }

    /// Cuts the current data connections. New ones are proxied again.
    fn disconnect(&self) {
        self.disconnects.send_replace(());
    }
}

async fn forward(
    mut client: TcpStream,
    mut server: TcpStream,
    mut disconnects: watch::Receiver<()>,
) {
    // The broker speaks first; then the client names its purpose.
    let mut buffer = vec![0; 64 << 10];
    let Ok(length @ 1..) = server.read(&mut buffer).await else {
        return;
    };
    client.write_all(&buffer[..length]).await.unwrap();
    let Ok(length @ 1..) = client.read(&mut buffer).await else {
        return;
    };
    let is_data = buffer[..length].windows(6).any(|bytes| bytes == b" data ");
    server.write_all(&buffer[..length]).await.unwrap();
    tokio::select! {
        _ = copy_bidirectional(&mut client, &mut server) => {}
        _ = disconnects.changed(), if is_data => {}
    }
}

struct Broker {
    child: Child,
    directory: TempDir,
    arguments: Vec<String>,
    port: u16,
}

impl Broker {
    async fn start() -> Self {
        Self::with(&[]).await
    }

    /// Starts one with additional arguments.
    async fn with(arguments: &[&str]) -> Self {
        Self::of(&[&["-js"], arguments].concat()).await
    }

    async fn without_jetstream() -> Self {
        Self::of(&[]).await
    }

    async fn of(arguments: &[&str]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let arguments: Vec<_> = arguments.iter().map(|&text| text.to_owned()).collect();
        let (child, port) = spawn(directory.path(), &arguments, "-1").await;
        Self {
            child,
            directory,
            arguments,
            port,
        }
    }

    /// Connects a client that is not a hub.
    async fn client(&self) -> async_nats::Client {
        within(async_nats::connect(
            ("127.0.0.1:PORT").replace("PORT", &self.port.to_string()),
        ))
        .await
        .unwrap()
    }

    fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    fn config(&self) -> NatsConfig {
        self.config_at(&format!("nats://127.0.0.1:{}", self.port))
    }

    fn config_at(&self, url: &str) -> NatsConfig {
        let url = url.replace("PORT", &self.port.to_string());
        NatsConfig::new(url.parse().unwrap(), "node".parse().unwrap())
    }

    /// Kills it, like a power failure.
    async fn kill(&mut self) {
        within(self.child.kill()).await.unwrap();
    }

    /// Restarts it on the same port with the same data.
    async fn restart(&mut self) {
        let port = self.port.to_string();
        let (child, port) = spawn(self.directory.path(), &self.arguments, &port).await;
        (self.child, self.port) = (child, port);
    }

    /// Restarts it without data.
    async fn restart_empty(&mut self) {
        let old = std::mem::replace(&mut self.directory, tempfile::tempdir().unwrap());
        drop(old);
        self.restart().await;
    }
}

async fn spawn(directory: &Path, arguments: &[String], port: &str) -> (Child, u16) {
    // Debian installs it outside the default PATH.
    let debian = Path::new("/usr/sbin/nats-server");
    let program = if debian.exists() {
        debian
    } else {
        Path::new("nats-server")
    };
    let mut child = Command::new(program)
        .args(["-a", "127.0.0.1", "-p", port, "-sd"])
        .arg(directory)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .expect("nats-server is installed (Debian package nats-server)");
    let mut log = BufReader::new(child.stderr.take().unwrap()).lines();
    let mut listening = None;
    let ready = async {
        while let Some(line) = log.next_line().await.unwrap() {
            if let Some((_, address)) = line.split_once("client connections on ") {
                listening = address
                    .rsplit(':')
                    .next()
                    .and_then(|port| port.parse().ok());
            }
            if line.contains("Server is ready") {
                return;
            }
        }
        panic!("nats-server did not start");
    };
    within(ready).await;
    // Drain its output, so that it never blocks on it.
    tokio::spawn(async move { while let Ok(Some(_)) = log.next_line().await {} });
    (child, listening.unwrap())
}
