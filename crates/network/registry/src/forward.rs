//! An executor that serves nothing itself: every stream of a harness is joined to a websocket of its
//! own, at one destination.
//!
//! Messages pass as they are, and neither side's session is known here. Not here: registration,
//! handshakes and limits, which are those of any executor (`executor`).

mod destination;
mod forwarder;
mod pump;
#[cfg(test)]
mod tests;

pub use self::{
    destination::{Destination, DestinationError},
    forwarder::Forwarder,
};
