//! The tools for files: here `write_file`, `edit_file`, `list_directory` and `watch_files`, the
//! larger ones in modules of their own. Each makes one or a few requests to the environment, under
//! the policy of the workspace.

mod apply_patch;
mod read_file;
mod search_files;

pub(super) use self::{
    apply_patch::ApplyPatch,
    read_file::ReadFileTool,
    search_files::{FindFiles, SearchFiles},
};

use std::{borrow::Cow, collections::BTreeMap, time::Duration};

use bytes::Bytes;
use exec_env::filesystem::{FileError, WatchDepth, WatchPathRequest};
use exec_wire::{
    fs::{EntryKind, PathChangeKind, ReadDirectory, WalkOptions, WalkTree, WriteFile},
    limits,
    path_uri::PathUri,
};
use futures_util::{StreamExt, stream};
use schemars::JsonSchema;
use serde::Deserialize;
use tokio::{
    sync::OwnedMutexGuard,
    time::{Instant, timeout_at},
};

use super::{
    session::McpContext,
    tool::{McpTool, ToolAnswer, ToolEffect, ToolError},
};

/// The arguments of `write_file`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::mcp) struct WriteFileTool {
    /// File to create or replace: absolute, or relative to the workspace.
    path: String,
    /// The complete new content of the file.
    content: String,
}

impl McpTool for WriteFileTool {
    const NAME: &'static str = "write_file";
    const TITLE: &'static str = "Write a file";
    const DESCRIPTION: &'static str = "Creates a file, or replaces all of its content, in one step. \
        Missing directories above it are made. To change a part of a file use edit_file or apply_patch.";
    const EFFECT: ToolEffect = ToolEffect::Replace;

    async fn call(self, ctx: &McpContext) -> Result<ToolAnswer, ToolError> {
        let path = ctx.file(&self.path)?;
        let edit_guard = ctx.lock_edits().await;
        let verb = match ctx.metadata(&path).await {
            Ok(metadata) if metadata.is_directory => {
                let name = ctx.display_path(&path);
                return Err(ToolError(format!("`{name}` is a directory")));
            }
            Ok(_) => "Replaced",
            Err(FileError::NotFound(_)) => "Created",
            Err(error) => return Err(error.into()),
        };
        let (name, size) = (ctx.display_path(&path), self.content.len());
        write_text(ctx, &path, self.content, edit_guard).await?;
        Ok(ToolAnswer::text(format!("{verb} {name} ({size} bytes)")))
    }
}

/// Maximum number of lines named in an error.
const MAX_NAMED_LINES: usize = 10;

/// The arguments of `edit_file`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::mcp) struct EditFile {
    /// File to change: absolute, or relative to the workspace.
    path: String,
    /// Text to replace, exactly as it is in the file, including whitespace; "
    /// " also matches the line endings of a file that uses "\r
    /// ".
    old: String,
    /// Replacement text.
    new: String,
    /// Replaces every occurrence. Without it, the text must occur exactly once.
    #[serde(default)]
    replace_all: bool,
}

impl McpTool for EditFile {
    const NAME: &'static str = "edit_file";
    const TITLE: &'static str = "Edit a file";
    const DESCRIPTION: &'static str = "Replaces an exact string in a text file. The string must occur \
        exactly once (add lines around it until it does), unless replace_all is set. Read the file first.";
    const EFFECT: ToolEffect = ToolEffect::Edit;

    async fn call(self, ctx: &McpContext) -> Result<ToolAnswer, ToolError> {
        let path = ctx.file(&self.path)?;
        let name = ctx.display_path(&path);
        if self.old.is_empty() {
            return Err(ToolError::new("`old` must not be empty"));
        }
        if self.old == self.new {
            return Err(ToolError::new("`old` and `new` are the same"));
        }
        let edit_guard = ctx.lock_edits().await;
        let text = read_text(ctx, &path).await?;
        let (old, new) = match_line_endings(&text, &self.old, &self.new);
        let offsets: Vec<usize> = text
            .match_indices(&*old)
            .map(|(offset, _)| offset)
            .collect();
        match (offsets.len(), self.replace_all) {
            (0, _) => return Err(ToolError(format!("`old` does not occur in `{name}`"))),
            (1, _) | (_, true) => {}
            (count, false) => {
                let lines = offsets.iter().take(MAX_NAMED_LINES);
                let lines: Vec<String> = lines
                    .map(|offset| line_number(&text, *offset).to_string())
                    .collect();
                let lines = lines.join(", ");
                return Err(ToolError(format!(
                    "`old` occurs {count} times in `{name}`, at lines {lines}{}: add lines around it, or \
                     set replace_all",
                    if count > MAX_NAMED_LINES { ", …" } else { "" }
                )));
            }
        }
        let count = offsets.len();
        let unchanged = text.len() - count * old.len();
        let size = new.len().saturating_mul(count).saturating_add(unchanged);
        if size as u64 > MAX_TEXT_BYTES {
            return Err(ToolError(format!(
                "`{name}` would become too large: {size} bytes, at most {MAX_TEXT_BYTES}"
            )));
        }
        write_text(ctx, &path, text.replace(&*old, &new), edit_guard).await?;
        let line = line_number(&text, offsets[0]);
        Ok(ToolAnswer::text(match count {
            1 => format!("Edited {name} at line {line}"),
            _ => format!("Edited {name} in {count} places, the first at line {line}"),
        }))
    }
}

/// Converts LF to CR LF in a replacement for a file with CR LF line endings. Arguments that contain
/// a CR are used as they are.
fn match_line_endings<'a>(text: &str, old: &'a str, new: &'a str) -> (Cow<'a, str>, Cow<'a, str>) {
    let first = text.find('\n').map(|end| &text[..end]);
    let is_crlf = first.is_some_and(|line| line.ends_with('\r'));
    if !is_crlf || old.contains('\r') || new.contains('\r') {
        return (Cow::Borrowed(old), Cow::Borrowed(new));
    }
    // In a file with mixed line endings, text with LF may match as it is.
    let with_cr = old.replace('\n', "\r\n");
    let old = match text.contains(&with_cr) {
        true => Cow::Owned(with_cr),
        false => Cow::Borrowed(old),
    };
    (old, Cow::Owned(new.replace('\n', "\r\n")))
}

/// Returns the line number of a byte offset, counted from 1.
fn line_number(text: &str, offset: usize) -> usize {
    text[..offset].matches('\n').count() + 1
}

/// Maximum size of a file that is edited as text or kept for rollback: several copies are in
/// memory.
const MAX_TEXT_BYTES: u64 = 16 << 20;

/// Permission bits, if the environment reports them.
type FileMode = Option<u32>;

/// Content of a file.
#[derive(Clone, Debug, Eq, PartialEq)]
enum FileContent {
    /// The complete content.
    Whole(Bytes),
    /// The size of a file that is too large to be read.
    TooLarge(u64),
}

impl FileContent {
    /// Returns the content as text. Fails if it is too large or not UTF-8.
    fn text(&self, name: &str) -> Result<&str, ToolError> {
        match self {
            Self::Whole(data) => {
                str::from_utf8(data).map_err(|_| ToolError(format!("`{name}` is not UTF-8 text")))
            }
            Self::TooLarge(size) => Err(ToolError(format!(
                "`{name}` is too large to be edited as text: {size} bytes, at most {MAX_TEXT_BYTES}"
            ))),
        }
    }
}

/// Reads content and mode of a file.
async fn read_content(
    ctx: &McpContext,
    path: &PathUri,
) -> Result<(FileContent, FileMode), ToolError> {
    let metadata = ctx.metadata(path).await?;
    if metadata.is_file && metadata.size > MAX_TEXT_BYTES {
        return Ok((FileContent::TooLarge(metadata.size), metadata.mode));
    }
    let content = ctx.files().read_file(ctx.read_request(path)).await?;
    Ok((FileContent::Whole(content), metadata.mode))
}

/// Reads a complete file as text. Fails if it is too large or not UTF-8.
async fn read_text(ctx: &McpContext, path: &PathUri) -> Result<String, ToolError> {
    let (content, _) = read_content(ctx, path).await?;
    Ok(content.text(&ctx.display_path(path))?.to_owned())
}

/// Writes a complete file and keeps its mode. Readers see the old or the new content. A cancelled
/// call still completes the write, and releases the edit lock afterwards.
async fn write_text(
    ctx: &McpContext,
    path: &PathUri,
    text: String,
    edit_guard: OwnedMutexGuard<()>,
) -> Result<(), ToolError> {
    // In a separate task, so that cancelling the call does not stop it: the host may complete the
    // write anyway, and would then overwrite the next one.
    let (task_ctx, task_path) = (ctx.clone(), path.clone());
    let written = tokio::spawn(async move {
        let _turn = edit_guard;
        write_content(&task_ctx, &task_path, Bytes::from(text), None).await
    });
    written
        .await
        .map_err(|error| ToolError(format!("failed to write the file: {error}")))?
        .map_err(|error| ctx.write_error(path, &error))
}

/// Writes a complete file with a mode. The kind of error says whether the file may have been
/// written.
async fn write_content(
    ctx: &McpContext,
    path: &PathUri,
    data: Bytes,
    mode: FileMode,
) -> Result<(), FileError> {
    let write = WriteFile {
        path: path.clone(),
        data_base64: None,
        follow_symlinks: None,
        create_parents: true,
        atomic: true,
        mode,
        sandbox: ctx.sandbox(),
    };
    ctx.files().write_file(write, data).await
}

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
            sandbox: ctx.sandbox(),
            ..ReadDirectory::new(path)
        };
        (prefix, ctx.files().read_directory(read).await)
    });
    let mut listings = listings.buffered(LISTING_CONCURRENCY);
    let mut lines: Vec<String> = names
        .iter()
        .map(|(name, kind)| match kind {
            EntryKind::Directory => format!("{name}/"),
            EntryKind::File => name.clone(),
        })
        .collect();
    while let Some((prefix, listing)) = listings.next().await {
        let listing = match listing {
            Ok(listing) => listing,
            // The root must be listable. Below it, the entries of the walk suffice.
            Err(error) if prefix.is_empty() => return Err(error.into()),
            Err(_) => continue,
        };
        for entry in listing.entries {
            let name = format!("{prefix}{}", entry.file_name);
            if names.contains_key(&name) {
                continue;
            }
            lines.push(match (entry.is_directory, entry.is_file) {
                (true, _) => name + "@/",
                (false, true) => name + "@",
                (false, false) => name,
            });
        }
    }
    Ok((lines, walked.truncated))
}

/// Returns the path of an entry relative to the root.
fn relative_name(root: &PathUri, path: &PathUri) -> Option<String> {
    let mut names = Vec::new();
    let mut current = path.clone();
    while current != *root {
        names.push(String::from_utf8_lossy(&current.file_name()?).into_owned());
        current = current.parent()?;
    }
    names.reverse();
    Some(names.join("/"))
}

fn is_hidden(name: &str) -> bool {
    name.rsplit('/')
        .next()
        .is_some_and(|last| last.starts_with('.'))
}

const DEFAULT_TIMEOUT: Duration = Duration::from_secs(30);
const MAX_TIMEOUT: Duration = Duration::from_secs(600);
/// How long to collect further changes after the first one: an editor or a build makes several.
const SETTLE_TIME: Duration = Duration::from_millis(200);
/// Maximum number of changes shown.
const MAX_SHOWN_CHANGES: usize = 500;

/// The arguments of `watch_files`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::mcp) struct WatchFiles {
    /// File or directory that exists: absolute, or relative to the workspace. Default: the
    /// workspace.
    #[serde(default)]
    path: Option<String>,
    /// Watches only the directory's own entries, not everything below it.
    #[serde(default)]
    entries_only: bool,
    /// How long to wait for a change, in milliseconds. Default: 30000; at most 600000, or 50000 if
    /// the client takes no notifications of progress.
    #[serde(default)]
    timeout_ms: Option<u64>,
}

impl McpTool for WatchFiles {
    const NAME: &'static str = "watch_files";
    const TITLE: &'static str = "Wait for changes of files";
    const DESCRIPTION: &'static str = "Waits until something below a path is created, modified, removed \
        or renamed, then returns what changed. Returns without changes when the time is up.";
    const EFFECT: ToolEffect = ToolEffect::ReadOnly;

    async fn call(self, ctx: &McpContext) -> Result<ToolAnswer, ToolError> {
        let wait = self
            .timeout_ms
            .map_or(DEFAULT_TIMEOUT, Duration::from_millis);
        if wait > MAX_TIMEOUT {
            let max = MAX_TIMEOUT.as_millis();
            return Err(ToolError(format!("`timeout_ms` must be at most {max}")));
        }
        let wait = ctx.progress_support.limit_wait(wait);
        let watch = WatchPathRequest {
            path: ctx.path(self.path.as_deref().unwrap_or("."))?,
            depth: match self.entries_only {
                true => WatchDepth::Entries,
                false => WatchDepth::Tree,
            },
            sandbox: ctx.sandbox(),
        };
        let mut watcher = ctx.files().watch(watch).await?;
        let mut until = Instant::now() + wait;
        let (mut changed, mut overflowed) = (BTreeMap::<PathUri, PathChangeKind>::new(), false);
        let mut watch_ended = false;
        loop {
            match timeout_at(until, watcher.changes.next()).await {
                Ok(Some(batch)) => {
                    if changed.is_empty() && !overflowed {
                        until = until.min(Instant::now() + SETTLE_TIME);
                    }
                    overflowed |= batch.overflow;
                    changed.extend(batch.changes.into_iter().map(|one| (one.path, one.kind)));
                    overflowed |= changed.len() > MAX_SHOWN_CHANGES;
                    while changed.len() > MAX_SHOWN_CHANGES {
                        changed.pop_last();
                    }
                }
                Ok(None) => {
                    watch_ended = true;
                    break;
                }
                Err(_) => break,
            }
        }
        let mut lines: Vec<String> = changed
            .iter()
            .map(|(path, kind)| format!("{} {}", change_name(*kind), ctx.display_path(path)))
            .collect();
        if overflowed {
            lines.push("[there are more changes than listed: check everything again]".to_owned());
        }
        if watch_ended {
            lines.push("[the watched path is gone]".to_owned());
        }
        if lines.is_empty() {
            return Ok(ToolAnswer::text(format!(
                "Nothing has changed for {:.1} seconds.",
                wait.as_secs_f64()
            )));
        }
        Ok(ToolAnswer::text(lines.join("\n")))
    }
}

fn change_name(kind: PathChangeKind) -> &'static str {
    match kind {
        PathChangeKind::Created => "created",
        PathChangeKind::Modified => "modified",
        PathChangeKind::Removed => "removed",
        PathChangeKind::Renamed => "renamed",
        PathChangeKind::Unknown => "changed",
    }
}
