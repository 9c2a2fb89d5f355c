//! `capabilityRoots/discoverV1` and `capabilities/discoverV2`: plugins and skills on the executor's
//! host.

use serde::{Deserialize, Serialize};

use crate::{path_uri::PathUri, sandbox::SandboxPolicy};

/// `capabilityRoots/discoverV1`: reads the capability files below each root. Problems are reported
/// per root and do not fail the call.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DiscoverRoots {
    /// At most [`limits::MAX_DISCOVERY_ROOTS`](crate::limits::MAX_DISCOVERY_ROOTS) roots.
    #[cfg_attr(feature = "schema", schemars(length(max = crate::limits::MAX_DISCOVERY_ROOTS)))]
    pub roots: Vec<DiscoveryRoot>,
}

/// Directory to search.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DiscoveryRoot {
    /// Id chosen by the client.
    pub id: String,
    /// Path of the directory.
    pub path: PathUri,
    /// Sandbox policy of the operation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<Box<SandboxPolicy>>,
}

/// Response to `capabilityRoots/discoverV1`.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DiscoveredRoots {
    /// One result per root, in the order of the request.
    pub roots: Vec<DiscoveredRoot>,
}

/// Capability files below a root.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct DiscoveredRoot {
    /// Id chosen by the client.
    pub id: String,
    /// Path of the directory.
    pub path: PathUri,
    /// Plugin, if the root is one.
    #[serde(default)]
    pub plugin: Option<PluginFiles>,
    /// Skills, ordered by the URI of their instructions.
    #[serde(default)]
    pub skills: Vec<SkillFiles>,
    /// Manifests of the plugins that contain the root or lie below it.
    #[serde(default)]
    pub namespace_manifests: Vec<CapabilityFile>,
    /// Human-readable descriptions of omitted items.
    #[serde(default)]
    pub warnings: Vec<String>,
    /// Why the root could not be read.
    #[serde(default)]
    pub error: Option<String>,
}

/// Files that declare a plugin.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct PluginFiles {
    /// Plugin manifest.
    pub manifest: CapabilityFile,
    /// Configuration of MCP servers.
    #[serde(default)]
    pub mcp_config: Option<CapabilityFile>,
    /// Configuration of apps.
    #[serde(default)]
    pub apps_config: Option<CapabilityFile>,
}

/// Files of a skill.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SkillFiles {
    /// `SKILL.md`.
    pub instructions: CapabilityFile,
    /// `agents/openai.yaml`.
    #[serde(default)]
    pub metadata: Option<CapabilityFile>,
}

/// File and its contents.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CapabilityFile {
    /// Path of the file.
    pub path: PathUri,
    /// Contents as text.
    pub contents: String,
}

/// `capabilities/discoverV2`: lists the plugins and skills installed for the account.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DiscoverCapabilities {
    /// Working directory.
    pub cwd: PathUri,
    /// Sandbox policy of the operation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<Box<SandboxPolicy>>,
}

/// Response to `capabilities/discoverV2`.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct DiscoveredCapabilities {
    /// Installed plugins.
    pub plugins: Vec<InstalledPlugin>,
    /// Skills outside of plugins.
    pub skills: Vec<InstalledSkill>,
    /// Human-readable descriptions of omitted items.
    pub warnings: Vec<String>,
}

/// An installed plugin.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct InstalledPlugin {
    /// `<name>@<marketplace>`.
    pub id: String,
    /// Display name.
    #[serde(default)]
    pub display_name: Option<String>,
    /// Id in the marketplace.
    #[serde(default)]
    pub remote_plugin_id: Option<String>,
    /// Version.
    pub version: String,
    /// Installation directory.
    pub root: PathUri,
    /// Files that declare the plugin.
    pub files: PluginFiles,
    /// Skills of the plugin, named `<plugin>:<skill>`.
    #[serde(default)]
    pub skills: Vec<InstalledSkill>,
}

/// An installed skill.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct InstalledSkill {
    /// Name.
    pub name: String,
    /// Description.
    pub description: String,
    /// Short description.
    #[serde(default)]
    pub short_description: Option<String>,
    /// Path of its `SKILL.md`.
    pub path: PathUri,
    /// Directory in which it was found. Absent for skills of a plugin.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub discovery_root: Option<SkillRoot>,
    /// Dependencies.
    #[serde(default)]
    pub dependencies: Option<SkillDependencies>,
    /// Usage policy.
    #[serde(default)]
    pub policy: Option<SkillPolicy>,
}

/// Directory of skills.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SkillRoot {
    /// Id of the directory.
    pub id: String,
    /// Path of the directory.
    pub path: PathUri,
}

/// Dependencies of a skill.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SkillDependencies {
    /// Required tools.
    #[serde(default)]
    pub tools: Vec<SkillTool>,
}

/// Tool that a skill requires.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct SkillTool {
    /// Kind of tool.
    #[serde(rename = "type")]
    pub kind: String,
    /// Name of the tool.
    pub value: String,
    /// Description.
    #[serde(default)]
    pub description: Option<String>,
    /// Transport to reach it.
    #[serde(default)]
    pub transport: Option<String>,
    /// Command that starts it.
    #[serde(default)]
    pub command: Option<String>,
    /// URL of the tool.
    #[serde(default)]
    pub url: Option<String>,
    /// Port of the OAuth callback.
    #[serde(default)]
    pub oauth_callback_port: Option<u16>,
}

/// Usage policy of a skill.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct SkillPolicy {
    /// Allows use of the skill without naming it.
    #[serde(default)]
    pub allow_implicit_invocation: Option<bool>,
    /// Products the skill is for.
    #[serde(default)]
    pub products: Vec<String>,
}
