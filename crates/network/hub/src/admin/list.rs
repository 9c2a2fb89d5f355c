//! The answer to `GET /hub/v1/environments`.

use serde::{Deserialize, Serialize};

/// Environments in the order of their ids.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct EnvironmentList {
    /// Those of this page.
    pub environments: Vec<EnvironmentStatus>,
    /// Ask with `?after=<this>` for more. Absent: that was all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// One environment.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct EnvironmentStatus {
    /// Its id.
    pub environment_id: String,
    /// The principal that owns it.
    pub owner: String,
    /// Its current registration. Absent: a direct one that this node knows nothing of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub registration_id: Option<String>,
    /// How its executor is reached.
    pub transport: Transport,
    /// Whether its executor is connected.
    pub online: bool,
    /// The node its executor is connected to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// When the executor registered, as RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub registered_at: Option<String>,
}

/// How an executor is reached.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Transport {
    /// Through the relay, encrypted end to end.
    Noise,
    /// On a socket of its own to the hub.
    Direct,
}
