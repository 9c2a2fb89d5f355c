//! The commands for people: the built program, run as a person runs it, against real servers.
#![expect(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod cast;
mod files;
mod lies;
mod mcp;
mod patterns;
mod places;
mod processes;
mod sandboxing;
mod watching;
