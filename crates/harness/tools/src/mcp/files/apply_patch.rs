//! The tool `apply_patch`.
//!
//! Reads and checks everything before it writes. If a write fails, rolls back the earlier ones. A
//! cancelled call still completes.

use std::collections::BTreeMap;

use bytes::Bytes;
use exec_env::filesystem::FileError;
use exec_wire::{
    fs::{CanonicalizePath, RemovePath},
    path_uri::PathUri,
};
use schemars::JsonSchema;
use serde::Deserialize;

use super::{FileContent, FileMode, MAX_TEXT_BYTES, read_content, write_content};
use crate::mcp::{
    patch::{self, Patch, PatchOperation},
    session::McpContext,
    tool::{McpTool, ToolAnswer, ToolEffect, ToolError},
};

/// The arguments of `apply_patch`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::mcp) struct ApplyPatch {
    /// The whole patch, from `*** Begin Patch` to `*** End Patch`.
    patch: String,
}

impl McpTool for ApplyPatch {
    const NAME: &'static str = "apply_patch";
    const TITLE: &'static str = "Apply a patch";
    const DESCRIPTION: &'static str = "Changes several files at once, all or none. The patch has this \
        form:\n\n*** Begin Patch\n*** Add File: path/new.txt\n+every line of the new file\n*** Update File: \
        path/old.txt\n*** Move to: path/renamed.txt\n@@ a line above the change, such as def f():\n lines \
        that stay begin with a blank\n-lines that go\n+lines that come\n*** Delete File: path/gone.txt\n*** \
        End Patch\n\nShow about three lines that stay around each change. `*** Move to:` and the text behind \
        `@@` are optional; `@@` begins each further change in a file, from its beginning to its end; `*** End \
        of File` behind a change says that it is at the end. Paths are absolute, or relative to the workspace.";
    const EFFECT: ToolEffect = ToolEffect::Edit;

    async fn call(self, ctx: &McpContext) -> Result<ToolAnswer, ToolError> {
        let patch = Patch::parse(&self.patch)?;
        let edit_guard = ctx.lock_edits().await;
        let mut plan = PatchPlan::default();
        for operation in &patch.operations {
            plan.add(ctx, operation).await?;
        }
        let summary = plan.summary.join("\n");
        // In a separate task, so that cancelling the call does not leave half of a patch.
        let ctx = ctx.clone();
        let applied = tokio::spawn(async move {
            let _turn = edit_guard;
            plan.apply(&ctx).await
        });
        applied
            .await
            .map_err(|error| ToolError(format!("failed to apply the patch: {error}")))??;
        Ok(ToolAnswer::text(summary))
    }
}

/// Old and new state of every file of a patch.
#[derive(Debug, Default)]
struct PatchPlan {
    files: BTreeMap<PathUri, PlannedFile>,
    /// Canonical names of the files, with the names that the patch uses.
    names: BTreeMap<PathUri, PathUri>,
    /// The deleted file that is too large to be restored.
    too_large: Option<PathUri>,
    summary: Vec<String>,
}

/// Old and new content of a file; `None` if it does not exist.
#[derive(Debug, Default)]
struct PlannedFile {
    old: Option<FileContent>,
    new: Option<FileContent>,
    /// Current mode, if the file exists.
    old_mode: FileMode,
    /// New mode. Absent: unchanged, or the default for new files.
    new_mode: FileMode,
    /// Missing parent directories, the deepest first.
    missing: Vec<PathUri>,
}

impl PatchPlan {
    /// Adds one operation of the patch.
    async fn add(&mut self, ctx: &McpContext, operation: &PatchOperation) -> Result<(), ToolError> {
        match operation {
            PatchOperation::Add { path, content } => {
                let path = ctx.file(path)?;
                self.expect_absent(ctx, &path, "use `*** Update File:` to change it")
                    .await?;
                let content = Bytes::copy_from_slice(content.as_bytes());
                self.plan_content(&path, Some(FileContent::Whole(content)));
                self.summary.push(format!("A {}", ctx.display_path(&path)));
            }
            PatchOperation::Delete { path } => {
                let path = ctx.file(path)?;
                let old = self.content(ctx, &path).await?;
                // One such file can be deleted last, when nothing can fail any more.
                if let FileContent::TooLarge(_) = old
                    && let Some(other) = self.too_large.replace(path.clone())
                {
                    return Err(ToolError(format!(
                        "`{}` and `{}` are both larger than {MAX_TEXT_BYTES} bytes: one patch can delete one \
                         such file",
                        ctx.display_path(&other),
                        ctx.display_path(&path)
                    )));
                }
                self.plan_content(&path, None);
                self.summary.push(format!("D {}", ctx.display_path(&path)));
            }
            PatchOperation::Update {
                path,
                move_to,
                hunks,
            } => {
                let path = ctx.file(path)?;
                let to = move_to.as_ref().map(|to| ctx.file(to)).transpose()?;
                let name = ctx.display_path(&path);
                let new = match self.content(ctx, &path).await? {
                    FileContent::TooLarge(size) if hunks.is_empty() => {
                        return Err(ToolError(format!(
                            "`{name}` is too large to be moved by a patch: {size} bytes, at most \
                             {MAX_TEXT_BYTES}; use a command"
                        )));
                    }
                    whole @ FileContent::Whole(_) if hunks.is_empty() => whole,
                    old @ (FileContent::Whole(_) | FileContent::TooLarge(_)) => {
                        let new = patch::apply(old.text(&name)?, hunks);
                        let new = new.map_err(|error| ToolError(format!("`{name}`: {error}")))?;
                        FileContent::Whole(Bytes::from(new))
                    }
                };
                let Some(to) = to else {
                    self.plan_content(&path, Some(new));
                    self.summary.push(format!("M {name}"));
                    return Ok(());
                };
                self.expect_absent(ctx, &to, "move it elsewhere, or delete that first")
                    .await?;
                self.plan_content(&path, None);
                self.plan_content(&to, Some(new));
                self.copy_mode(&path, &to);
                self.summary
                    .push(format!("R {name} -> {}", ctx.display_path(&to)));
            }
        }
        Ok(())
    }

    /// Returns the planned content of a file.
    async fn content(
        &mut self,
        ctx: &McpContext,
        path: &PathUri,
    ) -> Result<FileContent, ToolError> {
        if let Some(file) = self.files.get(path) {
            let already_deleted = || {
                ToolError(format!(
                    "`{}` was already deleted by this patch",
                    ctx.display_path(path)
                ))
            };
            return file.new.clone().ok_or_else(already_deleted);
        }
        let (content, old_mode) = read_content(ctx, path).await?;
        let file = PlannedFile {
            old: Some(content.clone()),
            new: Some(content.clone()),
            old_mode,
            new_mode: None,
            missing: self.register_name(ctx, path).await?,
        };
        self.files.insert(path.clone(), file);
        Ok(content)
    }

    /// Fails if the patch also uses another name of the file: one of two changes would be lost.
    /// Returns the missing parent directories, the deepest first.
    async fn register_name(
        &mut self,
        ctx: &McpContext,
        path: &PathUri,
    ) -> Result<Vec<PathUri>, ToolError> {
        let (canonical, missing) = resolve_path(ctx, path).await?;
        match self.names.insert(canonical, path.clone()) {
            None => Ok(missing),
            Some(other) => Err(ToolError(format!(
                "`{}` and `{}` are the same file: call it by one name",
                ctx.display_path(&other),
                ctx.display_path(path)
            ))),
        }
    }

    /// Fails if the file exists according to the plan, with advice on what to do.
    async fn expect_absent(
        &mut self,
        ctx: &McpContext,
        path: &PathUri,
        instead: &str,
    ) -> Result<(), ToolError> {
        let planned = self.files.get(path);
        let exists = match planned {
            Some(file) => file.new.is_some(),
            None => match ctx.metadata(path).await {
                Ok(_) => true,
                Err(FileError::NotFound(_)) => false,
                Err(error) => return Err(error.into()),
            },
        };
        if exists {
            let name = ctx.display_path(path);
            return Err(ToolError(format!("`{name}` exists already: {instead}")));
        }
        if planned.is_none() {
            let file = PlannedFile {
                missing: self.register_name(ctx, path).await?,
                ..PlannedFile::default()
            };
            self.files.insert(path.clone(), file);
        }
        Ok(())
    }

    fn plan_content(&mut self, path: &PathUri, content: Option<FileContent>) {
        if let Some(file) = self.files.get_mut(path) {
            file.new = content;
        }
    }

    /// Gives a file the mode of another, so that a move does not change permissions.
    fn copy_mode(&mut self, from: &PathUri, to: &PathUri) {
        let mode = self
            .files
            .get(from)
            .and_then(|file| file.new_mode.or(file.old_mode));
        if let Some(file) = self.files.get_mut(to) {
            file.new_mode = mode;
        }
    }
}

impl PatchPlan {
    /// Writes all changes. New content comes first, so that a failure loses no file; a file that
    /// cannot be restored comes last.
    async fn apply(&self, ctx: &McpContext) -> Result<(), ToolError> {
        let mut changed: Vec<(&PathUri, &PlannedFile)> = self
            .files
            .iter()
            .filter(|(_, file)| file.old != file.new)
            .collect();
        changed.sort_by_key(|(_, file)| match (&file.old, &file.new) {
            (_, Some(_)) => 0,
            (Some(FileContent::TooLarge(_)), None) => 2,
            (_, None) => 1,
        });
        for (count, (path, file)) in changed.iter().enumerate() {
            let mut made = set_content(ctx, path, file.new.as_ref(), file.new_mode).await;
            if let (Err(FileError::Disconnected(_)), Some(FileContent::TooLarge(_))) =
                (&made, &file.old)
            {
                // The file may be gone, and then the patch is complete. Removing it twice is
                // harmless.
                made = set_content(ctx, path, file.new.as_ref(), file.new_mode).await;
            }
            let Err(error) = made else {
                continue;
            };
            // After an error, a file is unchanged, except after a disconnect: the change may have
            // been made. In either case parent directories may have been created.
            let touched = match error {
                FileError::NotFound(_)
                | FileError::Invalid(_)
                | FileError::Refused(_)
                | FileError::Host(_)
                | FileError::Remote(_) => &changed[..count],
                FileError::Disconnected(_) | _ => &changed[..=count],
            };
            let is_restored = roll_back(ctx, touched).await;
            remove_directories(ctx, &changed[..=count]).await;
            let state = match is_restored {
                true => "no file was changed",
                false => "some files may have been changed",
            };
            let ToolError(why) = ctx.write_error(path, &error);
            return Err(ToolError(format!("{why}; {state}")));
        }
        Ok(())
    }
}

/// Restores files that were or may have been changed, in reverse order. Returns whether all are
/// restored; otherwise some differ, or their state is unknown.
async fn roll_back(ctx: &McpContext, done: &[(&PathUri, &PlannedFile)]) -> bool {
    let mut is_complete = true;
    for (path, file) in done.iter().rev() {
        let restored = set_content(ctx, path, file.old.as_ref(), file.old_mode).await;
        is_complete &= restored.is_ok();
    }
    is_complete
}

/// Removes the created directories, unless they contain other files.
async fn remove_directories(ctx: &McpContext, done: &[(&PathUri, &PlannedFile)]) {
    for path in done.iter().rev().flat_map(|(_, file)| &file.missing) {
        if let Err(error) = remove(ctx, path).await {
            tracing::debug!(%path, %error, "failed to remove a created directory");
        }
    }
}

/// Sets the content of a file, or removes it. Idempotent.
async fn set_content(
    ctx: &McpContext,
    path: &PathUri,
    content: Option<&FileContent>,
    mode: FileMode,
) -> Result<(), FileError> {
    match content {
        Some(FileContent::Whole(data)) => write_content(ctx, path, data.clone(), mode).await,
        Some(FileContent::TooLarge(size)) => {
            let name = ctx.display_path(path);
            let text = format!("`{name}` is too large to be restored: {size} bytes");
            Err(FileError::Refused(text))
        }
        None => remove(ctx, path).await,
    }
}

async fn remove(ctx: &McpContext, path: &PathUri) -> Result<(), FileError> {
    let remove = RemovePath {
        path: path.clone(),
        recursive: Some(false),
        force: Some(true),
        follow_symlinks: None,
        sandbox: ctx.sandbox(),
    };
    ctx.files().remove(remove).await
}

/// Resolves the symbolic links of a path up to the first missing component. Returns it with the
/// missing parent directories, the deepest first.
async fn resolve_path(
    ctx: &McpContext,
    path: &PathUri,
) -> Result<(PathUri, Vec<PathUri>), ToolError> {
    let (mut at, mut names, mut missing) = (path.clone(), Vec::new(), Vec::new());
    loop {
        let canonical = ctx.files().canonicalize(CanonicalizePath {
            path: at.clone(),
            sandbox: ctx.sandbox(),
        });
        match canonical.await {
            Ok(mut path) => {
                while let Some(name) = names.pop() {
                    let name: String = name;
                    path = path
                        .join(&name)
                        .map_err(|error| ToolError(format!("path: {error}")))?;
                }
                return Ok((path, missing));
            }
            Err(FileError::NotFound(_)) => {}
            Err(error) => return Err(error.into()),
        }
        if at != *path {
            missing.push(at.clone());
        }
        let name = at.file_name().and_then(|name| String::from_utf8(name).ok());
        let (Some(name), Some(parent)) = (name, at.parent()) else {
            // No parent exists, or the name is not UTF-8: use the path as written.
            return Ok((path.clone(), missing));
        };
        names.push(name);
        at = parent;
    }
}
