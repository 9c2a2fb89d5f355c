//! Directories: made, listed, walked.

use serde::{Deserialize, Serialize};

use crate::{
    method::{Method, MethodName},
    path_uri::PathUri,
    process::Empty,
    sandbox::Sandbox,
};

/// `fs/createDirectory`: makes a directory.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CreateDirectory {
    /// The directory.
    pub path: PathUri,
    /// Makes those above it, and takes one that exists. Absent: `true`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recursive: Option<bool>,
    /// `false`: no component may be a symbolic link.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub follow_symlinks: Option<bool>,
    /// The policy under which it is made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<Box<Sandbox>>,
}

impl Method for CreateDirectory {
    const NAME: MethodName = MethodName::FsCreateDirectory;
    type Result = Empty;
}

/// `fs/readDirectory`: lists a directory.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ReadDirectory {
    /// The directory.
    pub path: PathUri,
    /// The policy under which it is listed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<Box<Sandbox>>,
}

impl Method for ReadDirectory {
    const NAME: MethodName = MethodName::FsReadDirectory;
    type Result = DirectoryListing;
}

/// What a directory holds, in no order.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct DirectoryListing {
    /// Its entries, without `.` and `..`, and without links that lead nowhere.
    pub entries: Vec<DirectoryEntry>,
}

/// One name in a directory.
#[derive(Clone, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DirectoryEntry {
    /// The name; bytes that are not UTF-8 are replaced by U+FFFD.
    pub file_name: String,
    /// It is a directory, perhaps behind a link.
    pub is_directory: bool,
    /// It is a regular file, perhaps behind a link.
    pub is_file: bool,
}

/// `fs/walk`: lists a tree, breadth first.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Walk {
    /// Where the tree begins; not listed itself.
    pub path: PathUri,
    /// How far to go.
    pub options: WalkOptions,
    /// The policy under which it is walked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<Box<Sandbox>>,
}

impl Method for Walk {
    const NAME: MethodName = MethodName::FsWalk;
    type Result = WalkResult;
}

/// How far a walk goes.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct WalkOptions {
    /// 0: only the root's own entries.
    pub max_depth: usize,
    /// Directories that are read, the root among them.
    pub max_directories: usize,
    /// Entries that are looked at.
    pub max_entries: usize,
    /// Lists and enters directories behind links, each real one once.
    pub follow_directory_symlinks: bool,
    /// Lists directories whose name begins with a dot, but does not enter them.
    #[serde(default)]
    pub prune_hidden_directories: bool,
}

/// A tree.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct WalkResult {
    /// Files and directories, breadth first, by name in each directory.
    pub entries: Vec<WalkEntry>,
    /// What could not be read.
    pub errors: Vec<WalkError>,
    /// A limit was reached: there is more.
    pub truncated: bool,
}

/// Something in a tree.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct WalkEntry {
    /// Where it is.
    pub path: PathUri,
    /// What it is.
    pub kind: EntryKind,
}

/// What a walk lists.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum EntryKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
}

/// Something in a tree that could not be read.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct WalkError {
    /// Where it is.
    pub path: PathUri,
    /// Why.
    pub message: String,
}
