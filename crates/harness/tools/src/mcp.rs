//! The MCP server: unified exec and file access as tools of the Model Context Protocol, over stdio
//! and HTTP.
//!
//! Invariant: a failed command is a normal result; a call that cannot be made is an error that says
//! what to do; a waiting client gets progress notifications. Commands end with the client that
//! started them.
//! Elsewhere: sockets, authentication, and the choice of the environment.

mod commands;
mod files;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
mod http;
mod patch;
mod progress;
mod server;
mod session;
#[cfg(test)]
mod tests;
mod tool;
mod tool_answer;
mod typed_path;
mod workspace;

pub use self::{
    http::{AuthCheck, McpHttpEndpoint, McpHttpOptions},
    server::{McpStdioError, McpTools},
    workspace::{AgentWorkspace, GitAccess, NetworkMode, WorkspaceAccess},
};
