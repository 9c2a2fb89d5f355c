//! `list_directory`.

use exec_wire::{
    fs::{DirectoryEntry, EntryKind, ReadDirectory, Walk, WalkOptions},
    limits,
};
use schemars::JsonSchema;
use serde::Deserialize;

use crate::mcp::{
    answer::{Answer, Complaint},
    tool::{Effect, Tool},
    work::Work,
};

/// Entries that are shown: more would fill a model's window.
const MAX_SHOWN: usize = 1000;
/// Deepest listing.
const MAX_DEPTH: usize = 10;

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

impl Tool for ListDirectory {
    const NAME: &'static str = "list_directory";
    const TITLE: &'static str = "List a directory";
    const DESCRIPTION: &'static str = "Lists files and directories, one on each line; a directory ends \
        with a slash. Use find_files to look for names in a large tree.";
    const EFFECT: Effect = Effect::Reads;

    async fn call(self, work: &Work) -> Result<Answer, Complaint> {
        let depth = self.depth.unwrap_or(1);
        if !(1..=MAX_DEPTH).contains(&depth) {
            return Err(Complaint(format!("`depth` must be 1 to {MAX_DEPTH}")));
        }
        let path = work.path(self.path.as_deref().unwrap_or("."))?;
        let (mut names, cut) = if depth == 1 {
            let read = ReadDirectory {
                path,
                sandbox: work.sandbox(),
            };
            let entries = work.files().read_directory(read).await?;
            let name = |entry: DirectoryEntry| {
                marked(
                    entry.file_name,
                    match entry.is_directory {
                        true => EntryKind::Directory,
                        false => EntryKind::File,
                    },
                )
            };
            (entries.into_iter().map(name).collect::<Vec<_>>(), false)
        } else {
            let walk = Walk {
                path,
                options: WalkOptions {
                    max_depth: depth - 1,
                    max_directories: limits::MAX_WALK_DIRECTORIES,
                    max_entries: limits::MAX_WALK_ENTRIES,
                    follow_directory_symlinks: false,
                    prune_hidden_directories: true,
                },
                sandbox: work.sandbox(),
            };
            let walked = work.files().walk(walk).await?;
            let entries = walked.entries.iter();
            let names = entries.map(|entry| marked(work.show(&entry.path), entry.kind));
            (names.collect(), walked.truncated)
        };
        names.sort();
        let total = names.len();
        names.truncate(MAX_SHOWN);
        if names.is_empty() {
            return Ok(Answer::text("The directory is empty."));
        }
        if cut || total > MAX_SHOWN {
            names.push(format!(
                "[{} of {total}{} entries shown]",
                names.len(),
                if cut { " or more" } else { "" }
            ));
        }
        Ok(Answer::text(names.join("\n")))
    }
}

fn marked(name: String, kind: EntryKind) -> String {
    match kind {
        EntryKind::Directory => name + "/",
        EntryKind::File => name,
    }
}
