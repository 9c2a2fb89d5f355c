//! The commands for people: the built program, run as a person runs it, against real servers.
#![expect(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod environments;
mod example_scripts;
mod files;
mod lying_server;
mod mcp;
mod processes;
mod sandbox_flags;
mod telemetry;
mod test_user;
