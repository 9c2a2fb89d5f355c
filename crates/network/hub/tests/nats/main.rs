//! Three whole hub nodes at a real broker, with our executors and harnesses at different ones.
#![expect(clippy::unwrap_used, reason = "the functions below are parts of tests")]

mod cluster;
mod relaying;
