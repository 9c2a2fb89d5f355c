//! A whole hub, over real sockets.
#![expect(clippy::unwrap_used, reason = "the functions below are parts of tests")]

mod relaying;
mod rig;
mod serving;
mod starting;
