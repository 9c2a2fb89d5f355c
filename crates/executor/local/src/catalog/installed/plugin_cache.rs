//! Plugin cache: `<marketplace>/<name>/<version>`. Only the best version of each plugin is used.

use std::cmp::Ordering;

use exec_env::filesystem::FileError;
use exec_wire::{
    fs::{DirectoryEntry, EntryKind, ReadDirectory, WalkOptions, WalkTree},
    limits,
    path_uri::PathUri,
};
use semver::Version;
use serde::Deserialize;

use crate::catalog::{CatalogReader, FileRead};

/// Best version of a cached plugin.
#[derive(Debug)]
pub(super) struct CachedPlugin {
    /// `<name>@<marketplace>`.
    pub(super) id: String,
    pub(super) version: String,
    /// Directory of all versions.
    versions: PathUri,
    /// Directory of this version.
    pub(super) root: PathUri,
}

/// Lists cached plugins in id order, each with its best version, and warnings.
pub(super) async fn cached_plugins(
    reader: &CatalogReader,
    cache: &PathUri,
) -> (Vec<CachedPlugin>, Vec<String>) {
    let (mut plugins, mut warnings) = (Vec::new(), Vec::new());
    for marketplace in directories(reader, cache, &mut warnings).await {
        let Some(marketplace_dir) = valid_child(cache, &marketplace, is_marketplace) else {
            continue;
        };
        for name in directories(reader, &marketplace_dir, &mut warnings).await {
            let Some(versions) = valid_child(&marketplace_dir, &name, is_plugin) else {
                continue;
            };
            if plugins.len() == limits::MAX_INSTALLED_PLUGINS {
                warnings.push(format!(
                    "more than {} plugins are installed: the rest is ignored",
                    plugins.len()
                ));
                return (sorted_by_id(plugins), warnings);
            }
            let Some(version) = best_version(reader, &versions, &mut warnings).await else {
                continue;
            };
            let Some(root) = valid_child(&versions, &version, is_version_name) else {
                continue;
            };
            plugins.push(CachedPlugin {
                id: format!("{name}@{marketplace}"),
                version,
                versions,
                root,
            });
        }
    }
    (sorted_by_id(plugins), warnings)
}

fn sorted_by_id(mut plugins: Vec<CachedPlugin>) -> Vec<CachedPlugin> {
    plugins.sort_by(|left, right| left.id.cmp(&right.id));
    plugins
}

/// Lists directories and symlinks to directories. Adds a warning on failure, unless the path does
/// not exist.
async fn directories(
    reader: &CatalogReader,
    path: &PathUri,
    warnings: &mut Vec<String>,
) -> Vec<String> {
    let read = ReadDirectory {
        sandbox: reader.sandbox.clone(),
        ..ReadDirectory::new(path.clone())
    };
    let entries = match reader.files.read_directory(read).await {
        Ok(listing) => listing.entries,
        Err(error) => {
            let is_file = reader
                .metadata(path)
                .await
                .is_ok_and(|metadata| metadata.is_file);
            if !is_file && !matches!(error, FileError::NotFound(_)) {
                warnings.push(format!("cannot list `{path}`: {error}"));
            }
            return Vec::new();
        }
    };
    let directory = |entry: DirectoryEntry| entry.is_directory.then_some(entry.file_name);
    entries.into_iter().filter_map(directory).collect()
}

/// Finds the best version. Ignores symlinks, which may point anywhere.
async fn best_version(
    reader: &CatalogReader,
    path: &PathUri,
    warnings: &mut Vec<String>,
) -> Option<String> {
    let walk = WalkTree {
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
    // The walk does not follow a symlink at its start, unlike the listing of plugins.
    let path = reader.canonicalize(path).await?;
    let walked = match reader.files.walk(WalkTree { path, ..walk }).await {
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
        .filter(|name| is_version_name(name))
        .max_by(|left, right| compare_versions(left, right))
}

fn valid_child(parent: &PathUri, name: &str, is_valid: impl Fn(&str) -> bool) -> Option<PathUri> {
    is_valid(name).then(|| parent.join(name).ok()).flatten()
}

/// Accepts letters, digits, `-` and `_`. An `@` would make ids ambiguous.
fn is_marketplace(name: &str) -> bool {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    !name.is_empty() && name.bytes().all(is_part)
}

/// Accepts marketplace names joined by dots.
fn is_plugin(name: &str) -> bool {
    name.split('.').all(is_marketplace)
}

/// File beside the versions of a plugin from a remote marketplace.
#[derive(Deserialize)]
struct RemoteInstall {
    schema_version: u64,
    remote_plugin_id: String,
}

/// Reads the plugin's id at its marketplace. Returns a warning if it is unreadable.
pub(super) async fn remote_id(
    reader: &CatalogReader,
    cached: &CachedPlugin,
) -> (Option<String>, Option<String>) {
    let Ok(path) = cached.versions.join(REMOTE_INSTALL) else {
        return (None, None);
    };
    let text = match reader.text(&path, MAX_REMOTE_INSTALL_BYTES).await {
        FileRead::Text(text) => text,
        FileRead::Missing => return (None, None),
        FileRead::Unreadable(reason) => return (None, Some(reason)),
    };
    let id = serde_json::from_str::<RemoteInstall>(&text).ok();
    let id = id.filter(|install| install.schema_version == 1);
    let id = id.map(|install| install.remote_plugin_id.trim().to_owned());
    match id.filter(|id| !id.is_empty() && id.len() <= MAX_REMOTE_ID_BYTES) {
        Some(id) => (Some(id), None),
        None => (None, Some(format!("`{path}` has no valid plugin id"))),
    }
}

/// Name of the file with the remote id.
const REMOTE_INSTALL: &str = ".codex-remote-plugin-install.json";
/// Maximum size of that file, which holds one short id.
const MAX_REMOTE_INSTALL_BYTES: u64 = 16 << 10;
/// Maximum length of a remote id, as in the stock server.
const MAX_REMOTE_ID_BYTES: usize = 1024;

/// Returns whether a directory name is a valid version.
fn is_version_name(name: &str) -> bool {
    let is_part =
        |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'+' | b'_' | b'-');
    !matches!(name, "" | "." | "..") && name.bytes().all(is_part)
}

/// Compares versions. `local` is the highest; semantic versions compare numerically, others as
/// text.
fn compare_versions(left: &str, right: &str) -> Ordering {
    let is_local = |name: &str| name == "local";
    is_local(left).cmp(&is_local(right)).then_with(|| {
        match (Version::parse(left), Version::parse(right)) {
            (Ok(left), Ok(right)) => left.cmp(&right),
            _ => left.cmp(right),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_ordered_by_precedence() {
        // The second one is better.
        let pairs = [
            ("1.9.0", "1.10.0"),
            ("1.0.0-beta", "1.0.0"),
            ("1.0.0-rc.2", "1.0.0-rc.10"),
            ("9.0.0", "9.0.0+x"),
            ("9.0.0+x", "9.0.0+y"),
            ("01.0.0", "1.0.0"),
            ("1.0.0", "abc"),
            ("0abc", "1.0.0"),
            ("10", "2"),
            ("v1.10.0", "v1.9.0"),
            ("zzz", "local"),
            ("Local", "a"),
        ];
        for (worse, better) in pairs {
            assert_eq!(
                compare_versions(worse, better),
                Ordering::Less,
                "{worse} {better}"
            );
            assert_eq!(
                compare_versions(better, worse),
                Ordering::Greater,
                "{worse} {better}"
            );
        }
    }

    #[test]
    fn version_names_are_validated() {
        for name in ["1.0.0", ".v", "v_1", "-1", "1..2", "1+2"] {
            assert!(is_version_name(name), "{name}");
        }
        for name in ["", ".", "..", "v~1", "1@2", "a b", "é", "a/b"] {
            assert!(!is_version_name(name), "{name}");
        }
    }
}
