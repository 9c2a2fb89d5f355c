//! Settings of this process: environment variables, small files, the environments that they select,
//! this machine as an environment, and the signals that end a server.
//!
//! Shared by the server (`exec-server`) and the commands for people (`exec-cli`). Elsewhere: the
//! options of the server, and its command line.

#[cfg(feature = "background-server")]
pub mod background_server;
#[cfg(feature = "remote")]
pub mod environments;
pub mod local_machine;
pub mod local_socket;
#[cfg(feature = "remote")]
pub mod outbound_network;
pub mod settings_source;
pub mod shutdown_signal;
#[cfg(feature = "remote")]
pub mod token_file;
