//! Services of the vendor's that vouch for credentials, and the variables that name others.

use exec_registry::http::{BaseUrl, BaseUrlError};

use super::RemoteConfigError;
use crate::config::Lookup;

/// Where those services are.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Vendor {
    /// Tells whom a personal access token is for.
    pub issuer: BaseUrl,
    /// Registers tasks of agents.
    pub tasks: BaseUrl,
    /// Has the keys that agent identities are signed with.
    pub keys: BaseUrl,
}

impl Vendor {
    /// Finds them. What no variable names is the vendor's.
    pub(super) fn find(lookup: Lookup<'_>) -> Result<Self, RemoteConfigError> {
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
