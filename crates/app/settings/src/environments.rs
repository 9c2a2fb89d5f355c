//! Selects the environments of a harness from the relay variables, our own `environments.toml`,
//! that of Codex, `CODEX_EXEC_SERVER_URL`, and a key of Codex's `config.toml`. The files of Codex
//! are never written.
//!
//! [`EnvironmentSelection::find`] is a pure function: its inputs are passed in. Invariant: an
//! invalid setting is an error that names its location, never a reason to run commands elsewhere.

mod endpoint;
mod file;
mod reader;
mod relay;
#[cfg(test)]
mod tests;

use std::{
    fmt, io,
    path::{Path, PathBuf},
};

use exec_environments::manager::EnvironmentId;

use crate::{
    environments::endpoint::network_address,
    settings_source::{self, CodexHome, VariableLookup},
};

pub use self::{
    endpoint::{
        EndpointError, EnvEndpoint, ProgramEndpoint, RelayEndpoint, TargetEndpoint, TokenSource,
        UrlEndpoint, dist_sources,
    },
    file::{ForeignKey, RemoteEntry, foreign_keys, parse, parse_over},
    reader::{EnvironmentsError, EnvironmentsFault},
    relay::{RELAY_VARIABLES, RelaySettingError},
};

/// Environments of a harness.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct EnvironmentSelection {
    /// Default environment, if any.
    pub default: Option<EnvironmentId>,
    /// Whether this machine is included, with the id `local`.
    pub local: bool,
    /// Environments on servers, with unique ids.
    pub remotes: Vec<RemoteEntry>,
}

impl EnvironmentSelection {
    /// Reads the settings of this process.
    ///
    /// # Errors
    /// See [`EnvironmentSelection::find`].
    pub fn load() -> Result<Self, SelectionError> {
        Self::find(SelectionInputs {
            lookup: &|name| std::env::var_os(name),
            read: &settings_source::read_text,
        })
    }

    /// Reads the relay variables, which take precedence over everything else. Otherwise reads our
    /// own `environments.toml` ([`EnvironmentSelection::own_file`]) on top of the settings of
    /// Codex: its environments come first and override those of Codex with the same id, and its
    /// `default` wins.
    ///
    /// Of the settings of Codex the first that exists applies: `environments.toml` of the Codex
    /// home; `CODEX_EXEC_SERVER_URL`; `[exec_server] url` in the Codex home's `config.toml`.
    /// Without any of them commands run on this machine.
    ///
    /// The relay variables must be set together and select one environment with the id `remote`.
    /// The other variable and the key are the URL of such an environment, which then excludes this
    /// machine, or `none` for no environment at all.
    ///
    /// # Errors
    /// When a setting that applies cannot be read or is invalid. Settings of lower precedence are
    /// not read.
    pub fn find(inputs: SelectionInputs<'_>) -> Result<Self, SelectionError> {
        if let Some(relay) = relay::of_variables(inputs.lookup)? {
            return Ok(Self::only(EnvEndpoint::Relay(relay)));
        }
        let base = Self::of_codex(inputs)?;
        let own = Self::own_file(inputs.lookup).map_or(Ok(None), |path| inputs.file(path))?;
        match own {
            Some((path, text)) => Ok(file::parse_over(&path, &text, inputs, Some(&base))?),
            None => Ok(base),
        }
    }

    /// Returns the path of our own `environments.toml`, the only one that we write.
    pub fn own_file(lookup: VariableLookup<'_>) -> Option<PathBuf> {
        settings_source::config_directory(lookup).map(|home| home.join("environments.toml"))
    }

    /// Reads the settings of Codex, without the relay variables.
    pub fn of_codex(inputs: SelectionInputs<'_>) -> Result<Self, SelectionError> {
        let home = CodexHome::find(inputs.lookup);
        let file = |name: &str| {
            let path = home.as_ref().map(|home| home.path().join(name));
            path.map_or(Ok(None), |path| inputs.file(path))
        };
        if let Some((path, text)) = file("environments.toml")? {
            return Ok(file::parse(&path, &text, inputs)?);
        }
        let mut setting = url_variable(inputs.lookup)?;
        if setting == UrlSetting::Unset
            && let Some((path, text)) = file("config.toml")?
        {
            setting = file::setting_of_config(&path, &text)?;
        }
        Ok(setting.into())
    }

    /// Selects one server as the only environment, and the default.
    fn only(endpoint: EnvEndpoint) -> Self {
        let remote = RemoteEntry {
            id: EnvironmentId::remote(),
            endpoint,
            required_skills: Vec::new(),
        };
        Self {
            default: Some(EnvironmentId::remote()),
            local: false,
            remotes: vec![remote],
        }
    }
}

/// Inputs of the selection.
#[derive(Clone, Copy)]
pub struct SelectionInputs<'a> {
    /// Returns the value of an environment variable, like `std::env::var_os`.
    pub lookup: VariableLookup<'a>,
    /// Reads a whole file.
    pub read: &'a dyn Fn(&Path) -> io::Result<String>,
}

impl SelectionInputs<'_> {
    /// Reads a file; `None` if it does not exist.
    fn file(self, path: PathBuf) -> Result<Option<(PathBuf, String)>, SelectionError> {
        match (self.read)(&path) {
            Ok(text) => Ok(Some((path, text))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(SelectionError::Read { path, source }),
        }
    }
}

impl fmt::Debug for SelectionInputs<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Facts").finish_non_exhaustive()
    }
}

/// Why the selection failed. Nothing runs anywhere then.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SelectionError {
    /// Caller: a file has invalid content.
    #[error(transparent)]
    File(#[from] EnvironmentsError),
    /// Host: a file exists but cannot be read.
    #[error("cannot read `{}`", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Cause.
        source: io::Error,
    },
    /// Caller: invalid value of the variable.
    #[error(
        "environment variable {URL_VARIABLE}: expected ws://HOST:PORT, wss://HOST:PORT or `none`"
    )]
    Url,
    /// Caller: some of the relay variables are missing.
    #[error(
        "environment variable {missing} is missing: set all of {}",
        RELAY_VARIABLES.join(", ")
    )]
    RelayIncomplete {
        /// The first missing variable.
        missing: &'static str,
    },
    /// Caller: invalid relay variable.
    #[error("environment variable {variable}")]
    Relay {
        /// The variable.
        variable: &'static str,
        /// Cause.
        source: RelaySettingError,
    },
}

/// Variable with the URL of a server, or `none`.
const URL_VARIABLE: &str = "CODEX_EXEC_SERVER_URL";

/// Value of a URL setting.
#[derive(Clone, Debug, Eq, PartialEq)]
enum UrlSetting {
    /// Not set.
    Unset,
    /// No environment.
    Nowhere,
    /// URL of the only environment.
    At(String),
}

impl UrlSetting {
    /// Parses a trimmed value.
    fn parse(value: &str) -> Option<Self> {
        let value = value.trim();
        if value.is_empty() {
            return Some(Self::Unset);
        }
        if value.eq_ignore_ascii_case("none") {
            return Some(Self::Nowhere);
        }
        network_address(value).map(|_| Self::At(value.to_owned()))
    }
}

impl From<UrlSetting> for EnvironmentSelection {
    fn from(setting: UrlSetting) -> Self {
        let default = match setting {
            UrlSetting::At(url) => return Self::only(EnvEndpoint::Url(UrlEndpoint::new(&url))),
            UrlSetting::Unset => Some(EnvironmentId::local()),
            UrlSetting::Nowhere => None,
        };
        Self {
            local: default.is_some(),
            default,
            remotes: Vec::new(),
        }
    }
}

fn url_variable(lookup: VariableLookup<'_>) -> Result<UrlSetting, SelectionError> {
    let Some(value) = lookup(URL_VARIABLE) else {
        return Ok(UrlSetting::Unset);
    };
    let value = value.into_string().ok();
    value
        .and_then(|value| UrlSetting::parse(&value))
        .ok_or(SelectionError::Url)
}
