//! Methods about the server process itself: `server/*`.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize, de::IgnoredAny};

/// `server/status`: describes the server process.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Serialize)]
pub struct ReadServerStatus {}

impl<'de> Deserialize<'de> for ReadServerStatus {
    /// Accepts `null`, and so absent `params`, as an empty object.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Option::<BTreeMap<String, IgnoredAny>>::deserialize(deserializer)?;
        Ok(Self {})
    }
}

/// Response to `server/status`.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ServerStatus {
    /// Version of the program.
    pub version: String,
    /// OS pid of the server.
    pub os_pid: u32,
    /// Why the last `server/upgrade` was undone, if it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub upgrade_error: Option<String>,
}

/// `server/upgrade`: replaces the server with another program, which takes over its listener,
/// sessions and durable processes.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct UpgradeServer {
    /// Absolute path of the program on the server's host. Absent: the file that the server was
    /// started from, which may have been replaced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub program: Option<String>,
    /// Also upgrades if processes run that are not durable. They are terminated.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub force: bool,
}

/// Response to `server/upgrade`: the new server is ready and takes over now. Every connection is
/// closed; `server/status` of the next one says who serves.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct UpgradeStarted {
    /// Version of the new server.
    pub version: String,
    /// OS pid of the new server.
    pub os_pid: u32,
}
