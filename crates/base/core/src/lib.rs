//! Sans-IO cores: RPC peer, request order, session lease, output log and tunnels.
//!
//! No sockets, clocks, threads or randomness: `handle_*` and plain verbs take input, `poll_*` and
//! return values yield output, and `now` is an argument.

#[cfg(any(test, fuzzing))]
pub mod fuzzing;
pub mod lease;
pub mod output_log;
pub mod peer;
pub mod request_order;
pub mod tunnel_table;
