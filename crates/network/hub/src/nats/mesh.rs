//! This node's membership in the cluster.
//!
//! A [`NatsMesh`] is the [`CircuitDialer`] of a cluster: it tries the executors of this process
//! first, and then the node that has the executor's websocket.
//! Nodes request circuits from each other with a [`CircuitRequest`].
//! Invariant: circuits within this process never use the broker, so they survive its loss.

use std::{sync::Arc, time::Duration};

use async_nats::{Message, RequestErrorKind, Subscriber};
use futures_util::{StreamExt as _, future::BoxFuture};
use serde::{Deserialize, Serialize};
use tokio::{
    task::JoinSet,
    time::{MissedTickBehavior, interval},
};

use super::{
    BridgedCircuitId, Direction, SubjectNames,
    bridge::CircuitBridge,
    bucket::RecordRevision,
    circuits::{BridgedCircuits, CircuitTarget},
    config::NatsConfig,
    connection::{NatsConnection, NatsError},
    nodes::{self, ClusterNodes, process_name},
    presences::ClusterEvent,
    store::NatsStore,
};
use crate::{
    circuit::{Circuit, CircuitDialer, ClusterNode, DialError, DialRequest},
    executor_table::ExecutorTable,
    limits,
    metrics::ClusterGauges,
    store::{EnvironmentId, NodeName, Presence, Store, StoreError},
};

/// Membership of this node in the cluster. Dropping it leaves without notice.
#[derive(Debug)]
pub struct NatsMesh {
    shared: Arc<MeshShared>,
    /// Aborted on drop.
    _tasks: JoinSet<()>,
}

/// State shared by the tasks of a node.
#[derive(Debug)]
struct MeshShared {
    /// Connection for circuits.
    data: NatsConnection,
    /// Connection for everything else, so that heartbeats never wait behind frames.
    control: NatsConnection,
    /// Names of subjects.
    subjects: SubjectNames,
    /// Known nodes.
    nodes: ClusterNodes,
    /// Circuits to other nodes.
    circuits: Arc<BridgedCircuits>,
    /// Executor websockets of this process.
    executor_table: Arc<ExecutorTable>,
    /// The shared store.
    store: Arc<NatsStore>,
}

impl NatsMesh {
    /// Joins the cluster with the executor websockets of `executor_table`.
    ///
    /// # Errors
    /// Returns [`NatsError`]; nothing is left running.
    pub async fn join(
        config: &NatsConfig,
        executor_table: Arc<ExecutorTable>,
    ) -> Result<Self, NatsError> {
        let control = NatsConnection::open(config, "control").await?;
        let data = NatsConnection::open(config, "data").await?;
        let subjects = SubjectNames::new(config.prefix.clone());
        let nodes = ClusterNodes::new(process_name(&config.node), data.clone());
        let store = NatsStore::open(config, &control, &nodes, &subjects).await?;
        let heartbeats = control.client.subscribe(subjects.nodes()).await?;
        let executors = control.client.subscribe(subjects.executors()).await?;
        let requests = data.client.subscribe(subjects.dial(nodes.own())).await?;
        let shared = Arc::new(MeshShared {
            data,
            control,
            subjects,
            nodes,
            circuits: Arc::default(),
            executor_table,
            store: Arc::new(store),
        });
        let mut tasks = JoinSet::new();
        tasks.spawn(nodes::run(
            shared.nodes.clone(),
            shared.control.clone(),
            shared.subjects.clone(),
            heartbeats,
            Arc::clone(&shared.circuits),
        ));
        tasks.spawn(handle_events(Arc::clone(&shared), executors));
        tasks.spawn(run_maintenance(Arc::clone(&shared)));
        tasks.spawn(answer_requests(Arc::clone(&shared), requests));
        Ok(Self {
            shared,
            _tasks: tasks,
        })
    }

    /// Returns the shared store.
    pub fn store(&self) -> Arc<NatsStore> {
        Arc::clone(&self.shared.store)
    }
}

impl Drop for NatsMesh {
    fn drop(&mut self) {
        self.shared.circuits.close();
    }
}

impl CircuitDialer for NatsMesh {
    fn dial(&self, dial: DialRequest) -> BoxFuture<'_, Result<Circuit, DialError>> {
        Box::pin(dial_executor(&self.shared, dial))
    }

    fn supersede<'a>(
        &'a self,
        environment: EnvironmentId,
        // The nodes query the store that they share.
        _: &'a dyn Store,
    ) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            close_superseded(&self.shared, &environment).await;
            let event = ClusterEvent::Registered { environment };
            self.shared.store.presences().publish(&event).await;
        })
    }
}

impl ClusterNode for NatsMesh {
    fn store(&self) -> Arc<dyn Store> {
        Arc::clone(&self.shared.store) as Arc<dyn Store>
    }

    fn name(&self) -> &NodeName {
        self.shared.nodes.own()
    }

    fn is_connected(&self) -> bool {
        self.shared.control.link().is_up && self.shared.data.link().is_up
    }

    fn gauges(&self) -> ClusterGauges {
        ClusterGauges {
            nodes: self.shared.nodes.len(),
            circuits: self.shared.circuits.len(),
        }
    }

    fn leave(&self) -> BoxFuture<'_, ()> {
        self.shared.circuits.close();
        Box::pin(leave(&self.shared))
    }
}

/// Announces the shutdown to the other nodes.
async fn leave(shared: &MeshShared) {
    let MeshShared {
        nodes,
        control,
        data,
        subjects,
        ..
    } = shared;
    nodes.announce_shutdown(control, subjects).await;
    for connection in [control, data] {
        if connection.link().is_up
            && let Err(error) = connection.client.flush().await
        {
            tracing::debug!(%error, "failed to flush the shutdown announcement");
        }
    }
}

/// Handles events of other nodes until dropped.
async fn handle_events(shared: Arc<MeshShared>, mut executors: Subscriber) {
    while let Some(message) = executors.next().await {
        let event = match serde_json::from_slice(&message.payload) {
            Ok(event) => event,
            Err(error) => {
                tracing::warn!(%error, "ignoring malformed executor event");
                continue;
            }
        };
        match event {
            ClusterEvent::Attached { presence, revision } => {
                // Harnesses of this node must leave the replaced websocket, on whichever node it
                // is.
                shared.circuits.close_replaced(&presence, revision);
                if presence.node != *shared.nodes.own()
                    && let Some(lost) = shared.store.presences().handle_other(&presence, revision)
                {
                    close_lost(&shared, &lost);
                }
            }
            ClusterEvent::Registered { environment } => {
                close_superseded(&shared, &environment).await
            }
        }
    }
}

/// Renews this node's records periodically, and at once after each reconnect to the broker.
async fn run_maintenance(shared: Arc<MeshShared>) {
    let mut link = shared.control.watch();
    let mut losses = link.borrow_and_update().losses;
    let mut renew = interval(RENEW_INTERVAL);
    renew.set_missed_tick_behavior(MissedTickBehavior::Delay);
    renew.tick().await;
    loop {
        tokio::select! {
            changed = link.changed() => {
                if changed.is_err() {
                    return;
                }
                let now = *link.borrow_and_update();
                if !now.is_up || now.losses == losses {
                    continue;
                }
                losses = now.losses;
            }
            () = shared.store.presences().maintenance_due() => {}
            _ = renew.tick() => {}
        }
        while shared.control.link().is_up {
            match maintain_once(&shared).await {
                Ok(()) => break,
                Err(error) => {
                    // The broker is up, but JetStream is not ready yet or overloaded.
                    tracing::warn!(%error, "failed to renew presence records");
                    tokio::time::sleep(RETRY_DELAY).await;
                }
            }
        }
    }
}

async fn maintain_once(shared: &MeshShared) -> Result<(), StoreError> {
    shared.store.restore().await?;
    // Websockets are in the executor table before their presence is written.
    let connections = shared.executor_table.attached();
    for lost in shared.store.presences().maintain(&connections).await? {
        close_lost(shared, &lost);
    }
    Ok(())
}

/// Closes a websocket that lost its environment to another one.
fn close_lost(shared: &MeshShared, lost: &Presence) {
    tracing::info!(?lost, "executor is connected elsewhere");
    let table = &shared.executor_table;
    table.evict(&lost.environment, &lost.connection);
}

/// Closes this node's executor websocket of an environment unless its registration is current.
async fn close_superseded(shared: &MeshShared, environment: &EnvironmentId) {
    let (executor_table, store) = (&shared.executor_table, &*shared.store);
    if let Err(error) = executor_table.close_superseded(environment, store).await {
        tracing::warn!(%environment, %error, "failed to close websockets of superseded executors");
        store.presences().schedule_maintenance();
    }
}

/// Renewal interval, well below the lifetime of a presence record.
const RENEW_INTERVAL: Duration = Duration::from_secs(120);

/// Delay between attempts while the broker is up and JetStream is not.
const RETRY_DELAY: Duration = Duration::from_millis(500);

/// Request for a circuit to an executor.
#[derive(Clone, Debug, Deserialize, Serialize)]
struct CircuitRequest {
    /// Id of the circuit, which names the subjects of its packets.
    wire: BridgedCircuitId,
    /// The requesting node of the harness.
    node: NodeName,
    /// The dial request of the harness.
    dial: DialRequest,
    /// Window granted to the executor's node.
    window: u32,
    /// Number of data connection losses of the harness's node.
    #[serde(default)]
    losses: u64,
}

/// Reply of the executor's node.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
enum CircuitReply {
    /// The circuit is open.
    Connected {
        /// Window granted to the harness's node.
        window: u32,
        /// Number of data connection losses of this node.
        #[serde(default)]
        losses: u64,
    },
    /// The executor is not connected here.
    Offline,
    /// The executor has too many harnesses, or the node too many circuits.
    Busy,
}

impl From<DialError> for CircuitReply {
    fn from(error: DialError) -> Self {
        match error {
            DialError::Busy => Self::Busy,
            DialError::Offline | DialError::Unreachable => Self::Offline,
        }
    }
}

/// Opens a circuit, locally or on the node that has the executor's websocket.
async fn dial_executor(shared: &Arc<MeshShared>, dial: DialRequest) -> Result<Circuit, DialError> {
    match shared.executor_table.dial(dial.clone()).await {
        Err(DialError::Offline) => {}
        local => return local,
    }
    let found = shared.store.presences().find(&dial.environment).await;
    let (presence, revision) = found
        .map_err(|error| {
            tracing::warn!(%error, environment = %dial.environment, "failed to look up the executor");
            DialError::Unreachable
        })?
        .ok_or(DialError::Offline)?;
    if presence.registration != dial.registration || presence.node == *shared.nodes.own() {
        return Err(DialError::Offline);
    }
    dial_node(shared, dial, presence, revision).await
}

async fn dial_node(
    shared: &Arc<MeshShared>,
    dial: DialRequest,
    presence: Presence,
    revision: RecordRevision,
) -> Result<Circuit, DialError> {
    let link = shared.data.link();
    if !link.is_up {
        return Err(DialError::Unreachable);
    }
    let wire = BridgedCircuitId::generate();
    let target = CircuitTarget {
        environment: presence.environment,
        revision,
    };
    let registration = shared
        .circuits
        .add(wire, presence.node.clone(), Some(target));
    let registration = registration.ok_or(DialError::Busy)?;
    let packets = subscribe(shared, wire, Direction::Harness).await?;
    let request = CircuitRequest {
        wire,
        node: shared.nodes.own().clone(),
        dial,
        window: registration.window,
        losses: link.losses,
    };
    let (window, losses) = request_circuit(shared, &presence.node, &request).await?;
    registration.opened(losses);
    // Its silence must be noticed even if its first heartbeat is still in flight.
    shared.nodes.record_alive(presence.node);
    // The local queue to the harness only covers what its websocket writes next; further frames
    // wait on the executor's node, where they are counted.
    let (harness, bridged) = Circuit::pair(limits::TO_EXECUTOR, LOCAL_QUEUE);
    let bridge = CircuitBridge::new(
        bridged,
        &shared.data,
        shared.subjects.circuit(wire, Direction::Executor),
        packets,
        registration,
        window,
        link.losses,
    );
    tokio::spawn(bridge.run());
    Ok(harness)
}

/// Subscribes to the packets of a circuit in one direction.
async fn subscribe(
    shared: &MeshShared,
    wire: BridgedCircuitId,
    direction: Direction,
) -> Result<Subscriber, DialError> {
    let subject = shared.subjects.circuit(wire, direction);
    shared
        .data
        .client
        .subscribe(subject)
        .await
        .map_err(|error| {
            tracing::warn!(%error, "failed to subscribe to a circuit");
            DialError::Unreachable
        })
}

/// Sends the request and returns the granted window and the peer's number of data connection
/// losses.
async fn request_circuit(
    shared: &MeshShared,
    node: &NodeName,
    request: &CircuitRequest,
) -> Result<(u32, u64), DialError> {
    let payload = serde_json::to_vec(request).map_err(|_| DialError::Unreachable)?;
    let subject = shared.subjects.dial(node);
    let answer = shared.data.client.request(subject, payload.into()).await;
    let answer = answer.map_err(|error| {
        tracing::warn!(%error, %node, "node did not answer a dial request");
        match error.kind() {
            // The node is certainly gone: the harness asks the registry again.
            RequestErrorKind::NoResponders => DialError::Offline,
            RequestErrorKind::TimedOut
            | RequestErrorKind::InvalidSubject
            | RequestErrorKind::MaxPayloadExceeded
            | RequestErrorKind::Other => DialError::Unreachable,
        }
    })?;
    match serde_json::from_slice(&answer.payload) {
        Ok(CircuitReply::Connected { window, losses }) => Ok((window, losses)),
        Ok(CircuitReply::Offline) => Err(DialError::Offline),
        Ok(CircuitReply::Busy) => Err(DialError::Busy),
        Err(error) => {
            tracing::warn!(%error, %node, "ignoring malformed dial reply");
            Err(DialError::Unreachable)
        }
    }
}

/// Frame queue to one harness on its own node, in addition to the circuit's window.
const LOCAL_QUEUE: crate::circuit::QueueLimits = crate::circuit::QueueLimits {
    frames: 512,
    bytes: 512 << 10,
};

/// Answers requests for circuits until dropped.
async fn answer_requests(shared: Arc<MeshShared>, mut requests: Subscriber) {
    while let Some(message) = requests.next().await {
        let Some(reply_to) = message.reply.clone() else {
            continue;
        };
        let (reply, bridge) = match accept_circuit(&shared, &message).await {
            Ok((reply, bridge)) => (reply, Some(bridge)),
            Err(reply) => (reply, None),
        };
        let Ok(payload) = serde_json::to_vec(&reply) else {
            continue;
        };
        // Published on the connection of the subscription, so that the broker processes that first.
        let sent = shared.data.client.publish(reply_to, payload.into()).await;
        match (sent, bridge) {
            (Ok(()), Some(bridge)) => drop(tokio::spawn(bridge.run())),
            (Ok(()), None) => {}
            (Err(error), _) => tracing::warn!(%error, "failed to answer a dial request"),
        }
    }
}

async fn accept_circuit(
    shared: &MeshShared,
    message: &Message,
) -> Result<(CircuitReply, CircuitBridge), CircuitReply> {
    let request: CircuitRequest = serde_json::from_slice(&message.payload).map_err(|error| {
        tracing::warn!(%error, "ignoring malformed dial request");
        CircuitReply::Offline
    })?;
    let losses = shared.data.link().losses;
    // Its silence must be noticed even if its first heartbeat is still in flight.
    shared.nodes.record_alive(request.node.clone());
    let registration = shared
        .circuits
        .add(request.wire, request.node, None)
        .ok_or(CircuitReply::Busy)?;
    registration.opened(request.losses);
    let circuit: Circuit = shared.executor_table.dial(request.dial).await?;
    let packets = subscribe(shared, request.wire, Direction::Executor).await?;
    let reply = CircuitReply::Connected {
        window: registration.window,
        losses,
    };
    let bridge = CircuitBridge::new(
        circuit,
        &shared.data,
        shared.subjects.circuit(request.wire, Direction::Harness),
        packets,
        registration,
        request.window,
        losses,
    );
    Ok((reply, bridge))
}
