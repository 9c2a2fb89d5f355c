//! The harness's end of a relay: one websocket for one stream, which is one link.
//!
//! A link to an executor that acknowledges outlives the loss of its websocket: it fetches another
//! [ticket](Ticket), opens another websocket, and goes on where it was. Any other link ends.
//! Invariant: a ticket is used once, and the executor's key stays the same for the life of a link.

mod dial;
mod driver;
mod handshake;
mod open;
mod reopen;
#[cfg(test)]
mod tests;
mod ticket;

pub use self::{
    open::{HarnessOptions, Offer, open},
    ticket::{Ticket, Tickets},
};
