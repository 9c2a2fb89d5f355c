//! The tools `search_files` and `find_files`.

use std::fmt::Write;

use exec_wire::{
    fs::{FindPaths, SearchMatch, SearchResult, SearchText},
    limits,
    path_uri::PathUri,
};
use futures_util::{StreamExt, TryStreamExt};
use schemars::JsonSchema;
use serde::Deserialize;

use crate::mcp::{
    session::McpContext,
    tool::{McpTool, ToolAnswer, ToolEffect, ToolError, shorten_line},
    workspace::native_path,
};

const DEFAULT_MATCHES: usize = 100;
const MAX_MATCHES: usize = 1000;
/// Maximum number of characters shown of a line. Lines of generated files can be very long.
const MAX_LINE_CHARS: usize = 500;
/// Text size after which no further match is shown: a third of the context of a small model.
const MAX_BYTES: usize = 128 << 10;
/// Number of blocks checked for binary content.
const PROBED_BLOCKS: usize = 4;

/// The arguments of `search_files`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::mcp) struct SearchFiles {
    /// What to look for: a regular expression (Rust syntax), unless `literal` is set.
    pattern: String,
    /// Treats the pattern as plain text.
    #[serde(default)]
    literal: bool,
    /// Directory or file to look in: absolute, or relative to the workspace. Default: the
    /// workspace.
    #[serde(default)]
    path: Option<String>,
    /// Searches only files that match this glob, such as `*.rs`, by their path below the directory.
    #[serde(default)]
    glob: Option<String>,
    /// Ignores case.
    #[serde(default)]
    ignore_case: bool,
    /// Lines to show before and after each match. Default: 0.
    #[serde(default)]
    context_lines: usize,
    /// How many matching lines to return at most. Default: 100; at most 1000.
    #[serde(default)]
    max_matches: Option<usize>,
}

impl McpTool for SearchFiles {
    const NAME: &'static str = "search_files";
    const TITLE: &'static str = "Search in files";
    const DESCRIPTION: &'static str = "Finds the lines of files that match a pattern, as \
        `path:line:text`. Binary files, hidden files and what .gitignore excludes are left out.";
    const EFFECT: ToolEffect = ToolEffect::ReadOnly;

    async fn call(self, ctx: &McpContext) -> Result<ToolAnswer, ToolError> {
        let max_matches = self.max_matches.unwrap_or(DEFAULT_MATCHES);
        if !(1..=MAX_MATCHES).contains(&max_matches) {
            return Err(ToolError(format!(
                "`max_matches` must be 1 to {MAX_MATCHES}"
            )));
        }
        if self.context_lines > limits::MAX_CONTEXT_LINES {
            let max = limits::MAX_CONTEXT_LINES;
            return Err(ToolError(format!("`context_lines` must be at most {max}")));
        }
        let path = ctx.path(self.path.as_deref().unwrap_or("."))?;
        let glob = self.glob.map(|typed| parse_glob(&path, &typed));
        let search = SearchText {
            path: path.clone(),
            pattern: self.pattern,
            regex: !self.literal,
            case_sensitive: !self.ignore_case,
            glob: glob.transpose()?,
            max_matches,
            context_lines: self.context_lines,
            sandbox: ctx.sandbox(),
        };
        let result = ctx.files().search(search).await?;
        if result.matches.is_empty() {
            return empty_result(ctx, &path, &result).await;
        }
        let (mut text, mut shown) = (String::new(), 0);
        for found in &result.matches {
            if text.len() > MAX_BYTES {
                break;
            }
            if shown > 0 && self.context_lines > 0 {
                text.push_str("--\n");
            }
            append_match(&mut text, &ctx.display_path(&found.path), found);
            shown += 1;
        }
        if result.truncated || shown < result.matches.len() {
            let _ = writeln!(text, "[there are more than these {shown} matches]");
        }
        Ok(ToolAnswer::text(text))
    }
}

/// Answers that nothing was found, and whether the search was complete.
async fn empty_result(
    ctx: &McpContext,
    path: &PathUri,
    found: &SearchResult,
) -> Result<ToolAnswer, ToolError> {
    if found.truncated {
        return Ok(ToolAnswer::text(
            "Nothing was found, but not everything could be searched: there are too many files, or lines \
             that are too long. Name a directory further down, or a glob.",
        ));
    }
    if is_binary_file(ctx, path).await? {
        let name = ctx.display_path(path);
        return Ok(ToolAnswer::text(format!(
            "Nothing was found before the first NUL byte: `{name}` is a binary file, and is not searched \
             further. A command such as `grep -a` searches all of it."
        )));
    }
    Ok(ToolAnswer::text("Nothing was found."))
}

/// Returns whether the path is a file with a NUL byte in its first blocks, where a search would
/// have stopped.
async fn is_binary_file(ctx: &McpContext, path: &PathUri) -> Result<bool, ToolError> {
    if !ctx.metadata(path).await?.is_file {
        return Ok(false);
    }
    let blocks = ctx.files().read_file_stream(ctx.read_request(path));
    let mut blocks = blocks.await?.take(PROBED_BLOCKS);
    while let Some(block) = blocks.try_next().await? {
        if block.contains(&0) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Appends a match with its context in the format of grep. Writing to a string cannot fail.
fn append_match(text: &mut String, path: &str, found: &SearchMatch) {
    let shorten = |line: &str| shorten_line(line, MAX_LINE_CHARS);
    let mut number = found.line.saturating_sub(found.before.len() as u64);
    for line in &found.before {
        let _ = writeln!(text, "{path}-{number}-{}", shorten(line));
        number += 1;
    }
    let _ = writeln!(text, "{path}:{number}:{}", shorten(&found.text));
    for line in &found.after {
        number += 1;
        let _ = writeln!(text, "{path}-{number}-{}", shorten(line));
    }
}

const DEFAULT_RESULTS: usize = 200;
const MAX_RESULTS: usize = 2000;

/// The arguments of `find_files`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::mcp) struct FindFiles {
    /// Directory to look below: absolute, or relative to the workspace. Default: the workspace.
    #[serde(default)]
    path: Option<String>,
    /// Glob that the path below the directory matches, such as `**/*.rs` or `src/*/mod.py`. One
    /// without a slash matches names at any depth; `./*.rs` only those in the directory itself.
    #[serde(default)]
    glob: Option<String>,
    /// Letters that the path contains in this order (fuzzy); the best matches come first.
    #[serde(default)]
    query: Option<String>,
    /// How many paths to return at most. Default: 200; at most 2000.
    #[serde(default)]
    max_results: Option<usize>,
}

impl McpTool for FindFiles {
    const NAME: &'static str = "find_files";
    const TITLE: &'static str = "Find files by name";
    const DESCRIPTION: &'static str = "Finds files and directories by their names: give either glob or \
        query. Hidden files, and what .gitignore and similar files exclude, are left out: \
        list_directory shows those.";
    const EFFECT: ToolEffect = ToolEffect::ReadOnly;

    async fn call(self, ctx: &McpContext) -> Result<ToolAnswer, ToolError> {
        if self.glob.is_some() == self.query.is_some() {
            return Err(ToolError::new("give either `glob` or `query`"));
        }
        let max_results = self.max_results.unwrap_or(DEFAULT_RESULTS);
        if !(1..=MAX_RESULTS).contains(&max_results) {
            return Err(ToolError(format!(
                "`max_results` must be 1 to {MAX_RESULTS}"
            )));
        }
        let path = ctx.path(self.path.as_deref().unwrap_or("."))?;
        let glob = self.glob.map(|typed| parse_glob(&path, &typed));
        let find = FindPaths {
            path,
            glob: glob.transpose()?,
            query: self.query,
            max_results,
            sandbox: ctx.sandbox(),
        };
        let result = ctx.files().find(find).await?;
        if result.paths.is_empty() {
            return Ok(ToolAnswer::text(match result.truncated {
                false => "Nothing was found.",
                true => {
                    "Nothing was found, but the search is incomplete because there are too many files: \
                     name a subdirectory."
                }
            }));
        }
        let mut lines: Vec<String> = result
            .paths
            .iter()
            .map(|path| ctx.display_path(path))
            .collect();
        if result.truncated {
            lines.push(format!("[there are more than these {}]", lines.len()));
        }
        Ok(ToolAnswer::text(lines.join("\n")))
    }
}

/// Converts a glob to one relative to a directory. `./x` and absolute globs are anchored there.
fn parse_glob(directory: &PathUri, typed: &str) -> Result<String, ToolError> {
    relative_glob(&native_path(directory), typed)
}

fn relative_glob(directory: &str, typed: &str) -> Result<String, ToolError> {
    if typed.starts_with('!') {
        return Err(ToolError::new(
            "`glob` cannot exclude paths: a leading `!` is not supported (write `[!]` for a name that \
             starts with one)",
        ));
    }
    if typed.split('/').any(|name| name == "..") {
        return Err(ToolError::new(
            "`glob` is relative to the directory and cannot contain `..`: set `path` to another directory",
        ));
    }
    // In the request, a leading slash anchors a glob at the directory.
    let anchored = match typed.strip_prefix('/') {
        None => typed.starts_with("./").then_some(typed),
        Some(_) => {
            let root = directory.trim_end_matches('/');
            let relative = typed
                .strip_prefix(root)
                .filter(|relative| relative.starts_with('/'));
            Some(relative.ok_or_else(|| {
                ToolError(format!(
                    "`glob` must be below `{directory}`: start it with that directory or with `./`, use a \
                     relative one, or set `path`"
                ))
            })?)
        }
    };
    let names = anchored.unwrap_or(typed).split('/');
    let names: Vec<&str> = names.filter(|name| !matches!(*name, "" | ".")).collect();
    let names = names.join("/");
    Ok(match anchored {
        Some(_) => format!("/{names}"),
        None => names,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn anchored_globs_start_at_the_directory() {
        for (typed, read) in [
            ("*.rs", "*.rs"),
            ("./*.rs", "/*.rs"),
            ("/srv/*.rs", "/*.rs"),
            ("/srv//src/**/*.rs", "/src/**/*.rs"),
            ("src/./*.rs", "src/*.rs"),
            ("**/[!a]*", "**/[!a]*"),
            ("a..b", "a..b"),
        ] {
            assert_eq!(relative_glob("/srv", typed).unwrap(), read, "{typed}");
        }
        assert_eq!(relative_glob("/", "/etc/*").unwrap(), "/etc/*");
        for typed in ["!x", "../x", "a/../x", "/srvx/x", "/x"] {
            assert!(relative_glob("/srv", typed).is_err(), "{typed}");
        }
    }
}
