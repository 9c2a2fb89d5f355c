//! The configuration of the server, from the command line, the environment and a file.
//! Each source becomes a layer of [`Settings`]; [`resolve`] puts the layers on top of each other
//! and checks the result as a whole, so that a [`ServerConfig`] is always one that can be served.
//! Invariant: a setting that would protect the server is never dropped silently.
//! Not here: printing, logging, binding.

mod auth;
mod environment;
mod error;
mod file;
mod load;
mod observation;
mod overrides;
mod server;
mod settings;
#[cfg(test)]
mod tests;
mod toml_text;
mod values;

pub use environment::Environment;
pub(crate) use environment::STDIN_CLOSE;
pub use error::{ConfigError, Place};
pub use exec_cli::settings_source::{Lookup, Seconds, SecondsParseError};
pub use file::{ConfigFile, Strictness};
pub use load::load;
pub use observation::{
    LogConfig, LogFormat, LogFormatParseError, LogLevel, LogLevelParseError, MetricsAddress,
    MetricsAddressParseError,
};
pub use overrides::{Override, OverrideParseError};
pub use server::{ServerConfig, TlsPaths, resolve};
pub use settings::{SetError, Settings};
pub use values::{
    ConcurrentRequests, PidNamespace, PidNamespaceParseError, SandboxMechanism,
    SandboxMechanismParseError, Switch, SwitchParseError, WsAuth, WsAuthParseError,
};
