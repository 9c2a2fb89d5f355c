//! `environmentConfig/read`: selected keys of the effective configuration layers, and requirements
//! derived from the managed configuration.

mod project_layers;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};

use exec_env::filesystem::FileError;
use exec_wire::{
    environment::{ConfigLayer, ConfigStack, EnvironmentConfig, ReadEnvironmentConfig},
    limits,
    path_uri::PathUri,
};
use serde::{Deserialize, Serialize};
use toml::{Table, Value};

use super::{CatalogConfig, CatalogReader, FileRead, run_blocking};

/// Reads the configuration that applies to a directory.
pub(super) async fn read(
    catalog: &CatalogConfig,
    read: ReadEnvironmentConfig,
) -> Result<EnvironmentConfig, FileError> {
    let refused = |text: &str| Err(FileError::Refused(text.to_owned()));
    let (config, requirements) = (&read.config_paths, &read.requirements_paths);
    if config.is_empty() && requirements.is_empty() {
        return refused("at least one config or requirements path is required");
    }
    if config.len().max(requirements.len()) > limits::MAX_CONFIG_PATHS {
        let max = limits::MAX_CONFIG_PATHS;
        return refused(&format!(
            "at most {max} key paths can be selected of each kind"
        ));
    }
    if config.iter().chain(requirements).any(Vec::is_empty) {
        return refused("TOML paths must contain at least one key segment");
    }
    if let Err(error) = read.cwd.to_native() {
        return Err(FileError::Refused(error.to_string()));
    }
    let layers = ConfigLayers::load(catalog, &read.cwd).await;
    let layers = layers.map_err(|error| FileError::Host(error.to_string()))?;
    let stacks = move || -> Result<_, FileError> {
        let config = config_stack(&layers.config, &read.config_paths)?;
        let requirements = config_stack(&layers.requirements, &read.requirements_paths)?;
        Ok((config, requirements))
    };
    let stacks = run_blocking(stacks).await;
    let (config, requirements) = stacks.map_err(|error| FileError::Host(error.to_string()))??;
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

/// Returns the layers with selected keys. Cloud layers are inserted above the machine's.
fn config_stack(layers: &[LoadedLayer], paths: &[Vec<String>]) -> Result<ConfigStack, FileError> {
    let mut stack = ConfigStack::default();
    for layer in layers {
        let selected = select_keys(&layer.values, paths);
        if selected.is_empty() {
            continue;
        }
        if layer.position == LayerPosition::BelowCloud {
            stack.cloud_insertion_index += 1;
        }
        stack.layers.push(ConfigLayer {
            source: layer.source.clone(),
            base_dir: layer.base.clone(),
            toml: to_toml(&selected)?,
        });
    }
    Ok(stack)
}

fn to_toml(values: &Table) -> Result<String, FileError> {
    toml::to_string(values).map_err(|error| FileError::Host(error.to_string()))
}

/// Returns the selected keys in the order of the layer.
///
/// A path that continues below a non-table value selects that value, because it overrides tables in
/// lower layers. A path that continues below a table without such a key selects an empty table.
fn select_keys(layer: &Table, paths: &[Vec<String>]) -> Table {
    let paths: Vec<&[String]> = paths.iter().map(Vec::as_slice).collect();
    select_below(layer, &paths)
}

fn select_below(table: &Table, paths: &[&[String]]) -> Table {
    let mut selected_table = Table::new();
    for (key, value) in table {
        let with_key = paths.iter().filter(|path| path.first() == Some(key));
        let remaining: Vec<&[String]> = with_key.map(|path| &path[1..]).collect();
        if remaining.is_empty() {
            continue;
        }
        let is_selected = remaining.iter().any(|path| path.is_empty());
        let value = match value.as_table() {
            Some(inner) if !is_selected => Value::Table(select_below(inner, &remaining)),
            Some(_) | None => value.clone(),
        };
        selected_table.insert(key.clone(), value);
    }
    selected_table
}

/// Why the configuration cannot be loaded. The author of the file must act.
#[derive(Debug, thiserror::Error)]
enum ConfigLoadError {
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
struct LoadedLayer {
    position: LayerPosition,
    /// Origin of the layer, for display.
    source: String,
    base: PathUri,
    values: Table,
}

/// Precedence of a layer relative to cloud layers.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum LayerPosition {
    /// The machine's layer: cloud layers override it.
    BelowCloud,
    /// Overrides cloud layers.
    AboveCloud,
}

/// All layers that apply to a directory.
#[derive(Debug)]
struct ConfigLayers {
    config: Vec<LoadedLayer>,
    requirements: Vec<LoadedLayer>,
}

impl ConfigLayers {
    /// Loads the layers that apply to `cwd`.
    async fn load(catalog: &CatalogConfig, cwd: &PathUri) -> Result<Self, ConfigLoadError> {
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
struct ConfigFile {
    path: PathBuf,
    base: PathUri,
    values: Table,
}

impl ConfigFile {
    fn layer(self, position: LayerPosition, kind: &str) -> LoadedLayer {
        LoadedLayer {
            position,
            source: format!("{kind} ({})", self.path.display()),
            base: self.base,
            values: self.values,
        }
    }
}

/// Reads a configuration file, if it exists.
async fn read_config_file(
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
const CONFIG_FILE: &str = "config.toml";

/// Keys of a managed configuration that become requirements.
#[derive(Debug, Deserialize)]
struct ManagedConfig {
    approval_policy: Option<ApprovalPolicy>,
    approvals_reviewer: Option<ApprovalsReviewer>,
    sandbox_mode: Option<SandboxMode>,
}

#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
enum ApprovalPolicy {
    Untrusted,
    OnFailure,
    OnRequest,
    Granular(GranularApproval),
    Never,
}

#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
struct GranularApproval {
    sandbox_approval: bool,
    rules: bool,
    #[serde(default)]
    skill_approval: bool,
    #[serde(default)]
    request_permissions: bool,
    mcp_elicitations: bool,
}

#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
enum ApprovalsReviewer {
    User,
    #[serde(alias = "guardian_subagent")]
    AutoReview,
}

#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum SandboxMode {
    ReadOnly,
    WorkspaceWrite,
    DangerFullAccess,
}

/// Derived requirements with the keys of `requirements.toml`.
#[derive(Debug, Serialize)]
struct ManagedRequirements {
    #[serde(skip_serializing_if = "Option::is_none")]
    allowed_approval_policies: Option<[ApprovalPolicy; 1]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    allowed_approvals_reviewers: Option<Vec<ApprovalsReviewer>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    allowed_sandbox_modes: Option<Vec<SandboxMode>>,
}

/// Derives requirements from a managed configuration: only the configured values stay allowed.
/// Invalid values are an error, because an ignored requirement would not be enforced.
fn managed_requirements(managed: &Table) -> Result<Table, ConfigLoadError> {
    let unreadable = |error: String| {
        ConfigLoadError::Unreadable(format!(
            "cannot derive requirements from managed_config.toml: {error}"
        ))
    };
    let managed = ManagedConfig::deserialize(managed.clone());
    let managed = managed.map_err(|error| unreadable(error.to_string()))?;
    // `on-failure` was removed and means `on-request`.
    let policy = managed.approval_policy.map(|policy| {
        let is_on_failure = matches!(policy, ApprovalPolicy::OnFailure);
        [if is_on_failure {
            ApprovalPolicy::OnRequest
        } else {
            policy
        }]
    });
    let reviewers = managed.approvals_reviewer.map(|reviewer| match reviewer {
        ApprovalsReviewer::User => vec![ApprovalsReviewer::User],
        // A human reviewer is always allowed.
        ApprovalsReviewer::AutoReview => vec![reviewer, ApprovalsReviewer::User],
    });
    let modes = managed.sandbox_mode.map(|mode| match mode {
        SandboxMode::ReadOnly => vec![mode],
        // A more restrictive mode is always allowed.
        SandboxMode::WorkspaceWrite | SandboxMode::DangerFullAccess => {
            vec![SandboxMode::ReadOnly, mode]
        }
    });
    let requirements = ManagedRequirements {
        allowed_approval_policies: policy,
        allowed_approvals_reviewers: reviewers,
        allowed_sandbox_modes: modes,
    };
    Table::try_from(requirements).map_err(|error| unreadable(error.to_string()))
}
