//! Several nodes in one process, at a real broker.

mod broker;
mod cable;
mod circuits;
mod failures;
mod logins;
mod moves;
mod store;

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use exec_relay::identity::{Identity, PublicKey};
use tokio::{
    runtime::{Builder, Runtime},
    task::JoinHandle,
};

use self::{broker::Broker, cable::Cable};
use super::{Mesh, NatsConfig};
use crate::{
    circuit::{Circuit, Ending},
    exchange::{Dial, DialError, Exchange as _, HarnessTag},
    store::{
        ConnectionId, EnvironmentId, NewRegistration, Presence, Registration, RegistrationId,
        Store as _, Timestamp,
    },
    switch::{Attachment, Switch},
};

/// Longer than anything here takes, even on a machine that does other things too.
const PATIENCE: Duration = Duration::from_secs(30);

/// A hub process without its sockets. It has a runtime of its own, which is what dies with it:
/// dropping a node is a power cut, nobody is told anything.
struct Node {
    mesh: Arc<Mesh>,
    switch: Arc<Switch>,
    runtime: Option<Runtime>,
}

impl Drop for Node {
    fn drop(&mut self) {
        // Its tasks are gone before anything else is dropped, so that none can say goodbye. The
        // wait is for another thread, because a runtime does not let itself be waited for here.
        if let Some(runtime) = self.runtime.take() {
            let stop = std::thread::spawn(move || runtime.shutdown_timeout(PATIENCE));
            stop.join().unwrap();
        }
    }
}

/// An executor socket without its websocket.
struct Executor {
    attachment: Attachment,
    presence: Presence,
}

impl Node {
    async fn join(config: &NatsConfig) -> Self {
        let switch = Arc::new(Switch::default());
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let (config, shared) = (config.clone(), Arc::clone(&switch));
        let joined = runtime.spawn(async move { Mesh::join(&config, shared).await });
        let mesh = Arc::new(joined.await.unwrap().unwrap());
        Self {
            mesh,
            switch,
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
            node: self.mesh.node().clone(),
            connection: ConnectionId::generate(),
        };
        let attachment = self.switch.attach(
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
        let dial = Dial {
            environment: registration.environment.clone(),
            registration: registration.id.clone(),
            harness: HarnessTag::from_bytes([7; HarnessTag::LEN]),
        };
        // What a dial leaves running belongs to this node.
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
    /// The executor's end of the next circuit.
    async fn accept(&mut self) -> Circuit {
        within(self.attachment.arrivals.recv())
            .await
            .unwrap()
            .circuit
    }
}

/// A task that is dropped with whoever waits for it.
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
struct Across {
    nodes: [Node; 3],
    registration: Registration,
    executor: Executor,
    /// The harness's end, at the second node.
    near: Circuit,
    /// The executor's end, at the first node.
    far: Circuit,
}

impl Across {
    async fn new(broker: &Broker) -> Self {
        Self::over([broker.config(), broker.config(), broker.config()]).await
    }

    /// The same, with a way to the broker for each node.
    async fn over([first, second, third]: [NatsConfig; 3]) -> Self {
        let nodes = [
            Node::join(&first).await,
            Node::join(&second).await,
            Node::join(&third).await,
        ];
        let registration = nodes[2].register("env").await;
        let mut executor = nodes[0].connect(&registration).await;
        let near = nodes[1].dial(&registration).await.unwrap();
        let far = executor.accept().await;
        Self {
            nodes,
            registration,
            executor,
            near,
            far,
        }
    }
}

fn key() -> PublicKey {
    Identity::generate().public_key().clone()
}

fn new(environment: &str, principal: &str, key: &PublicKey) -> NewRegistration {
    NewRegistration {
        environment: environment.parse().unwrap(),
        id: RegistrationId::generate(),
        executor_key: key.clone(),
        principal: principal.parse().unwrap(),
        at: Timestamp::now(),
    }
}

/// Sends a frame there and another back.
async fn echo(near: &mut Circuit, far: &mut Circuit) {
    near.sender.send(Bytes::from_static(b"ping")).await.unwrap();
    assert_eq!(
        within(far.receiver.frame()).await,
        Ok(Bytes::from_static(b"ping"))
    );
    far.sender.send(Bytes::from_static(b"pong")).await.unwrap();
    assert_eq!(
        within(near.receiver.frame()).await,
        Ok(Bytes::from_static(b"pong"))
    );
}

/// How a circuit ended, as one end sees it.
async fn ending(end: &mut Circuit) -> Ending {
    within(async {
        loop {
            if let Err(ending) = end.receiver.frame().await {
                return ending;
            }
        }
    })
    .await
}

async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future)
        .await
        .expect("it took too long")
}

/// Waits until something holds that no event tells of.
async fn eventually<F: Future<Output = bool>>(mut condition: impl FnMut() -> F) {
    let mut pause = tokio::time::interval(Duration::from_millis(20));
    within(async {
        while !condition().await {
            pause.tick().await;
        }
    })
    .await;
}
