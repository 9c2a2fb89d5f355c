//! This node's membership in the cluster.
//!
//! A [`Mesh`] is the [`Exchange`](crate::circuit_dialer::Exchange) of a cluster: it tries the
//! executors of this process first, and then the node that has the executor's websocket.
//! Invariant: circuits within this process never use the broker, so they survive its loss.

mod dial;

use std::{sync::Arc, time::Duration};

use async_nats::Subscriber;
use futures_util::{StreamExt as _, future::BoxFuture};
use tokio::{
    task::JoinSet,
    time::{MissedTickBehavior, interval},
};

use super::{
    circuits::Circuits,
    config::NatsConfig,
    connection::{Connection, NatsError},
    nodes::{self, Nodes, process_name},
    presences::{Lost, News},
    store::NatsStore,
    subjects::Subjects,
};
use crate::{
    circuit::Circuit,
    circuit_dialer::{Dial, DialError, Exchange},
    executor_table::Switch,
    store::{EnvironmentId, NodeName, Store, StoreError},
};

/// Membership of this node in the cluster. Dropping it leaves without notice.
#[derive(Debug)]
pub struct Mesh {
    shared: Arc<Shared>,
    /// Aborted on drop.
    _tasks: JoinSet<()>,
}

/// State shared by the tasks of a node.
#[derive(Debug)]
struct Shared {
    /// Connection for circuits.
    data: Connection,
    /// Connection for everything else, so that heartbeats never wait behind frames.
    control: Connection,
    /// Names of subjects.
    subjects: Subjects,
    /// Known nodes.
    nodes: Nodes,
    /// Circuits to other nodes.
    circuits: Arc<Circuits>,
    /// Executor websockets of this process.
    switch: Arc<Switch>,
    /// The shared store.
    store: Arc<NatsStore>,
}

impl Mesh {
    /// Joins the cluster with the executor websockets of `switch`.
    ///
    /// # Errors
    /// Returns [`NatsError`]; nothing is left running.
    pub async fn join(config: &NatsConfig, switch: Arc<Switch>) -> Result<Self, NatsError> {
        let control = Connection::open(config, "control").await?;
        let data = Connection::open(config, "data").await?;
        let subjects = Subjects::new(config.prefix.clone());
        let nodes = Nodes::new(process_name(&config.node), data.clone());
        let store = NatsStore::open(config, &control, &nodes, &subjects).await?;
        let subscribe = |connection: &Connection, subject: String| {
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
        let shared = Arc::new(Shared {
            data,
            control,
            subjects,
            nodes,
            circuits: Arc::default(),
            switch,
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
        tasks.spawn(hear(Arc::clone(&shared), executors));
        tasks.spawn(tidy(Arc::clone(&shared)));
        tasks.spawn(dial::run(Arc::clone(&shared), requests));
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
        let Shared {
            nodes,
            control,
            data,
            subjects,
            ..
        } = &*self.shared;
        nodes.say_farewell(control, subjects).await;
        for connection in [control, data] {
            if connection.link().is_up
                && let Err(error) = connection.client.flush().await
            {
                tracing::debug!(%error, "failed to flush the shutdown announcement");
            }
        }
    }
}

impl Drop for Mesh {
    fn drop(&mut self) {
        self.shared.circuits.close();
    }
}

impl Exchange for Mesh {
    fn dial(&self, dial: Dial) -> BoxFuture<'_, Result<Circuit, DialError>> {
        Box::pin(dial::dial(&self.shared, dial))
    }

    fn supersede<'a>(
        &'a self,
        environment: EnvironmentId,
        // The nodes query the store that they share.
        _: &'a dyn Store,
    ) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            close_superseded(&self.shared, &environment).await;
            let news = News::Registered { environment };
            self.shared.store.presences().tell(&news).await;
        })
    }
}

/// Handles events of other nodes until dropped.
async fn hear(shared: Arc<Shared>, mut executors: Subscriber) {
    while let Some(message) = executors.next().await {
        let news = match serde_json::from_slice(&message.payload) {
            Ok(news) => news,
            Err(error) => {
                tracing::warn!(%error, "ignoring malformed executor event");
                continue;
            }
        };
        match news {
            News::Attached { presence, revision } => {
                // Harnesses of this node must leave the replaced websocket, on whichever node it
                // is.
                shared.circuits.end_before(&presence, revision);
                if presence.node != *shared.nodes.own()
                    && let Some(lost) = shared.store.presences().handle_other(&presence, revision)
                {
                    give_up(&shared, lost);
                }
            }
            News::Registered { environment } => close_superseded(&shared, &environment).await,
        }
    }
}

/// Renews this node's records periodically, and at once after each reconnect to the broker.
async fn tidy(shared: Arc<Shared>) {
    let mut link = shared.control.watch();
    let mut losses = link.borrow_and_update().losses;
    let mut renew = interval(RENEW);
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
            () = shared.store.presences().untidy() => {}
            _ = renew.tick() => {}
        }
        while shared.control.link().is_up {
            match sweep(&shared).await {
                Ok(()) => break,
                Err(error) => {
                    // The broker is up, but JetStream is not ready yet or overloaded.
                    tracing::warn!(%error, "failed to renew presence records");
                    tokio::time::sleep(RETRY).await;
                }
            }
        }
    }
}

async fn sweep(shared: &Shared) -> Result<(), StoreError> {
    shared.store.restore().await?;
    // Websockets are in the executor table before their presence is written.
    let connections = shared
        .switch
        .attached()
        .into_iter()
        .map(|(_, _, connection)| connection);
    for lost in shared
        .store
        .presences()
        .tidy(&connections.collect())
        .await?
    {
        give_up(shared, lost);
    }
    Ok(())
}

fn give_up(shared: &Shared, lost: Lost) {
    tracing::info!(?lost, "executor is connected elsewhere");
    match lost {
        Lost::ToConnection {
            environment,
            ours,
            theirs,
        } => {
            // The executor may have reconnected to this node meanwhile.
            if shared
                .switch
                .attached()
                .iter()
                .any(|(_, _, found)| *found == ours)
            {
                shared.switch.replace(&environment, &theirs);
            }
        }
        Lost::ToRegistration { environment, ours } => shared.switch.evict(&environment, &ours),
    }
}

/// Closes this node's executor websocket of an environment unless its registration is current.
async fn close_superseded(shared: &Shared, environment: &EnvironmentId) {
    let (switch, store) = (&shared.switch, &*shared.store);
    if let Err(error) = switch.close_superseded(environment, store).await {
        tracing::warn!(%environment, %error, "failed to close websockets of superseded executors");
        store.presences().look_again();
    }
}

/// Renewal interval, well below the lifetime of a presence record.
const RENEW: Duration = Duration::from_secs(120);

/// Delay between attempts while the broker is up and JetStream is not.
const RETRY: Duration = Duration::from_millis(500);
