//! Commands of `exec-server` for people, `doctor`, and terminal detection.
//!
//! Also holds what the commands share with the server: the selection of environments, this machine
//! as an environment, and sources of settings. Not here: command line, configuration and start-up
//! of the server (`exec-server`).

pub mod command;
pub mod doctor;
pub mod environments;
pub mod local_machine;
pub mod outbound_network;
pub mod settings_source;
pub mod shutdown_signal;
pub mod terminal_detection;

/// Program name in completion scripts and process lists.
const PROGRAM_NAME: &str = "exec-server";
