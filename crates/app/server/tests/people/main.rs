//! Tests of the commands for people: the real binary against real servers.
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
