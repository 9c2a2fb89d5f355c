//! The commands of `exec-server` for people, `doctor`, and terminal detection.
//!
//! The crate also holds what those commands share with the server: the selection of environments,
//! this machine as an environment, and the sources of settings. Not here: the command line of the
//! server, its configuration and its start-up (`exec-server`).

pub mod command;
pub mod doctor;
pub mod environments;
pub mod local_machine;
pub mod outbound_network;
pub mod settings_source;
pub mod shutdown_signal;
pub mod terminal_detection;
pub mod token_file;

/// Name of the program, which is also its name in completion scripts and in process lists.
const PROGRAM_NAME: &str = "exec-server";
