//! MCP servers that run in a local or remote environment.
//!
//! A server is an ordinary process; its stdin and stdout carry one JSON message per line. If it
//! exits, or its environment is lost, pending requests fail with a transport error that says why.
//! Elsewhere: the protocol (rmcp), and the list of servers.

pub mod config;
mod reader;
pub mod transport;
mod writer;
