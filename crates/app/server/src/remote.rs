//! Offers this machine through a registry, to harnesses that cannot connect to it directly.
//!
//! Flags and variables determine credentials, trust and proxies; the protocol is in
//! `exec-registry`. Not here: registry and relay themselves (`hub`).

mod credentials;
mod executor;
#[cfg(test)]
mod tests;

use std::path::Path;

use exec_cli::{
    outbound_network::OutboundNetworkError,
    settings_source::{NotUtf8Error, TokenFile},
};
use exec_registry::{
    api::{RegistryEnvironmentId, RegistryEnvironmentIdError},
    credentials::RegistryTokenError,
    http::BaseUrlError,
};

use crate::{
    cli::{ChatGptAuthArgs, RegistrationArgs, RemoteTransport, TransportArgs},
    config::{ServerConfig, SwitchParseError, VariableLookup},
    remote::credentials::{ACCESS_TOKEN, REMOTE_TOKEN},
};

pub use exec_cli::outbound_network::OutboundNetwork;
pub use exec_registry::{
    api::{RegistryEnvironmentId as EnvironmentName, SecretString},
    credentials::RegistryToken,
    http::BaseUrl,
};

pub use self::{
    credentials::{AwsSettings, RemoteCredentials, VendorServices},
    executor::{ForwardConfig, run_forward, run_remote_environment},
};

/// How to offer this machine through a registry.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RemoteEnvironmentConfig {
    /// Registry.
    pub registry_url: BaseUrl,
    /// Name of this machine there.
    pub environment_id: RegistryEnvironmentId,
    /// Credentials for the registry.
    pub credentials: RemoteCredentials,
    /// How harnesses connect.
    pub transport: RemoteTransport,
    /// Proxies and trust for outgoing connections.
    pub network: OutboundNetwork,
    /// How harnesses are served. The listener is ignored.
    pub server: ServerConfig,
}

impl RemoteEnvironmentConfig {
    /// Offers this machine through the relay of a registry, with default settings.
    /// Reads no variables.
    ///
    /// ```
    /// use exec_server::{RemoteEnvironmentConfig, remote::{RegistryToken, RemoteCredentials}};
    ///
    /// let token = RemoteCredentials::Token(RegistryToken::new("the hub's token")?);
    /// let config = RemoteEnvironmentConfig::new("https://hub.example", "box-7", token)?;
    /// assert_eq!(config.environment_id.as_str(), "box-7");
    /// # Ok::<(), anyhow::Error>(())
    /// ```
    ///
    /// # Errors
    /// When the URL or the name is invalid.
    pub fn new(
        registry_url: &str,
        environment_id: &str,
        credentials: RemoteCredentials,
    ) -> anyhow::Result<Self> {
        Ok(Self {
            registry_url: BaseUrl::parse(registry_url)?,
            environment_id: RegistryEnvironmentId::new(environment_id)?,
            credentials,
            transport: RemoteTransport::Noise,
            network: OutboundNetwork::default(),
            server: ServerConfig::from_flags(["--listen", "off"])?,
        })
    }

    /// Builds the configuration from flags and variables, if the flags name a registry.
    ///
    /// # Errors
    /// When there are no credentials, or a variable is invalid.
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

/// Why this machine cannot be offered. The caller must act in every case.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RemoteConfigError {
    /// A variable is not valid UTF-8.
    #[error(transparent)]
    Text(#[from] NotUtf8Error),
    /// The token in a variable is not a valid header value.
    #[error("environment variable {variable}")]
    Token {
        /// The variable.
        variable: &'static str,
        /// Cause.
        source: RegistryTokenError,
    },
    /// Invalid URL in a variable.
    #[error("environment variable {variable}")]
    Url {
        /// The variable.
        variable: &'static str,
        /// Cause.
        source: BaseUrlError,
    },
    /// Invalid network variables.
    #[error(transparent)]
    Network(#[from] OutboundNetworkError),
    /// Invalid environment name.
    #[error(transparent)]
    Environment(#[from] RegistryEnvironmentIdError),
    /// Registry or environment id is missing.
    #[error("--remote and --environment-id are missing")]
    NoRegistry,
    /// A variable is not a boolean.
    #[error("environment variable {variable}")]
    Switch {
        /// The variable.
        variable: &'static str,
        /// Expected values.
        source: SwitchParseError,
    },
    /// Missing agent identity.
    #[error("--use-agent-identity-auth needs a JWT in {ACCESS_TOKEN}")]
    NoIdentity,
    /// The direct transport lacks its credentials.
    #[error("--remote-transport direct needs --aws-sigv4, --remote-token-file or {REMOTE_TOKEN}")]
    DirectCredentials,
    /// No credentials.
    #[error(
        "no credentials for the registry: give --remote-token-file or {REMOTE_TOKEN} for a hub, \
         --registration-bearer-stdin, --executor-credential-stdin, CODEX_API_KEY, {ACCESS_TOKEN}, or sign in"
    )]
    NoCredentials,
}

impl RemoteConfigError {
    /// Returns whether the command line itself is wrong.
    pub fn is_usage(&self) -> bool {
        matches!(self, Self::DirectCredentials)
    }
}
