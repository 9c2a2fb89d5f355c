//! One node among others.
//!
//! A [`Mesh`] is the [`Exchange`](crate::exchange::Exchange) of a hub with more nodes than one: it
//! asks the switch of this process first and then the node that holds the executor's socket.
//! Invariant: circuits between sockets of this process never touch the broker, so they outlive it.

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

/// This node among the others that share a broker. Dropping it leaves them without a word.
#[derive(Debug)]
pub struct Mesh {
    shared: Arc<Shared>,
    /// Ends with the mesh.
    _tasks: JoinSet<()>,
}

/// What the tasks of a node share.
#[derive(Debug)]
struct Shared {
    /// Carries circuits.
    data: Connection,
    /// Carries everything else, so that heartbeats never wait behind frames.
    control: Connection,
    /// Names of subjects.
    subjects: Subjects,
    /// The nodes.
    nodes: Nodes,
    /// Circuits to other nodes.
    circuits: Arc<Circuits>,
    /// The executor sockets of this process.
    switch: Arc<Switch>,
    /// The state that nodes share.
    store: Arc<NatsStore>,
}

impl Mesh {
    /// Joins the nodes at a broker with the executor sockets of `switch`.
    ///
    /// # Errors
    /// [`NatsError`]; nothing is left running.
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

    /// The state that nodes share.
    pub fn store(&self) -> Arc<NatsStore> {
        Arc::clone(&self.shared.store)
    }

    /// The name of this process among the nodes: what a presence must carry.
    pub fn node(&self) -> &NodeName {
        self.shared.nodes.own()
    }

    /// Whether the broker is connected now: whether this node can serve new connections.
    pub fn is_connected(&self) -> bool {
        self.shared.control.link().is_up && self.shared.data.link().is_up
    }

    /// How many nodes live, this one included.
    pub fn nodes(&self) -> usize {
        self.shared.nodes.len()
    }

    /// How many circuits lead to other nodes.
    pub fn circuits(&self) -> usize {
        self.shared.circuits.len()
    }

    /// Ends the circuits to other nodes and tells those that this one stops.
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
                tracing::debug!(%error, "farewell was not flushed");
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
        // The nodes ask the store that they share.
        _: &'a dyn Store,
    ) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            close_superseded(&self.shared, &environment).await;
            let news = News::Registered { environment };
            self.shared.store.presences().tell(&news).await;
        })
    }
}

/// Hears what other nodes tell, until it is dropped.
async fn hear(shared: Arc<Shared>, mut executors: Subscriber) {
    while let Some(message) = executors.next().await {
        let news = match serde_json::from_slice(&message.payload) {
            Ok(news) => news,
            Err(error) => {
                tracing::warn!(%error, "news of an executor are none");
                continue;
            }
        };
        match news {
            News::Attached { presence, revision } => {
                // Harnesses of this node must leave the socket that was replaced, wherever it is.
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

/// Renews this node's records from time to time, and after each loss of the broker at once.
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
                    // JetStream is not there yet although the broker is, or is overloaded.
                    tracing::warn!(%error, "presences could not be renewed");
                    tokio::time::sleep(RETRY).await;
                }
            }
        }
    }
}

async fn sweep(shared: &Shared) -> Result<(), StoreError> {
    shared.store.restore().await?;
    // Sockets are in the switch before their presence is written.
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
    tracing::info!(?lost, "an executor is connected elsewhere");
    match lost {
        Lost::ToConnection {
            environment,
            ours,
            theirs,
        } => {
            // The executor may have come back to this node meanwhile.
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

/// Closes this node's socket of an environment if its registration is not current any more.
async fn close_superseded(shared: &Shared, environment: &EnvironmentId) {
    let (switch, store) = (&shared.switch, &*shared.store);
    if let Err(error) = switch.close_superseded(environment, store).await {
        tracing::warn!(%environment, %error, "sockets of superseded executors linger");
        store.presences().look_again();
    }
}

/// Well before the broker forgets a presence.
const RENEW: Duration = Duration::from_secs(120);

/// Between two attempts while the broker is up and its store is not.
const RETRY: Duration = Duration::from_millis(500);
