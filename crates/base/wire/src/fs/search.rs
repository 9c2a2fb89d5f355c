//! Text and names, looked for in a tree. Ignore files are respected.

use serde::{Deserialize, Serialize};

use crate::{
    limits,
    method::{Method, MethodName},
    path_uri::PathUri,
    sandbox::Sandbox,
};

/// `fs/search`: finds the lines that match.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Search {
    /// A directory, or one file.
    pub path: PathUri,
    /// What to look for.
    pub pattern: String,
    /// The pattern is a regular expression. Absent: it is plain text.
    #[serde(default)]
    pub regex: bool,
    /// Letters match only their own case.
    #[serde(default = "default_true")]
    pub case_sensitive: bool,
    /// Looks only at files whose path below the root matches.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub glob: Option<String>,
    /// Matching lines wanted.
    #[serde(default = "default_matches")]
    pub max_matches: usize,
    /// Lines to show before and after each.
    #[serde(default)]
    pub context_lines: usize,
    /// The policy under which files are read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<Box<Sandbox>>,
}

impl Method for Search {
    const NAME: MethodName = MethodName::FsSearch;
    type Result = SearchResult;
}

fn default_true() -> bool {
    true
}

fn default_matches() -> usize {
    limits::DEFAULT_SEARCH_MATCHES
}

/// What was found.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct SearchResult {
    /// One for each matching line, by path and line.
    pub matches: Vec<SearchMatch>,
    /// A limit was reached: there may be more.
    pub truncated: bool,
}

/// A line that matches.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct SearchMatch {
    /// The file.
    pub path: PathUri,
    /// Counted from 1.
    pub line: u64,
    /// Byte in the line where the first match begins, counted from 1.
    pub column: u64,
    /// The line, without its end; bytes that are not UTF-8 are replaced by U+FFFD.
    pub text: String,
    /// Lines before it.
    pub before: Vec<String>,
    /// Lines after it.
    pub after: Vec<String>,
}

/// `fs/find`: finds files and directories by their names.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Find {
    /// Where to look.
    pub path: PathUri,
    /// Matches the path below the root. Either this or `query`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub glob: Option<String>,
    /// Letters that the path below the root contains in this order; best matches first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub query: Option<String>,
    /// Paths wanted.
    #[serde(default = "default_results")]
    pub max_results: usize,
    /// The policy under which directories are read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<Box<Sandbox>>,
}

impl Method for Find {
    const NAME: MethodName = MethodName::FsFind;
    type Result = FoundPaths;
}

fn default_results() -> usize {
    limits::DEFAULT_FIND_RESULTS
}

/// Paths that were found.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct FoundPaths {
    /// By name for a glob, by quality for a query.
    pub paths: Vec<PathUri>,
    /// A limit was reached: there are more.
    pub truncated: bool,
}
