//! Project layers: `.codex/config.toml` from the root of the project down to the working directory.

use std::{collections::BTreeMap, path::Path};

use exec_wire::path_uri::PathUri;
use toml::{Table, Value};

use super::config_layers::{CONFIG, Layer, LoadError, Place, file};
use crate::catalog::catalog_reader::{Read, Reader};

/// Reads the layers of the directories that the account trusts. Files of others are not even read.
pub(super) async fn layers(
    reader: &Reader,
    config: &Table,
    codex_home: &Path,
    cwd: &PathUri,
) -> Result<Vec<Layer>, LoadError> {
    let root = root(reader, &markers(config)?, cwd).await;
    let trusted = Trusted::new(reader, config, &root, cwd).await?;
    let mut layers = Vec::new();
    for directory in from_to(&root, cwd) {
        if !trusted.trusts(reader, &directory).await {
            continue;
        }
        let Ok(directory) = directory.to_native() else {
            continue;
        };
        let directory = directory.join(".codex");
        if is_same(reader, &directory, codex_home).await {
            continue;
        }
        if let Some(mut file) = file(reader, &directory, CONFIG).await? {
            file.values.retain(|key, _| !NOT_OF_PROJECTS.contains(&key));
            layers.push(file.layer(Place::Above, "project"));
        }
    }
    Ok(layers)
}

/// Names that mark the root of a project.
fn markers(config: &Table) -> Result<Vec<String>, LoadError> {
    let wrong = || LoadError::Key {
        key: "project_root_markers".to_owned(),
        expected: "an array of strings",
    };
    let markers = match config.get("project_root_markers") {
        None => return Ok(vec![GIT_DIRECTORY.to_owned()]),
        Some(Value::Array(markers)) => markers,
        Some(_) => return Err(wrong()),
    };
    let text = |marker: &Value| marker.as_str().map(str::to_owned).ok_or_else(wrong);
    markers.iter().map(text).collect()
}

/// Finds the nearest directory with a marker, from `cwd` up; `cwd` itself if there is none.
async fn root(reader: &Reader, markers: &[String], cwd: &PathUri) -> PathUri {
    let mut directory = Some(cwd.clone());
    while let Some(here) = directory {
        for marker in markers {
            if is_marked(reader, &here, marker).await {
                return here;
            }
        }
        directory = here.parent();
    }
    cwd.clone()
}

async fn is_marked(reader: &Reader, directory: &PathUri, marker: &str) -> bool {
    if marker == GIT_DIRECTORY {
        return is_repository(reader, directory).await;
    }
    match directory.join(marker) {
        Ok(path) => reader.metadata(&path).await.is_ok(),
        Err(_) => false,
    }
}

/// Lists the directories from `root` down to `cwd`, both among them.
fn from_to(root: &PathUri, cwd: &PathUri) -> Vec<PathUri> {
    let mut directories = vec![cwd.clone()];
    let mut here = cwd.clone();
    while here != *root {
        let Some(above) = here.parent() else {
            break;
        };
        directories.push(above.clone());
        here = above;
    }
    directories.reverse();
    directories
}

/// The account's own configuration is not a project's, wherever the working directory is.
async fn is_same(reader: &Reader, one: &Path, other: &Path) -> bool {
    if one == other {
        return true;
    }
    let (Ok(one), Ok(other)) = (PathUri::from_native(one), PathUri::from_native(other)) else {
        return false;
    };
    let one = reader.canonicalize(&one).await;
    one.is_some() && one == reader.canonicalize(&other).await
}

/// Keys that a project may not set: they say where the account's words and secrets are sent, and what is
/// run beside a command.
const NOT_OF_PROJECTS: [&str; 11] = [
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

/// What the account has said of directories, and what holds where it has said nothing.
#[derive(Debug)]
pub(super) struct Trusted {
    said: BTreeMap<String, Option<Level>>,
    /// For directories of which nothing is said: what is said of the project.
    otherwise: Option<Level>,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Level {
    Trusted,
    Untrusted,
}

impl Trusted {
    /// Reads what is said, and what holds for the project: the word on its root, or else on its
    /// repository.
    pub(super) async fn new(
        reader: &Reader,
        config: &Table,
        root: &PathUri,
        cwd: &PathUri,
    ) -> Result<Self, LoadError> {
        let mut trusted = Self {
            said: said(config)?,
            otherwise: None,
        };
        if trusted.said.is_empty() {
            return Ok(trusted);
        }
        trusted.otherwise = trusted.level(reader, root).await;
        if trusted.otherwise.is_none()
            && let Some(repository) = main_repository(reader, cwd).await
        {
            trusted.otherwise = trusted.level(reader, &repository).await;
        }
        Ok(trusted)
    }

    /// Tells whether a directory of the project is trusted.
    pub(super) async fn trusts(&self, reader: &Reader, directory: &PathUri) -> bool {
        let level = self.level(reader, directory).await.or(self.otherwise);
        level == Some(Level::Trusted)
    }

    /// What is said of a directory, by its name or by the one without links.
    async fn level(&self, reader: &Reader, directory: &PathUri) -> Option<Level> {
        if self.said.is_empty() {
            return None;
        }
        if let Some(level) = self.word_on(directory) {
            return Some(level);
        }
        self.word_on(&reader.canonicalize(directory).await?)
    }

    fn word_on(&self, directory: &PathUri) -> Option<Level> {
        let path = directory.to_native().ok()?;
        self.said.get(path.to_str()?).copied().flatten()
    }
}

fn said(config: &Table) -> Result<BTreeMap<String, Option<Level>>, LoadError> {
    let wrong = |key: String, expected| LoadError::Key { key, expected };
    let projects = match config.get("projects") {
        None => return Ok(BTreeMap::new()),
        Some(Value::Table(projects)) => projects,
        Some(_) => return Err(wrong("projects".to_owned(), "a table")),
    };
    let mut said = BTreeMap::new();
    for (path, project) in projects {
        let Value::Table(project) = project else {
            return Err(wrong(format!("projects.{path}"), "a table"));
        };
        let level = match project.get("trust_level") {
            None => None,
            Some(level) => match level.as_str() {
                Some("trusted") => Some(Level::Trusted),
                Some("untrusted") => Some(Level::Untrusted),
                Some(_) | None => {
                    let key = format!("projects.{path}.trust_level");
                    return Err(wrong(key, "`trusted` or `untrusted`"));
                }
            },
        };
        said.insert(path.clone(), level);
    }
    Ok(said)
}

/// What marks a repository: a directory, or in a worktree a file.
const GIT_DIRECTORY: &str = ".git";

/// Largest file of git's that is read: each holds one path.
const MAX_FILE_BYTES: u64 = 16 << 10;

/// Tells whether a repository or a worktree begins here. An empty `.git` is neither.
async fn is_repository(reader: &Reader, directory: &PathUri) -> bool {
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

/// Finds the repository that a directory belongs to; for a worktree, the one that it is a worktree of.
async fn main_repository(reader: &Reader, cwd: &PathUri) -> Option<PathUri> {
    let mut directory = Some(cwd.clone());
    while let Some(here) = directory {
        if is_repository(reader, &here).await {
            let git = here.join(GIT_DIRECTORY).ok()?;
            let is_file = reader.metadata(&git).await.ok()?.is_file;
            if is_file {
                return worktree_of(reader, &here, &git).await;
            }
            return Some(here);
        }
        directory = here.parent();
    }
    None
}

/// Follows a worktree's `.git` to its repository. Both must name each other: anybody can write a file
/// that names a repository which the account trusts.
async fn worktree_of(reader: &Reader, worktree: &PathUri, git: &PathUri) -> Option<PathUri> {
    let text = line(reader, git).await?;
    let private = resolve(reader, worktree, text.strip_prefix("gitdir:")?.trim()).await?;
    let common = line(reader, &private.join("commondir").ok()?).await?;
    let common = resolve(reader, &private, &common).await?;
    let back = line(reader, &private.join("gitdir").ok()?).await?;
    let back = resolve(reader, &private, &back).await?;
    let is_known = private.parent()? == common.join("worktrees").ok()?
        && back == reader.canonicalize(git).await?
        && common.file_name()? == GIT_DIRECTORY.as_bytes();
    is_known.then(|| common.parent()).flatten()
}

async fn resolve(reader: &Reader, base: &PathUri, text: &str) -> Option<PathUri> {
    reader.canonicalize(&base.join(text).ok()?).await
}

async fn line(reader: &Reader, path: &PathUri) -> Option<String> {
    match reader.text(path, MAX_FILE_BYTES).await {
        Read::Text(text) => Some(text.trim().to_owned()),
        Read::Missing | Read::Refused(_) => None,
    }
}
