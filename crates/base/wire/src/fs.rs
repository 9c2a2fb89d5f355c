//! `fs/*`: files, directories, file handles, watches and searches.
//!
//! Every path is a [`PathUri`]. Absent members have the stock server's defaults. Searches respect
//! ignore files. The operations are implemented in `exec-fs`.

mod listing;
mod metadata;
mod watch;

use serde::{Deserialize, Serialize};

use crate::{
    base64_bytes::{Base64Bytes, UncheckedBase64},
    id::HandleId,
    limits,
    path_uri::PathUri,
    sandbox::SandboxPolicy,
};

pub use self::{
    listing::{DirectoryCursor, DirectoryEntry, DirectoryListing, ReadDirectory},
    metadata::{CreateSymlink, FileMetadata, GetMetadata, SetMetadata},
    watch::{
        MissingPathNotification, PathChange, PathChangeKind, StartWatch, StopWatch, WatchMissing,
        WatchMissingResult, WatchNotification, WatchResult,
    },
};

/// `fs/readFile`: reads a whole regular file.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ReadFile {
    /// Path of the file.
    pub path: PathUri,
    /// `false`: no component may be a symbolic link.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub follow_symlinks: Option<bool>,
    /// Sandbox policy of the operation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<Box<SandboxPolicy>>,
}

/// Content of a file.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct FileContent {
    /// Content. Absent if it is sent as raw bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data_base64: Option<Base64Bytes>,
}

/// `fs/writeFile`: creates a file or replaces its content.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct WriteFile {
    /// Path of the file.
    pub path: PathUri,
    /// New content. Absent if it is sent as raw bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data_base64: Option<UncheckedBase64>,
    /// `false`: no component may be a symbolic link.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub follow_symlinks: Option<bool>,
    /// Creates missing parent directories.
    #[serde(default, skip_serializing_if = "is_false")]
    pub create_parents: bool,
    /// Replaces the file atomically: readers see the old or the new content, and a failure keeps
    /// the old.
    #[serde(default, skip_serializing_if = "is_false")]
    pub atomic: bool,
    /// Permission bits, applied regardless of the umask.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(max = 0o7777)))]
    pub mode: Option<u32>,
    /// Sandbox policy of the operation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<Box<SandboxPolicy>>,
}

/// `fs/canonicalize`: resolves all symbolic links of an existing path.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct CanonicalizePath {
    /// Path to resolve.
    pub path: PathUri,
    /// Sandbox policy of the operation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<Box<SandboxPolicy>>,
}

/// Path without symbolic links.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CanonicalPath {
    /// Resolved path.
    pub path: PathUri,
}

fn is_false(value: &bool) -> bool {
    !*value
}

/// `fs/createDirectory`: creates a directory.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct CreateDirectory {
    /// Path of the directory.
    pub path: PathUri,
    /// Creates missing parents and accepts an existing directory. Absent: `true`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recursive: Option<bool>,
    /// `false`: no component may be a symbolic link.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub follow_symlinks: Option<bool>,
    /// Sandbox policy of the operation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<Box<SandboxPolicy>>,
}

/// `fs/walk`: lists a tree, breadth first.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct WalkTree {
    /// Root of the tree. Not listed itself.
    pub path: PathUri,
    /// Limits of the walk.
    pub options: WalkOptions,
    /// Sandbox policy of the operation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<Box<SandboxPolicy>>,
}

/// Limits of a walk.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct WalkOptions {
    /// Maximum depth. 0: only the entries of the root.
    #[cfg_attr(feature = "schema", schemars(range(max = limits::MAX_WALK_DEPTH)))]
    pub max_depth: usize,
    /// Maximum directories to read, including the root.
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = limits::MAX_WALK_DIRECTORIES)))]
    pub max_directories: usize,
    /// Maximum entries to examine.
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = limits::MAX_WALK_ENTRIES)))]
    pub max_entries: usize,
    /// Lists and enters directories behind symbolic links, each real directory once.
    pub follow_directory_symlinks: bool,
    /// Lists hidden directories, with names that start with a dot, but does not enter them.
    #[serde(default)]
    pub prune_hidden_directories: bool,
}

/// Result of a walk.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct WalkResult {
    /// Files and directories, breadth first, sorted by name in each directory.
    pub entries: Vec<WalkEntry>,
    /// Directories that could not be read.
    pub errors: Vec<WalkError>,
    /// A limit was reached, so the result is incomplete.
    pub truncated: bool,
}

/// Entry of a walk.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct WalkEntry {
    /// Path of the entry.
    pub path: PathUri,
    /// Kind of the entry.
    pub kind: EntryKind,
}

/// Kind of an entry.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum EntryKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
}

/// Failure to read a part of the tree.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct WalkError {
    /// Path that could not be read.
    pub path: PathUri,
    /// Human-readable reason.
    pub message: String,
}

/// `fs/remove`: removes a file, a symbolic link or a tree. Targets of links are never removed.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct RemovePath {
    /// Path to remove.
    pub path: PathUri,
    /// Removes directories recursively. Absent: `true`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recursive: Option<bool>,
    /// Ignores a missing path. Absent: `true`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub force: Option<bool>,
    /// `false`: no component may be a symbolic link.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub follow_symlinks: Option<bool>,
    /// Sandbox policy of the operation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<Box<SandboxPolicy>>,
}

/// `fs/copy`: copies a file, a symbolic link or a tree.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct CopyPath {
    /// Path to copy.
    pub source_path: PathUri,
    /// Path of the copy.
    pub destination_path: PathUri,
    /// Copies directories recursively.
    pub recursive: bool,
    /// Sandbox policy of the operation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<Box<SandboxPolicy>>,
}

/// `fs/rename`: renames a file, a symbolic link or a directory atomically.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct RenamePath {
    /// Path to rename.
    pub source_path: PathUri,
    /// New path.
    pub destination_path: PathUri,
    /// Replaces an existing destination.
    #[serde(default, skip_serializing_if = "is_false")]
    pub overwrite: bool,
    /// Sandbox policy of the operation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<Box<SandboxPolicy>>,
}

/// `fs/open`: opens a regular file under a handle id chosen by the client.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct OpenFile {
    /// Handle id, unique on the connection.
    pub handle_id: HandleId,
    /// Path of the file.
    pub path: PathUri,
    /// Access mode.
    #[serde(default)]
    pub mode: OpenMode,
    /// Sandbox policy, checked only when the file is opened.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<Box<SandboxPolicy>>,
}

/// Access mode of a file handle.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum OpenMode {
    /// Reads the file.
    #[default]
    Read,
    /// Writes the file from scratch: creates or truncates it.
    Replace,
    /// Writes parts of the file: creates it or keeps its content.
    Update,
}

/// Response to `fs/open`.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct OpenedFile {
    /// Id chosen by the client.
    pub handle_id: HandleId,
}

/// `fs/readBlock`: reads from an open file. Handles have no cursor.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ReadBlock {
    /// Id of the file handle.
    pub handle_id: HandleId,
    /// Offset of the block.
    pub offset: u64,
    /// Number of bytes, 1 to 1 MiB.
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = limits::MAX_BLOCK_BYTES)))]
    pub len: u64,
}

/// Block of a file.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct BlockContent {
    /// Content. Absent if it is sent as raw bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chunk: Option<Base64Bytes>,
    /// The file ended before the requested number of bytes.
    pub eof: bool,
}

/// `fs/writeBlock`: writes to an open file. Holes are allowed.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct WriteBlock {
    /// Id of the file handle.
    pub handle_id: HandleId,
    /// Offset of the block.
    pub offset: u64,
    /// Content, 1 byte to 1 MiB. Absent if it is sent as raw bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chunk: Option<Base64Bytes>,
}

/// `fs/close`: closes a file handle. Unknown handles are ignored.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct CloseFile {
    /// Id of the file handle.
    pub handle_id: HandleId,
}

/// `fs/search`: finds matching lines.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct SearchText {
    /// Directory or file to search.
    pub path: PathUri,
    /// Pattern to search for.
    #[cfg_attr(feature = "schema", schemars(length(max = limits::MAX_PATTERN_BYTES)))]
    pub pattern: String,
    /// The pattern is a regular expression. Absent: literal text.
    #[serde(default)]
    pub regex: bool,
    /// Matches case-sensitively.
    #[serde(default = "default_true")]
    pub case_sensitive: bool,
    /// Glob that the path of a file below the root must match.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(length(max = limits::MAX_PATTERN_BYTES)))]
    pub glob: Option<String>,
    /// Maximum number of matching lines.
    #[serde(default = "default_matches")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = limits::MAX_SEARCH_MATCHES)))]
    pub max_matches: usize,
    /// Number of context lines before and after each match.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schemars(range(max = limits::MAX_CONTEXT_LINES)))]
    pub context_lines: usize,
    /// Sandbox policy of the operation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<Box<SandboxPolicy>>,
}

fn default_true() -> bool {
    true
}

fn default_matches() -> usize {
    limits::DEFAULT_SEARCH_MATCHES
}

/// Result of a search.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SearchResult {
    /// Matching lines, ordered by path and line.
    pub matches: Vec<SearchMatch>,
    /// A limit was reached, so the result is incomplete.
    pub truncated: bool,
}

/// Matching line.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SearchMatch {
    /// Path of the file.
    pub path: PathUri,
    /// Line number, starting at 1.
    pub line: u64,
    /// Byte offset of the first match in the line, starting at 1.
    pub column: u64,
    /// Line without its terminator. Bytes that are not UTF-8 are replaced by U+FFFD.
    pub text: String,
    /// Context lines before the match.
    pub before: Vec<String>,
    /// Context lines after the match.
    pub after: Vec<String>,
}

/// `fs/find`: finds files and directories by name.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct FindPaths {
    /// Directory to search.
    pub path: PathUri,
    /// Glob that the path below the root must match. Excludes `query`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(length(max = limits::MAX_PATTERN_BYTES)))]
    pub glob: Option<String>,
    /// Characters that the path below the root must contain in this order. Best matches come first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(length(max = limits::MAX_PATTERN_BYTES)))]
    pub query: Option<String>,
    /// Maximum number of paths.
    #[serde(default = "default_results")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = limits::MAX_FIND_RESULTS)))]
    pub max_results: usize,
    /// Sandbox policy of the operation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<Box<SandboxPolicy>>,
}

fn default_results() -> usize {
    limits::DEFAULT_FIND_RESULTS
}

/// Result of a find.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FoundPaths {
    /// Paths, sorted by name for a glob and by match quality for a query.
    pub paths: Vec<PathUri>,
    /// A limit was reached, so the result is incomplete.
    pub truncated: bool,
}
