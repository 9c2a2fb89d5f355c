//! The tool `list_directory`.

use std::collections::BTreeMap;

use exec_wire::{
    fs::{EntryKind, ReadDirectory, WalkOptions, WalkTree},
    limits,
    path_uri::PathUri,
};
use futures_util::{StreamExt, stream};
use schemars::JsonSchema;
use serde::Deserialize;

use crate::mcp::{
    session::McpContext,
    tool::{McpTool, ToolEffect},
    tool_answer::{ToolAnswer, ToolError},
};

/// Maximum number of entries shown. More would fill the context of a model.
const MAX_SHOWN_ENTRIES: usize = 1000;
/// Maximum depth.
const MAX_DEPTH: usize = 10;
/// Maximum number of directories listed to find symbolic links.
const MAX_LISTED_DIRECTORIES: usize = MAX_SHOWN_ENTRIES;
/// Number of directories listed concurrently.
const LISTING_CONCURRENCY: usize = 16;

/// The arguments of `list_directory`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::mcp) struct ListDirectory {
    /// Directory: absolute, or relative to the workspace. Default: the workspace.
    #[serde(default)]
    path: Option<String>,
    /// How many levels to list, 1 to 10. Default: 1. Hidden directories are not entered.
    #[serde(default)]
    depth: Option<usize>,
}

impl McpTool for ListDirectory {
    const NAME: &'static str = "list_directory";
    const TITLE: &'static str = "List a directory";
    const DESCRIPTION: &'static str = "Lists files and directories, one on each line, by their names \
        below it; a directory ends with a slash, a link with `@`, a link to a directory with `@/`. Use \
        find_files to look for names in a large tree.";
    const EFFECT: ToolEffect = ToolEffect::ReadOnly;

    async fn call(self, ctx: &McpContext) -> Result<ToolAnswer, ToolError> {
        let depth = self.depth.unwrap_or(1);
        if !(1..=MAX_DEPTH).contains(&depth) {
            return Err(ToolError(format!("`depth` must be 1 to {MAX_DEPTH}")));
        }
        let path = ctx.path(self.path.as_deref().unwrap_or("."))?;
        let (mut names, cut) = list_names(ctx, path, depth).await?;
        names.sort();
        let total = names.len();
        names.truncate(MAX_SHOWN_ENTRIES);
        if names.is_empty() {
            return Ok(ToolAnswer::text("The directory is empty."));
        }
        if cut || total > MAX_SHOWN_ENTRIES {
            names.push(format!(
                "[{} of {total}{} entries shown]",
                names.len(),
                if cut { " or more" } else { "" }
            ));
        }
        Ok(ToolAnswer::text(names.join("\n")))
    }
}

/// Lists the marked names below a directory, and returns whether there are more.
///
/// A walk omits symbolic links; a listing includes them with the type of their target. So an entry
/// that only the listing has is a link. Dangling links are in neither.
async fn list_names(
    ctx: &McpContext,
    root: PathUri,
    depth: usize,
) -> Result<(Vec<String>, bool), ToolError> {
    let walk = WalkTree {
        path: root.clone(),
        options: WalkOptions {
            max_depth: depth - 1,
            max_directories: limits::MAX_WALK_DIRECTORIES,
            max_entries: limits::MAX_WALK_ENTRIES,
            follow_directory_symlinks: false,
            prune_hidden_directories: true,
        },
        sandbox: ctx.sandbox(),
    };
    let walked = ctx.files().walk(walk).await?;
    let mut names = BTreeMap::new();
    let mut directories = vec![(String::new(), root.clone())];
    for entry in walked.entries {
        let Some(name) = relative_name(&root, &entry.path) else {
            continue;
        };
        let is_entered = name.split('/').count() < depth && !is_hidden(&name);
        if entry.kind == EntryKind::Directory
            && is_entered
            && directories.len() < MAX_LISTED_DIRECTORIES
        {
            directories.push((format!("{name}/"), entry.path));
        }
        names.insert(name, entry.kind);
    }
    let listings = stream::iter(directories).map(|(prefix, path)| async move {
        let read = ReadDirectory {
            path,
            sandbox: ctx.sandbox(),
        };
        (prefix, ctx.files().read_directory(read).await)
    });
    let mut listings = listings.buffered(LISTING_CONCURRENCY);
    let mut shown: Vec<String> = names
        .iter()
        .map(|(name, kind)| mark_kind(name, *kind))
        .collect();
    while let Some((prefix, listing)) = listings.next().await {
        let listing = match listing {
            Ok(listing) => listing,
            // The root must be listable. Below it, the entries of the walk suffice.
            Err(error) if prefix.is_empty() => return Err(error.into()),
            Err(_) => continue,
        };
        for entry in listing {
            let name = format!("{prefix}{}", entry.file_name);
            if names.contains_key(&name) {
                continue;
            }
            shown.push(match (entry.is_directory, entry.is_file) {
                (true, _) => name + "@/",
                (false, true) => name + "@",
                (false, false) => name,
            });
        }
    }
    Ok((shown, walked.truncated))
}

/// Returns the path of an entry relative to the root.
fn relative_name(root: &PathUri, path: &PathUri) -> Option<String> {
    let mut names = Vec::new();
    let mut at = path.clone();
    while at != *root {
        names.push(String::from_utf8_lossy(&at.file_name()?).into_owned());
        at = at.parent()?;
    }
    names.reverse();
    Some(names.join("/"))
}

fn is_hidden(name: &str) -> bool {
    name.rsplit('/')
        .next()
        .is_some_and(|last| last.starts_with('.'))
}

fn mark_kind(name: &str, kind: EntryKind) -> String {
    match kind {
        EntryKind::Directory => format!("{name}/"),
        EntryKind::File => name.to_owned(),
    }
}
