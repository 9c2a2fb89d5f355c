//! `find_files`.

use exec_wire::fs::Find;
use schemars::JsonSchema;
use serde::Deserialize;

use super::glob::glob;
use crate::mcp::{
    answer::{Answer, Complaint},
    tool::{Effect, Tool},
    work::Work,
};

const DEFAULT_RESULTS: usize = 200;
const MAX_RESULTS: usize = 2000;

/// The arguments of `find_files`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::mcp) struct FindFiles {
    /// Directory to look below: absolute, or relative to the workspace. Default: the workspace.
    #[serde(default)]
    path: Option<String>,
    /// Glob that the path below the directory matches, such as `**/*.rs` or `src/*/mod.py`. One without a
    /// slash matches names at any depth; `./*.rs` only those in the directory itself.
    #[serde(default)]
    glob: Option<String>,
    /// Letters that the path contains in this order (fuzzy); the best matches come first.
    #[serde(default)]
    query: Option<String>,
    /// How many paths to return at most. Default: 200; at most 2000.
    #[serde(default)]
    max_results: Option<usize>,
}

impl Tool for FindFiles {
    const NAME: &'static str = "find_files";
    const TITLE: &'static str = "Find files by name";
    const DESCRIPTION: &'static str = "Finds files and directories by their names: give either glob or \
        query. Hidden files, and what .gitignore and similar files exclude, are left out: \
        list_directory shows those.";
    const EFFECT: Effect = Effect::Reads;

    async fn call(self, work: &Work) -> Result<Answer, Complaint> {
        if self.glob.is_some() == self.query.is_some() {
            return Err(Complaint::new("give either `glob` or `query`"));
        }
        let wanted = self.max_results.unwrap_or(DEFAULT_RESULTS);
        if !(1..=MAX_RESULTS).contains(&wanted) {
            return Err(Complaint(format!(
                "`max_results` must be 1 to {MAX_RESULTS}"
            )));
        }
        let path = work.path(self.path.as_deref().unwrap_or("."))?;
        let glob = self.glob.map(|typed| glob(work, &path, &typed));
        let find = Find {
            path,
            glob: glob.transpose()?,
            query: self.query,
            max_results: wanted,
            sandbox: work.sandbox(),
        };
        let found = work.files().find(find).await?;
        if found.paths.is_empty() {
            return Ok(Answer::text(match found.truncated {
                false => "Nothing was found.",
                true => {
                    "Nothing was found, but there are too many files to look at all of them: name a \
                     directory further down."
                }
            }));
        }
        let mut lines: Vec<String> = found.paths.iter().map(|path| work.show(path)).collect();
        if found.truncated {
            lines.push(format!("[there are more than these {}]", lines.len()));
        }
        Ok(Answer::text(lines.join("\n")))
    }
}
