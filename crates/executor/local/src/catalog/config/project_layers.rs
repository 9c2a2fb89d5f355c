//! Project layers: `.codex/config.toml` from the project root down to the working directory,
//! limited to trusted directories. Trust also follows git worktrees to their repository.

use std::{collections::BTreeMap, path::Path};

use exec_wire::path_uri::PathUri;
use toml::{Table, Value};

use super::{CONFIG_FILE, ConfigLoadError, LayerPosition, LoadedLayer, read_config_file};
use crate::catalog::{CatalogReader, FileRead};

/// Loads the layers of trusted directories. Files in other directories are not read.
pub(super) async fn layers(
    reader: &CatalogReader,
    config: &Table,
    codex_home: &Path,
    cwd: &PathUri,
) -> Result<Vec<LoadedLayer>, ConfigLoadError> {
    let root = project_root(reader, &root_markers(config)?, cwd).await;
    let trust = ProjectTrust::new(reader, config, &root, cwd).await?;
    let mut layers = Vec::new();
    for directory in directories_between(&root, cwd) {
        if !trust.is_trusted(reader, &directory).await {
            continue;
        }
        let Ok(directory) = directory.to_native() else {
            continue;
        };
        let directory = directory.join(".codex");
        if is_same_directory(reader, &directory, codex_home).await {
            continue;
        }
        if let Some(mut file) = read_config_file(reader, &directory, CONFIG_FILE).await? {
            file.values
                .retain(|key, _| !PROJECT_FORBIDDEN_KEYS.contains(&key));
            layers.push(file.layer(LayerPosition::AboveCloud, "project"));
        }
    }
    Ok(layers)
}

/// Returns the file names that mark a project root.
fn root_markers(config: &Table) -> Result<Vec<String>, ConfigLoadError> {
    let invalid_key = || ConfigLoadError::Key {
        key: "project_root_markers".to_owned(),
        expected: "an array of strings",
    };
    let root_markers = match config.get("project_root_markers") {
        None => return Ok(vec![GIT_DIRECTORY.to_owned()]),
        Some(Value::Array(root_markers)) => root_markers,
        Some(_) => return Err(invalid_key()),
    };
    let text = |marker: &Value| marker.as_str().map(str::to_owned).ok_or_else(invalid_key);
    root_markers.iter().map(text).collect()
}

/// Finds the nearest directory with a marker from `cwd` upwards, or returns `cwd`.
async fn project_root(reader: &CatalogReader, root_markers: &[String], cwd: &PathUri) -> PathUri {
    let mut directory = Some(cwd.clone());
    while let Some(current) = directory {
        for marker in root_markers {
            if has_marker(reader, &current, marker).await {
                return current;
            }
        }
        directory = current.parent();
    }
    cwd.clone()
}

async fn has_marker(reader: &CatalogReader, directory: &PathUri, marker: &str) -> bool {
    if marker == GIT_DIRECTORY {
        return is_repository(reader, directory).await;
    }
    match directory.join(marker) {
        Ok(path) => reader.metadata(&path).await.is_ok(),
        Err(_) => false,
    }
}

/// Lists the directories from `root` down to `cwd`, inclusive.
fn directories_between(root: &PathUri, cwd: &PathUri) -> Vec<PathUri> {
    let mut directories = vec![cwd.clone()];
    let mut current = cwd.clone();
    while current != *root {
        let Some(parent) = current.parent() else {
            break;
        };
        directories.push(parent.clone());
        current = parent;
    }
    directories.reverse();
    directories
}

/// Returns whether two paths are the same directory. The account's configuration is not a project
/// layer.
async fn is_same_directory(reader: &CatalogReader, left: &Path, right: &Path) -> bool {
    if left == right {
        return true;
    }
    let (Ok(left), Ok(right)) = (PathUri::from_native(left), PathUri::from_native(right)) else {
        return false;
    };
    let left = reader.canonicalize(&left).await;
    left.is_some() && left == reader.canonicalize(&right).await
}

/// Keys that a project may not set: they control where prompts and secrets are sent, and which
/// programs run beside a command.
const PROJECT_FORBIDDEN_KEYS: [&str; 11] = [
    "apps_mcp_product_sku",
    "chatgpt_base_url",
    "experimental_realtime_webrtc_call_base_url",
    "experimental_realtime_ws_base_url",
    "model_provider",
    "model_providers",
    "notify",
    "openai_base_url",
    "otel",
    "profile",
    "profiles",
];

/// Trust levels of directories, and the level of the project as the default.
#[derive(Debug)]
pub(super) struct ProjectTrust {
    levels: BTreeMap<String, Option<TrustLevel>>,
    /// Level for directories without an explicit one.
    project_level: Option<TrustLevel>,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum TrustLevel {
    Trusted,
    Untrusted,
}

impl ProjectTrust {
    /// Reads the configured levels and the level of the project: that of its root, otherwise of its
    /// repository.
    pub(super) async fn new(
        reader: &CatalogReader,
        config: &Table,
        root: &PathUri,
        cwd: &PathUri,
    ) -> Result<Self, ConfigLoadError> {
        let mut trust = Self {
            levels: parse_trust_levels(config)?,
            project_level: None,
        };
        if trust.levels.is_empty() {
            return Ok(trust);
        }
        trust.project_level = trust.level(reader, root).await;
        if trust.project_level.is_none()
            && let Some(repository) = main_repository(reader, cwd).await
        {
            trust.project_level = trust.level(reader, &repository).await;
        }
        Ok(trust)
    }

    /// Returns whether a directory of the project is trusted.
    pub(super) async fn is_trusted(&self, reader: &CatalogReader, directory: &PathUri) -> bool {
        let level = self.level(reader, directory).await.or(self.project_level);
        level == Some(TrustLevel::Trusted)
    }

    /// Returns the explicit level of a directory, by its path or its canonical path.
    async fn level(&self, reader: &CatalogReader, directory: &PathUri) -> Option<TrustLevel> {
        if self.levels.is_empty() {
            return None;
        }
        if let Some(level) = self.explicit_level(directory) {
            return Some(level);
        }
        self.explicit_level(&reader.canonicalize(directory).await?)
    }

    fn explicit_level(&self, directory: &PathUri) -> Option<TrustLevel> {
        let path = directory.to_native().ok()?;
        self.levels.get(path.to_str()?).copied().flatten()
    }
}

fn parse_trust_levels(
    config: &Table,
) -> Result<BTreeMap<String, Option<TrustLevel>>, ConfigLoadError> {
    let invalid_key = |key: String, expected| ConfigLoadError::Key { key, expected };
    let projects = match config.get("projects") {
        None => return Ok(BTreeMap::new()),
        Some(Value::Table(projects)) => projects,
        Some(_) => return Err(invalid_key("projects".to_owned(), "a table")),
    };
    let mut levels = BTreeMap::new();
    for (path, project) in projects {
        let Value::Table(project) = project else {
            return Err(invalid_key(format!("projects.{path}"), "a table"));
        };
        let level = match project.get("trust_level") {
            None => None,
            Some(level) => match level.as_str() {
                Some("trusted") => Some(TrustLevel::Trusted),
                Some("untrusted") => Some(TrustLevel::Untrusted),
                Some(_) | None => {
                    let key = format!("projects.{path}.trust_level");
                    return Err(invalid_key(key, "`trusted` or `untrusted`"));
                }
            },
        };
        levels.insert(path.clone(), level);
    }
    Ok(levels)
}

/// Marks a repository: a directory, or a file in a worktree.
const GIT_DIRECTORY: &str = ".git";

/// Maximum size of a git file that is read: each holds one path.
const MAX_FILE_BYTES: u64 = 16 << 10;

/// Returns whether a directory is the top of a repository or worktree. An empty `.git` is neither.
async fn is_repository(reader: &CatalogReader, directory: &PathUri) -> bool {
    let Ok(git) = directory.join(GIT_DIRECTORY) else {
        return false;
    };
    match reader.metadata(&git).await {
        Ok(found) if found.is_directory => match git.join("HEAD") {
            Ok(head) => reader.metadata(&head).await.is_ok(),
            Err(_) => false,
        },
        Ok(found) => found.is_file,
        Err(_) => false,
    }
}

/// Finds the repository of a directory. For a worktree, returns its main repository.
async fn main_repository(reader: &CatalogReader, cwd: &PathUri) -> Option<PathUri> {
    let mut directory = Some(cwd.clone());
    while let Some(current) = directory {
        if is_repository(reader, &current).await {
            let git = current.join(GIT_DIRECTORY).ok()?;
            let is_file = reader.metadata(&git).await.ok()?.is_file;
            if is_file {
                return worktree_of(reader, &current, &git).await;
            }
            return Some(current);
        }
        directory = current.parent();
    }
    None
}

/// Follows a worktree's `.git` file to its repository. Both must refer to each other, because
/// anyone can write a file that names a trusted repository.
async fn worktree_of(reader: &CatalogReader, worktree: &PathUri, git: &PathUri) -> Option<PathUri> {
    let text = read_line(reader, git).await?;
    let git_dir = resolve(reader, worktree, text.strip_prefix("gitdir:")?.trim()).await?;
    let common = read_line(reader, &git_dir.join("commondir").ok()?).await?;
    let common = resolve(reader, &git_dir, &common).await?;
    let recorded_git = read_line(reader, &git_dir.join("gitdir").ok()?).await?;
    let recorded_git = resolve(reader, &git_dir, &recorded_git).await?;
    let is_linked = git_dir.parent()? == common.join("worktrees").ok()?
        && recorded_git == reader.canonicalize(git).await?
        && common.file_name()? == GIT_DIRECTORY.as_bytes();
    is_linked.then(|| common.parent()).flatten()
}

async fn resolve(reader: &CatalogReader, base: &PathUri, text: &str) -> Option<PathUri> {
    reader.canonicalize(&base.join(text).ok()?).await
}

async fn read_line(reader: &CatalogReader, path: &PathUri) -> Option<String> {
    match reader.text(path, MAX_FILE_BYTES).await {
        FileRead::Text(text) => Some(text.trim().to_owned()),
        FileRead::Missing | FileRead::Unreadable(_) => None,
    }
}
