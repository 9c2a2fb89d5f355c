//! One node among others.
//!
//! A [`Mesh`] is the [`Exchange`](crate::exchange::Exchange) of a hub with more nodes than one: it
//! asks the switch of this process first and then the node that holds the executor's socket.
//! Invariant: circuits between sockets of this process never touch the broker, so they outlive it.

mod accept;
mod join;
mod news;
mod reach;

pub use self::join::Mesh;
