//! The configuration file and `-c` overrides: TOML, one key per option.

use std::{
    path::{Path, PathBuf},
    str::FromStr,
};

use exec_settings::settings_source;
use exec_wire::error::error_chain;
use toml::de::{DeTable, DeValue};

use crate::config::{ConfigError, ServerSettings, SettingError, SettingOrigin};

/// Content of a configuration file.
#[derive(Clone, Debug, Default)]
pub struct ConfigFile {
    /// Layer of options.
    pub settings: ServerSettings,
    /// Warnings about ignored content.
    pub warnings: Vec<String>,
}

impl ConfigFile {
    /// Reads the file at `path`.
    ///
    /// # Errors
    /// When it cannot be read, is larger than 1 MiB, or [`ConfigFile::parse`] rejects it.
    pub fn read(path: &Path, strictness: Strictness) -> Result<Self, ConfigError> {
        let text = settings_source::read_text(path).map_err(|source| ConfigError::ReadFile {
            path: path.to_owned(),
            source,
        })?;
        Self::parse(path, &text, strictness)
    }

    /// Parses a file; `path` is for messages.
    ///
    /// # Errors
    /// When it is not TOML, or an option has an invalid value; when strict, also on an unknown key.
    /// The error names file and line, and never quotes a value that may be secret.
    pub fn parse(path: &Path, text: &str, strictness: Strictness) -> Result<Self, ConfigError> {
        let table = DeTable::parse(text).map_err(|error| ConfigError::Syntax {
            path: path.to_owned(),
            line: line_at(text, error.span().map_or(0, |span| span.start)),
            message: error.message().to_owned(),
        })?;
        let mut file = Self::default();
        let mut entries: Vec<_> = table.get_ref().iter().collect();
        entries.sort_by_key(|(key, _)| key.span().start);
        for (key, value) in entries {
            let (name, line) = (key.get_ref().as_ref(), line_at(text, key.span().start));
            let set = if ServerSettings::KEYS.contains(&name) {
                text_of(value.get_ref())
                    .map_err(|error| SettingError::InvalidValue(error.into()))
                    .and_then(|text| file.settings.set(name, &text))
            } else {
                Err(SettingError::UnknownKey)
            };
            let origin = || SettingOrigin::File {
                path: path.to_owned(),
                line,
                key: name.to_owned(),
            };
            match set {
                Ok(()) => {}
                Err(SettingError::UnknownKey) if strictness == Strictness::Lenient => {
                    file.warnings
                        .push(format!("{}: ignoring unknown key", origin()));
                }
                Err(source) => {
                    return Err(ConfigError::Setting {
                        origin: origin(),
                        source,
                    });
                }
            }
        }
        Ok(file)
    }

    /// Reads the named file, else the default one.
    ///
    /// A named file must exist and be valid. The default one may be missing; if it is invalid, that
    /// is a warning unless strict.
    pub(super) fn find(
        explicit: Option<PathBuf>,
        default: Option<PathBuf>,
        strictness: Strictness,
    ) -> Result<Self, ConfigError> {
        if let Some(path) = explicit {
            return Self::read(&path, strictness);
        }
        let Some(path) = default else {
            return Ok(Self::default());
        };
        match (Self::read(&path, strictness), strictness) {
            (Err(ConfigError::ReadFile { source, .. }), _)
                if source.kind() == std::io::ErrorKind::NotFound =>
            {
                Ok(Self::default())
            }
            (Err(error), Strictness::Lenient) => Ok(Self {
                settings: ServerSettings::default(),
                warnings: vec![format!(
                    "ignoring configuration file: {}",
                    error_chain(&error)
                )],
            }),
            (result, _) => result,
        }
    }
}

/// How to treat unknown keys and an invalid default file.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Strictness {
    /// Warn and continue.
    #[default]
    Lenient,
    /// Refuse to start.
    Strict,
}

fn line_at(text: &str, offset: usize) -> usize {
    text.bytes()
        .take(offset)
        .filter(|byte| *byte == b'\n')
        .count()
        + 1
}

/// One `-c key=value`.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ConfigOverride {
    key: String,
    text: String,
}

impl FromStr for ConfigOverride {
    type Err = ConfigOverrideParseError;

    /// Splits at the first `=`. A value that is not a plain TOML value is a string.
    fn from_str(argument: &str) -> Result<Self, Self::Err> {
        let (key, value) = argument.split_once('=').ok_or(ConfigOverrideParseError)?;
        let (key, value) = (key.trim(), value.trim());
        if key.is_empty() {
            return Err(ConfigOverrideParseError);
        }
        let plain = DeValue::parse(value)
            .ok()
            .and_then(|value| text_of(value.get_ref()).ok());
        Ok(Self {
            key: key.to_owned(),
            text: plain.unwrap_or_else(|| value.to_owned()),
        })
    }
}

/// Caller: the argument of `-c` lacks a key or a value.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("expected key=value")]
pub struct ConfigOverrideParseError;

/// Merges all overrides into a layer; later ones win. Unknown keys are warnings, or errors when
/// strict.
pub(super) fn read(
    overrides: &[ConfigOverride],
    strictness: Strictness,
    warnings: &mut Vec<String>,
) -> Result<ServerSettings, ConfigError> {
    let mut settings = ServerSettings::default();
    for ConfigOverride { key, text } in overrides {
        match settings.set(key, text) {
            Ok(()) => {}
            Err(SettingError::UnknownKey) if strictness == Strictness::Lenient => {
                warnings.push(format!("-c: ignoring unknown key `{key}`"));
            }
            Err(source) => {
                let origin = SettingOrigin::Override(key.clone());
                return Err(ConfigError::Setting { origin, source });
            }
        }
    }
    Ok(settings)
}

/// Returns a plain value as text, with numbers in decimal.
pub(super) fn text_of(value: &DeValue<'_>) -> Result<String, NotPlainValue> {
    match value {
        DeValue::String(text) => Ok(text.clone().into_owned()),
        DeValue::Integer(number) => i64::from_str_radix(number.as_str(), number.radix())
            .map(|number| number.to_string())
            .map_err(|_| NotPlainValue),
        DeValue::Float(number) => Ok(number.as_str().to_owned()),
        DeValue::Boolean(switch) => Ok(switch.to_string()),
        DeValue::Datetime(_) | DeValue::Array(_) | DeValue::Table(_) => Err(NotPlainValue),
    }
}

/// Caller: the value is a date, an array, a table, or beyond 64 bits.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("expected a string, a number, true or false")]
pub(super) struct NotPlainValue;

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(argument: &str) -> Option<(String, String)> {
        let read = argument.parse::<ConfigOverride>().ok()?;
        Some((read.key, read.text))
    }

    #[test]
    fn values_are_toml_or_else_strings() {
        let arguments = [
            ("session_ttl=0.5", ("session_ttl", "0.5")),
            ("listen=\"off\"", ("listen", "off")),
            ("listen=ws://127.0.0.1:0", ("listen", "ws://127.0.0.1:0")),
            (" ws_issuer = a=b ", ("ws_issuer", "a=b")),
            ("ws_issuer=", ("ws_issuer", "")),
            ("features.x=[1]", ("features.x", "[1]")),
        ];
        for (argument, (key, text)) in arguments {
            assert_eq!(
                parsed(argument),
                Some((key.to_owned(), text.to_owned())),
                "{argument}"
            );
        }
        for argument in ["", "listen", "=off", " =off"] {
            assert_eq!(
                argument.parse::<ConfigOverride>(),
                Err(ConfigOverrideParseError),
                "{argument:?}"
            );
        }
    }

    #[test]
    fn plain_values_have_a_text() {
        let values = [
            ("\"a b\"", Some("a b")),
            ("'a'", Some("a")),
            ("1_048_576", Some("1048576")),
            ("0x10", Some("16")),
            ("-3", Some("-3")),
            ("0.5", Some("0.5")),
            ("1_000.5", Some("1000.5")),
            ("true", Some("true")),
            ("99999999999999999999", None),
            ("2000-01-01", None),
            ("[1]", None),
            ("{ a = 1 }", None),
        ];
        for (toml, text) in values {
            let value = DeValue::parse(toml).unwrap();
            assert_eq!(text_of(value.get_ref()).ok().as_deref(), text, "{toml}");
        }
    }
}
