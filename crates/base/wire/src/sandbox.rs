//! The `sandbox` object: the files and the network that a request may use.
//!
//! Member names inside `permissions` are snake_case, as the stock client writes them.
//! `exec-sandbox` turns a policy into a plan for a host.

use std::num::NonZeroUsize;

use serde::{Deserialize, Deserializer, Serialize, de::Error as _};
use serde_json::Value;

use crate::path_uri::PathUri;

/// Sandbox policy with the directories that its relative parts refer to.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct SandboxPolicy {
    /// Policy.
    pub permissions: SandboxPermissions,
    /// Base of relative globs and project roots.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<PathUri>,
    /// Directories that `project_roots` refers to.
    #[serde(default)]
    pub workspace_roots: Vec<PathUri>,
    /// Overrides the two members above.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy_context: Option<PolicyContext>,
    /// Home directory of the account.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user_home_dir: Option<PathUri>,
    /// Directories for temporary files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub temporary_directories: Option<Vec<PathUri>>,
    /// Required on every platform, applies to Windows.
    pub windows_sandbox_level: WindowsSandboxLevel,
    /// Applies to Windows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub windows_sandbox_proxy_settings_mode: Option<ProxySettingsMode>,
    /// Requests enforcement by Landlock alone.
    #[serde(default)]
    pub use_legacy_landlock: bool,
    /// How the policy was approved. Never loosens it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox_override: Option<SandboxOverride>,
}

/// Directories that the relative parts of a policy refer to.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct PolicyContext {
    /// Base of relative globs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<PathUri>,
    /// Directories that `project_roots` refers to.
    #[serde(default)]
    pub workspace_roots: Vec<PathUri>,
}

/// Permissions and their enforcement.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum SandboxPermissions {
    /// Enforced by the server.
    Managed {
        /// File permissions.
        file_system: FileSystemPolicy,
        /// Network permissions.
        network: NetworkAccess,
    },
    /// Not enforced.
    Disabled,
    /// Enforced outside the server.
    External {
        /// Network permissions.
        network: NetworkAccess,
    },
}

/// File permissions.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum FileSystemPolicy {
    /// Restricted to these entries.
    Restricted {
        /// Entries. The most specific entry for a path or one of its ancestors applies.
        #[serde(deserialize_with = "named_entries")]
        entries: Vec<SandboxEntry>,
        /// Maximum depth of glob expansion.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        glob_scan_max_depth: Option<NonZeroUsize>,
    },
    /// Unrestricted.
    Unrestricted,
}

/// Decodes entries one by one, so that errors name the entry: inside a tagged object the decoder
/// has lost the path.
fn named_entries<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<SandboxEntry>, D::Error> {
    let values = Vec::<Value>::deserialize(from)?;
    let entry = |(index, value)| {
        serde_json::from_value(value)
            .map_err(|error| D::Error::custom(format_args!("entries[{index}]: {error}")))
    };
    values.into_iter().enumerate().map(entry).collect()
}

/// Access to one path and everything below it.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SandboxEntry {
    /// Path of the entry.
    pub path: EntryPath,
    /// Permitted access.
    pub access: EntryAccess,
    /// Meaning of the entry if the path does not exist.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missing_path_behavior: Option<MissingPathBehavior>,
}

/// Path of a sandbox entry.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum EntryPath {
    /// Literal path.
    Path {
        /// Path.
        path: PathUri,
    },
    /// Glob pattern.
    GlobPattern {
        /// Pattern.
        pattern: String,
    },
    /// Special path.
    Special {
        /// Special path.
        value: SpecialPath,
    },
}

/// Path that differs between hosts.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum SpecialPath {
    /// Root of the file system.
    Root,
    /// Minimal set that nearly every program reads.
    Minimal,
    /// Every workspace root.
    #[serde(alias = "current_working_directory")]
    ProjectRoots {
        /// Path below each root.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        subpath: Option<String>,
    },
    /// Temporary directory of the command.
    Tmpdir,
    /// Temporary directory of the host.
    SlashTmp,
    /// Special path that the client does not know either.
    Unknown {
        /// Name of the special path.
        path: String,
        /// Path below it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        subpath: Option<String>,
    },
}

/// Access to a path.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum EntryAccess {
    /// Read access.
    Read,
    /// Read and write access.
    Write,
    /// No access.
    #[serde(alias = "none")]
    Deny,
}

/// Meaning of an entry for a missing path.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum MissingPathBehavior {
    /// The entry is ignored.
    Skip,
}

/// Network permissions.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum NetworkAccess {
    /// No network except the managed one.
    Restricted,
    /// Unrestricted.
    Enabled,
}

/// Sandbox level on Windows.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum WindowsSandboxLevel {
    /// No sandbox.
    Disabled,
    /// Restricted token.
    RestrictedToken,
    /// Elevated helper.
    Elevated,
    /// MXC container.
    Mxc,
}

/// Handling of proxy settings on Windows.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum ProxySettingsMode {
    /// Adapts them.
    Reconcile,
    /// Keeps them.
    Preserve,
}

/// How a policy was approved.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum SandboxOverride {
    /// Configured in the profile.
    NoOverride,
    /// A user approved additional permissions.
    EscalatedSandboxWithRestrictions,
    /// A user approved a first attempt without the sandbox.
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
        let error = serde_json::from_str::<SandboxPolicy>(without).unwrap_err();
        assert!(error.to_string().contains("windowsSandboxLevel"), "{error}");
        let entry = r#"{"path":{"type":"special","value":{"kind":"nope"}},"access":"read"}"#;
        assert!(serde_json::from_str::<SandboxEntry>(entry).is_err());
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
