//! What lies below a root: its plugin, its skills, and the plugins around and below.

use std::{collections::BTreeMap, sync::Arc};

use exec_env::filesystem::ExecutorFileSystem;
use exec_wire::{
    discovery::{CapabilityFile, DiscoveredRoot, DiscoveryRoot, PluginFiles, SkillFiles},
    fs::{EntryKind, Walk, WalkOptions, WalkResult},
    limits,
    path_uri::PathUri,
};
use futures_util::stream::{self, StreamExt};
use serde::Deserialize;
use serde_json::Value;

use super::catalog_reader::{CatalogReader, DiscoveryBudget, RootBundle};

/// How far a walk below a root goes.
const WALK_OPTIONS: WalkOptions = WalkOptions {
    max_depth: limits::DISCOVERY_DEPTH,
    max_directories: limits::MAX_DISCOVERY_DIRECTORIES,
    max_entries: limits::MAX_DISCOVERY_ENTRIES,
    follow_directory_symlinks: true,
    prune_hidden_directories: false,
};

/// Reads what lies below each root, in their order, a few at a time.
pub(super) async fn discover(
    files: &Arc<dyn ExecutorFileSystem>,
    roots: Vec<DiscoveryRoot>,
) -> Vec<DiscoveredRoot> {
    let budget = DiscoveryBudget::default();
    let each = roots.into_iter().map(|mut root| {
        let reader = CatalogReader::new(files, root.sandbox.take());
        let budget = budget.clone();
        async move { discover_root(&reader, budget, root.id, root.path).await }
    });
    stream::iter(each)
        .buffered(limits::DISCOVERY_ROOTS_AT_ONCE)
        .collect()
        .await
}

/// Reads what lies below one root. Its problems are told in its place.
pub(super) async fn discover_root(
    reader: &CatalogReader,
    budget: DiscoveryBudget,
    id: String,
    path: PathUri,
) -> DiscoveredRoot {
    let mut found = DiscoveredRoot {
        id,
        path,
        plugin: None,
        skills: Vec::new(),
        namespace_manifests: Vec::new(),
        warnings: Vec::new(),
        error: None,
    };
    match walk(reader, &found.path).await {
        Ok(walked) => read(reader, budget, walked, &mut found).await,
        Err(why) => found.error = Some(why),
    }
    found
}

async fn walk(reader: &CatalogReader, root: &PathUri) -> Result<WalkResult, String> {
    let told = |error| format!("cannot look at capability root `{root}`: {error}");
    if !reader.metadata(root).await.map_err(told)?.is_directory {
        return Err(format!("capability root `{root}` is not a directory"));
    }
    let walk = Walk {
        path: root.clone(),
        options: WALK_OPTIONS,
        sandbox: reader.sandbox.clone(),
    };
    reader.files.walk(walk).await.map_err(told)
}

async fn read(
    reader: &CatalogReader,
    budget: DiscoveryBudget,
    walked: WalkResult,
    found: &mut DiscoveredRoot,
) {
    let mut bundle = RootBundle::new(reader, budget);
    for error in &walked.errors {
        let why = format!("cannot look at `{}`: {}", error.path, error.message);
        bundle.warnings.push(why);
    }
    if walked.truncated {
        let why = format!("there is more below `{}` than is looked at", found.path);
        bundle.warnings.push(why);
    }
    let root = &found.path;
    let own = first_manifest(&mut bundle, root).await;
    let mut namespaces: Vec<CapabilityFile> = match &own {
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
    if let Some(manifest) = own {
        found.plugin = Some(plugin(&mut bundle, root, manifest).await);
    }
    for path in skills {
        found.skills.extend(skill(&mut bundle, path).await);
    }
    found.namespace_manifests = namespaces;
    found.warnings = bundle.warnings;
}

async fn first_manifest(bundle: &mut RootBundle<'_>, root: &PathUri) -> Option<CapabilityFile> {
    for place in MANIFEST_PATHS {
        if let Some(manifest) = bundle.take(root.join(place).ok()?).await {
            return Some(manifest);
        }
    }
    None
}

/// Finds the plugin that the root lies in.
async fn nearest_manifest(bundle: &mut RootBundle<'_>, root: &PathUri) -> Option<CapabilityFile> {
    let mut above = root.parent();
    while let Some(directory) = above {
        if let Some(manifest) = first_manifest(bundle, &directory).await {
            return Some(manifest);
        }
        above = directory.parent();
    }
    None
}

/// Picks the manifests of plugins below the root, one of each, and the instructions of skills; both in
/// the order of URIs.
fn classify_entries(walked: WalkResult, root: &PathUri) -> (Vec<PathUri>, Vec<PathUri>) {
    let mut nested: BTreeMap<String, (usize, PathUri)> = BTreeMap::new();
    let mut skills = Vec::new();
    for entry in walked.entries {
        if entry.kind != EntryKind::File {
            continue;
        }
        if entry.path.file_name().as_deref() == Some(INSTRUCTIONS.as_bytes()) {
            skills.push(entry.path);
        } else if let Some((plugin, place)) = plugin_root(&entry.path)
            && plugin != *root
        {
            let first = nested
                .entry(plugin.as_str().to_owned())
                .or_insert_with(|| (place, entry.path.clone()));
            if place < first.0 {
                *first = (place, entry.path);
            }
        }
    }
    skills.sort_by(|one, other| one.as_str().cmp(other.as_str()));
    let nested = nested.into_values().map(|(_, path)| path).collect();
    (nested, skills)
}

async fn plugin(
    bundle: &mut RootBundle<'_>,
    root: &PathUri,
    manifest: CapabilityFile,
) -> PluginFiles {
    let mcp = mcp_config(&manifest.contents, root);
    let apps = apps_config(&manifest.contents, root);
    PluginFiles {
        mcp_config: declared(bundle, root, &manifest, mcp, MCP_CONFIG).await,
        apps_config: declared(bundle, root, &manifest, apps, APPS_CONFIG).await,
        manifest,
    }
}

async fn declared(
    bundle: &mut RootBundle<'_>,
    root: &PathUri,
    manifest: &CapabilityFile,
    declared: DeclaredFile,
    usual: &str,
) -> Option<CapabilityFile> {
    let path = match declared {
        DeclaredFile::At(path) => path,
        DeclaredFile::Inline => return None,
        DeclaredFile::Default => root.join(usual).ok()?,
        DeclaredFile::Invalid(why) => {
            let why = format!("`{}`: {why}; `{usual}` is taken instead", manifest.path);
            bundle.warnings.push(why);
            root.join(usual).ok()?
        }
    };
    bundle.take(path).await
}

async fn skill(bundle: &mut RootBundle<'_>, path: PathUri) -> Option<SkillFiles> {
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

/// The file that makes a directory a skill.
const INSTRUCTIONS: &str = "SKILL.md";
/// What describes a skill further, from its directory.
const METADATA: &str = "agents/openai.yaml";
/// Where a plugin's MCP servers are declared, if its manifest does not say.
const MCP_CONFIG: &str = ".mcp.json";
/// Where a plugin's apps are declared, if its manifest does not say.
const APPS_CONFIG: &str = ".app.json";

/// Where a plugin's manifest may lie below its root. The first that is there counts.
pub(super) const MANIFEST_PATHS: [&str; 3] = [
    ".codex-plugin/plugin.json",
    ".claude-plugin/plugin.json",
    ".cursor-plugin/plugin.json",
];

/// Returns the root of the plugin whose manifest this is, and which of [`MANIFEST_PATHS`] it lies in.
pub(super) fn plugin_root(manifest: &PathUri) -> Option<(PathUri, usize)> {
    let directory = manifest.parent()?;
    let place = [&*directory.file_name()?, b"/", &*manifest.file_name()?].concat();
    let root = directory.parent()?;
    let place = MANIFEST_PATHS
        .iter()
        .position(|known| known.as_bytes() == place)?;
    Some((root, place))
}

/// What a manifest says about a further file.
#[derive(Debug, Eq, PartialEq)]
pub(super) enum DeclaredFile {
    /// It lies here.
    At(PathUri),
    /// What it would hold is in the manifest itself.
    Inline,
    /// Nothing: it lies where such files usually do.
    Default,
    /// Something that is no place below the root, and why.
    Invalid(&'static str),
}

/// Reads where the manifest of `root` says that its MCP servers are declared.
pub(super) fn mcp_config(manifest: &str, root: &PathUri) -> DeclaredFile {
    match member(manifest, "mcpServers") {
        Some(Value::Object(_)) => DeclaredFile::Inline,
        Some(Value::String(text)) => path_below(root, &text),
        Some(_) | None => DeclaredFile::Default,
    }
}

/// Reads where the manifest of `root` says that its apps are declared.
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
        return DeclaredFile::Invalid("a path in a manifest begins with `./`");
    };
    let is_name = |name: &str| !matches!(name, "" | ".");
    // Behind `./`, what begins with a slash would still be absolute.
    let leaves = names.starts_with('/') || names.split('/').any(|name| name == "..");
    if leaves || !names.split('/').any(is_name) {
        return DeclaredFile::Invalid("a path in a manifest stays below the root");
    }
    root.join(names).map_or(
        DeclaredFile::Invalid("a path in a manifest is one that can be"),
        DeclaredFile::At,
    )
}

/// What a manifest says for people. Anything else in it is not looked at.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PluginManifest {
    #[serde(default)]
    name: String,
    #[serde(default)]
    interface: Option<ManifestInterface>,
    /// Only looked at: a manifest with anything but a path here is not one.
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
    /// Reads a manifest; `None` if it is not one.
    pub(super) fn parse(text: &str) -> Option<Self> {
        object(text)
    }

    /// The plugin's name for people.
    pub(super) fn display_name(&self, root: &PathUri) -> String {
        let interface = self.interface.as_ref();
        let shown = interface.and_then(|interface| interface.display_name.as_deref());
        match shown.map(str::trim) {
            Some(shown) if !shown.is_empty() => shown.to_owned(),
            Some(_) | None => name_or_directory(&self.name, root),
        }
    }
}

/// A manifest of which only the name matters.
#[derive(Deserialize)]
struct ManifestName {
    #[serde(default)]
    name: String,
}

/// Reads the name that a plugin gives to its skills; `None` if the manifest has none to give.
pub(super) fn namespace(manifest: &str, root: &PathUri) -> Option<String> {
    let manifest: ManifestName = object(manifest)?;
    Some(name_or_directory(&manifest.name, root))
}

/// An array would do for a derived struct, and is no manifest.
fn object<T: for<'a> Deserialize<'a>>(text: &str) -> Option<T> {
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
    fn a_path_in_a_manifest_does_not_leave_the_root() {
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
