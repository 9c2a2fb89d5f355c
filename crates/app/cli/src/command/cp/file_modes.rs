//! Applies modes to copied files and directories where creation does not set them.
//!
//! `fs/writeFile` sets the mode of a small file. Directories and files written in blocks are
//! created with owner access and receive their mode when complete; on a server through `chmod`,
//! because the protocol has no method for it.
//!
//! Invariant: nothing is written into a directory that more users can access than its source.

use std::{
    cell::{Cell, RefCell},
    cmp::Reverse,
    fs,
    os::unix::fs::PermissionsExt,
};

use exec_wire::path_uri::PathUri;

use crate::command::{
    cp::{endpoint::CopyEndpoint, source_links::run_with_paths, staged_tree::TargetState},
    failure::{CommandFailure, FailureKind},
    files::{file_failure, metadata_if_exists},
};

/// Modes set by one command.
const BATCH: usize = 1024;
const ALL: u32 = 0o777;
/// Mode bits the owner needs to fill a directory.
const OWNER: u32 = 0o700;
/// Mode bits others need to traverse a directory.
const THROUGH: u32 = 0o011;

/// Whether other users can reach a directory.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Traversal {
    /// As far as is known.
    Open,
    /// A parent directory prevents it.
    Closed,
}

/// Sets modes on one endpoint.
#[derive(Debug)]
pub(super) struct FileModes<'a> {
    to: &'a CopyEndpoint,
    /// Default mode of new directories there.
    usual: Cell<Option<u32>>,
    /// Modes to set after everything is copied.
    later: RefCell<Vec<(PathUri, u32)>>,
}

impl<'a> FileModes<'a> {
    pub(super) fn new(to: &'a CopyEndpoint) -> Self {
        Self {
            to,
            usual: Cell::default(),
            later: RefCell::default(),
        }
    }

    /// Restricts a new directory to what its source allows others. The owner keeps write access
    /// until [`settle`](Self::settle). Returns whether others can reach its contents.
    pub(super) async fn made(
        &self,
        directory: &PathUri,
        env_args: Option<u32>,
        target_state: TargetState,
        above: Traversal,
    ) -> Result<Traversal, CommandFailure> {
        let Some(env_args) = env_args.map(|mode| mode & ALL) else {
            return Ok(above);
        };
        let needed = env_args | OWNER;
        let Some(now) = self.now(directory, target_state).await? else {
            return Ok(above);
        };
        let is_too_open = now & !needed != 0;
        let has = if now != needed
            && (self.to.env.is_none() || is_too_open && above == Traversal::Open)
        {
            self.set(needed, &[directory]).await?;
            needed
        } else {
            now
        };
        if has != env_args {
            self.later.borrow_mut().push((directory.clone(), env_args));
            if self.later.borrow().len() >= BATCH {
                self.set_later(|mode| mode & OWNER == OWNER).await?;
            }
        }
        Ok(match has & THROUGH {
            0 => Traversal::Closed,
            _ => above,
        })
    }

    /// Sets the final modes of complete directories.
    pub(super) async fn settle(&self) -> Result<(), CommandFailure> {
        self.set_later(|_| true).await
    }

    /// Sets the mode of a file that was written in blocks.
    pub(super) async fn apply_modes(
        &self,
        file: &PathUri,
        mode: u32,
    ) -> Result<(), CommandFailure> {
        self.set(mode & ALL, &[file]).await
    }

    /// Returns the mode of a directory; `None` if the server does not report it.
    async fn now(
        &self,
        directory: &PathUri,
        target_state: TargetState,
    ) -> Result<Option<u32>, CommandFailure> {
        if let (TargetState::Bare, Some(usual)) = (target_state, self.usual.get()) {
            return Ok(Some(usual));
        }
        let found = metadata_if_exists(&*self.to.files, directory).await;
        let found = found.map_err(|error| file_failure(&error))?;
        let mode = found.and_then(|found| found.mode).map(|mode| mode & ALL);
        if target_state == TargetState::Bare {
            self.usual.set(mode);
        }
        Ok(mode)
    }

    async fn set_later(&self, which: impl Fn(u32) -> bool) -> Result<(), CommandFailure> {
        let all = self.later.take();
        let (mut due, kept): (Vec<_>, Vec<_>) = all.into_iter().partition(|(_, mode)| which(*mode));
        *self.later.borrow_mut() = kept;
        // Deepest first: a parent may lose owner access.
        due.sort_by_key(|(path, mode)| (Reverse(path.as_str().matches('/').count()), *mode));
        for same in due.chunk_by(|(_, one), (_, other)| one == other) {
            let paths: Vec<_> = same.iter().map(|(path, _)| path).collect();
            self.set(same[0].1, &paths).await?;
        }
        Ok(())
    }

    async fn set(&self, mode: u32, paths: &[&PathUri]) -> Result<(), CommandFailure> {
        let failed = |why: &dyn std::fmt::Display| {
            let display_path = self.to.display(paths[0]);
            let what = format!("cannot set mode {mode:03o} of `{display_path}`: {why}");
            CommandFailure::new(FailureKind::Failed, what)
        };
        if let Some(env) = &self.to.env {
            let mode = format!("{mode:04o}");
            let set = run_with_paths(env, &["chmod", &mode, "--"], paths).await;
            return set.map_err(|error| failed(&error));
        }
        for path in paths {
            let native = path.to_native().map_err(|error| failed(&error))?;
            let set = fs::set_permissions(native, fs::Permissions::from_mode(mode));
            set.map_err(|error| failed(&error))?;
        }
        Ok(())
    }
}
