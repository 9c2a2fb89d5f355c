//! Selects the credentials for a registry from flags and variables.
//!
//! Invariant: flags take precedence over variables; unusable credentials are an error, never a
//! reason to present others.

use std::{ffi::OsString, path::PathBuf};

use exec_cli::settings_source::text;
use exec_env::credential::CredentialVariable;
use exec_registry::{
    api::SecretString,
    aws::{AwsEnvironment, AwsKeySources},
    credentials::{PipeEnd, RegistryToken},
    direct::DEFAULT_SERVICE,
    http::{BaseUrl, BaseUrlError},
};

use crate::{
    cli::{ChatGptAuthArgs, RegistrationArgs, RemoteTransport, TransportArgs},
    config::VariableLookup,
    environments::CodexHome,
    remote::{RemoteConfigError, executor::StdinEnd},
    shutdown_signal::StdinClose,
};

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
    pub(super) fn leave_stdin(&self, asked: StdinClose) -> StdinClose {
        match matches!(self, Self::Stdin) || self.is_stdin_line() {
            true => StdinClose::Ignored,
            false => asked,
        }
    }

    /// Returns what the end of stdin means after the credentials were read.
    pub(super) fn stdin_end(&self, pipe: Option<PipeEnd>, asked: StdinClose) -> StdinEnd {
        match pipe {
            Some(pipe) => StdinEnd::Credentials(pipe),
            None if self.is_stdin_line() && asked == StdinClose::Ends => StdinEnd::Watched,
            None => StdinEnd::Ignored,
        }
    }

    /// Returns whether one line of stdin is read, before anything else may read it.
    fn is_stdin_line(&self) -> bool {
        matches!(self, Self::RegistrationBearerStdin | Self::ChatGptStdin(_))
    }

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

pub(super) const REMOTE_TOKEN: &str = CredentialVariable::RemoteToken.name();
const API_KEY: &str = CredentialVariable::CodexApiKey.name();
pub(super) const ACCESS_TOKEN: &str = CredentialVariable::CodexAccessToken.name();

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
    pub(super) fn find(lookup: VariableLookup<'_>) -> Result<Self, RemoteConfigError> {
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
