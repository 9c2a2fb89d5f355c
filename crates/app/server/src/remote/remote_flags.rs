//! Credentials, trust and proxies of an executor or a forwarder, from flags and variables.
//!
//! Invariant: flags take precedence over variables; unusable credentials are an error, never a
//! reason to present others.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
};

use exec_env::credential::CredentialVariable;
use exec_registry::{
    api::RegistryEnvironmentIdError,
    aws::{AwsEnvironment, AwsKeySources},
    credentials::RegistryTokenError,
    direct::DEFAULT_SERVICE,
    http::BaseUrlError,
};
use exec_settings::{
    outbound_network::OutboundNetworkError,
    settings_source::{CodexHome, NotUtf8Error, text},
};

use crate::{
    cli::{ChatGptAuthArgs, ForwardArgs, RegistrationArgs, StdinArgs, TransportArgs},
    config::{STDIN_CLOSE, ServerConfig, Switch, SwitchParseError, VariableLookup},
    remote::{
        AwsSettings, BaseUrl, ForwardConfig, OutboundNetwork, RegistryToken, RemoteCredentials,
        RemoteEnvironmentConfig, RemoteTransport, SecretString, VendorServices,
    },
    shutdown_signal::StdinClose,
};

impl RemoteEnvironmentConfig {
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

impl RemoteCredentials {
    /// Selects credentials: flags first, then `EXEC_SERVER_REMOTE_TOKEN`, `CODEX_API_KEY`,
    /// `CODEX_ACCESS_TOKEN`, and the sign-in in the Codex home if that file `exists`.
    pub(super) fn choose(
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

impl VendorServices {
    /// Reads the variables, with the vendor's URLs as defaults.
    pub(super) fn find(lookup: VariableLookup<'_>) -> Result<Self, RemoteConfigError> {
        let url = |variable: &'static str, default: &str| {
            let set = text(lookup, variable)?;
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

impl ForwardConfig {
    /// Builds the configuration from flags and variables.
    ///
    /// # Errors
    /// When there are no credentials, or a variable is invalid.
    pub fn find(
        flags: &ForwardArgs,
        lookup: VariableLookup<'_>,
    ) -> Result<Self, RemoteConfigError> {
        let registration = &flags.registration;
        let (Some(registry_url), Some(environment_id)) =
            (&registration.remote, &registration.environment_id)
        else {
            return Err(RemoteConfigError::NoRegistry);
        };
        let exists = |path: &std::path::Path| path.exists();
        Ok(Self {
            destination: flags.connect.clone(),
            credentials: RemoteCredentials::choose(
                registration,
                &flags.transport,
                &ChatGptAuthArgs::default(),
                lookup,
                &exists,
            )?,
            network: OutboundNetwork::find(lookup, registry_url)?,
            registry_url: registry_url.clone(),
            environment_id: environment_id.clone(),
            stdin_close: stdin_close(&flags.stdin, lookup)?,
        })
    }
}

/// Returns the role of stdin, from flag or variable.
fn stdin_close(
    stdin: &StdinArgs,
    lookup: VariableLookup<'_>,
) -> Result<StdinClose, RemoteConfigError> {
    let variable = STDIN_CLOSE;
    let set = text(lookup, variable)?.map(|text| text.parse());
    let set: Option<Switch> = set
        .transpose()
        .map_err(|source| RemoteConfigError::Switch { variable, source })?;
    let ends = stdin.exit_on_stdin_close || set.is_some_and(|on| on.0);
    Ok(match ends {
        true => StdinClose::Ends,
        false => StdinClose::Ignored,
    })
}
