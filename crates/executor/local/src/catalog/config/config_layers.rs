//! Configuration layers that apply to a directory, lowest precedence first.

use std::path::Path;

use exec_wire::{limits, path_uri::PathUri};
use toml::{Table, Value};

use super::{managed_requirements, project_layers};
use crate::catalog::{
    CatalogConfig,
    catalog_reader::{CatalogReader, FileRead},
    run_blocking,
};

/// Why the configuration cannot be loaded. The author of the file must act.
#[derive(Debug, thiserror::Error)]
pub(super) enum ConfigLoadError {
    /// Host: the file exists but cannot be read.
    #[error("{0}")]
    Unreadable(String),
    /// Host: the file is not valid TOML.
    #[error("`{path}`: {error}")]
    NotToml {
        path: PathUri,
        error: Box<toml::de::Error>,
    },
    /// Host: a key that selects layers has an invalid value.
    #[error("`{key}` in the configuration must be {expected}")]
    Key { key: String, expected: &'static str },
}

/// One configuration layer.
#[derive(Debug)]
pub(super) struct LoadedLayer {
    pub(super) position: LayerPosition,
    /// Origin of the layer, for display.
    pub(super) source: String,
    pub(super) base: PathUri,
    pub(super) values: Table,
}

/// Precedence of a layer relative to cloud layers.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum LayerPosition {
    /// The machine's layer: cloud layers override it.
    BelowCloud,
    /// Overrides cloud layers.
    AboveCloud,
}

/// All layers that apply to a directory.
#[derive(Debug)]
pub(super) struct ConfigLayers {
    pub(super) config: Vec<LoadedLayer>,
    pub(super) requirements: Vec<LoadedLayer>,
}

impl ConfigLayers {
    /// Loads the layers that apply to `cwd`.
    pub(super) async fn load(
        catalog: &CatalogConfig,
        cwd: &PathUri,
    ) -> Result<Self, ConfigLoadError> {
        let reader = CatalogReader::new(&catalog.files, None);
        let (system, home) = (&catalog.system, &catalog.codex_home);
        let requirements = read_config_file(&reader, system, "requirements.toml").await?;
        let managed = read_config_file(&reader, system, "managed_config.toml").await?;
        let machine = read_config_file(&reader, system, CONFIG_FILE).await?;
        let user = read_config_file(&reader, home, CONFIG_FILE).await?;
        let mut merged = Table::new();
        for file in [&machine, &user, &managed].into_iter().flatten() {
            merge_tables(&mut merged, &file.values);
        }
        let projects = project_layers::layers(&reader, &merged, home, cwd).await?;
        let from_managed = match &managed {
            Some(file) => managed_requirements(&file.values)?,
            None => Table::new(),
        };

        let mut config = Vec::new();
        config.extend(machine.map(|file| file.layer(LayerPosition::BelowCloud, "system")));
        config.extend(user.map(|file| file.layer(LayerPosition::AboveCloud, "user")));
        config.extend(projects);
        let mut required = Vec::new();
        required.extend(requirements.map(|file| LoadedLayer {
            position: LayerPosition::BelowCloud,
            source: file.path.display().to_string(),
            base: file.base,
            values: file.values,
        }));
        required.extend(managed.as_ref().map(|file| LoadedLayer {
            position: LayerPosition::AboveCloud,
            source: file.path.display().to_string(),
            base: file.base.clone(),
            values: from_managed,
        }));
        config.extend(managed.map(|file| file.layer(LayerPosition::AboveCloud, "managed")));
        Ok(Self {
            config,
            requirements: required,
        })
    }
}

/// A loaded configuration file.
#[derive(Debug)]
pub(super) struct ConfigFile {
    path: std::path::PathBuf,
    base: PathUri,
    pub(super) values: Table,
}

impl ConfigFile {
    pub(super) fn layer(self, position: LayerPosition, kind: &str) -> LoadedLayer {
        LoadedLayer {
            position,
            source: format!("{kind} ({})", self.path.display()),
            base: self.base,
            values: self.values,
        }
    }
}

/// Reads a configuration file, if it exists.
pub(super) async fn read_config_file(
    reader: &CatalogReader,
    directory: &Path,
    name: &str,
) -> Result<Option<ConfigFile>, ConfigLoadError> {
    let native = directory.join(name);
    let uri = |path: &Path| {
        PathUri::from_native(path).map_err(|error| ConfigLoadError::Unreadable(error.to_string()))
    };
    let (base, path) = (uri(directory)?, uri(&native)?);
    let text = match reader.text(&path, limits::MAX_CONFIG_FILE_BYTES).await {
        FileRead::Text(text) => text,
        // Report a directory at the path of a file, which is a mistake.
        FileRead::Missing if reader.metadata(&path).await.is_ok() => {
            return Err(ConfigLoadError::Unreadable(format!(
                "`{path}` is not a file"
            )));
        }
        FileRead::Missing => return Ok(None),
        FileRead::Unreadable(reason) => return Err(ConfigLoadError::Unreadable(reason)),
    };
    let parse = move || toml::from_str(text.strip_prefix('\u{feff}').unwrap_or(&text));
    let parsed = run_blocking(parse).await;
    let parsed = parsed.map_err(|error| ConfigLoadError::Unreadable(error.to_string()))?;
    let values = parsed.map_err(|error| ConfigLoadError::NotToml {
        path,
        error: Box::new(error),
    })?;
    Ok(Some(ConfigFile {
        path: native,
        base,
        values,
    }))
}

/// Merges a higher layer into a lower one: tables are merged, other values replaced.
fn merge_tables(lower: &mut Table, higher: &Table) {
    for (key, value) in higher {
        match (lower.get_mut(key), value) {
            (Some(Value::Table(lower)), Value::Table(higher)) => merge_tables(lower, higher),
            _ => {
                lower.insert(key.clone(), value.clone());
            }
        }
    }
}

/// Name of configuration files.
pub(super) const CONFIG_FILE: &str = "config.toml";
