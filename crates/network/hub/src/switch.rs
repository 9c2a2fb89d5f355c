//! Who is connected to this process, and which frame goes where.
//!
//! The [`Switch`] knows the executor socket of each environment and hands new circuits to the task
//! that owns it. That task decides by its `Port`: pure code, which knows circuits and streams.
//! Not here: sockets (`rendezvous`), other nodes (`nats`).

mod bucket;
mod conduct;
mod port;
mod table;
#[cfg(test)]
mod tests;

pub use self::table::Switch;
pub(crate) use self::{
    port::{CircuitId, Delivery, Port, Verdict},
    table::{Arrival, Attachment},
};
