//! What a patch will do, found out without doing it.

use std::collections::BTreeMap;

use bytes::Bytes;
use exec_env::filesystem::FileError;
use exec_wire::{fs::GetMetadata, path_uri::PathUri};

use super::names::{Resolved, resolved};
use crate::mcp::{
    answer::Complaint,
    files::text::{Content, MAX_TEXT_BYTES, Mode, read},
    patch::{Operation, apply},
    work::Work,
};

/// What every file holds now and then.
#[derive(Debug, Default)]
pub(super) struct Plan {
    pub(super) files: BTreeMap<PathUri, File>,
    /// What files are called without links, and how the patch calls them.
    names: BTreeMap<PathUri, PathUri>,
    /// The file that goes and cannot be put back.
    too_large: Option<PathUri>,
    summary: Vec<String>,
}

/// What a file holds; `None` if it is not there.
#[derive(Debug, Default)]
pub(super) struct File {
    pub(super) old: Option<Content>,
    pub(super) new: Option<Content>,
    /// What it has, if it is there.
    pub(super) old_mode: Mode,
    /// What it is given. Absent: what it has, or what new files have.
    pub(super) new_mode: Mode,
    /// Directories that are missing above it, the deepest one first.
    pub(super) missing: Vec<PathUri>,
}

impl Plan {
    /// What is done, a line for each file.
    pub(super) fn summary(&self) -> String {
        self.summary.join("\n")
    }

    /// Adds what one part of the patch does.
    pub(super) async fn add(
        &mut self,
        work: &Work,
        operation: &Operation,
    ) -> Result<(), Complaint> {
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
