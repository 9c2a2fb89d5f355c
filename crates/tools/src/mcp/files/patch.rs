//! `apply_patch`.
//!
//! Everything is read and checked before anything is written. If writing fails all the same, what was
//! written is put back. A call that is cancelled meanwhile goes on with it.

use std::collections::BTreeMap;

use exec_env::filesystem::FileError;
use exec_wire::{
    fs::{Canonicalize, GetMetadata, Remove},
    path_uri::PathUri,
};
use schemars::JsonSchema;
use serde::Deserialize;

use super::text::{Mode, read_text_and_mode, write_text_with_mode};
use crate::mcp::{
    answer::{Answer, Complaint},
    patch::{Operation, Patch, apply},
    tool::{Effect, Tool},
    work::Work,
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
        let summary = plan.summary.join("\n");
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
    summary: Vec<String>,
}

/// What a file holds; `None` if it is not there.
#[derive(Debug, Default)]
struct File {
    old: Option<String>,
    new: Option<String>,
    /// What it has, if it is there.
    old_mode: Mode,
    /// What it is given. Absent: what it has, or what new files have.
    new_mode: Mode,
}

impl Plan {
    async fn add(&mut self, work: &Work, operation: &Operation) -> Result<(), Complaint> {
        match operation {
            Operation::Add { path, content } => {
                let path = work.file(path)?;
                self.expect_none(work, &path).await?;
                self.put(&path, Some(content.clone()));
                self.summary.push(format!("A {}", work.show(&path)));
            }
            Operation::Delete { path } => {
                let path = work.file(path)?;
                self.text(work, &path).await?;
                self.put(&path, None);
                self.summary.push(format!("D {}", work.show(&path)));
            }
            Operation::Update {
                path,
                move_to,
                hunks,
            } => {
                let path = work.file(path)?;
                let old = self.text(work, &path).await?;
                let shown = work.show(&path);
                let new =
                    apply(&old, hunks).map_err(|error| Complaint(format!("`{shown}`: {error}")))?;
                match move_to {
                    None => {
                        self.put(&path, Some(new));
                        self.summary.push(format!("M {shown}"));
                    }
                    Some(to) => {
                        let to = work.file(to)?;
                        self.expect_none(work, &to).await?;
                        self.put(&path, None);
                        self.put(&to, Some(new));
                        self.keep_mode(&path, &to);
                        self.summary
                            .push(format!("R {shown} -> {}", work.show(&to)));
                    }
                }
            }
        }
        Ok(())
    }

    /// What a file will hold, as far as the plan goes.
    async fn text(&mut self, work: &Work, path: &PathUri) -> Result<String, Complaint> {
        if let Some(file) = self.files.get(path) {
            let gone = || Complaint(format!("`{}` is gone by then", work.show(path)));
            return file.new.clone().ok_or_else(gone);
        }
        let (text, old_mode) = read_text_and_mode(work, path).await?;
        self.expect_one_name(work, path).await?;
        let file = File {
            old: Some(text.clone()),
            new: Some(text.clone()),
            old_mode,
            new_mode: None,
        };
        self.files.insert(path.clone(), file);
        Ok(text)
    }

    /// Complains if the patch calls a file by another name as well: of two changes one would be lost.
    async fn expect_one_name(&mut self, work: &Work, path: &PathUri) -> Result<(), Complaint> {
        let canonical = work.files().canonicalize(Canonicalize {
            path: path.clone(),
            sandbox: work.sandbox(),
        });
        match self.names.insert(canonical.await?, path.clone()) {
            None => Ok(()),
            Some(other) => Err(Complaint(format!(
                "`{}` and `{}` are the same file: call it by one name",
                work.show(&other),
                work.show(path)
            ))),
        }
    }

    /// Complains if a file is there, as far as the plan goes.
    async fn expect_none(&mut self, work: &Work, path: &PathUri) -> Result<(), Complaint> {
        let there = || Err(Complaint(format!("`{}` exists already", work.show(path))));
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
            Ok(_) => there(),
            Err(FileError::NotFound(_)) => {
                self.files.insert(path.clone(), File::default());
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }

    fn put(&mut self, path: &PathUri, content: Option<String>) {
        if let Some(file) = self.files.get_mut(path) {
            file.new = content;
        }
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

    /// Writes everything. New content comes first, so that a failure loses no file.
    async fn carry_out(&self, work: &Work) -> Result<(), Complaint> {
        let changed = || self.files.iter().filter(|(_, file)| file.old != file.new);
        let written = changed().filter(|(_, file)| file.new.is_some());
        let removed = changed().filter(|(_, file)| file.new.is_none());
        let mut done: Vec<(&PathUri, &File)> = Vec::new();
        for (path, file) in written.chain(removed) {
            if let Err(Complaint(error)) =
                make_it_hold(work, path, file.new.as_deref(), file.new_mode).await
            {
                let mut kept = "no file was changed";
                for (path, file) in done.into_iter().rev() {
                    let (old, mode) = (file.old.as_deref(), file.old_mode);
                    if make_it_hold(work, path, old, mode).await.is_err() {
                        kept = "and what was changed could not be put back entirely";
                    }
                }
                return Err(Complaint(format!("{error}; {kept}")));
            }
            // A file that could not be changed is as it was.
            done.push((path, file));
        }
        Ok(())
    }
}

/// Makes a file hold this, or be gone.
async fn make_it_hold(
    work: &Work,
    path: &PathUri,
    content: Option<&str>,
    mode: Mode,
) -> Result<(), Complaint> {
    match content {
        Some(text) => write_text_with_mode(work, path, text, mode).await,
        None => {
            let remove = Remove {
                path: path.clone(),
                recursive: Some(false),
                force: Some(true),
                follow_symlinks: None,
                sandbox: work.sandbox(),
            };
            Ok(work.files().remove(remove).await?)
        }
    }
}
