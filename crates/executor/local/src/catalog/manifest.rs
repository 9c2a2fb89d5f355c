//! Plugin manifests: where they lie, and which files they name.

use exec_wire::path_uri::PathUri;
use serde::Deserialize;
use serde_json::Value;

/// Where a plugin's manifest may lie below its root. The first that is there counts.
pub(super) const PLACES: [&str; 3] = [
    ".codex-plugin/plugin.json",
    ".claude-plugin/plugin.json",
    ".cursor-plugin/plugin.json",
];

/// Returns the root of the plugin whose manifest this is, and which of [`PLACES`] it lies in.
pub(super) fn plugin_root(manifest: &PathUri) -> Option<(PathUri, usize)> {
    let directory = manifest.parent()?;
    let place = [&*directory.file_name()?, b"/", &*manifest.file_name()?].concat();
    let root = directory.parent()?;
    let place = PLACES.iter().position(|known| known.as_bytes() == place)?;
    Some((root, place))
}

/// What a manifest says about a further file.
#[derive(Debug, Eq, PartialEq)]
pub(super) enum Declared {
    /// It lies here.
    At(PathUri),
    /// What it would hold is in the manifest itself.
    Inline,
    /// Nothing: it lies where such files usually do.
    Nothing,
    /// Something that is no place below the root, and why.
    Wrong(&'static str),
}

/// Reads where the manifest of `root` says that its MCP servers are declared.
pub(super) fn mcp_config(manifest: &str, root: &PathUri) -> Declared {
    match member(manifest, "mcpServers") {
        Some(Value::Object(_)) => Declared::Inline,
        Some(Value::String(text)) => below(root, &text),
        Some(_) | None => Declared::Nothing,
    }
}

/// Reads where the manifest of `root` says that its apps are declared.
pub(super) fn apps_config(manifest: &str, root: &PathUri) -> Declared {
    match member(manifest, "apps") {
        Some(Value::String(text)) => below(root, &text),
        Some(_) | None => Declared::Nothing,
    }
}

fn member(manifest: &str, name: &str) -> Option<Value> {
    let mut manifest: Value = serde_json::from_str(manifest).ok()?;
    Some(manifest.get_mut(name)?.take())
}

fn below(root: &PathUri, text: &str) -> Declared {
    let Some(names) = text.strip_prefix("./") else {
        return Declared::Wrong("a path in a manifest begins with `./`");
    };
    let is_name = |name: &str| !matches!(name, "" | ".");
    // Behind `./`, what begins with a slash would still be absolute.
    let leaves = names.starts_with('/') || names.split('/').any(|name| name == "..");
    if leaves || !names.split('/').any(is_name) {
        return Declared::Wrong("a path in a manifest stays below the root");
    }
    root.join(names).map_or(
        Declared::Wrong("a path in a manifest is one that can be"),
        Declared::At,
    )
}

/// What a manifest says for people. Anything else in it is not looked at.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Manifest {
    #[serde(default)]
    name: String,
    #[serde(default)]
    interface: Option<Interface>,
    /// Only looked at: a manifest with anything but a path here is not one.
    #[serde(default, rename = "apps")]
    _apps: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Interface {
    #[serde(default)]
    display_name: Option<String>,
}

impl Manifest {
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
struct Named {
    #[serde(default)]
    name: String,
}

/// Reads the name that a plugin gives to its skills; `None` if the manifest has none to give.
pub(super) fn namespace(manifest: &str, root: &PathUri) -> Option<String> {
    let manifest: Named = object(manifest)?;
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
            assert!(matches!(declared(text), Declared::Wrong(_)), "{text}");
        }
        for text in ["./x", "./././x", "./x/", "./%78"] {
            let Declared::At(path) = declared(text) else {
                panic!("{text}");
            };
            assert!(root.contains(&path), "{text}");
        }
    }
}
