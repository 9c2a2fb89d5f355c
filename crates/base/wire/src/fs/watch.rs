//! Changes of files, told as they happen.

use serde::{Deserialize, Serialize};

use super::is_false;
use crate::{
    id::WatchId,
    method::{Method, MethodName},
    path_uri::PathUri,
    process::Empty,
    sandbox::Sandbox,
};

/// `fs/watchMissing`: tells once when one of several missing paths appears.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct WatchMissing {
    /// Larger than every earlier one of the connection.
    pub watch_id: u64,
    /// Paths that do not exist.
    pub missing: Vec<PathUri>,
    /// A path that does, and whose end is told as well.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub present: Option<PathUri>,
    /// The policy under which they are looked at.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<Box<Sandbox>>,
}

impl Method for WatchMissing {
    const NAME: MethodName = MethodName::FsWatchMissing;
    type Result = Watching;
}

/// Whether `fs/missingChanged` will be told.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Watching {
    /// It will.
    pub watching: bool,
}

/// `fs/missingChanged`: something has changed, and the watch is over.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MissingChanged {
    /// The watch.
    pub watch_id: u64,
}

/// `fs/watch`: tells the changes of a file or directory until `fs/unwatch`.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Watch {
    /// The client's name for the watch, unique on the connection.
    pub watch_id: WatchId,
    /// A file or directory that exists.
    pub path: PathUri,
    /// Watches everything below a directory, not only its own entries.
    #[serde(default = "default_true")]
    pub recursive: bool,
    /// The policy under which it is watched.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<Box<Sandbox>>,
}

impl Method for Watch {
    const NAME: MethodName = MethodName::FsWatch;
    type Result = Watched;
}

fn default_true() -> bool {
    true
}

/// A watch that has begun: every later change is told.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Watched {
    /// The watched path, without links; changes are told by paths below it.
    pub path: PathUri,
}

/// `fs/unwatch`: ends a watch. An unknown one has ended already.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Unwatch {
    /// The watch.
    pub watch_id: WatchId,
}

impl Method for Unwatch {
    const NAME: MethodName = MethodName::FsUnwatch;
    type Result = Empty;
}

/// `fs/changed`: what has changed since the last one.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Changed {
    /// The watch.
    pub watch_id: WatchId,
    /// The changes, each path once.
    pub changes: Vec<Change>,
    /// Changes were lost: look at everything again.
    pub overflow: bool,
    /// What was watched is gone: the watch is over, and its name is free.
    #[serde(default, skip_serializing_if = "is_false")]
    pub ended: bool,
}

/// One path that has changed.
#[derive(Clone, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize)]
pub struct Change {
    /// The path.
    pub path: PathUri,
    /// What has become of it.
    pub kind: ChangeKind,
}

/// What has become of a path.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum ChangeKind {
    /// It exists now.
    Created,
    /// Its content or its attributes are others.
    Modified,
    /// It is gone.
    Removed,
    /// It was moved here, or away from here, within what is watched.
    Renamed,
    /// Something that a newer peer knows.
    #[serde(other)]
    Unknown,
}
