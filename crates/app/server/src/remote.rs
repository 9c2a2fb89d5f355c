//! This machine, offered through a registry: to harnesses that no listener here would let in.
//!
//! What is presented to the registry, whom it is trusted by and which way leads there are found in flags
//! and variables; the rest is `exec-registry`. Not here: what the registry and its relay do (`hub`).

mod config;
mod credentials;
mod forward;
mod run;
#[cfg(test)]
mod tests;
mod vendor;

pub use self::{
    config::{RemoteConfigError, RemoteEnvironmentConfig},
    credentials::{AwsSettings, RemoteCredentials},
    forward::{ForwardConfig, run_forward},
    run::run_remote_environment,
    vendor::Vendor,
};
pub use exec_cli::outbound_network::Network;
use exec_cli::token_file::TokenFile;
pub use exec_registry::{
    api::{EnvironmentId as EnvironmentName, Secret},
    credentials::Token,
    http::BaseUrl,
};
