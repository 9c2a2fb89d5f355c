//! This machine, offered through a registry: to harnesses that no listener here would let in.
//!
//! What is presented to the registry, whom it is trusted by and which way leads there are found in flags
//! and variables; the rest is `exec-registry`. Not here: what the registry and its relay do (`hub`).

mod credentials;
mod run;
#[cfg(test)]
mod tests;

use std::path::Path;

use exec_cli::{
    outbound_network::OutboundNetworkError, settings_source::NotUtf8Error, token_file::TokenFile,
};
use exec_registry::{
    api::{EnvironmentId, EnvironmentIdError},
    credentials::TokenError,
    http::BaseUrlError,
};

use crate::{
    cli::{ChatGptAuthArgs, RegistrationArgs, RemoteTransport, TransportArgs},
    config::{ServerConfig, SwitchParseError, VariableLookup},
    remote::credentials::{ACCESS_TOKEN, REMOTE_TOKEN},
};

pub use exec_cli::outbound_network::OutboundNetwork;
pub use exec_registry::{
    api::{EnvironmentId as EnvironmentName, Secret},
    credentials::Token,
    http::BaseUrl,
};

pub use self::{
    credentials::{AwsSettings, RemoteCredentials, VendorServices},
    run::{ForwardConfig, run_forward, run_remote_environment},
};

/// How to offer this machine through a registry.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RemoteEnvironmentConfig {
    /// The registry.
    pub registry_url: BaseUrl,
    /// The name of this machine there.
    pub environment_id: EnvironmentId,
    /// What is presented to the registry.
    pub credentials: RemoteCredentials,
    /// How harnesses reach this machine.
    pub transport: RemoteTransport,
    /// The way to the registry and to what it names.
    pub network: OutboundNetwork,
    /// How harnesses are served. Where to listen does not count.
    pub server: ServerConfig,
}

impl RemoteEnvironmentConfig {
    /// Offers this machine through the relay of a registry, with every other setting at its default.
    /// No variable adds to it.
    ///
    /// ```
    /// use exec_server::{RemoteEnvironmentConfig, remote::{RemoteCredentials, Token}};
    ///
    /// let token = RemoteCredentials::Token(Token::new("the hub's token")?);
    /// let config = RemoteEnvironmentConfig::new("https://hub.example", "box-7", token)?;
    /// assert_eq!(config.environment_id.as_str(), "box-7");
    /// # Ok::<(), anyhow::Error>(())
    /// ```
    ///
    /// # Errors
    /// When the URL is none of a registry, or the name none of an environment.
    pub fn new(
        registry_url: &str,
        environment_id: &str,
        credentials: RemoteCredentials,
    ) -> anyhow::Result<Self> {
        Ok(Self {
            registry_url: BaseUrl::parse(registry_url)?,
            environment_id: EnvironmentId::new(environment_id)?,
            credentials,
            transport: RemoteTransport::Noise,
            network: OutboundNetwork::default(),
            server: ServerConfig::from_flags(["--listen", "off"])?,
        })
    }

    /// Puts flags and variables together, if the flags ask for a registry at all.
    ///
    /// # Errors
    /// When there is nothing to present to it, or a variable does not make sense.
    pub fn find(
        registration: &RegistrationArgs,
        transport: &TransportArgs,
        chatgpt: &ChatGptAuthArgs,
        server: ServerConfig,
        lookup: VariableLookup<'_>,
    ) -> Result<Option<Self>, RemoteConfigError> {
        let (Some(registry_url), Some(environment_id)) =
            (&registration.remote, &registration.environment_id)
        else {
            return Ok(None);
        };
        Ok(Some(Self {
            credentials: RemoteCredentials::choose(
                registration,
                transport,
                chatgpt,
                lookup,
                &|path: &Path| path.exists(),
            )?,
            network: OutboundNetwork::find(lookup, registry_url)?,
            registry_url: registry_url.clone(),
            environment_id: environment_id.clone(),
            transport: transport.remote_transport.unwrap_or_default(),
            server,
        }))
    }
}

/// Why this machine cannot be offered. In every case whoever starts the program must act.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RemoteConfigError {
    /// A variable is not valid UTF-8.
    #[error(transparent)]
    Text(#[from] NotUtf8Error),
    /// A variable has a token that no header can carry.
    #[error("environment variable {variable}")]
    Token {
        /// The variable.
        variable: &'static str,
        /// What is wrong with it.
        source: TokenError,
    },
    /// A variable is not where a service can be.
    #[error("environment variable {variable}")]
    Url {
        /// The variable.
        variable: &'static str,
        /// What is wrong with it.
        source: BaseUrlError,
    },
    /// The variables that describe the network cannot be used.
    #[error(transparent)]
    Network(#[from] OutboundNetworkError),
    /// The name is none of an environment.
    #[error(transparent)]
    Environment(#[from] EnvironmentIdError),
    /// Nobody says where to register, and as what.
    #[error("--remote and --environment-id are missing")]
    NoRegistry,
    /// A variable is neither yes nor no.
    #[error("environment variable {variable}")]
    Switch {
        /// The variable.
        variable: &'static str,
        /// What it could be.
        source: SwitchParseError,
    },
    /// There is no identity to use.
    #[error("--use-agent-identity-auth needs a JWT in {ACCESS_TOKEN}")]
    NoIdentity,
    /// The direct transport is asked for without what it takes.
    #[error("--remote-transport direct needs --aws-sigv4, --remote-token-file or {REMOTE_TOKEN}")]
    DirectCredentials,
    /// There is nothing to present.
    #[error(
        "no credentials for the registry: give --remote-token-file or {REMOTE_TOKEN} for a hub, \
         --registration-bearer-stdin, --executor-credential-stdin, CODEX_API_KEY, {ACCESS_TOKEN}, or sign in"
    )]
    NoCredentials,
}

impl RemoteConfigError {
    /// Tells whether the command line itself is wrong: what it asks for goes with nothing that is set.
    pub fn is_usage(&self) -> bool {
        matches!(self, Self::DirectCredentials)
    }
}
