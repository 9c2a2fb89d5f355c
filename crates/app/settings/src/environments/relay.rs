//! Environments behind a relay: keys in the file, and the variables that select one.

use std::{ffi::OsString, path::PathBuf};

use exec_env::credential::CredentialVariable;
use exec_environments::manager::EnvironmentId;
use exec_registry::{
    api::{RegistryEnvironmentId as EnvironmentName, RegistryEnvironmentIdError},
    credentials::{AccountId, RegistryToken, RegistryTokenError},
    http::{BaseUrl, BaseUrlError},
};
use exec_transport::connect::CONNECT_TIMEOUT;

use crate::{
    environments::{
        EnvironmentsError, EnvironmentsFault, RelayEndpoint, SelectionError, TokenSource,
        endpoint::INITIALIZE_TIMEOUT,
        file::{EntryContext, timeout},
        reader::{TomlItem, TomlSection},
    },
    settings_source::VariableLookup,
};

/// Variables that together select a relay.
pub const RELAY_VARIABLES: [&str; 3] = [
    "CODEX_EXEC_SERVER_NOISE_REGISTRY_URL",
    "CODEX_EXEC_SERVER_NOISE_ENVIRONMENT_ID",
    CredentialVariable::NoiseAuthToken.name(),
];
/// Account to use. Selects nothing by itself.
const ACCOUNT: &str = "CODEX_EXEC_SERVER_NOISE_CHATGPT_ACCOUNT_ID";

/// Problem with a relay variable. Never repeats a secret.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum RelaySettingError {
    /// Not valid UTF-8.
    #[error("expected text in UTF-8")]
    Text,
    /// Invalid registry URL.
    #[error(transparent)]
    Url(#[from] BaseUrlError),
    /// Invalid environment name for a registry.
    #[error(transparent)]
    Name(#[from] RegistryEnvironmentIdError),
    /// Not a valid header value.
    #[error(transparent)]
    Header(#[from] RegistryTokenError),
}

/// Parses the keys of an environment in a registry, which defaults to its own id.
pub(super) fn read(
    section: &TomlSection<'_>,
    url: &TomlItem<'_>,
    id: &EnvironmentId,
    context: EntryContext<'_>,
) -> Result<RelayEndpoint, EnvironmentsError> {
    let registry_url = BaseUrl::parse(url.text()?).map_err(|error| url.wrong(error.into()))?;
    let environment_id = match section.item("environment_id") {
        Some(item) => {
            EnvironmentName::new(item.text()?).map_err(|error| item.wrong(error.into()))?
        }
        None => EnvironmentName::new(id.as_str())
            .map_err(|error| section.fault("environment_id", error.into()))?,
    };
    Ok(RelayEndpoint {
        environment_id,
        auth_token: auth_token(section, &registry_url, context)?,
        chatgpt_account_id: None,
        connect_timeout: timeout(section, "connect_timeout_sec", CONNECT_TIMEOUT)?,
        initialize_timeout: timeout(section, "initialize_timeout_sec", INITIALIZE_TIMEOUT)?,
        registry_url,
    })
}

fn auth_token(
    section: &TomlSection<'_>,
    registry: &BaseUrl,
    context: EntryContext<'_>,
) -> Result<TokenSource, EnvironmentsError> {
    let keys = ["auth_token", "auth_token_env", "auth_token_file"];
    let present: Vec<_> = keys
        .iter()
        .filter_map(|key| Some((*key, section.item(key)?)))
        .collect();
    let (key, item) = match present[..] {
        [] => return Err(section.fault("auth_token", EnvironmentsFault::TokenSource)),
        [only] => only,
        [(_, first), (_, second), ..] => {
            let later = if first.offset() < second.offset() {
                second
            } else {
                first
            };
            return Err(later.misplaced(EnvironmentsFault::TokenSource));
        }
    };
    if !registry.is_private() {
        return Err(item.wrong(EnvironmentsFault::TokenInClear("https://")));
    }
    let token = |text: &str| RegistryToken::new(text).map_err(|error| item.wrong(error.into()));
    match key {
        "auth_token_env" => {
            let value = token(&variable(item, context)?)?;
            Ok(TokenSource::Variable(item.name()?.to_owned(), value))
        }
        "auth_token_file" => {
            let (path, text) = file(item, context)?;
            token(&text).map(|_| TokenSource::File(path))
        }
        _ => token(item.text()?).map(TokenSource::Value),
    }
}

/// Reads the variable that a key names.
pub(super) fn variable(
    item: &TomlItem<'_>,
    context: EntryContext<'_>,
) -> Result<String, EnvironmentsError> {
    let name = item.name()?;
    let value = (context.inputs.lookup)(name).map(OsString::into_string);
    let missing = || item.wrong(EnvironmentsFault::TokenVariable(name.to_owned()));
    value.and_then(Result::ok).ok_or_else(missing)
}

/// Reads the file that a key names.
pub(super) fn file(
    item: &TomlItem<'_>,
    context: EntryContext<'_>,
) -> Result<(PathBuf, String), EnvironmentsError> {
    let path = context.home.join(item.name()?);
    match (context.inputs.read)(&path) {
        Ok(text) => Ok((path, text)),
        Err(error) => {
            let reason = error.to_string();
            Err(item.wrong(EnvironmentsFault::TokenFile { path, reason }))
        }
    }
}

/// Reads the variables; `None` if none is set. Like the stock client, accepts any registry, even an
/// unencrypted one.
pub(super) fn of_variables(
    lookup: VariableLookup<'_>,
) -> Result<Option<RelayEndpoint>, SelectionError> {
    let value = |name: &'static str| -> Result<Option<String>, SelectionError> {
        let text = lookup(name).map(OsString::into_string).transpose();
        let text = text.map_err(|_| SelectionError::Relay {
            variable: name,
            source: RelaySettingError::Text,
        })?;
        let text = text.map(|text| text.trim().to_owned());
        Ok(text.filter(|text| !text.is_empty()))
    };
    let values = [
        value(RELAY_VARIABLES[0])?,
        value(RELAY_VARIABLES[1])?,
        value(RELAY_VARIABLES[2])?,
    ];
    if values.iter().all(Option::is_none) {
        return Ok(None);
    }
    let missing = || {
        let absent = values.iter().position(Option::is_none).unwrap_or_default();
        SelectionError::RelayIncomplete {
            missing: RELAY_VARIABLES[absent],
        }
    };
    let [Some(registry), Some(environment_id), Some(token)] = &values else {
        return Err(missing());
    };
    let refused = |variable, source: RelaySettingError| SelectionError::Relay { variable, source };
    let account = value(ACCOUNT)?.map(|account| AccountId::new(&account));
    Ok(Some(RelayEndpoint {
        registry_url: BaseUrl::parse(registry)
            .map_err(|error| refused(RELAY_VARIABLES[0], error.into()))?,
        environment_id: EnvironmentName::new(environment_id)
            .map_err(|error| refused(RELAY_VARIABLES[1], error.into()))?,
        auth_token: RegistryToken::new(token)
            .map(|token| TokenSource::Variable(RELAY_VARIABLES[2].to_owned(), token))
            .map_err(|error| refused(RELAY_VARIABLES[2], error.into()))?,
        chatgpt_account_id: account
            .transpose()
            .map_err(|error| refused(ACCOUNT, error.into()))?,
        connect_timeout: CONNECT_TIMEOUT,
        initialize_timeout: INITIALIZE_TIMEOUT,
    }))
}
