//! Project layers: `.codex/config.toml` from the root of the project down to the working directory.

use std::path::Path;

use exec_wire::path_uri::PathUri;
use toml::{Table, Value};

use super::{
    git,
    layers::{CONFIG, Layer, LoadError, Place, file},
    trust::Trusted,
};
use crate::catalog::reader::Reader;

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
        None => return Ok(vec![git::DIRECTORY.to_owned()]),
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
    if marker == git::DIRECTORY {
        return git::is_repository(reader, directory).await;
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
