//! A whole hub, over real sockets.
#![expect(clippy::unwrap_used, reason = "the functions below are parts of tests")]

mod rig;
mod serving;
