//! Tests of a complete hub over loopback sockets.
#![expect(clippy::unwrap_used, reason = "the functions below are parts of tests")]

mod fixture;
mod serving;
