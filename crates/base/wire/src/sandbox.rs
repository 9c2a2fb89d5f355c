//! The `sandbox` object: which files and which network a request may use.
//!
//! Member names inside `permissions` are snake_case, as the stock client writes them.
//! Not here: what a policy comes to on a host.

use std::num::NonZeroUsize;

use serde::{Deserialize, Deserializer, Serialize, de::Error as _};
use serde_json::Value;

use crate::path_uri::PathUri;

/// A policy, and what its relative parts relate to.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Sandbox {
    /// The policy.
    pub permissions: Permissions,
    /// What relative globs and project roots relate to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<PathUri>,
    /// What `project_roots` stands for.
    #[serde(default)]
    pub workspace_roots: Vec<PathUri>,
    /// Overrides the two members above.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy_context: Option<PolicyContext>,
    /// The account's home.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user_home_dir: Option<PathUri>,
    /// Directories for temporary files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub temporary_directories: Option<Vec<PathUri>>,
    /// Required everywhere; matters on Windows.
    pub windows_sandbox_level: WindowsSandboxLevel,
    /// Matters on Windows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub windows_sandbox_proxy_settings_mode: Option<ProxySettingsMode>,
    /// Asks for enforcement by Landlock alone.
    #[serde(default)]
    pub use_legacy_landlock: bool,
    /// How the policy came about. Never loosens it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox_override: Option<SandboxOverride>,
}

/// What relative parts of a policy relate to.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PolicyContext {
    /// What relative globs relate to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<PathUri>,
    /// What `project_roots` stands for.
    #[serde(default)]
    pub workspace_roots: Vec<PathUri>,
}

/// Who enforces what.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Permissions {
    /// The server enforces this.
    Managed {
        /// Files.
        file_system: FileSystemPolicy,
        /// Network.
        network: NetworkAccess,
    },
    /// Nobody enforces anything.
    Disabled,
    /// Something around the server enforces it.
    External {
        /// Network.
        network: NetworkAccess,
    },
}

/// Which files may be used.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum FileSystemPolicy {
    /// Only these, in these ways.
    Restricted {
        /// The most specific one that names a path, or something above it, counts.
        #[serde(deserialize_with = "named_entries")]
        entries: Vec<Entry>,
        /// How deep globs look.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        glob_scan_max_depth: Option<NonZeroUsize>,
    },
    /// All.
    Unrestricted,
}

/// Decodes entries one by one, so that a wrong one is named: inside a tagged object the decoder no
/// longer knows where it is.
fn named_entries<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Entry>, D::Error> {
    let values = Vec::<Value>::deserialize(from)?;
    let entry = |(index, value)| {
        serde_json::from_value(value)
            .map_err(|error| D::Error::custom(format_args!("entries[{index}]: {error}")))
    };
    values.into_iter().enumerate().map(entry).collect()
}

/// What may be done with one path and everything below it.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Entry {
    /// The path.
    pub path: EntryPath,
    /// What may be done.
    pub access: Access,
    /// What it means that the path does not exist.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missing_path_behavior: Option<MissingPathBehavior>,
}

/// How an entry names its path.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum EntryPath {
    /// By itself.
    Path {
        /// The path.
        path: PathUri,
    },
    /// By a pattern.
    GlobPattern {
        /// The pattern.
        pattern: String,
    },
    /// By what it is for.
    Special {
        /// What it is for.
        value: SpecialPath,
    },
}

/// A path that differs from host to host.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum SpecialPath {
    /// The root of the file system.
    Root,
    /// What nearly every program reads.
    Minimal,
    /// Each workspace root.
    #[serde(alias = "current_working_directory")]
    ProjectRoots {
        /// Below the root.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        subpath: Option<String>,
    },
    /// The command's directory for temporary files.
    Tmpdir,
    /// The host's directory for temporary files.
    SlashTmp,
    /// Something that the client does not know either.
    Unknown {
        /// Its name.
        path: String,
        /// Below it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        subpath: Option<String>,
    },
}

/// What may be done with a path.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Access {
    /// Read it.
    Read,
    /// Read and write it.
    Write,
    /// Nothing.
    #[serde(alias = "none")]
    Deny,
}

/// What it means that a path does not exist.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum MissingPathBehavior {
    /// The entry says nothing then.
    Skip,
}

/// Which network may be used.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum NetworkAccess {
    /// None but what the policy manages.
    Restricted,
    /// All.
    Enabled,
}

/// How Windows encloses a process.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum WindowsSandboxLevel {
    /// Not at all.
    Disabled,
    /// By a restricted token.
    RestrictedToken,
    /// By an elevated helper.
    Elevated,
    /// By an MXC container.
    Mxc,
}

/// What becomes of proxy settings on Windows.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum ProxySettingsMode {
    /// They are made to fit.
    Reconcile,
    /// They stay.
    Preserve,
}

/// How a policy came about.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum SandboxOverride {
    /// As the profile says.
    NoOverride,
    /// Somebody approved more.
    EscalatedSandboxWithRestrictions,
    /// Somebody approved a first attempt without it.
    BypassSandboxFirstAttempt,
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOT_READ: &str =
        r#"{"path":{"type":"special","value":{"kind":"root"}},"access":"read"}"#;

    #[test]
    fn windows_level_is_required_and_unknown_kinds_are_refused() {
        let without = r#"{"permissions":{"type":"disabled"}}"#;
        let error = serde_json::from_str::<Sandbox>(without).unwrap_err();
        assert!(error.to_string().contains("windowsSandboxLevel"), "{error}");
        let entry = r#"{"path":{"type":"special","value":{"kind":"nope"}},"access":"read"}"#;
        assert!(serde_json::from_str::<Entry>(entry).is_err());
        let policy = format!(r#"{{"type":"restricted","entries":[{ROOT_READ},{entry}]}}"#);
        let error = serde_json::from_str::<FileSystemPolicy>(&policy).unwrap_err();
        assert!(
            error
                .to_string()
                .contains("entries[1]: unknown variant `nope`"),
            "{error}"
        );
    }
}
