//! Which nodes there are: each tells the others twice a second that it lives, and how often it lost
//! its circuits.
//! Invariant: a node that fell silent is dead for everybody within [`roster::DEAD`] and a sweep; it
//! is never taken for its successor of the same name, because every process has a name of its own.

mod heartbeat;
mod roster;

pub(super) use self::{
    heartbeat::{Nodes, run},
    roster::process_name,
};
