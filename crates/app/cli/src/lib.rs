//! The commands of `exec-server` for people, `doctor`, and terminal detection.
//!
//! The crate also holds what those commands share with the server: the selection of environments,
//! this machine as an environment, and the sources of settings. Not here: the command line of the
//! server, its configuration and its start-up (`exec-server`).

mod catalog;
pub mod command;
pub mod doctor;
pub mod environments;
pub mod local;
pub mod network;
pub mod paths;
pub mod settings_source;
pub mod stop;
pub mod table;
pub mod terminal_detection;
pub mod token_file;

/// Name of the program, which is also its name in completion scripts and in process lists.
const PROGRAM_NAME: &str = "exec-server";
