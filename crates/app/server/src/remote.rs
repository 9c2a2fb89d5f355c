//! Offers this machine through a registry, to harnesses that cannot connect to it directly.
//!
//! The protocol is in `exec-registry`. Not here: flags and variables (`remote_flags`), registry and
//! relay themselves (`hub`).

mod executor;
#[cfg(feature = "executor")]
mod remote_flags;
#[cfg(test)]
#[cfg(feature = "executor")]
mod tests;

use std::path::PathBuf;

use exec_registry::{api::RegistryEnvironmentId, aws::AwsKeySources, credentials::PipeEnd};
use exec_transport::listen_url::ListenUrl;

use crate::{config::ServerConfig, remote::executor::StdinEnd, shutdown_signal::StdinClose};

pub use exec_registry::{
    api::{RegistryEnvironmentId as EnvironmentName, SecretString},
    credentials::RegistryToken,
    http::BaseUrl,
};
pub use exec_settings::outbound_network::OutboundNetwork;

pub use self::executor::{ForwardConfig, run_forward, run_remote_environment};
#[cfg(feature = "executor")]
pub use self::remote_flags::RemoteConfigError;

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
            server: ServerConfig {
                listen: ListenUrl::Off,
                ..ServerConfig::default()
            },
        })
    }
}

/// How harnesses connect to an executor.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[cfg_attr(feature = "executor", derive(clap::ValueEnum))]
pub enum RemoteTransport {
    /// Through a relay that cannot read the traffic.
    #[default]
    Noise,
    /// Over a websocket that the registry names; its other end reads the traffic.
    Direct,
}

/// Credentials of an executor for its registry.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum RemoteCredentials {
    /// Token of the registry itself, such as one of a hub; sent over `https://`, or to this
    /// machine.
    Token(RegistryToken),
    /// Like [`RemoteCredentials::Token`], in a file that may be replaced.
    TokenFile(PathBuf),
    /// API key; sent to its vendor, or to this machine.
    ApiKey(RegistryToken),
    /// Personal access token, and the services that identify its owner.
    AccessToken(SecretString, VendorServices),
    /// File with the sign-in of another program.
    SignIn(PathBuf),
    /// JWT of an agent identity, and the services that verify it.
    AgentIdentity(SecretString, VendorServices),
    /// Tokens from stdin.
    Stdin,
    /// One token from stdin; sent over `https://`, or to this machine.
    RegistrationBearerStdin,
    /// ChatGPT access token from stdin, and its account; sent over `https://`.
    ChatGptStdin(Option<String>),
    /// Signatures, for the direct transport only.
    Aws(AwsSettings),
}

/// AWS signing settings.
#[derive(Clone, Debug)]
pub struct AwsSettings {
    /// Source of keys and region.
    pub chain: AwsKeySources,
    /// Service to sign for.
    pub service: String,
}

impl RemoteCredentials {
    /// Returns the remaining role of stdin: if tokens are read from it, that reader also sees its
    /// end.
    fn remaining_stdin(&self, configured: StdinClose) -> StdinClose {
        match matches!(self, Self::Stdin) || self.is_stdin_line() {
            true => StdinClose::Ignored,
            false => configured,
        }
    }

    /// Returns what the end of stdin means after the credentials were read.
    fn stdin_end(&self, pipe: Option<PipeEnd>, configured: StdinClose) -> StdinEnd {
        match pipe {
            Some(pipe) => StdinEnd::Credentials(pipe),
            None if self.is_stdin_line() && configured == StdinClose::Ends => StdinEnd::Watched,
            None => StdinEnd::Ignored,
        }
    }

    /// Returns whether one line of stdin is read, before anything else may read it.
    fn is_stdin_line(&self) -> bool {
        matches!(self, Self::RegistrationBearerStdin | Self::ChatGptStdin(_))
    }
}

/// URLs of the vendor's services.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct VendorServices {
    /// Identifies the owner of a personal access token.
    pub issuer: BaseUrl,
    /// Registers agent tasks.
    pub tasks: BaseUrl,
    /// Publishes the keys of agent identities.
    pub keys: BaseUrl,
}
