//! This node's membership in the cluster.
//!
//! A [`NatsMesh`] is the [`CircuitDialer`] of a cluster: it tries the executors of this process
//! first, and then the node that has the executor's websocket.
//! Invariant: circuits within this process never use the broker, so they survive its loss.

mod circuit_request;

use std::{sync::Arc, time::Duration};

use async_nats::Subscriber;
use futures_util::{StreamExt as _, future::BoxFuture};
use tokio::{
    task::JoinSet,
    time::{MissedTickBehavior, interval},
};

use super::{
    circuits::BridgedCircuits,
    config::NatsConfig,
    connection::{NatsConnection, NatsError},
    nodes::{self, ClusterNodes, process_name},
    presences::{ClusterEvent, PresenceLoss},
    store::NatsStore,
    subjects::SubjectNames,
};
use crate::{
    circuit::Circuit,
    circuit_dialer::{CircuitDialer, DialError, DialRequest},
    executor_table::ExecutorTable,
    store::{EnvironmentId, NodeName, Store, StoreError},
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
        let subscribe = |connection: &NatsConnection, subject: String| {
            let client = connection.client.clone();
            async move {
                client
                    .subscribe(subject)
                    .await
                    .map_err(NatsError::Subscribe)
            }
        };
        let heartbeats = subscribe(&control, subjects.nodes()).await?;
        let executors = subscribe(&control, subjects.executors()).await?;
        let requests = subscribe(&data, subjects.dial(nodes.own())).await?;
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
        tasks.spawn(circuit_request::answer_requests(
            Arc::clone(&shared),
            requests,
        ));
        Ok(Self {
            shared,
            _tasks: tasks,
        })
    }

    /// Returns the shared store.
    pub fn store(&self) -> Arc<NatsStore> {
        Arc::clone(&self.shared.store)
    }

    /// Returns the name of this process in the cluster, as used in presence records.
    pub fn node(&self) -> &NodeName {
        self.shared.nodes.own()
    }

    /// Returns whether the broker is connected, so that this node can serve new connections.
    pub fn is_connected(&self) -> bool {
        self.shared.control.link().is_up && self.shared.data.link().is_up
    }

    /// Returns the number of live nodes, including this one.
    pub fn nodes(&self) -> usize {
        self.shared.nodes.len()
    }

    /// Returns the number of circuits to other nodes.
    pub fn circuits(&self) -> usize {
        self.shared.circuits.len()
    }

    /// Closes the circuits to other nodes and announces the shutdown.
    pub async fn leave(&self) {
        self.shared.circuits.close();
        let MeshShared {
            nodes,
            control,
            data,
            subjects,
            ..
        } = &*self.shared;
        nodes.announce_shutdown(control, subjects).await;
        for connection in [control, data] {
            if connection.link().is_up
                && let Err(error) = connection.client.flush().await
            {
                tracing::debug!(%error, "failed to flush the shutdown announcement");
            }
        }
    }
}

impl Drop for NatsMesh {
    fn drop(&mut self) {
        self.shared.circuits.close();
    }
}

impl CircuitDialer for NatsMesh {
    fn dial(&self, dial: DialRequest) -> BoxFuture<'_, Result<Circuit, DialError>> {
        Box::pin(circuit_request::dial(&self.shared, dial))
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
                    close_lost(&shared, lost);
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
    let connections = shared
        .executor_table
        .attached()
        .into_iter()
        .map(|(_, _, connection)| connection);
    for lost in shared
        .store
        .presences()
        .maintain(&connections.collect())
        .await?
    {
        close_lost(shared, lost);
    }
    Ok(())
}

fn close_lost(shared: &MeshShared, lost: PresenceLoss) {
    tracing::info!(?lost, "executor is connected elsewhere");
    match lost {
        PresenceLoss::ToConnection {
            environment,
            ours,
            theirs,
        } => {
            // The executor may have reconnected to this node meanwhile.
            if shared
                .executor_table
                .attached()
                .iter()
                .any(|(_, _, found)| *found == ours)
            {
                shared.executor_table.replace(&environment, &theirs);
            }
        }
        PresenceLoss::ToRegistration { environment, ours } => {
            shared.executor_table.evict(&environment, &ours)
        }
    }
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
