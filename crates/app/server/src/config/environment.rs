//! Options from environment variables, which are injected for tests.

use std::ffi::OsString;
use std::path::PathBuf;

use exec_cli::settings_source::{VariableLookup, config_directory, path};

use super::{
    ConfigError, LogLevel, ServerSettings, SettingError, SettingOrigin, Strictness, Switch,
};

/// Settings from the environment. An empty variable counts as not set.
#[derive(Clone, Debug, Default)]
pub struct EnvironmentLayer {
    /// Layer of options: `EXEC_SERVER_` and the key in upper case.
    pub settings: ServerSettings,
    /// `EXEC_SERVER_CONFIG`: like `--config`.
    pub config: Option<PathBuf>,
    /// `EXEC_SERVER_STRICT_CONFIG`: like `--strict-config`.
    pub strictness: Strictness,
    /// Variable of the stock server: like `--proxy-private-ips-via-upstream`.
    pub proxy_private_ips_via_upstream: Option<Switch>,
    /// Variable of the stock server: like `--exit-on-stdin-close`.
    pub exit_on_stdin_close: Option<Switch>,
    /// Default path of the configuration file.
    pub default_config: Option<PathBuf>,
}

impl EnvironmentLayer {
    /// Reads the environment.
    ///
    /// # Errors
    /// When one of our variables has an invalid value.
    pub fn read(lookup: VariableLookup<'_>) -> Result<Self, ConfigError> {
        let mut settings = ServerSettings::default();
        for key in ServerSettings::KEYS {
            let variable = format!("EXEC_SERVER_{}", key.to_ascii_uppercase());
            if let Some(text) = text(lookup, &variable)? {
                settings
                    .set(key, &text)
                    .map_err(|source| invalid(&variable, source))?;
            }
        }
        settings.log_level = settings.log_level.or_else(|| LogLevel::of_others(lookup));
        Ok(Self {
            settings,
            config: path(lookup, "EXEC_SERVER_CONFIG"),
            strictness: strictness(lookup)?,
            proxy_private_ips_via_upstream: text(lookup, PRIVATE_IPS)?
                // It has no effect, so an invalid value is not an error.
                .map(|text| text.parse().unwrap_or(Switch(true))),
            exit_on_stdin_close: switch(lookup, STDIN_CLOSE)?,
            default_config: config_directory(lookup).map(|home| home.join("config.toml")),
        })
    }
}

pub(crate) const STDIN_CLOSE: &str = "CODEX_EXEC_SERVER_EXIT_ON_STDIN_CLOSE";
const PRIVATE_IPS: &str = "CODEX_EXEC_SERVER_PROXY_PRIVATE_IPS_VIA_UPSTREAM";

fn strictness(lookup: VariableLookup<'_>) -> Result<Strictness, ConfigError> {
    Ok(match switch(lookup, "EXEC_SERVER_STRICT_CONFIG")? {
        Some(Switch(true)) => Strictness::Strict,
        Some(Switch(false)) | None => Strictness::Lenient,
    })
}

fn switch(lookup: VariableLookup<'_>, variable: &str) -> Result<Option<Switch>, ConfigError> {
    let text = text(lookup, variable)?;
    text.map(|text| text.parse::<Switch>())
        .transpose()
        .map_err(|error| invalid(variable, SettingError::InvalidValue(error.into())))
}

fn text(lookup: VariableLookup<'_>, variable: &str) -> Result<Option<String>, ConfigError> {
    let value = lookup(variable).filter(|value| !value.is_empty());
    value.map(OsString::into_string).transpose().map_err(|_| {
        invalid(
            variable,
            SettingError::InvalidValue("expected text in UTF-8".into()),
        )
    })
}

fn invalid(variable: &str, source: SettingError) -> ConfigError {
    ConfigError::Setting {
        origin: SettingOrigin::Variable(variable.to_owned()),
        source,
    }
}
