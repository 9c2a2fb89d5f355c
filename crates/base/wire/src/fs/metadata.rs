//! `fs/getMetadata`, `fs/setMetadata` and `fs/createSymlink`.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::is_false;
use crate::{base64_bytes::Base64Bytes, path_uri::PathUri, sandbox::SandboxPolicy};

/// `fs/getMetadata`: returns the metadata of a path.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct GetMetadata {
    /// Path to examine.
    pub path: PathUri,
    /// `false`: no component may be a symbolic link.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub follow_symlinks: Option<bool>,
    /// Returns the target of a symbolic link, and describes a dangling one instead of failing.
    #[serde(default, skip_serializing_if = "is_false")]
    pub details: bool,
    /// Sandbox policy of the operation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<Box<SandboxPolicy>>,
}

/// Metadata of a path. Symbolic links are followed and reported.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct FileMetadata {
    /// Directory, possibly behind a symbolic link.
    pub is_directory: bool,
    /// Regular file, possibly behind a symbolic link.
    pub is_file: bool,
    /// The path itself is a symbolic link.
    pub is_symlink: bool,
    /// Size in bytes.
    pub size: u64,
    /// Creation time in milliseconds since the Unix epoch; 0 if unknown.
    pub created_at_ms: i64,
    /// Modification time in milliseconds since the Unix epoch; 0 if unknown.
    pub modified_at_ms: i64,
    /// Permission bits. Absent if the server does not report them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<u32>,
    /// Target of the symbolic link, with `details`. Bytes that are not UTF-8 are replaced by
    /// U+FFFD.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link_target: Option<String>,
    /// Bytes of a target that is not UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link_target_base64: Option<Base64Bytes>,
}

/// Splits the target of a link into its text and, if that is not exact, its bytes.
pub(super) fn link_members(target: Vec<u8>) -> (String, Option<Base64Bytes>) {
    match String::from_utf8(target) {
        Ok(text) => (text, None),
        Err(error) => {
            let text = String::from_utf8_lossy(error.as_bytes()).into_owned();
            (text, Some(Base64Bytes(Bytes::from(error.into_bytes()))))
        }
    }
}

impl FileMetadata {
    /// Adds the target of the symbolic link.
    pub fn with_link_target(mut self, target: Vec<u8>) -> Self {
        let (text, exact) = link_members(target);
        (self.link_target, self.link_target_base64) = (Some(text), exact);
        self
    }
}

/// `fs/setMetadata`: sets the mode or the modification time of a path.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct SetMetadata {
    /// Path to change.
    pub path: PathUri,
    /// Permission bits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(max = 0o7777)))]
    pub mode: Option<u32>,
    /// Modification time in milliseconds since the Unix epoch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub modified_at_ms: Option<i64>,
    /// `false`: no component may be a symbolic link.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub follow_symlinks: Option<bool>,
    /// Sandbox policy of the operation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<Box<SandboxPolicy>>,
}

/// `fs/createSymlink`: creates a symbolic link.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct CreateSymlink {
    /// Path of the link.
    pub path: PathUri,
    /// Target, which need not exist.
    pub target: String,
    /// Bytes of a target that is not UTF-8, used instead of `target`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_base64: Option<Base64Bytes>,
    /// Replaces an existing file or link, but not a directory.
    #[serde(default, skip_serializing_if = "is_false")]
    pub overwrite: bool,
    /// Sandbox policy of the operation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<Box<SandboxPolicy>>,
}

impl CreateSymlink {
    /// Creates a request for a target of any bytes.
    pub fn new(path: PathUri, target: Vec<u8>) -> Self {
        let (target, target_base64) = link_members(target);
        Self {
            path,
            target,
            target_base64,
            overwrite: false,
            sandbox: None,
        }
    }

    /// Returns the bytes of the target.
    pub fn target_bytes(&self) -> &[u8] {
        match &self.target_base64 {
            Some(exact) => &exact.0,
            None => self.target.as_bytes(),
        }
    }
}
