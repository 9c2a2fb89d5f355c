//! More than one machine: hub nodes that share a NATS broker are one hub.
//!
//! [`NatsStore`] keeps the hub's state in JetStream, [`Mesh`] carries circuits between nodes. An
//! executor may be connected to one node and its harness to another; any node may die, which costs
//! its own connections a reconnect and nothing else.
//! Invariant: the broker carries what sockets carry: frames that it cannot read.
//! Not here: sockets (`rendezvous`), what a circuit is (`circuit`), who may do what (`registry`).

mod bridge;
mod bucket;
mod circuits;
mod config;
mod connection;
mod mesh;
mod nodes;
mod packet;
mod presences;
mod registry;
mod store;
mod subjects;
#[cfg(test)]
mod tests;
mod window;

pub use self::{
    config::{NatsConfig, NatsServers, NatsServersError, Prefix, PrefixError, Replicas},
    connection::NatsError,
    mesh::Mesh,
    store::NatsStore,
};
