//! The hub as a whole: what it is made of, what it answers, how it starts and stops.
//! Invariant: a hub that has started serves; whatever would keep it from that is an error of the
//! start, with nothing left running.
//! Not here: what the endpoints do (`registry`, `rendezvous`, `direct`, `admin`).

mod busy;
mod error;
mod running;
mod site;
mod start;

pub use self::{error::StartError, running::Hub};
