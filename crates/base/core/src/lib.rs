//! Sans-IO cores: the RPC peer, the order of requests, the session lease and the output log.
//!
//! No sockets, clocks, threads or randomness: input comes in by `handle_*` and plain verbs, output
//! goes out by `poll_*` and return values, and `now` is an argument.

#[cfg(any(test, fuzzing))]
pub mod fuzzing;
pub mod lease;
pub mod log;
pub mod order;
pub mod peer;
