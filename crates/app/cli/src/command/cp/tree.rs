//! A tree that is copied to where nothing is: it grows beside its target, and takes the target's name when
//! everything of it is there.
//!
//! An interrupted copy is therefore found by the same command, and nobody takes half a tree for a whole
//! one. A tree that is copied into a directory that is there has no such place: it is merged, file by file.

use std::cell::Cell;

use exec_env::filesystem::FileError;
use exec_wire::{
    fs::{Remove, Rename},
    path_uri::PathUri,
};

use super::{
    copier::{Resume, name_target},
    journal::Journal,
    part::{TreeParts, tree_parts},
    side::Side,
};
use crate::command::{
    failure::{Failure, FailureKind},
    files::{file_failure, look, persist},
};

/// What was in a place before something is copied there.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Ground {
    /// Nothing, or nothing that was not looked at.
    Bare,
    /// What an earlier run left.
    Begun,
    /// What is somebody's: nothing of it is replaced without a look.
    Taken,
}

/// A tree that grows beside its target.
#[derive(Debug)]
pub(super) struct Tree {
    /// Where it grows.
    pub(super) part: PathUri,
    /// What it becomes.
    target: PathUri,
    /// What is copied of it.
    pub(super) journal: Journal,
    /// Whether its root could be read: otherwise there is nothing to take the name.
    pub(super) has_root: Cell<bool>,
}

impl Tree {
    /// Finds what an earlier run left of it, or begins. The source is named as people name it.
    pub(super) async fn begin(
        to: &Side,
        target: &PathUri,
        source: &str,
        resume: Resume,
    ) -> Result<(Self, Ground), Failure> {
        let failed = |error: FileError| file_failure(&error);
        let Some(TreeParts { part, journal }) = tree_parts(target, source) else {
            let what = format!("`{}` is no name for a directory", to.shows(target));
            return Err(Failure::new(FailureKind::Usage, what));
        };
        if resume == Resume::Nothing {
            for left in [&part, &journal] {
                remove(to, left).await.map_err(failed)?;
            }
        }
        let is_begun = look(&*to.files, &part).await.map_err(failed)?.is_some();
        let (journal, ground) = match is_begun {
            true => {
                let journal = Journal::read(to, journal).await.map_err(failed)?;
                (journal, Ground::Begun)
            }
            false => {
                // One without a tree is of no use.
                remove(to, &journal).await.map_err(failed)?;
                (Journal::new(to, journal), Ground::Bare)
            }
        };
        let tree = Self {
            part,
            target: target.clone(),
            journal,
            has_root: Cell::new(false),
        };
        Ok((tree, ground))
    }

    /// Names the target in a failure that names the hidden tree beside it.
    pub(super) fn name_target(&self, failure: Failure) -> Failure {
        name_target(failure, &self.part, &self.target)
    }

    /// Gives it its name. Doing it twice is as good as once.
    pub(super) async fn finish(&self, to: &Side) -> Result<(), Failure> {
        if !self.has_root.get() {
            return Ok(());
        }
        let rename = Rename {
            source_path: self.part.clone(),
            destination_path: self.target.clone(),
            overwrite: false,
            sandbox: None,
        };
        let outcome = match to.rename(&rename).await {
            // Asked a second time after a cut, it may have been done the first time.
            Err(FileError::NotFound(text)) => match look(&*to.files, &self.target).await {
                Ok(Some(found)) if found.is_directory => Ok(()),
                Ok(_) => Err(FileError::NotFound(text)),
                Err(error) => Err(error),
            },
            outcome => outcome,
        };
        outcome.map_err(|error| {
            let failure = file_failure(&error);
            match failure.kind == FailureKind::Lost {
                true => failure,
                false => failure.next(format!("the whole copy is `{}`", to.shows(&self.part))),
            }
        })?;
        self.journal.remove().await;
        Ok(())
    }
}

/// Removes what an earlier run left.
pub(super) async fn remove(to: &Side, path: &PathUri) -> Result<(), FileError> {
    let remove = Remove {
        path: path.clone(),
        recursive: Some(true),
        force: Some(true),
        follow_symlinks: None,
        sandbox: None,
    };
    persist(|| to.files.remove(remove.clone())).await
}
