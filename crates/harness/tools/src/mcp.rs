//! The MCP door: unified exec and files as tools of the Model Context Protocol, over pipes and over HTTP.
//!
//! Invariant: a command that fails is an answer; a call that cannot be made is an error that says what to
//! do; a client that waits hears from us. Commands end with the client that started them.
//! Not here: sockets, the check of tokens, the choice of the environment.

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
    http::{AuthCheck, HttpDoor, HttpDoorOptions},
    server::{StdioError, Tools},
    workspace::{Enclosure, GitAccess, Network, Workspace},
};
