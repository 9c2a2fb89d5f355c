//! `environment/*` and `environmentConfig/*`: the host that commands run on, its capabilities and
//! its configuration.

use serde::{Deserialize, Serialize};

use crate::path_uri::PathUri;

/// `environment/info`: describes the host.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(expecting = "no parameters")]
pub struct ReadEnvironmentInfo;

/// Host that commands run on.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct EnvironmentInfo {
    /// Login shell of the account, or the best available one.
    pub shell: ShellProgram,
    /// Working directory of the server.
    #[serde(default)]
    pub cwd: Option<PathUri>,
    /// Server version.
    #[serde(default = "unknown_version")]
    pub executor_version: String,
    /// Opaque id of the build.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider_id: Option<String>,
    /// Home directory of the account.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user_home_dir: Option<PathUri>,
    /// `linux`, `macos` or `windows`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub platform_os: Option<String>,
    /// Directories that a client should prepend to `PATH`.
    #[serde(default)]
    pub prepend_path_dirs: Vec<PathUri>,
    /// Contains `TMPDIR` if it is set, otherwise empty. Absent from older servers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub temporary_directories: Option<Vec<PathUri>>,
    /// Directory that the server uses for temporary files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub temp_dir: Option<PathUri>,
    /// Capabilities of the server.
    #[serde(default)]
    pub capabilities: ServerCapabilities,
}

fn unknown_version() -> String {
    "0.0.0".to_owned()
}

/// Shell program.
#[derive(Clone, Debug, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ShellProgram {
    /// Kind of shell: `zsh`, `bash`, `sh`, …
    pub name: String,
    /// Path of the program.
    pub path: String,
}

/// Capabilities of the server. A client must not use those that are false or absent.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct ServerCapabilities {
    /// `networkProxy` of `process/start`.
    pub network_proxy_launch: bool,
    /// `networkProxy.proxy.reviewDomains`.
    pub network_proxy_review_domains: bool,
    /// Masking members of `networkProxy.proxy`.
    pub credential_masking: bool,
    /// Masking for custom providers.
    pub credential_masking_custom_providers: bool,
    /// `sandbox` on discovery roots.
    pub capability_discovery_sandbox: bool,
    /// `fs/watchMissing`.
    pub fs_watch_missing: bool,
    /// `capabilities/discoverV2`.
    pub capability_discovery_v2: bool,
    /// `environmentConfig/read`.
    pub environment_config_read: bool,
    /// `valueEnvVar` in HTTP headers.
    pub http_header_env_vars: bool,
    /// `fs/open` under a sandbox.
    pub sandboxed_file_streaming: bool,
    /// `fs/open` for replacing, and `fs/writeBlock`.
    pub file_write_streaming: bool,
    /// `shellSnapshot` of `process/start`.
    pub shell_snapshot_v2: bool,
    /// A policy that allows writing to the root keeps its denied reads, as after an approved
    /// escalation. Omitted if false, as by the stock server.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub linux_approved_root_write_preserves_restrictions: bool,
}

/// `environment/status`: checks that the connection is alive and ready.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(expecting = "no parameters")]
pub struct ReadEnvironmentStatus;

/// Response to `environment/status`.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct EnvironmentStatus {
    /// Always `ready`.
    pub status: String,
}

/// `environmentConfig/read`: reads selected keys of the executor's own configuration.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ReadEnvironmentConfig {
    /// Directory that selects the project configuration. It need not exist.
    pub cwd: PathUri,
    /// Keys of `config.toml`, each as a literal key path.
    #[cfg_attr(feature = "schema", schemars(length(max = crate::limits::MAX_CONFIG_PATHS)))]
    pub config_paths: Vec<Vec<String>>,
    /// Keys of `requirements.toml`, each as a literal key path.
    #[cfg_attr(feature = "schema", schemars(length(max = crate::limits::MAX_CONFIG_PATHS)))]
    pub requirements_paths: Vec<Vec<String>>,
}

/// Response to `environmentConfig/read`.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct EnvironmentConfig {
    /// Home directory of the account.
    #[serde(default)]
    pub user_home_dir: Option<PathUri>,
    /// Directory of the configuration.
    pub codex_home_dir: PathUri,
    /// Host name.
    #[serde(default)]
    pub hostname: Option<String>,
    /// Selected keys of the configuration.
    pub config: ConfigStack,
    /// Selected keys of the requirements.
    pub requirements: ConfigStack,
}

/// Configuration layers. Later layers override earlier ones.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ConfigStack {
    /// Layers, lowest precedence first. Layers without selected keys are omitted.
    pub layers: Vec<ConfigLayer>,
    /// Index at which a client inserts its own layers.
    #[serde(default)]
    pub cloud_insertion_index: usize,
}

/// One layer of configuration.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ConfigLayer {
    /// Human-readable source.
    pub source: String,
    /// Base of relative paths in this layer.
    pub base_dir: PathUri,
    /// Selected keys as TOML.
    pub toml: String,
}
