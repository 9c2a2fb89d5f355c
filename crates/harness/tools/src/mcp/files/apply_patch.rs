//! `apply_patch`.
//!
//! Everything is read and checked before anything is written. If writing fails all the same, what was
//! written is put back. A call that is cancelled meanwhile goes on with it.

use std::collections::BTreeMap;

use bytes::Bytes;
use exec_env::filesystem::FileError;
use exec_wire::{
    fs::{Canonicalize, GetMetadata, Remove},
    path_uri::PathUri,
};
use schemars::JsonSchema;
use serde::Deserialize;

use super::{Content, MAX_TEXT_BYTES, Mode, read, write};
use crate::mcp::{
    patch::{Operation, Patch, apply},
    session::Work,
    tool::{Effect, Tool},
    tool_answer::{Answer, Complaint},
};

/// The arguments of `apply_patch`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::mcp) struct ApplyPatch {
    /// The whole patch, from `*** Begin Patch` to `*** End Patch`.
    patch: String,
}

impl Tool for ApplyPatch {
    const NAME: &'static str = "apply_patch";
    const TITLE: &'static str = "Apply a patch";
    const DESCRIPTION: &'static str = "Changes several files at once, all or none. The patch has this \
        form:\n\n*** Begin Patch\n*** Add File: path/new.txt\n+every line of the new file\n*** Update File: \
        path/old.txt\n*** Move to: path/renamed.txt\n@@ a line above the change, such as def f():\n lines \
        that stay begin with a blank\n-lines that go\n+lines that come\n*** Delete File: path/gone.txt\n*** \
        End Patch\n\nShow about three lines that stay around each change. `*** Move to:` and the text behind \
        `@@` are optional; `@@` begins each further change in a file, from its beginning to its end; `*** End \
        of File` behind a change says that it is at the end. Paths are absolute, or relative to the workspace.";
    const EFFECT: Effect = Effect::Edits;

    async fn call(self, work: &Work) -> Result<Answer, Complaint> {
        let patch = Patch::parse(&self.patch)?;
        let turn = work.editing().await;
        let mut plan = Plan::default();
        for operation in &patch.operations {
            plan.add(work, operation).await?;
        }
        let summary = plan.summary();
        // In a task, which whoever waits no longer does not end: half of a patch is worse than all of it.
        let work = work.clone();
        let carried_out = tokio::spawn(async move {
            let _turn = turn;
            plan.carry_out(&work).await
        });
        carried_out
            .await
            .map_err(|error| Complaint(format!("the patch was not carried out: {error}")))??;
        Ok(Answer::text(summary))
    }
}

/// What every file holds now and then.
#[derive(Debug, Default)]
struct Plan {
    files: BTreeMap<PathUri, File>,
    /// What files are called without links, and how the patch calls them.
    names: BTreeMap<PathUri, PathUri>,
    /// The file that goes and cannot be put back.
    too_large: Option<PathUri>,
    summary: Vec<String>,
}

/// What a file holds; `None` if it is not there.
#[derive(Debug, Default)]
struct File {
    old: Option<Content>,
    new: Option<Content>,
    /// What it has, if it is there.
    old_mode: Mode,
    /// What it is given. Absent: what it has, or what new files have.
    new_mode: Mode,
    /// Directories that are missing above it, the deepest one first.
    missing: Vec<PathUri>,
}

impl Plan {
    /// What is done, a line for each file.
    fn summary(&self) -> String {
        self.summary.join("\n")
    }

    /// Adds what one part of the patch does.
    async fn add(&mut self, work: &Work, operation: &Operation) -> Result<(), Complaint> {
        match operation {
            Operation::Add { path, content } => {
                let path = work.file(path)?;
                self.expect_none(work, &path, "use `*** Update File:` to change it")
                    .await?;
                self.put(&path, Some(content));
                self.summary.push(format!("A {}", work.show(&path)));
            }
            Operation::Delete { path } => {
                let path = work.file(path)?;
                let old = self.content(work, &path).await?;
                if let Content::TooLarge(_) = old {
                    self.expect_only_one_too_large(work, &path)?;
                }
                self.remove(&path);
                self.summary.push(format!("D {}", work.show(&path)));
            }
            Operation::Update {
                path,
                move_to: None,
                hunks,
            } => {
                let path = work.file(path)?;
                let old = self.content(work, &path).await?;
                let shown = work.show(&path);
                let new = apply(old.text(&shown)?, hunks);
                let new = new.map_err(|error| Complaint(format!("`{shown}`: {error}")))?;
                self.put(&path, Some(&new));
                self.summary.push(format!("M {shown}"));
            }
            Operation::Update {
                path,
                move_to: Some(to),
                hunks,
            } => {
                let (path, to) = (work.file(path)?, work.file(to)?);
                let shown = work.show(&path);
                let new = match self.content(work, &path).await? {
                    Content::TooLarge(size) if hunks.is_empty() => {
                        return Err(Complaint(format!(
                            "`{shown}` is too large to be moved by a patch: {size} bytes, at most \
                             {MAX_TEXT_BYTES}; use a command"
                        )));
                    }
                    whole @ Content::Whole(_) if hunks.is_empty() => whole,
                    old @ (Content::Whole(_) | Content::TooLarge(_)) => {
                        let new = apply(old.text(&shown)?, hunks);
                        let new = new.map_err(|error| Complaint(format!("`{shown}`: {error}")))?;
                        Content::Whole(Bytes::from(new))
                    }
                };
                self.expect_none(work, &to, "move it elsewhere, or delete that first")
                    .await?;
                self.remove(&path);
                if let Some(file) = self.files.get_mut(&to) {
                    file.new = Some(new);
                }
                self.keep_mode(&path, &to);
                self.summary
                    .push(format!("R {shown} -> {}", work.show(&to)));
            }
        }
        Ok(())
    }

    /// What a file will hold, as far as the plan goes.
    async fn content(&mut self, work: &Work, path: &PathUri) -> Result<Content, Complaint> {
        if let Some(file) = self.files.get(path) {
            let gone = || Complaint(format!("`{}` is gone by then", work.show(path)));
            return file.new.clone().ok_or_else(gone);
        }
        let (content, old_mode) = read(work, path).await?;
        let Resolved {
            path: name,
            missing,
        } = resolved(work, path).await?;
        self.expect_one_name(work, name, path)?;
        let file = File {
            old: Some(content.clone()),
            new: Some(content.clone()),
            old_mode,
            new_mode: None,
            missing,
        };
        self.files.insert(path.clone(), file);
        Ok(content)
    }

    /// Complains if the patch calls a file by another name as well: of two changes one would be lost.
    fn expect_one_name(
        &mut self,
        work: &Work,
        name: PathUri,
        path: &PathUri,
    ) -> Result<(), Complaint> {
        match self.names.insert(name, path.clone()) {
            None => Ok(()),
            Some(other) => Err(Complaint(format!(
                "`{}` and `{}` are the same file: call it by one name",
                work.show(&other),
                work.show(path)
            ))),
        }
    }

    /// Complains if a file is there, as far as the plan goes, and says what to do then.
    async fn expect_none(
        &mut self,
        work: &Work,
        path: &PathUri,
        instead: &str,
    ) -> Result<(), Complaint> {
        let there = || {
            let shown = work.show(path);
            Err(Complaint(format!("`{shown}` exists already: {instead}")))
        };
        if let Some(file) = self.files.get(path) {
            return match file.new {
                Some(_) => there(),
                None => Ok(()),
            };
        }
        let metadata = work.files().metadata(GetMetadata {
            path: path.clone(),
            follow_symlinks: None,
            sandbox: work.sandbox(),
        });
        match metadata.await {
            Ok(_) => return there(),
            Err(FileError::NotFound(_)) => {}
            Err(error) => return Err(error.into()),
        }
        let Resolved {
            path: name,
            missing,
        } = resolved(work, path).await?;
        self.expect_one_name(work, name, path)?;
        let file = File {
            missing,
            ..File::default()
        };
        self.files.insert(path.clone(), file);
        Ok(())
    }

    /// Complains about a second file that could not be put back. One of them can go last, when nothing
    /// can fail any more.
    fn expect_only_one_too_large(&mut self, work: &Work, path: &PathUri) -> Result<(), Complaint> {
        match self.too_large.replace(path.clone()) {
            None => Ok(()),
            Some(other) => Err(Complaint(format!(
                "`{}` and `{}` are both larger than {MAX_TEXT_BYTES} bytes: one patch can delete one such \
                 file",
                work.show(&other),
                work.show(path)
            ))),
        }
    }

    fn put(&mut self, path: &PathUri, text: Option<&String>) {
        if let Some(file) = self.files.get_mut(path) {
            file.new = text.map(|text| Content::Whole(Bytes::copy_from_slice(text.as_bytes())));
        }
    }

    fn remove(&mut self, path: &PathUri) {
        self.put(path, None);
    }

    /// Gives a file the mode that another has: who may not read or run the one may not the other.
    fn keep_mode(&mut self, from: &PathUri, to: &PathUri) {
        let mode = self
            .files
            .get(from)
            .and_then(|file| file.new_mode.or(file.old_mode));
        if let Some(file) = self.files.get_mut(to) {
            file.new_mode = mode;
        }
    }
}

impl Plan {
    /// Writes everything. New content comes first, so that a failure loses no file; what cannot be put back
    /// goes last.
    async fn carry_out(&self, work: &Work) -> Result<(), Complaint> {
        let mut changed: Vec<(&PathUri, &File)> = self
            .files
            .iter()
            .filter(|(_, file)| file.old != file.new)
            .collect();
        changed.sort_by_key(|(_, file)| match (&file.old, &file.new) {
            (_, Some(_)) => 0,
            (Some(Content::TooLarge(_)), None) => 2,
            (_, None) => 1,
        });
        for (count, (path, file)) in changed.iter().enumerate() {
            let mut made = make_it_hold(work, path, file.new.as_ref(), file.new_mode).await;
            if let (Err(FileError::Disconnected(_)), Some(Content::TooLarge(_))) =
                (&made, &file.old)
            {
                // It may be gone, and then all is done. To remove it twice does no harm.
                made = make_it_hold(work, path, file.new.as_ref(), file.new_mode).await;
            }
            let Err(error) = made else {
                continue;
            };
            // A file that could not be changed is as it was, unless nobody told so: the change may have been
            // made before the connection broke. In either case directories may be there for it.
            let touched = match error {
                FileError::NotFound(_)
                | FileError::Invalid(_)
                | FileError::Refused(_)
                | FileError::Host(_)
                | FileError::Remote(_) => &changed[..count],
                FileError::Disconnected(_) | _ => &changed[..=count],
            };
            let undone = undo(work, touched).await;
            remove_directories(work, &changed[..=count]).await;
            let kept = match undone {
                Undone::Entirely => "no file was changed",
                Undone::NotEntirely => "files may not be as they were",
            };
            let Complaint(why) = work.not_changed(path, &error);
            return Err(Complaint(format!("{why}; {kept}")));
        }
        Ok(())
    }
}

/// Whether everything is as it was.
enum Undone {
    Entirely,
    /// It is not, or nobody knows.
    NotEntirely,
}

/// Puts back what was changed, or may have been, the last change first.
async fn undo(work: &Work, done: &[(&PathUri, &File)]) -> Undone {
    let mut undone = Undone::Entirely;
    for (path, file) in done.iter().rev() {
        if make_it_hold(work, path, file.old.as_ref(), file.old_mode)
            .await
            .is_err()
        {
            undone = Undone::NotEntirely;
        }
    }
    undone
}

/// Removes the directories that were made. One that somebody else has put something in stays.
async fn remove_directories(work: &Work, done: &[(&PathUri, &File)]) {
    for path in done.iter().rev().flat_map(|(_, file)| &file.missing) {
        if let Err(error) = remove(work, path).await {
            tracing::debug!(%path, %error, "directory was not removed");
        }
    }
}

/// Makes a file hold this, or be gone. The second time changes nothing more.
async fn make_it_hold(
    work: &Work,
    path: &PathUri,
    content: Option<&Content>,
    mode: Mode,
) -> Result<(), FileError> {
    match content {
        Some(Content::Whole(data)) => write(work, path, data.clone(), mode).await,
        Some(Content::TooLarge(size)) => {
            let shown = work.show(path);
            let text = format!("`{shown}` was not kept: {size} bytes");
            Err(FileError::Refused(text))
        }
        None => remove(work, path).await,
    }
}

async fn remove(work: &Work, path: &PathUri) -> Result<(), FileError> {
    let remove = Remove {
        path: path.clone(),
        recursive: Some(false),
        force: Some(true),
        follow_symlinks: None,
        sandbox: work.sandbox(),
    };
    work.files().remove(remove).await
}

/// A path without links, as far as it exists.
#[derive(Clone, Debug)]
struct Resolved {
    path: PathUri,
    /// Directories that are missing above it, the deepest one first.
    missing: Vec<PathUri>,
}

/// Resolves the links of a path up to the first name that is not there.
async fn resolved(work: &Work, path: &PathUri) -> Result<Resolved, Complaint> {
    let (mut at, mut names, mut missing) = (path.clone(), Vec::new(), Vec::new());
    loop {
        let canonical = work.files().canonicalize(Canonicalize {
            path: at.clone(),
            sandbox: work.sandbox(),
        });
        match canonical.await {
            Ok(mut path) => {
                while let Some(name) = names.pop() {
                    let name: String = name;
                    path = path
                        .join(&name)
                        .map_err(|error| Complaint(format!("path: {error}")))?;
                }
                return Ok(Resolved { path, missing });
            }
            Err(FileError::NotFound(_)) => {}
            Err(error) => return Err(error.into()),
        }
        if at != *path {
            missing.push(at.clone());
        }
        let name = at.file_name().and_then(|name| String::from_utf8(name).ok());
        let (Some(name), Some(parent)) = (name, at.parent()) else {
            // Nothing exists above it, or its name is no text: it is taken as it is written.
            let path = path.clone();
            return Ok(Resolved { path, missing });
        };
        names.push(name);
        at = parent;
    }
}
