//! What an agent uses: unified exec over any environment, and the MCP door.
//!
//! Callers decide what may run; this crate runs it, shows a bounded part of what it says, and reports
//! what happens. Not here: transports, approval rules, the environments themselves.

pub mod mcp;
pub mod unified;
