//! MCP servers that run in an environment: local or remote, whichever the caller chose.
//!
//! The server is a process like any other; its stdin and stdout carry one JSON message a line. Its
//! death and the loss of its environment reach those who wait for an answer as transport errors that
//! say so. Not here: what is said over the transport, which is rmcp's; which servers there are.

pub mod config;
pub mod error;
mod pending_requests;
mod reader;
pub mod transport;
mod writer;
