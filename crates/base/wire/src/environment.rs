//! `environment/*`: where commands run, and what that place can do.

use serde::{Deserialize, Serialize};

use crate::{
    method::{Method, MethodName},
    path_uri::PathUri,
};

/// `environment/info`: describes the host.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(expecting = "no parameters")]
pub struct ReadEnvironmentInfo;

impl Method for ReadEnvironmentInfo {
    const NAME: MethodName = MethodName::EnvironmentInfo;
    type Result = EnvironmentInfo;
}

/// The host that commands run on.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct EnvironmentInfo {
    /// The account's login shell, or the best one there is.
    pub shell: Shell,
    /// The server's working directory.
    #[serde(default)]
    pub cwd: Option<PathUri>,
    /// The server's version.
    #[serde(default = "unknown_version")]
    pub executor_version: String,
    /// Opaque identity of the build.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider_id: Option<String>,
    /// The account's home.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user_home_dir: Option<PathUri>,
    /// `linux`, `macos` or `windows`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub platform_os: Option<String>,
    /// Directories that a client should put in front of `PATH`.
    #[serde(default)]
    pub prepend_path_dirs: Vec<PathUri>,
    /// `[TMPDIR]` if it is set, else nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub temporary_directories: Option<Vec<PathUri>>,
    /// The server's effective directory for temporary files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub temp_dir: Option<PathUri>,
    /// What a client may use.
    #[serde(default)]
    pub capabilities: Capabilities,
}

fn unknown_version() -> String {
    "0.0.0".to_owned()
}

/// A shell.
#[derive(Clone, Debug, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
pub struct Shell {
    /// Its kind: `zsh`, `bash`, `sh`, …
    pub name: String,
    /// Its program.
    pub path: String,
}

/// What works here. False, or absent, means: do not use it.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Capabilities {
    /// `networkProxy` of `process/start`.
    pub network_proxy_launch: bool,
    /// `networkProxy.proxy.reviewDomains`.
    pub network_proxy_review_domains: bool,
    /// Masking members of `networkProxy.proxy`.
    pub credential_masking: bool,
    /// Masking for providers of the client's own.
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
    /// `fs/open` to replace, and `fs/writeBlock`.
    pub file_write_streaming: bool,
    /// `shellSnapshot` of `process/start`.
    pub shell_snapshot_v2: bool,
    /// A policy that allows to write the root keeps its denied reads, as after an approved
    /// escalation. Left out if false, as by the stock server.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub linux_approved_root_write_preserves_restrictions: bool,
}

/// `environment/status`: tells that the connection is alive and ready.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(expecting = "no parameters")]
pub struct ReadEnvironmentStatus;

impl Method for ReadEnvironmentStatus {
    const NAME: MethodName = MethodName::EnvironmentStatus;
    type Result = EnvironmentStatus;
}

/// The answer to `environment/status`.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct EnvironmentStatus {
    /// `ready`.
    pub status: String,
}
