//! How people reach an environment: this machine's own server, URLs, names, hubs.

mod completions;
mod env_command;
mod errors;
mod local_server;
