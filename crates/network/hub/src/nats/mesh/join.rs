//! Joining and leaving.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use tokio::task::JoinSet;

use super::{accept, news, reach};
use crate::{
    circuit::Circuit,
    exchange::{Dial, DialError, Exchange},
    nats::{
        circuits::Circuits,
        config::NatsConfig,
        connection::{Connection, NatsError},
        nodes::{self, Nodes, process_name},
        presences::News,
        store::NatsStore,
        subjects::Subjects,
    },
    store::{EnvironmentId, NodeName, Store},
    switch::Switch,
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
pub(super) struct Shared {
    /// Carries circuits.
    pub(super) data: Connection,
    /// Carries everything else, so that heartbeats never wait behind frames.
    pub(super) control: Connection,
    /// Names of subjects.
    pub(super) subjects: Subjects,
    /// The nodes.
    pub(super) nodes: Nodes,
    /// Circuits to other nodes.
    pub(super) circuits: Arc<Circuits>,
    /// The executor sockets of this process.
    pub(super) switch: Arc<Switch>,
    /// The state that nodes share.
    pub(super) store: Arc<NatsStore>,
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
        tasks.spawn(news::hear(Arc::clone(&shared), executors));
        tasks.spawn(news::tidy(Arc::clone(&shared)));
        tasks.spawn(accept::run(Arc::clone(&shared), requests));
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
        Box::pin(reach::dial(&self.shared, dial))
    }

    fn supersede<'a>(
        &'a self,
        environment: EnvironmentId,
        // The nodes ask the store that they share.
        _: &'a dyn Store,
    ) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            news::close_superseded(&self.shared, &environment).await;
            let news = News::Registered { environment };
            self.shared.store.presences().tell(&news).await;
        })
    }
}
