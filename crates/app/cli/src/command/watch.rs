//! `exec-server watch`: runs a command again whenever files change.
//!
//! The command is never ended for a change: what changes while it runs leads to one more run. What it
//! writes itself must not run it for ever: [`trigger`] tells that from what somebody edits.
//! Not here: what ignore files below the watched directories name; only those in them are read.

mod command;
mod ignored;
mod leaving;
mod trigger;

pub use self::command::Watch;
