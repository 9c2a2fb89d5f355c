//! `environmentConfig/read`: parts of the configuration that lies where commands run.

use serde::{Deserialize, Serialize};

use crate::{
    method::{Method, MethodName},
    path_uri::PathUri,
};

/// `environmentConfig/read`: reads selected keys of the executor's own configuration.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ReadEnvironmentConfig {
    /// Whose project configuration counts. It need not exist.
    pub cwd: PathUri,
    /// KeySet of `config.toml`, each a literal path.
    pub config_paths: Vec<Vec<String>>,
    /// KeySet of `requirements.toml`, each a literal path.
    pub requirements_paths: Vec<Vec<String>>,
}

impl Method for ReadEnvironmentConfig {
    const NAME: MethodName = MethodName::EnvironmentConfigRead;
    type Result = EnvironmentConfig;
}

/// The answer to `environmentConfig/read`.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct EnvironmentConfig {
    /// The account's home.
    #[serde(default)]
    pub user_home_dir: Option<PathUri>,
    /// Where the configuration lies.
    pub codex_home_dir: PathUri,
    /// The host's name.
    #[serde(default)]
    pub hostname: Option<String>,
    /// What was selected of the configuration.
    pub config: ConfigStack,
    /// What was selected of the requirements.
    pub requirements: ConfigStack,
}

/// Layers of configuration; a later one goes before an earlier one.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ConfigStack {
    /// Lowest precedence first. A layer without anything selected is left out.
    pub layers: Vec<ConfigLayer>,
    /// Where a client inserts layers of its own.
    #[serde(default)]
    pub cloud_insertion_index: usize,
}

/// One layer of configuration.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ConfigLayer {
    /// Where it comes from, for people.
    pub source: String,
    /// What relative paths in it refer to.
    pub base_dir: PathUri,
    /// The selected keys, as TOML.
    pub toml: String,
}
