//! Discovery below a capability root: its plugin manifest, its skills, and the manifests of
//! enclosing and nested plugins.

use std::{collections::BTreeMap, sync::Arc};

use exec_env::filesystem::ExecutorFileSystem;
use exec_wire::{
    discovery::{CapabilityFile, DiscoveredRoot, DiscoveryRoot, PluginFiles, SkillFiles},
    fs::{EntryKind, WalkOptions, WalkResult, WalkTree},
    limits,
    path_uri::PathUri,
};
use futures_util::stream::{self, StreamExt};
use serde::Deserialize;
use serde_json::Value;

use super::{CatalogReader, DiscoveryBudget, RootBundle};

/// Limits of the walk below a root.
const WALK_OPTIONS: WalkOptions = WalkOptions {
    max_depth: limits::DISCOVERY_DEPTH,
    max_directories: limits::MAX_DISCOVERY_DIRECTORIES,
    max_entries: limits::MAX_DISCOVERY_ENTRIES,
    follow_directory_symlinks: true,
    prune_hidden_directories: false,
};

/// Discovers several roots concurrently. Returns them in request order.
pub(super) async fn discover(
    files: &Arc<dyn ExecutorFileSystem>,
    roots: Vec<DiscoveryRoot>,
) -> Vec<DiscoveredRoot> {
    let budget = DiscoveryBudget::default();
    let discoveries = roots.into_iter().map(|mut root| {
        let reader = CatalogReader::new(files, root.sandbox.take());
        let budget = budget.clone();
        async move { discover_root(&reader, budget, root.id, root.path).await }
    });
    stream::iter(discoveries)
        .buffered(limits::DISCOVERY_ROOTS_AT_ONCE)
        .collect()
        .await
}

/// Discovers one root. Errors become part of the result.
pub(super) async fn discover_root(
    reader: &CatalogReader,
    budget: DiscoveryBudget,
    id: String,
    path: PathUri,
) -> DiscoveredRoot {
    let mut discovered = DiscoveredRoot {
        id,
        path,
        plugin: None,
        skills: Vec::new(),
        namespace_manifests: Vec::new(),
        warnings: Vec::new(),
        error: None,
    };
    match walk(reader, &discovered.path).await {
        Ok(walked) => read_files(reader, budget, walked, &mut discovered).await,
        Err(reason) => discovered.error = Some(reason),
    }
    discovered
}

async fn walk(reader: &CatalogReader, root: &PathUri) -> Result<WalkResult, String> {
    let describe = |error| format!("cannot read capability root `{root}`: {error}");
    if !reader.metadata(root).await.map_err(describe)?.is_directory {
        return Err(format!("capability root `{root}` is not a directory"));
    }
    let walk = WalkTree {
        path: root.clone(),
        options: WALK_OPTIONS,
        sandbox: reader.sandbox.clone(),
    };
    reader.files.walk(walk).await.map_err(describe)
}

async fn read_files(
    reader: &CatalogReader,
    budget: DiscoveryBudget,
    walked: WalkResult,
    discovered: &mut DiscoveredRoot,
) {
    let mut bundle = RootBundle::new(reader, budget);
    for error in &walked.errors {
        let warning = format!("cannot read `{}`: {}", error.path, error.message);
        bundle.warnings.push(warning);
    }
    if walked.truncated {
        let warning = format!(
            "`{}` has too many entries: some are ignored",
            discovered.path
        );
        bundle.warnings.push(warning);
    }
    let root = &discovered.path;
    let own_manifest = first_manifest(&mut bundle, root).await;
    let mut namespaces: Vec<CapabilityFile> = match &own_manifest {
        Some(manifest) => vec![manifest.clone()],
        None => nearest_manifest(&mut bundle, root)
            .await
            .into_iter()
            .collect(),
    };
    let (nested, skills) = classify_entries(walked, root);
    for path in nested {
        namespaces.extend(bundle.take(path).await);
    }
    if let Some(manifest) = own_manifest {
        discovered.plugin = Some(read_plugin(&mut bundle, root, manifest).await);
    }
    for path in skills {
        discovered
            .skills
            .extend(read_skill(&mut bundle, path).await);
    }
    discovered.namespace_manifests = namespaces;
    discovered.warnings = bundle.warnings;
}

async fn first_manifest(bundle: &mut RootBundle<'_>, root: &PathUri) -> Option<CapabilityFile> {
    for path in MANIFEST_PATHS {
        if let Some(manifest) = bundle.take(root.join(path).ok()?).await {
            return Some(manifest);
        }
    }
    None
}

/// Finds the manifest of the plugin that encloses the root.
async fn nearest_manifest(bundle: &mut RootBundle<'_>, root: &PathUri) -> Option<CapabilityFile> {
    let mut parent = root.parent();
    while let Some(directory) = parent {
        if let Some(manifest) = first_manifest(bundle, &directory).await {
            return Some(manifest);
        }
        parent = directory.parent();
    }
    None
}

/// Selects one manifest per nested plugin and the instruction files of skills, both in URI order.
fn classify_entries(walked: WalkResult, root: &PathUri) -> (Vec<PathUri>, Vec<PathUri>) {
    let mut nested: BTreeMap<String, (usize, PathUri)> = BTreeMap::new();
    let mut skills = Vec::new();
    for entry in walked.entries {
        if entry.kind != EntryKind::File {
            continue;
        }
        if entry.path.file_name().as_deref() == Some(INSTRUCTIONS.as_bytes()) {
            skills.push(entry.path);
        } else if let Some((plugin, index)) = plugin_root(&entry.path)
            && plugin != *root
        {
            let first = nested
                .entry(plugin.as_str().to_owned())
                .or_insert_with(|| (index, entry.path.clone()));
            if index < first.0 {
                *first = (index, entry.path);
            }
        }
    }
    skills.sort_by(|left, right| left.as_str().cmp(right.as_str()));
    let nested = nested.into_values().map(|(_, path)| path).collect();
    (nested, skills)
}

async fn read_plugin(
    bundle: &mut RootBundle<'_>,
    root: &PathUri,
    manifest: CapabilityFile,
) -> PluginFiles {
    let mcp = mcp_config(&manifest.contents, root);
    let apps = apps_config(&manifest.contents, root);
    PluginFiles {
        mcp_config: read_declared_file(bundle, root, &manifest, mcp, MCP_CONFIG).await,
        apps_config: read_declared_file(bundle, root, &manifest, apps, APPS_CONFIG).await,
        manifest,
    }
}

async fn read_declared_file(
    bundle: &mut RootBundle<'_>,
    root: &PathUri,
    manifest: &CapabilityFile,
    declared: DeclaredFile,
    default_name: &str,
) -> Option<CapabilityFile> {
    let path = match declared {
        DeclaredFile::At(path) => path,
        DeclaredFile::Inline => return None,
        DeclaredFile::Default => root.join(default_name).ok()?,
        DeclaredFile::Invalid(reason) => {
            let warning = format!(
                "`{}`: {reason}; using `{default_name}` instead",
                manifest.path
            );
            bundle.warnings.push(warning);
            root.join(default_name).ok()?
        }
    };
    bundle.take(path).await
}

async fn read_skill(bundle: &mut RootBundle<'_>, path: PathUri) -> Option<SkillFiles> {
    let metadata = path.parent().and_then(|skill| skill.join(METADATA).ok());
    let instructions = bundle.take(path).await?;
    let metadata = match metadata {
        Some(path) => bundle.take(path).await,
        None => None,
    };
    Some(SkillFiles {
        instructions,
        metadata,
    })
}

/// File that makes a directory a skill.
const INSTRUCTIONS: &str = "SKILL.md";
/// Optional metadata file of a skill, relative to its directory.
const METADATA: &str = "agents/openai.yaml";
/// Default location of a plugin's MCP servers.
const MCP_CONFIG: &str = ".mcp.json";
/// Default location of a plugin's apps.
const APPS_CONFIG: &str = ".app.json";

/// Locations of a manifest below its plugin root. The first existing one is used.
pub(super) const MANIFEST_PATHS: [&str; 3] = [
    ".codex-plugin/plugin.json",
    ".claude-plugin/plugin.json",
    ".cursor-plugin/plugin.json",
];

/// Returns the plugin root of a manifest path, and the index in [`MANIFEST_PATHS`].
pub(super) fn plugin_root(manifest: &PathUri) -> Option<(PathUri, usize)> {
    let directory = manifest.parent()?;
    let index = [&*directory.file_name()?, b"/", &*manifest.file_name()?].concat();
    let root = directory.parent()?;
    let index = MANIFEST_PATHS
        .iter()
        .position(|known| known.as_bytes() == index)?;
    Some((root, index))
}

/// Location of a file that a manifest declares.
#[derive(Debug, Eq, PartialEq)]
pub(super) enum DeclaredFile {
    /// At this path.
    At(PathUri),
    /// Inline in the manifest.
    Inline,
    /// Not declared: at the default location.
    Default,
    /// Invalid path, with the reason.
    Invalid(&'static str),
}

/// Returns where the manifest of `root` declares its MCP servers.
pub(super) fn mcp_config(manifest: &str, root: &PathUri) -> DeclaredFile {
    match member(manifest, "mcpServers") {
        Some(Value::Object(_)) => DeclaredFile::Inline,
        Some(Value::String(text)) => path_below(root, &text),
        Some(_) | None => DeclaredFile::Default,
    }
}

/// Returns where the manifest of `root` declares its apps.
pub(super) fn apps_config(manifest: &str, root: &PathUri) -> DeclaredFile {
    match member(manifest, "apps") {
        Some(Value::String(text)) => path_below(root, &text),
        Some(_) | None => DeclaredFile::Default,
    }
}

fn member(manifest: &str, name: &str) -> Option<Value> {
    let mut manifest: Value = serde_json::from_str(manifest).ok()?;
    Some(manifest.get_mut(name)?.take())
}

fn path_below(root: &PathUri, text: &str) -> DeclaredFile {
    let Some(names) = text.strip_prefix("./") else {
        return DeclaredFile::Invalid("a path in a manifest must begin with `./`");
    };
    let is_name = |name: &str| !matches!(name, "" | ".");
    // After `./`, a leading slash would still make the path absolute.
    let escapes = names.starts_with('/') || names.split('/').any(|name| name == "..");
    if escapes || !names.split('/').any(is_name) {
        return DeclaredFile::Invalid("a path in a manifest must stay below the root");
    }
    root.join(names).map_or(
        DeclaredFile::Invalid("a path in a manifest must be valid"),
        DeclaredFile::At,
    )
}

/// Display fields of a manifest. Other fields are ignored.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PluginManifest {
    #[serde(default)]
    name: String,
    #[serde(default)]
    interface: Option<ManifestInterface>,
    /// Only validated: the manifest is invalid unless this is a path.
    #[serde(default, rename = "apps")]
    _apps: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ManifestInterface {
    #[serde(default)]
    display_name: Option<String>,
}

impl PluginManifest {
    /// Parses a manifest. Returns `None` if it is invalid.
    pub(super) fn parse(text: &str) -> Option<Self> {
        parse_object(text)
    }

    /// Returns the display name of the plugin.
    pub(super) fn display_name(&self, root: &PathUri) -> String {
        let interface = self.interface.as_ref();
        let display_name = interface.and_then(|interface| interface.display_name.as_deref());
        match display_name.map(str::trim) {
            Some(display_name) if !display_name.is_empty() => display_name.to_owned(),
            Some(_) | None => name_or_directory(&self.name, root),
        }
    }
}

/// Name field of a manifest.
#[derive(Deserialize)]
struct ManifestName {
    #[serde(default)]
    name: String,
}

/// Returns the namespace of a plugin's skills. Returns `None` if the manifest is invalid.
pub(super) fn namespace(manifest: &str, root: &PathUri) -> Option<String> {
    let manifest: ManifestName = parse_object(manifest)?;
    Some(name_or_directory(&manifest.name, root))
}

/// Parses a JSON object. serde would also accept an array for a struct.
fn parse_object<T: for<'a> Deserialize<'a>>(text: &str) -> Option<T> {
    let is_object = text.trim_start().starts_with('{');
    is_object.then(|| serde_json::from_str(text).ok()).flatten()
}

fn name_or_directory(name: &str, root: &PathUri) -> String {
    if !name.trim().is_empty() {
        return name.to_owned();
    }
    let directory = root.file_name().unwrap_or_default();
    String::from_utf8_lossy(&directory).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn manifest_path_cannot_leave_the_root() {
        let root = PathUri::from_native("/srv/plugin".as_ref()).unwrap();
        let declared = |text: &str| {
            let manifest = serde_json::json!({ "mcpServers": text }).to_string();
            mcp_config(&manifest, &root)
        };
        for text in [
            ".//etc/passwd",
            ".///etc/passwd",
            "./../x",
            "./a/../../x",
            "./..",
            "./",
            "./.",
            "/etc/passwd",
            "x",
        ] {
            assert!(matches!(declared(text), DeclaredFile::Invalid(_)), "{text}");
        }
        for text in ["./x", "./././x", "./x/", "./%78"] {
            let DeclaredFile::At(path) = declared(text) else {
                panic!("{text}");
            };
            assert!(root.contains(&path), "{text}");
        }
    }
}
