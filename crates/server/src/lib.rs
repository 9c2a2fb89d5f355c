//! exec-server: the open execution plane for coding agents.
//!
//! The product crate: the binary's command line and configuration, and the names that embedders
//! look for. Everything that does the work is in the crates below.

pub mod cli;
pub mod config;
pub mod doctor;
mod run;

pub use exec_transport::listen::{
    DEFAULT_LISTEN_URL, ListenUrlParseError as ExecServerListenUrlParseError,
};
pub use exec_wire::initialize::{InitializeParams, InitializeResponse};

pub use self::run::{run_main, run_main_with_listen_url};
