//! The layers that count in a directory, lowest precedence first.

use std::path::Path;

use exec_wire::{limits, path_uri::PathUri};
use toml::{Table, Value};

use super::{managed_requirements, project_layers};
use crate::catalog::{
    CatalogConfig, aside,
    catalog_reader::{Read, Reader},
};

/// Why the configuration cannot be told. Whoever wrote the file must act.
#[derive(Debug, thiserror::Error)]
pub(super) enum LoadError {
    /// Host: the file is there and cannot be had.
    #[error("{0}")]
    Unreadable(String),
    /// Host: the file is not TOML.
    #[error("`{path}`: {error}")]
    NotToml {
        path: PathUri,
        error: Box<toml::de::Error>,
    },
    /// Host: a key that decides which layers count has a wrong value.
    #[error("`{key}` in the configuration must be {expected}")]
    Key { key: String, expected: &'static str },
}

/// One layer.
#[derive(Debug)]
pub(super) struct Layer {
    pub(super) place: Place,
    /// Where it comes from, for people.
    pub(super) source: String,
    pub(super) base: PathUri,
    pub(super) values: Table,
}

/// Whose layer it is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Place {
    /// The machine's; a client's own layers go before it.
    Machine,
    /// Everything that goes before a client's own layers.
    Above,
}

/// Everything that counts.
#[derive(Debug)]
pub(super) struct Layers {
    pub(super) config: Vec<Layer>,
    pub(super) requirements: Vec<Layer>,
}

impl Layers {
    /// Reads what counts in `cwd`.
    pub(super) async fn load(catalog: &CatalogConfig, cwd: &PathUri) -> Result<Self, LoadError> {
        let reader = Reader::new(&catalog.files, None);
        let (system, home) = (&catalog.system, &catalog.codex_home);
        let requirements = file(&reader, system, "requirements.toml").await?;
        let managed = file(&reader, system, "managed_config.toml").await?;
        let machine = file(&reader, system, CONFIG).await?;
        let user = file(&reader, home, CONFIG).await?;
        let mut merged = Table::new();
        for file in [&machine, &user, &managed].into_iter().flatten() {
            merge(&mut merged, &file.values);
        }
        let projects = project_layers::layers(&reader, &merged, home, cwd).await?;
        let demanded = match &managed {
            Some(file) => managed_requirements(&file.values)?,
            None => Table::new(),
        };

        let mut config = Vec::new();
        config.extend(machine.map(|file| file.layer(Place::Machine, "system")));
        config.extend(user.map(|file| file.layer(Place::Above, "user")));
        config.extend(projects);
        let mut required = Vec::new();
        required.extend(requirements.map(|file| Layer {
            place: Place::Machine,
            source: file.path.display().to_string(),
            base: file.base,
            values: file.values,
        }));
        required.extend(managed.as_ref().map(|file| Layer {
            place: Place::Above,
            source: file.path.display().to_string(),
            base: file.base.clone(),
            values: demanded,
        }));
        config.extend(managed.map(|file| file.layer(Place::Above, "managed")));
        Ok(Self {
            config,
            requirements: required,
        })
    }
}

/// A file that is there.
#[derive(Debug)]
pub(super) struct File {
    path: std::path::PathBuf,
    base: PathUri,
    pub(super) values: Table,
}

impl File {
    pub(super) fn layer(self, place: Place, kind: &str) -> Layer {
        Layer {
            place,
            source: format!("{kind} ({})", self.path.display()),
            base: self.base,
            values: self.values,
        }
    }
}

/// Reads a file of configuration, if it is there.
pub(super) async fn file(
    reader: &Reader,
    directory: &Path,
    name: &str,
) -> Result<Option<File>, LoadError> {
    let native = directory.join(name);
    let uri = |path: &Path| {
        PathUri::from_native(path).map_err(|error| LoadError::Unreadable(error.to_string()))
    };
    let (base, path) = (uri(directory)?, uri(&native)?);
    let text = match reader.text(&path, limits::MAX_CONFIG_FILE_BYTES).await {
        Read::Text(text) => text,
        // A directory in a file's place is a mistake that must not go unseen.
        Read::Missing if reader.metadata(&path).await.is_ok() => {
            return Err(LoadError::Unreadable(format!("`{path}` is not a file")));
        }
        Read::Missing => return Ok(None),
        Read::Refused(why) => return Err(LoadError::Unreadable(why)),
    };
    let parse = move || toml::from_str(text.strip_prefix('\u{feff}').unwrap_or(&text));
    let parsed = aside(parse).await;
    let parsed = parsed.map_err(|lost| LoadError::Unreadable(lost.to_string()))?;
    let values = parsed.map_err(|error| LoadError::NotToml {
        path,
        error: Box::new(error),
    })?;
    Ok(Some(File {
        path: native,
        base,
        values,
    }))
}

/// Puts a higher layer over a lower one: tables become one, everything else is replaced.
fn merge(lower: &mut Table, higher: &Table) {
    for (key, value) in higher {
        match (lower.get_mut(key), value) {
            (Some(Value::Table(lower)), Value::Table(higher)) => merge(lower, higher),
            _ => {
                lower.insert(key.clone(), value.clone());
            }
        }
    }
}

/// What a file of configuration is called.
pub(super) const CONFIG: &str = "config.toml";
