//! Commands of `exec-server` for people, `doctor`, and terminal detection.
//!
//! Not here: what the commands share with the server (`exec-settings`), and command line,
//! configuration and start-up of the server (`exec-server`).

pub mod command;
pub mod doctor;
pub mod terminal_detection;

/// Program name in completion scripts and process lists.
const PROGRAM_NAME: &str = "exec-server";
