//! Websocket framing, ours: a message is encoded straight into its frame, large ones are fragmented
//! on the way out, and limits hold before memory is taken on the way in.
//!
//! Two faces: a [`link()`] carries the messages of a session, a [`Socket`](socket::Socket) raw binary
//! ones, for relays.

mod budget;
mod control;
mod deadlines;
mod decoder;
mod frame;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing;
mod large;
mod link;
mod output;
mod reader;
pub mod socket;
#[cfg(test)]
mod tests;
mod utf8;
mod writer;

pub(crate) use self::link::boxed_with as boxed_link_with;
pub use self::{
    budget::{MessageBudget, MessageBudgetLimits},
    frame::accept_key,
    link::{LinkOptions, Sends, link},
};
