//! Tests of reaching environments: the local server, URLs, names, hubs.

mod completions;
mod env_command;
mod errors;
mod local_server;
