//! Tests of three hub nodes with a real broker, with executors and harnesses at different nodes.
#![expect(clippy::unwrap_used, reason = "the functions below are parts of tests")]

mod cluster;
mod relaying;
