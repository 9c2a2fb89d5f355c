//! `environmentConfig/read`: selected keys of each layer that counts.

use std::path::Path;

use exec_env::filesystem::FileError;
use exec_wire::{
    config::{ConfigLayer, ConfigStack, EnvironmentConfig, ReadEnvironmentConfig},
    limits,
    path_uri::PathUri,
};
use toml::Table;

use super::{
    layers::{Layer, Layers, Place},
    select,
};
use crate::catalog::{aside::aside, local::CatalogConfig};

/// Reads the configuration that counts in a directory.
pub(in crate::catalog) async fn read(
    catalog: &CatalogConfig,
    read: ReadEnvironmentConfig,
) -> Result<EnvironmentConfig, FileError> {
    let refused = |text: &str| Err(FileError::Refused(text.to_owned()));
    let (config, requirements) = (&read.config_paths, &read.requirements_paths);
    if config.is_empty() && requirements.is_empty() {
        return refused("at least one config or requirements path is required");
    }
    if config.len().max(requirements.len()) > limits::MAX_CONFIG_PATHS {
        let most = limits::MAX_CONFIG_PATHS;
        return refused(&format!(
            "at most {most} key paths can be selected of each kind"
        ));
    }
    if config.iter().chain(requirements).any(Vec::is_empty) {
        return refused("TOML paths must contain at least one key segment");
    }
    if let Err(error) = read.cwd.to_native() {
        return Err(FileError::Refused(error.to_string()));
    }
    let layers = Layers::load(catalog, &read.cwd).await;
    let layers = layers.map_err(|error| FileError::Host(error.to_string()))?;
    let stacks = move || -> Result<_, FileError> {
        let config = stack(&layers.config, &read.config_paths)?;
        let requirements = stack(&layers.requirements, &read.requirements_paths)?;
        Ok((config, requirements))
    };
    let stacks = aside(stacks).await;
    let (config, requirements) = stacks.map_err(|lost| FileError::Host(lost.to_string()))??;
    let home = catalog.user_home.as_deref();
    Ok(EnvironmentConfig {
        user_home_dir: home.and_then(|home| PathUri::from_native(home).ok()),
        codex_home_dir: uri(&catalog.codex_home)?,
        hostname: catalog.hostname.clone(),
        config,
        requirements,
    })
}

fn uri(path: &Path) -> Result<PathUri, FileError> {
    PathUri::from_native(path).map_err(|error| FileError::Host(error.to_string()))
}

/// Keeps the layers in which something is selected. A client's own layers come after the machine's.
fn stack(layers: &[Layer], paths: &[Vec<String>]) -> Result<ConfigStack, FileError> {
    let mut stack = ConfigStack::default();
    for layer in layers {
        let selected = select::selected(&layer.values, paths);
        if selected.is_empty() {
            continue;
        }
        if layer.place == Place::Machine {
            stack.cloud_insertion_index += 1;
        }
        stack.layers.push(ConfigLayer {
            source: layer.source.clone(),
            base_dir: layer.base.clone(),
            toml: text(&selected)?,
        });
    }
    Ok(stack)
}

fn text(values: &Table) -> Result<String, FileError> {
    toml::to_string(values).map_err(|error| FileError::Host(error.to_string()))
}
