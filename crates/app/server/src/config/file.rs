//! The configuration file: TOML, one key per option.

use std::path::{Path, PathBuf};

use toml::de::DeTable;

use exec_cli::settings_source;

use super::toml_text::text_of;
use super::{ConfigError, Place, SetError, Settings};

/// What a configuration file says.
#[derive(Clone, Debug, Default)]
pub struct ConfigFile {
    /// The layer of options.
    pub settings: Settings,
    /// What is odd in it and was passed over.
    pub warnings: Vec<String>,
}

impl ConfigFile {
    /// Reads the file at `path`.
    ///
    /// # Errors
    /// When it cannot be read, is larger than 1 MiB, or [`ConfigFile::parse`] refuses it.
    pub fn read(path: &Path, strictness: Strictness) -> Result<Self, ConfigError> {
        let text = settings_source::read_text(path).map_err(|source| ConfigError::ReadFile {
            path: path.to_owned(),
            source,
        })?;
        Self::parse(path, &text, strictness)
    }

    /// Reads the text of a file; `path` is for messages.
    ///
    /// # Errors
    /// When it is no TOML, or an option has a value that it cannot have; when strict, also when a
    /// key is unknown. The error names file and line, and never quotes a value that may be secret.
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
            let set = if Settings::KEYS.contains(&name) {
                text_of(value.get_ref())
                    .map_err(|error| SetError::InvalidValue(error.into()))
                    .and_then(|text| file.settings.set(name, &text))
            } else {
                Err(SetError::UnknownKey)
            };
            let place = || Place::File {
                path: path.to_owned(),
                line,
                key: name.to_owned(),
            };
            match set {
                Ok(()) => {}
                Err(SetError::UnknownKey) if strictness == Strictness::Lenient => {
                    file.warnings
                        .push(format!("{}: unknown key is ignored", place()));
                }
                Err(source) => {
                    return Err(ConfigError::Setting {
                        place: place(),
                        source,
                    });
                }
            }
        }
        Ok(file)
    }

    /// Reads the file somebody named, or else the one at the default place.
    ///
    /// The named one must be there and be right. The other may be missing, and when it is broken
    /// that is a warning, unless strict.
    pub(super) fn find(
        named: Option<PathBuf>,
        default: Option<PathBuf>,
        strictness: Strictness,
    ) -> Result<Self, ConfigError> {
        if let Some(path) = named {
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
                settings: Settings::default(),
                warnings: vec![format!("configuration file is ignored: {}", chain(&error))],
            }),
            (result, _) => result,
        }
    }
}

/// What to do about unknown keys, and about a broken file that nobody named.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Strictness {
    /// Warn and go on.
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

/// Writes an error with its sources in one line.
fn chain(error: &dyn std::error::Error) -> String {
    let mut line = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        line.push_str(": ");
        line.push_str(&error.to_string());
        source = error.source();
    }
    line
}
