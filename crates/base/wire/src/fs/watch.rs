//! `fs/watch*`: watches of files and directories.

use serde::{Deserialize, Serialize};

use super::is_false;
use crate::{id::WatchId, path_uri::PathUri, sandbox::SandboxPolicy};

/// `fs/watchMissing`: notifies once when one of several missing paths appears.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct WatchMissing {
    /// Id of the watch, larger than every earlier one on the connection.
    pub watch_id: u64,
    /// Missing paths.
    pub missing: Vec<PathUri>,
    /// Existing path. Its removal is reported as well.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub present: Option<PathUri>,
    /// Sandbox policy of the operation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<Box<SandboxPolicy>>,
}

/// Response to `fs/watchMissing`.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct WatchMissingResult {
    /// `fs/missingChanged` will be sent.
    pub watching: bool,
}

/// `fs/missingChanged`: a path changed. The watch has ended.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct MissingPathNotification {
    /// Id of the watch.
    pub watch_id: u64,
}

/// `fs/watch`: reports changes of a file or directory until `fs/unwatch`.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct StartWatch {
    /// Watch id chosen by the client, unique on the connection.
    pub watch_id: WatchId,
    /// Existing file or directory.
    pub path: PathUri,
    /// Watches the whole tree below a directory instead of its direct entries.
    #[serde(default = "default_true")]
    pub recursive: bool,
    /// Sandbox policy of the operation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<Box<SandboxPolicy>>,
}

fn default_true() -> bool {
    true
}

/// Response to `fs/watch`. Every later change is reported.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct WatchResult {
    /// Watched path without symbolic links. Reported paths lie below it.
    pub path: PathUri,
}

/// `fs/unwatch`: ends a watch. Unknown watches are ignored.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct StopWatch {
    /// Id of the watch.
    pub watch_id: WatchId,
}

/// `fs/changed`: changes since the previous notification.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct WatchNotification {
    /// Id of the watch.
    pub watch_id: WatchId,
    /// Changes, each path once.
    pub changes: Vec<PathChange>,
    /// Changes were lost, so the client must scan the tree again.
    pub overflow: bool,
    /// The watched path was removed. The watch has ended and its id is free.
    #[serde(default, skip_serializing_if = "is_false")]
    pub ended: bool,
}

/// Change of one path.
#[derive(Clone, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PathChange {
    /// Changed path.
    pub path: PathUri,
    /// Kind of change.
    pub kind: PathChangeKind,
}

/// Kind of change.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(transform = crate::schema::open_enum))]
#[serde(rename_all = "camelCase")]
pub enum PathChangeKind {
    /// The path was created.
    Created,
    /// Content or attributes changed.
    Modified,
    /// The path was removed.
    Removed,
    /// The path was renamed within the watched tree.
    Renamed,
    /// Unknown value from a newer peer.
    #[serde(other)]
    Unknown,
}
