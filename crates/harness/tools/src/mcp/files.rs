//! The tools for files. Each makes one or a few requests to the environment, under the policy of
//! the workspace.

mod apply_patch;
mod list_directory;
mod read_file;
mod search_files;
mod watch_files;

use std::borrow::Cow;

use bytes::Bytes;
use exec_env::filesystem::FileError;
use exec_wire::{
    fs::{GetMetadata, ReadFile, WriteFile},
    path_uri::PathUri,
};
use schemars::JsonSchema;
use serde::Deserialize;
use tokio::sync::OwnedMutexGuard;

use super::{
    session::McpContext,
    tool::{McpTool, ToolEffect},
    tool_answer::{ToolAnswer, ToolError},
};

pub(super) use self::{
    apply_patch::ApplyPatch,
    list_directory::ListDirectory,
    read_file::ReadFileTool,
    search_files::{FindFiles, SearchFiles},
    watch_files::WatchFiles,
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
        let before = ctx.files().metadata(GetMetadata {
            path: path.clone(),
            follow_symlinks: None,
            sandbox: ctx.sandbox(),
        });
        let verb = match before.await {
            Ok(metadata) if metadata.is_directory => {
                let shown = ctx.display_path(&path);
                return Err(ToolError(format!("`{shown}` is a directory")));
            }
            Ok(_) => "Replaced",
            Err(FileError::NotFound(_)) => "Created",
            Err(error) => return Err(error.into()),
        };
        let (shown, size) = (ctx.display_path(&path), self.content.len());
        write_text(ctx, &path, self.content, edit_guard).await?;
        Ok(ToolAnswer::text(format!("{verb} {shown} ({size} bytes)")))
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
        let shown = ctx.display_path(&path);
        if self.old.is_empty() {
            return Err(ToolError::new("`old` must not be empty"));
        }
        if self.old == self.new {
            return Err(ToolError::new("`old` and `new` are the same"));
        }
        let edit_guard = ctx.lock_edits().await;
        let text = read_text(ctx, &path).await?;
        let (old, new) = match_line_endings(&text, &self.old, &self.new);
        let places: Vec<usize> = text.match_indices(&*old).map(|(at, _)| at).collect();
        match (places.len(), self.replace_all) {
            (0, _) => return Err(ToolError(format!("`old` does not occur in `{shown}`"))),
            (1, _) | (_, true) => {}
            (count, false) => {
                let lines = places.iter().take(MAX_NAMED_LINES);
                let lines: Vec<String> = lines
                    .map(|at| line_number(&text, *at).to_string())
                    .collect();
                let lines = lines.join(", ");
                return Err(ToolError(format!(
                    "`old` occurs {count} times in `{shown}`, at lines {lines}{}: add lines around it, or \
                     set replace_all",
                    if count > MAX_NAMED_LINES { ", …" } else { "" }
                )));
            }
        }
        let count = places.len();
        let rest = text.len() - count * old.len();
        let size = new.len().saturating_mul(count).saturating_add(rest);
        if size as u64 > MAX_TEXT_BYTES {
            return Err(ToolError(format!(
                "`{shown}` would become too large: {size} bytes, at most {MAX_TEXT_BYTES}"
            )));
        }
        write_text(ctx, &path, text.replace(&*old, &new), edit_guard).await?;
        let line = line_number(&text, places[0]);
        Ok(ToolAnswer::text(match count {
            1 => format!("Edited {shown} at line {line}"),
            _ => format!("Edited {shown} in {count} places, the first at line {line}"),
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
fn line_number(text: &str, at: usize) -> usize {
    text[..at].matches('\n').count() + 1
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
    fn text(&self, shown: &str) -> Result<&str, ToolError> {
        match self {
            Self::Whole(data) => {
                str::from_utf8(data).map_err(|_| ToolError(format!("`{shown}` is not UTF-8 text")))
            }
            Self::TooLarge(size) => Err(ToolError(format!(
                "`{shown}` is too large to be edited as text: {size} bytes, at most {MAX_TEXT_BYTES}"
            ))),
        }
    }
}

/// Reads content and mode of a file.
async fn read_content(
    ctx: &McpContext,
    path: &PathUri,
) -> Result<(FileContent, FileMode), ToolError> {
    let metadata = ctx.files().metadata(GetMetadata {
        path: path.clone(),
        follow_symlinks: None,
        sandbox: ctx.sandbox(),
    });
    let metadata = metadata.await?;
    if metadata.is_file && metadata.size > MAX_TEXT_BYTES {
        return Ok((FileContent::TooLarge(metadata.size), metadata.mode));
    }
    let read = ctx.files().read_file(ReadFile {
        path: path.clone(),
        follow_symlinks: None,
        sandbox: ctx.sandbox(),
    });
    Ok((FileContent::Whole(read.await?), metadata.mode))
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
