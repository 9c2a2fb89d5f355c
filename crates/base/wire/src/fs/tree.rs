//! Whatever a path names: removed, copied, renamed.

use serde::{Deserialize, Serialize};

use super::file::is_false;
use crate::{
    method::{Method, MethodName},
    path_uri::PathUri,
    process::Empty,
    sandbox::Sandbox,
};

/// `fs/remove`: removes a file, a link or a tree. A link's target is never touched.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Remove {
    /// What to remove.
    pub path: PathUri,
    /// Removes what is below it, too. Absent: `true`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recursive: Option<bool>,
    /// Takes it for done if nothing is there. Absent: `true`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub force: Option<bool>,
    /// `false`: no component may be a symbolic link.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub follow_symlinks: Option<bool>,
    /// The policy under which it is removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<Box<Sandbox>>,
}

impl Method for Remove {
    const NAME: MethodName = MethodName::FsRemove;
    type Result = Empty;
}

/// `fs/copy`: copies a file, a link or a tree.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Copy {
    /// What to copy.
    pub source_path: PathUri,
    /// What it becomes.
    pub destination_path: PathUri,
    /// Copies directories, too.
    pub recursive: bool,
    /// The policy under which it is copied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<Box<Sandbox>>,
}

impl Method for Copy {
    const NAME: MethodName = MethodName::FsCopy;
    type Result = Empty;
}

/// `fs/rename`: gives a file, a link or a directory another name, in one step.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Rename {
    /// What to rename.
    pub source_path: PathUri,
    /// Its new name.
    pub destination_path: PathUri,
    /// Replaces what has the new name.
    #[serde(default, skip_serializing_if = "is_false")]
    pub overwrite: bool,
    /// The policy under which it is renamed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<Box<Sandbox>>,
}

impl Method for Rename {
    const NAME: MethodName = MethodName::FsRename;
    type Result = Empty;
}
