//! Clusters: hub nodes that share a NATS broker form one hub.
//!
//! [`NatsStore`] keeps the hub's state in JetStream, and [`NatsMesh`] bridges circuits between
//! nodes. An executor may be connected to one node and its harness to another. When a node dies,
//! only its own connections have to reconnect.
//! Invariant: the broker only carries encrypted frames, like the websockets.
//! Elsewhere: websockets (`rendezvous`), circuits (`circuit`), permissions (`registry`).

mod bridge;
mod bucket;
mod circuits;
mod config;
mod connection;
mod mesh;
mod nodes;
mod packet;
mod presences;
mod registration_bucket;
mod store;
mod subjects;
#[cfg(test)]
mod tests;
mod window;

pub use self::{
    config::{
        NatsConfig, NatsPrefix, NatsPrefixError, NatsServers, NatsServersError, ReplicaCount,
    },
    connection::NatsError,
    mesh::NatsMesh,
    store::NatsStore,
};
