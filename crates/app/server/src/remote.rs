//! Offers this machine through a registry, to harnesses that cannot connect to it directly.
//!
//! Flags and variables determine credentials, trust and proxies; the protocol is in
//! `exec-registry`. Invariant: flags take precedence over variables; unusable credentials are an
//! error, never a reason to present others. Not here: registry and relay themselves (`hub`).

mod executor;
#[cfg(test)]
mod tests;

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
};

use exec_cli::{
    outbound_network::OutboundNetworkError,
    settings_source::{NotUtf8Error, TokenFile, text},
};
use exec_env::credential::CredentialVariable;
use exec_registry::{
    api::{RegistryEnvironmentId, RegistryEnvironmentIdError},
    aws::{AwsEnvironment, AwsKeySources},
    credentials::{PipeEnd, RegistryTokenError},
    direct::DEFAULT_SERVICE,
    http::BaseUrlError,
};

use crate::{
    cli::{ChatGptAuthArgs, RegistrationArgs, RemoteTransport, TransportArgs},
    config::{ServerConfig, SwitchParseError, VariableLookup},
    environments::CodexHome,
    remote::executor::StdinEnd,
    shutdown_signal::StdinClose,
};

pub use exec_cli::outbound_network::OutboundNetwork;
pub use exec_registry::{
    api::{RegistryEnvironmentId as EnvironmentName, SecretString},
    credentials::RegistryToken,
    http::BaseUrl,
};

pub use self::executor::{ForwardConfig, run_forward, run_remote_environment};

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

    /// Selects credentials: flags first, then `EXEC_SERVER_REMOTE_TOKEN`, `CODEX_API_KEY`,
    /// `CODEX_ACCESS_TOKEN`, and the sign-in in the Codex home if that file `exists`.
    fn choose(
        registration: &RegistrationArgs,
        transport: &TransportArgs,
        chatgpt: &ChatGptAuthArgs,
        lookup: VariableLookup<'_>,
        exists: &dyn Fn(&std::path::Path) -> bool,
    ) -> Result<Self, RemoteConfigError> {
        if transport.aws_sigv4 {
            return Ok(Self::Aws(aws(transport, lookup)?));
        }
        if registration.executor_credential_stdin {
            return Ok(Self::Stdin);
        }
        if registration.registration_bearer_stdin {
            return Ok(Self::RegistrationBearerStdin);
        }
        if chatgpt.chatgpt_token_stdin {
            return Ok(Self::ChatGptStdin(chatgpt.chatgpt_account_id.clone()));
        }
        if registration.use_agent_identity_auth {
            let token = text(lookup, ACCESS_TOKEN)?.ok_or(RemoteConfigError::NoIdentity)?;
            return Ok(Self::AgentIdentity(
                SecretString::new(token),
                VendorServices::find(lookup)?,
            ));
        }
        if let Some(file) = &registration.remote_token_file {
            return Ok(Self::TokenFile(file.clone()));
        }
        if let Some(token) = token(lookup, REMOTE_TOKEN)? {
            return Ok(Self::Token(token));
        }
        if transport.remote_transport == Some(RemoteTransport::Direct) {
            return Err(RemoteConfigError::DirectCredentials);
        }
        if let Some(key) = token(lookup, API_KEY)? {
            return Ok(Self::ApiKey(key));
        }
        if let Some(token) = text(lookup, ACCESS_TOKEN)? {
            return Ok(Self::AccessToken(
                SecretString::new(token),
                VendorServices::find(lookup)?,
            ));
        }
        let stored = CodexHome::find(lookup).map(|home| home.path().join("auth.json"));
        match stored.filter(|path| exists(path)) {
            Some(path) => Ok(Self::SignIn(path)),
            None => Err(RemoteConfigError::NoCredentials),
        }
    }
}

fn token(
    lookup: VariableLookup<'_>,
    variable: &'static str,
) -> Result<Option<RegistryToken>, RemoteConfigError> {
    let token = text(lookup, variable)?.map(|token| RegistryToken::new(&token));
    token
        .transpose()
        .map_err(|source| RemoteConfigError::Token { variable, source })
}

fn aws(
    transport: &TransportArgs,
    lookup: VariableLookup<'_>,
) -> Result<AwsSettings, RemoteConfigError> {
    let value = |variable: &'static str| text(lookup, variable);
    let path = |variable: &str, name: &str| {
        let set = |variable: &str| lookup(variable).filter(|value: &OsString| !value.is_empty());
        let below_home = || Some(PathBuf::from(set("HOME")?).join(".aws").join(name));
        set(variable).map(PathBuf::from).or_else(below_home)
    };
    let environment = AwsEnvironment {
        access_key_id: value(CredentialVariable::AwsAccessKeyId.name())?,
        secret_access_key: value(CredentialVariable::AwsSecretAccessKey.name())?,
        session_token: value(CredentialVariable::AwsSessionToken.name())?,
        profile: value("AWS_PROFILE")?,
        region: value("AWS_REGION")?,
        default_region: value("AWS_DEFAULT_REGION")?,
    };
    let service = transport.aws_service.clone();
    Ok(AwsSettings {
        chain: AwsKeySources {
            profile: transport.aws_profile.clone(),
            region: transport.aws_region.clone(),
            environment,
            config_file: path("AWS_CONFIG_FILE", "config"),
            credentials_file: path("AWS_SHARED_CREDENTIALS_FILE", "credentials"),
        },
        service: service.unwrap_or_else(|| DEFAULT_SERVICE.to_owned()),
    })
}

const REMOTE_TOKEN: &str = CredentialVariable::RemoteToken.name();
const API_KEY: &str = CredentialVariable::CodexApiKey.name();
const ACCESS_TOKEN: &str = CredentialVariable::CodexAccessToken.name();

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

impl VendorServices {
    /// Reads the variables, with the vendor's URLs as defaults.
    fn find(lookup: VariableLookup<'_>) -> Result<Self, RemoteConfigError> {
        let url = |variable: &'static str, default: &str| {
            let set = exec_cli::settings_source::text(lookup, variable)?;
            let invalid = |source: BaseUrlError| RemoteConfigError::Url { variable, source };
            BaseUrl::parse(set.as_deref().unwrap_or(default)).map_err(invalid)
        };
        Ok(Self {
            issuer: url("CODEX_AUTHAPI_BASE_URL", ACCOUNTS)?,
            tasks: url("CODEX_AGENT_IDENTITY_AUTHAPI_BASE_URL", ACCOUNTS)?,
            keys: url("CODEX_AGENT_IDENTITY_JWKS_BASE_URL", BACKEND)?,
        })
    }
}

const ACCOUNTS: &str = "https://auth.openai.com/api/accounts";
const BACKEND: &str = "https://chatgpt.com/backend-api";
