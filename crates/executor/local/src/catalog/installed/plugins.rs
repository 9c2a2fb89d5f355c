//! The cache of plugins: `<marketplace>/<name>/<version>`, one version of each counts.

use exec_env::filesystem::FileError;
use exec_wire::{
    fs::{DirectoryEntry, EntryKind, ReadDirectory, Walk, WalkOptions},
    limits,
    path_uri::PathUri,
};
use serde::Deserialize;

use super::version;
use crate::catalog::reader::{Read, Reader};

/// A version of a plugin that is in the cache.
#[derive(Debug)]
pub(super) struct Cached {
    /// `<name>@<marketplace>`.
    pub(super) id: String,
    pub(super) version: String,
    /// Where all versions of it lie.
    versions: PathUri,
    /// Where this version lies.
    pub(super) root: PathUri,
}

/// Lists the plugins of a cache by their ids, each with its best version.
pub(super) async fn cached(reader: &Reader, cache: &PathUri) -> (Vec<Cached>, Vec<String>) {
    let (mut plugins, mut warnings) = (Vec::new(), Vec::new());
    for marketplace in directories(reader, cache, &mut warnings).await {
        let Some(of_it) = named(cache, &marketplace, is_marketplace) else {
            continue;
        };
        for name in directories(reader, &of_it, &mut warnings).await {
            let Some(versions) = named(&of_it, &name, is_plugin) else {
                continue;
            };
            if plugins.len() == limits::MAX_INSTALLED_PLUGINS {
                warnings.push(format!("there are more plugins than {}", plugins.len()));
                return (sorted(plugins), warnings);
            }
            let Some(version) = best(reader, &versions, &mut warnings).await else {
                continue;
            };
            let Some(root) = named(&versions, &version, version::is_one) else {
                continue;
            };
            plugins.push(Cached {
                id: format!("{name}@{marketplace}"),
                version,
                versions,
                root,
            });
        }
    }
    (sorted(plugins), warnings)
}

fn sorted(mut plugins: Vec<Cached>) -> Vec<Cached> {
    plugins.sort_by(|one, other| one.id.cmp(&other.id));
    plugins
}

/// Lists directories, also behind links. What cannot be listed is warned of, unless it is not there.
async fn directories(reader: &Reader, path: &PathUri, warnings: &mut Vec<String>) -> Vec<String> {
    let read = ReadDirectory {
        path: path.clone(),
        sandbox: reader.sandbox.clone(),
    };
    let entries = match reader.files.read_directory(read).await {
        Ok(entries) => entries,
        Err(error) => {
            let is_file = reader.metadata(path).await.is_ok_and(|found| found.is_file);
            if !is_file && !matches!(error, FileError::NotFound(_)) {
                warnings.push(format!("cannot list `{path}`: {error}"));
            }
            return Vec::new();
        }
    };
    let directory = |entry: DirectoryEntry| entry.is_directory.then_some(entry.file_name);
    entries.into_iter().filter_map(directory).collect()
}

/// Finds the version that counts. A link is none: it may lead anywhere.
async fn best(reader: &Reader, path: &PathUri, warnings: &mut Vec<String>) -> Option<String> {
    let walk = Walk {
        path: path.clone(),
        options: WalkOptions {
            max_depth: 0,
            max_directories: 1,
            max_entries: limits::MAX_DISCOVERY_ENTRIES,
            follow_directory_symlinks: false,
            prune_hidden_directories: false,
        },
        sandbox: reader.sandbox.clone(),
    };
    // The walk does not begin behind a link, as the list of plugins does.
    let path = reader.canonicalize(path).await?;
    let walked = match reader.files.walk(Walk { path, ..walk }).await {
        Ok(walked) => walked,
        Err(error) => {
            warnings.push(format!("cannot list versions: {error}"));
            return None;
        }
    };
    let entries = walked.entries.into_iter();
    let directories = entries.filter(|entry| entry.kind == EntryKind::Directory);
    directories
        .filter_map(|entry| String::from_utf8(entry.path.file_name()?).ok())
        .filter(|name| version::is_one(name))
        .max_by(|one, other| version::compare(one, other))
}

fn named(above: &PathUri, name: &str, is_one: impl Fn(&str) -> bool) -> Option<PathUri> {
    is_one(name).then(|| above.join(name).ok()).flatten()
}

/// Letters, digits, `-` and `_`: with an `@` in it, ids would be ambiguous.
fn is_marketplace(name: &str) -> bool {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    !name.is_empty() && name.bytes().all(is_part)
}

/// What a marketplace may be called, in parts with dots between them.
fn is_plugin(name: &str) -> bool {
    name.split('.').all(is_marketplace)
}

/// What is written beside the versions when a plugin comes from a remote marketplace.
#[derive(Deserialize)]
struct RemoteInstall {
    schema_version: u64,
    remote_plugin_id: String,
}

/// Reads the plugin's id at its marketplace, and why it cannot be had.
pub(super) async fn remote_id(
    reader: &Reader,
    cached: &Cached,
) -> (Option<String>, Option<String>) {
    let Ok(path) = cached.versions.join(REMOTE_INSTALL) else {
        return (None, None);
    };
    let text = match reader.text(&path, MAX_REMOTE_INSTALL_BYTES).await {
        Read::Text(text) => text,
        Read::Missing => return (None, None),
        Read::Refused(why) => return (None, Some(why)),
    };
    let id = serde_json::from_str::<RemoteInstall>(&text).ok();
    let id = id.filter(|install| install.schema_version == 1);
    let id = id.map(|install| install.remote_plugin_id.trim().to_owned());
    match id.filter(|id| !id.is_empty() && id.len() <= MAX_REMOTE_ID_BYTES) {
        Some(id) => (Some(id), None),
        None => (None, Some(format!("`{path}` names no plugin"))),
    }
}

/// Where a remote marketplace's id of a plugin is written.
const REMOTE_INSTALL: &str = ".codex-remote-plugin-install.json";
/// Largest such file: it holds one short id.
const MAX_REMOTE_INSTALL_BYTES: u64 = 16 << 10;
/// Longest such id: as the stock server.
const MAX_REMOTE_ID_BYTES: usize = 1024;
