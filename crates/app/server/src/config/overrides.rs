//! `-c key=value`: a key of the configuration file, from the command line.

use std::str::FromStr;

use toml::de::DeValue;

use super::toml_text::text_of;
use super::{ConfigError, Place, SetError, Settings, Strictness};

/// One `-c key=value`.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Override {
    key: String,
    text: String,
}

impl FromStr for Override {
    type Err = OverrideParseError;

    /// Splits at the first `=`. A value that is no TOML, or none of a plain type, is a string.
    fn from_str(argument: &str) -> Result<Self, Self::Err> {
        let (key, value) = argument.split_once('=').ok_or(OverrideParseError)?;
        let (key, value) = (key.trim(), value.trim());
        if key.is_empty() {
            return Err(OverrideParseError);
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

/// Caller: the argument of `-c` has no key or no value.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("expected key=value")]
pub struct OverrideParseError;

/// Makes a layer of all overrides; a later one wins. Unknown keys become warnings, or the error.
pub(super) fn read(
    overrides: &[Override],
    strictness: Strictness,
    warnings: &mut Vec<String>,
) -> Result<Settings, ConfigError> {
    let mut settings = Settings::default();
    for Override { key, text } in overrides {
        match settings.set(key, text) {
            Ok(()) => {}
            Err(SetError::UnknownKey) if strictness == Strictness::Lenient => {
                warnings.push(format!("-c: unknown key `{key}` is ignored"));
            }
            Err(source) => {
                let place = Place::Override(key.clone());
                return Err(ConfigError::Setting { place, source });
            }
        }
    }
    Ok(settings)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(argument: &str) -> Option<(String, String)> {
        let read = argument.parse::<Override>().ok()?;
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
                argument.parse::<Override>(),
                Err(OverrideParseError),
                "{argument:?}"
            );
        }
    }
}
