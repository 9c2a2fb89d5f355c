//! `capabilityRoots/discoverV1` and `capabilities/discoverV2`: plugins and skills that lie where
//! commands run.

use serde::{Deserialize, Serialize};

use crate::{
    method::{Method, MethodName},
    path_uri::PathUri,
    sandbox::Sandbox,
};

/// `capabilityRoots/discoverV1`: reads what lies below each root. A root's problem is told in its
/// place and fails nothing else.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct DiscoverRoots {
    /// At most [`limits::MAX_DISCOVERY_ROOTS`](crate::limits::MAX_DISCOVERY_ROOTS).
    pub roots: Vec<DiscoveryRoot>,
}

impl Method for DiscoverRoots {
    const NAME: MethodName = MethodName::CapabilityRootsDiscover;
    type Result = DiscoveredRoots;
}

/// A directory to look below.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct DiscoveryRoot {
    /// The client's name for it.
    pub id: String,
    /// The directory.
    pub path: PathUri,
    /// The policy under which it is read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<Box<Sandbox>>,
}

/// The answer to `capabilityRoots/discoverV1`.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct DiscoveredRoots {
    /// One for each root, in their order.
    pub roots: Vec<DiscoveredRoot>,
}

/// What lies below a root.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DiscoveredRoot {
    /// The client's name for it.
    pub id: String,
    /// The directory.
    pub path: PathUri,
    /// The plugin that the root is, if it is one.
    #[serde(default)]
    pub plugin: Option<PluginFiles>,
    /// Skills, ordered by the URI of their instructions.
    #[serde(default)]
    pub skills: Vec<SkillFiles>,
    /// Manifests that name the plugins around and below.
    #[serde(default)]
    pub namespace_manifests: Vec<CapabilityFile>,
    /// What was left out, for people.
    #[serde(default)]
    pub warnings: Vec<String>,
    /// Why nothing could be read.
    #[serde(default)]
    pub error: Option<String>,
}

/// The files that declare a plugin.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PluginFiles {
    /// Its manifest.
    pub manifest: CapabilityFile,
    /// Its MCP servers.
    #[serde(default)]
    pub mcp_config: Option<CapabilityFile>,
    /// Its apps.
    #[serde(default)]
    pub apps_config: Option<CapabilityFile>,
}

/// The files that make a skill.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct SkillFiles {
    /// Its `SKILL.md`.
    pub instructions: CapabilityFile,
    /// Its `agents/openai.yaml`.
    #[serde(default)]
    pub metadata: Option<CapabilityFile>,
}

/// A file and what it holds.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct CapabilityFile {
    /// Where it lies.
    pub path: PathUri,
    /// Its text.
    pub contents: String,
}

/// `capabilities/discoverV2`: lists what is installed for the account.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct DiscoverCapabilities {
    /// The working directory.
    pub cwd: PathUri,
    /// The policy under which files are read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<Box<Sandbox>>,
}

impl Method for DiscoverCapabilities {
    const NAME: MethodName = MethodName::CapabilitiesDiscover;
    type Result = DiscoveredCapabilities;
}

/// The answer to `capabilities/discoverV2`.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(default)]
pub struct DiscoveredCapabilities {
    /// Installed plugins.
    pub plugins: Vec<InstalledPlugin>,
    /// Skills outside of plugins.
    pub skills: Vec<InstalledSkill>,
    /// What was left out, for people.
    pub warnings: Vec<String>,
}

/// A plugin that is installed.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct InstalledPlugin {
    /// `<name>@<marketplace>`.
    pub id: String,
    /// Its name for people.
    #[serde(default)]
    pub display_name: Option<String>,
    /// Its id at the marketplace.
    #[serde(default)]
    pub remote_plugin_id: Option<String>,
    /// Its version.
    pub version: String,
    /// Where it is installed.
    pub root: PathUri,
    /// The files that declare it.
    pub files: PluginFiles,
    /// Its skills, named `<plugin>:<skill>`.
    #[serde(default)]
    pub skills: Vec<InstalledSkill>,
}

/// A skill that is installed.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct InstalledSkill {
    /// Its name.
    pub name: String,
    /// What it is for.
    pub description: String,
    /// The same in a few words.
    #[serde(default)]
    pub short_description: Option<String>,
    /// Its `SKILL.md`.
    pub path: PathUri,
    /// Where it was found. A plugin's skill has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub discovery_root: Option<SkillRoot>,
    /// What it needs.
    #[serde(default)]
    pub dependencies: Option<SkillDependencies>,
    /// When it may be used.
    #[serde(default)]
    pub policy: Option<SkillPolicy>,
}

/// A directory of skills.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct SkillRoot {
    /// Its name.
    pub id: String,
    /// The directory.
    pub path: PathUri,
}

/// What a skill needs.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct SkillDependencies {
    /// Tools.
    #[serde(default)]
    pub tools: Vec<SkillTool>,
}

/// A tool that a skill needs.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SkillTool {
    /// Its kind.
    #[serde(rename = "type")]
    pub kind: String,
    /// What it is called.
    pub value: String,
    /// What it is for.
    #[serde(default)]
    pub description: Option<String>,
    /// How it is reached.
    #[serde(default)]
    pub transport: Option<String>,
    /// What starts it.
    #[serde(default)]
    pub command: Option<String>,
    /// Where it is.
    #[serde(default)]
    pub url: Option<String>,
    /// The port that its sign-in calls back.
    #[serde(default)]
    pub oauth_callback_port: Option<u16>,
}

/// When a skill may be used.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SkillPolicy {
    /// Whether it may be used without being named.
    #[serde(default)]
    pub allow_implicit_invocation: Option<bool>,
    /// The products it is for.
    #[serde(default)]
    pub products: Vec<String>,
}
