//! `fs/search` and `fs/find`: search in a tree by content or by name. Ignore files are respected.

use serde::{Deserialize, Serialize};

use crate::{
    limits,
    method::{Method, MethodName},
    path_uri::PathUri,
    sandbox::SandboxPolicy,
};

/// `fs/search`: finds matching lines.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SearchText {
    /// Directory or file to search.
    pub path: PathUri,
    /// Pattern to search for.
    pub pattern: String,
    /// The pattern is a regular expression. Absent: literal text.
    #[serde(default)]
    pub regex: bool,
    /// Matches case-sensitively.
    #[serde(default = "default_true")]
    pub case_sensitive: bool,
    /// Glob that the path of a file below the root must match.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub glob: Option<String>,
    /// Maximum number of matching lines.
    #[serde(default = "default_matches")]
    pub max_matches: usize,
    /// Number of context lines before and after each match.
    #[serde(default)]
    pub context_lines: usize,
    /// Sandbox policy of the operation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<Box<SandboxPolicy>>,
}

impl Method for SearchText {
    const NAME: MethodName = MethodName::FsSearch;
    type Result = SearchResult;
}

fn default_true() -> bool {
    true
}

fn default_matches() -> usize {
    limits::DEFAULT_SEARCH_MATCHES
}

/// Result of a search.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct SearchResult {
    /// Matching lines, ordered by path and line.
    pub matches: Vec<SearchMatch>,
    /// A limit was reached, so the result is incomplete.
    pub truncated: bool,
}

/// Matching line.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
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
#[serde(rename_all = "camelCase")]
pub struct FindPaths {
    /// Directory to search.
    pub path: PathUri,
    /// Glob that the path below the root must match. Excludes `query`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub glob: Option<String>,
    /// Characters that the path below the root must contain in this order. Best matches come first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub query: Option<String>,
    /// Maximum number of paths.
    #[serde(default = "default_results")]
    pub max_results: usize,
    /// Sandbox policy of the operation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<Box<SandboxPolicy>>,
}

impl Method for FindPaths {
    const NAME: MethodName = MethodName::FsFind;
    type Result = FoundPaths;
}

fn default_results() -> usize {
    limits::DEFAULT_FIND_RESULTS
}

/// Result of a find.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct FoundPaths {
    /// Paths, sorted by name for a glob and by match quality for a query.
    pub paths: Vec<PathUri>,
    /// A limit was reached, so the result is incomplete.
    pub truncated: bool,
}
