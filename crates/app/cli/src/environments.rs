//! Which environments a harness works in: the variables of the relay, our own `environments.toml`, that
//! of Codex, another variable, and a key of the configuration file of the Codex home.
//! The files of Codex are never written.
//!
//! [`EnvironmentSelection::find`] looks where the settings are and decides; what it reads comes in as arguments,
//! so that it is a pure function. Invariant: a setting that cannot be understood is an error that names
//! its place, never a reason to run commands somewhere else.

mod file;
mod foreign;
mod reach;
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
    environments::reach::network_address,
    settings_source::{self, VariableLookup},
};

pub use self::{
    file::{RemoteEntry, parse},
    foreign::{ForeignKey, foreign_keys},
    reach::{EnvEndpoint, ProgramEndpoint, RelayEndpoint, TokenSource, UrlEndpoint},
    reader::{EnvironmentsError, EnvironmentsFault},
    relay::RelaySettingError,
};

pub(crate) use self::{
    file::parse_over, reach::EndpointError, relay::VARIABLES as RELAY_VARIABLES,
};

/// The environments of a harness.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct EnvironmentSelection {
    /// The one that is used when none is named. Absent: there is none.
    pub default: Option<EnvironmentId>,
    /// Whether this machine is one, under the id `local`.
    pub local: bool,
    /// Those on servers. No two have the same id.
    pub remotes: Vec<RemoteEntry>,
}

impl EnvironmentSelection {
    /// Finds the settings of this process and reads them.
    ///
    /// # Errors
    /// As [`EnvironmentSelection::find`].
    pub fn load() -> Result<Self, SelectionError> {
        Self::find(SelectionInputs {
            lookup: &|name| std::env::var_os(name),
            read: &settings_source::read_text,
        })
    }

    /// Reads the variables of the relay, which decide alone if they are set. Otherwise reads our own
    /// `environments.toml` ([`EnvironmentSelection::own_file`]) on top of what the settings of Codex select: its
    /// environments come first, hide those of Codex with the same id, and its `default` decides.
    ///
    /// Of the settings of Codex the first that exists decides: `environments.toml` of the Codex home;
    /// `CODEX_EXEC_SERVER_URL`; `[exec_server] url` of the Codex home's `config.toml`. Without any of
    /// them commands run on this machine.
    ///
    /// The relay's variables need each other, and select one environment with the id `remote`. Of the
    /// other variable, as of the key, the value `none` means no environment, and any other is the URL
    /// of such a one; this machine is none then.
    ///
    /// # Errors
    /// When a setting that decides cannot be read or does not make sense. Those behind it are not
    /// looked at.
    pub fn find(facts: SelectionInputs<'_>) -> Result<Self, SelectionError> {
        if let Some(relay) = relay::of_variables(facts.lookup)? {
            return Ok(Self::only(EnvEndpoint::Relay(relay)));
        }
        let base = Self::of_codex(facts)?;
        let own = Self::own_file(facts.lookup).map_or(Ok(None), |path| facts.file(path))?;
        match own {
            Some((path, text)) => Ok(file::parse_over(&path, &text, facts, Some(&base))?),
            None => Ok(base),
        }
    }

    /// Returns the path of our own `environments.toml`, the only one that we write.
    pub fn own_file(lookup: VariableLookup<'_>) -> Option<PathBuf> {
        settings_source::config_directory(lookup).map(|home| home.join("environments.toml"))
    }

    /// Reads what the settings of Codex select, without the variables of the relay.
    pub(crate) fn of_codex(facts: SelectionInputs<'_>) -> Result<Self, SelectionError> {
        let home = CodexHome::find(facts.lookup);
        let file = |name: &str| {
            let path = home.as_ref().map(|home| home.path().join(name));
            path.map_or(Ok(None), |path| facts.file(path))
        };
        if let Some((path, text)) = file("environments.toml")? {
            return Ok(file::parse(&path, &text, facts)?);
        }
        let mut setting = url_variable(facts.lookup)?;
        if setting == UrlSetting::Unset
            && let Some((path, text)) = file("config.toml")?
        {
            setting = file::setting_of_config(&path, &text)?;
        }
        Ok(setting.into())
    }

    /// Makes one server the only environment, and the default.
    fn only(reach: EnvEndpoint) -> Self {
        let remote = RemoteEntry {
            id: EnvironmentId::remote(),
            reach,
            required_skills: Vec::new(),
        };
        Self {
            default: Some(EnvironmentId::remote()),
            local: false,
            remotes: vec![remote],
        }
    }
}

/// What selecting looks at.
#[derive(Clone, Copy)]
pub struct SelectionInputs<'a> {
    /// Gives the value of an environment variable, as `std::env::var_os` does.
    pub lookup: VariableLookup<'a>,
    /// Reads a file whole.
    pub read: &'a dyn Fn(&Path) -> io::Result<String>,
}

impl SelectionInputs<'_> {
    /// Reads a file that need not be there.
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

/// Why no environment is selected. Nothing runs then, neither here nor elsewhere.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SelectionError {
    /// Caller: a file says what cannot be.
    #[error(transparent)]
    File(#[from] EnvironmentsError),
    /// Host: a file is there and cannot be read.
    #[error("cannot read `{}`", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// Caller: the variable is not one of the values that it can have.
    #[error(
        "environment variable {URL_VARIABLE}: expected ws://HOST:PORT, wss://HOST:PORT or `none`"
    )]
    Url,
    /// Caller: the relay needs all of its variables.
    #[error(
        "environment variable {missing} is missing: {} need each other",
        relay::VARIABLES.join(", ")
    )]
    RelayIncomplete {
        /// The first that is not set.
        missing: &'static str,
    },
    /// Caller: a variable of the relay's does not make sense.
    #[error("environment variable {variable}")]
    Relay {
        /// The variable.
        variable: &'static str,
        /// What is wrong with it.
        source: RelaySettingError,
    },
}

/// Names a server, or `none`.
const URL_VARIABLE: &str = "CODEX_EXEC_SERVER_URL";

/// What one URL setting says.
#[derive(Clone, Debug, Eq, PartialEq)]
enum UrlSetting {
    /// Nothing.
    Unset,
    /// That there is no environment.
    Nowhere,
    /// Where the only one is.
    At(String),
}

impl UrlSetting {
    /// Reads a value, without the blanks around it.
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

/// The Codex home: `CODEX_HOME`, or else `.codex` in the home of the account.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct CodexHome(PathBuf);

impl CodexHome {
    /// Finds it. A variable that is set to nothing counts as not set.
    pub fn find(lookup: VariableLookup<'_>) -> Option<Self> {
        let path = |name| lookup(name).filter(|value| !value.is_empty());
        path("CODEX_HOME")
            .map(PathBuf::from)
            .or_else(|| Some(PathBuf::from(path("HOME")?).join(".codex")))
            .map(Self)
    }

    /// Returns its path.
    pub fn path(&self) -> &Path {
        &self.0
    }
}
