//! Whole files, and what is known of them.

use serde::{Deserialize, Serialize};

use crate::{
    bytes::{Base64, UncheckedBase64},
    method::{Method, MethodName},
    path_uri::PathUri,
    process::Empty,
    sandbox::Sandbox,
};

/// `fs/readFile`: reads a whole regular file.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ReadFile {
    /// The file.
    pub path: PathUri,
    /// `false`: no component may be a symbolic link.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub follow_symlinks: Option<bool>,
    /// The policy under which it is read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<Box<Sandbox>>,
}

impl Method for ReadFile {
    const NAME: MethodName = MethodName::FsReadFile;
    type Result = FileContent;
}

/// What a file holds.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FileContent {
    /// Its bytes; absent when they travel raw.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data_base64: Option<Base64>,
}

/// `fs/writeFile`: creates a file or replaces what it holds.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct WriteFile {
    /// The file.
    pub path: PathUri,
    /// Its bytes; absent when they travel raw.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data_base64: Option<UncheckedBase64>,
    /// `false`: no component may be a symbolic link.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub follow_symlinks: Option<bool>,
    /// Creates missing directories above the file.
    #[serde(default, skip_serializing_if = "is_false")]
    pub create_parents: bool,
    /// Readers see the old content or the new, and a failure leaves the old.
    #[serde(default, skip_serializing_if = "is_false")]
    pub atomic: bool,
    /// Permission bits, set whatever the umask is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<u32>,
    /// The policy under which it is written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<Box<Sandbox>>,
}

impl Method for WriteFile {
    const NAME: MethodName = MethodName::FsWriteFile;
    type Result = Empty;
}

/// `fs/getMetadata`: tells what a path names.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct GetMetadata {
    /// The path.
    pub path: PathUri,
    /// `false`: no component may be a symbolic link.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub follow_symlinks: Option<bool>,
    /// The policy under which it is looked at.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<Box<Sandbox>>,
}

impl Method for GetMetadata {
    const NAME: MethodName = MethodName::FsGetMetadata;
    type Result = FileMetadata;
}

/// What is known of a file. A link is followed, and said to be one.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FileMetadata {
    /// It is a directory, perhaps behind a link.
    pub is_directory: bool,
    /// It is a regular file, perhaps behind a link.
    pub is_file: bool,
    /// The path itself names a link.
    pub is_symlink: bool,
    /// Bytes.
    pub size: u64,
    /// Milliseconds since the Unix epoch; 0 if unknown.
    pub created_at_ms: i64,
    /// Milliseconds since the Unix epoch; 0 if unknown.
    pub modified_at_ms: i64,
    /// Permission bits; absent if the server does not tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<u32>,
}

/// `fs/canonicalize`: resolves every link of a path that exists.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Canonicalize {
    /// The path.
    pub path: PathUri,
    /// The policy under which it is looked at.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<Box<Sandbox>>,
}

impl Method for Canonicalize {
    const NAME: MethodName = MethodName::FsCanonicalize;
    type Result = CanonicalPath;
}

/// A path without links.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct CanonicalPath {
    /// The path.
    pub path: PathUri,
}

pub(super) fn is_false(value: &bool) -> bool {
    !*value
}
