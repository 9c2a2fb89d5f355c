//! Tools for agents: unified exec over any environment, and an MCP server.
//!
//! Callers decide what may run; this crate runs it, shows a bounded part of the output, and reports
//! events. Elsewhere: transports, approval rules and the environments.

#[cfg(feature = "mcp")]
pub mod mcp;
pub mod unified;
