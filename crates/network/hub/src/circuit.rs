//! Circuits: the bounded way of frames between one harness socket and one executor socket.
//!
//! A circuit has two ends, and each end sends and receives. The ends may sit in one process, or a
//! task may carry frames between two circuits on different machines; neither end can tell.
//! Invariant: frames arrive unchanged, in order, and all of those sent before the ending, unless
//! the receiving end itself gave up.
//! Not here: which frame belongs to which circuit (`switch`), sockets (`rendezvous`).

mod ending;
mod ends;
mod lane;
#[cfg(test)]
mod tests;

pub use self::{
    ending::Ending,
    ends::Circuit,
    lane::{Receiver, Room, Sender},
};
