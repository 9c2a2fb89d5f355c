//! `exec-server mkdir`, `exec-server mv` and `exec-server rm`.
//!
//! Requests are repeated after a lost connection; a result that the first attempt may have caused
//! counts as success.

use std::{ffi::OsString, os::unix::ffi::OsStrExt, process::ExitCode};

use clap::Args;
use exec_env::filesystem::FileError;
use exec_wire::{
    error::ErrorCode,
    fs::{CreateDirectory, RemovePath, RenamePath},
    path_uri::PathUri,
};

use crate::command::{
    connect::EnvArgs,
    failure::{CommandFailure, FailureKind},
    files::{child_path, display_path, metadata_if_exists, retry_disconnected},
    operand::{OperandResolver, RemotePath},
    process_session::show_outages,
};

/// Creates directories.
#[derive(Args, Clone, Debug)]
pub struct MkdirCommand {
    #[command(flatten)]
    #[doc(hidden)]
    pub env_args: EnvArgs,

    /// Creates missing parents, and accepts existing directories.
    #[arg(short, long)]
    pub parents: bool,

    /// Directories of the environment. `NAME:PATH` is one of the environment NAME.
    #[arg(required = true, value_name = "DIRECTORY")]
    pub directories: Vec<OsString>,
}

impl MkdirCommand {
    /// Creates the directories in order; stops at the first failure.
    pub(crate) async fn run(self) -> Result<ExitCode, CommandFailure> {
        let mut operands = OperandResolver::new(&self.env_args);
        for typed in &self.directories {
            let operand = operands.resolve(typed).await?;
            show_outages(&operand.env.client, self.make(&operand)).await?;
        }
        Ok(ExitCode::SUCCESS)
    }

    async fn make(&self, operand: &RemotePath) -> Result<(), CommandFailure> {
        let files = operand.env.environment().files;
        if !self.parents && metadata_if_exists(&*files, &operand.path).await?.is_some() {
            let what = format!("`{}` already exists", display_path(&operand.path));
            return Err(CommandFailure::failed(what));
        }
        let mut attempts = 0;
        let created = retry_disconnected(|| {
            attempts += 1;
            files.create_directory(CreateDirectory {
                path: operand.path.clone(),
                // After a lost connection, the first attempt may have created it.
                recursive: Some(self.parents || attempts > 1),
                follow_symlinks: None,
                sandbox: None,
            })
        });
        created.await.map_err(CommandFailure::from)
    }
}

/// Renames or moves files and directories.
///
/// Sources are moved into a target that is a directory. An existing file with the new name is
/// replaced atomically.
#[derive(Args, Clone, Debug)]
#[command(override_usage = "exec-server mv [OPTIONS] SOURCE... TARGET")]
pub struct MvCommand {
    #[command(flatten)]
    #[doc(hidden)]
    pub env_args: EnvArgs,

    /// Fails if the new name exists.
    #[arg(short, long)]
    pub no_clobber: bool,

    /// Accepted for compatibility: mv never prompts.
    #[arg(short, long, conflicts_with = "no_clobber")]
    pub force: bool,

    /// Sources, followed by the target, all in one environment. `NAME:PATH` is in the environment
    /// NAME.
    #[arg(required = true, num_args = 2.., value_name = "PATH")]
    pub paths: Vec<OsString>,
}

impl MvCommand {
    /// Moves the sources in order; stops at the first failure.
    pub(crate) async fn run(self) -> Result<ExitCode, CommandFailure> {
        let mut operands = OperandResolver::new(&self.env_args);
        let mut resolved = Vec::new();
        for typed in &self.paths {
            resolved.push(operands.resolve(typed).await?);
        }
        let Some((target, sources)) = resolved.split_last() else {
            return Err(CommandFailure::usage("missing target"));
        };
        if let Some(other) = sources.iter().find(|one| one.env.name != target.env.name) {
            let (from, to) = (&other.env.name, &target.env.name);
            let what = format!("cannot move from `{from}` to `{to}`");
            return Err(CommandFailure::usage(what).next(
                "copy it with `exec-server cp -r`, then remove it with `exec-server rm -r`",
            ));
        }
        let moved = self.move_all(sources, target);
        show_outages(&target.env.client, moved).await?;
        Ok(ExitCode::SUCCESS)
    }

    async fn move_all(
        &self,
        sources: &[RemotePath],
        target: &RemotePath,
    ) -> Result<(), CommandFailure> {
        let files = target.env.environment().files;
        let found = metadata_if_exists(&*files, &target.path).await?;
        let is_directory = found.is_some_and(|found| found.is_directory);
        if !is_directory && sources.len() > 1 {
            let what = format!("`{}` is not a directory", display_path(&target.path));
            return Err(CommandFailure::failed(what));
        }
        for source in sources {
            let to = match is_directory {
                true => {
                    let name = source.path.file_name();
                    let to = name.and_then(|name| child_path(&target.path, &name));
                    to.ok_or_else(|| {
                        let what =
                            format!("`{}` has no file name to keep", display_path(&source.path));
                        CommandFailure::usage(what)
                    })?
                }
                false => target.path.clone(),
            };
            self.rename(source, to).await?;
        }
        Ok(())
    }

    async fn rename(&self, source: &RemotePath, to: PathUri) -> Result<(), CommandFailure> {
        let files = source.env.environment().files;
        if source.path == to {
            let what = format!("`{}` is both source and target", display_path(&to));
            return Err(CommandFailure::usage(what));
        }
        let rename = RenamePath {
            source_path: source.path.clone(),
            destination_path: to.clone(),
            overwrite: !self.no_clobber,
            sandbox: None,
        };
        let mut attempts = 0;
        let renamed = retry_disconnected(|| {
            attempts += 1;
            files.rename(rename.clone())
        });
        match renamed.await {
            Ok(()) => Ok(()),
            // After a lost connection, the first attempt may have renamed it.
            Err(FileError::NotFound(_))
                if attempts > 1
                    && metadata_if_exists(&*files, &to)
                        .await
                        .is_ok_and(|found| found.is_some()) =>
            {
                Ok(())
            }
            Err(FileError::Remote(error)) if error.code == ErrorCode::METHOD_NOT_FOUND => {
                let what = format!("the server of `{}` cannot rename", source.env.name);
                Err(CommandFailure::failed(what)
                    .next("run its own: exec-server run -- mv SOURCE TARGET"))
            }
            Err(error) => Err(CommandFailure::from(error)),
        }
    }
}

/// Removes files and directories.
///
/// Removes links themselves, not what they point to.
#[derive(Args, Clone, Debug)]
pub struct RmCommand {
    #[command(flatten)]
    #[doc(hidden)]
    pub env_args: EnvArgs,

    /// Removes directories recursively.
    #[arg(short, long, visible_short_alias = 'R')]
    pub recursive: bool,

    /// Ignores missing paths.
    #[arg(short, long)]
    pub force: bool,

    /// Files of the environment. `NAME:PATH` is one of the environment NAME.
    #[arg(required = true, value_name = "PATH")]
    pub paths: Vec<OsString>,
}

impl RmCommand {
    /// Removes the paths in order; stops at the first failure.
    pub(crate) async fn run(self) -> Result<ExitCode, CommandFailure> {
        let mut operands = OperandResolver::new(&self.env_args);
        // Check everything before removing anything.
        let mut checked = Vec::new();
        for typed in &self.paths {
            let operand = operands.resolve(typed).await?;
            refuse_roots(&operand)?;
            checked.push(operand);
        }
        for operand in &checked {
            show_outages(&operand.env.client, self.remove(operand)).await?;
        }
        Ok(ExitCode::SUCCESS)
    }

    async fn remove(&self, operand: &RemotePath) -> Result<(), CommandFailure> {
        let files = operand.env.environment().files;
        let path = &operand.path;
        // A dangling link is found when removing it.
        let found = metadata_if_exists(&*files, path).await?;
        let is_directory = found.is_some_and(|found| found.is_directory && !found.is_symlink);
        if is_directory && !self.recursive {
            let what = format!("`{}` is a directory", display_path(path));
            return Err(CommandFailure::failed(what).next("`rm -r` removes it"));
        }
        let mut attempts = 0;
        let removed = retry_disconnected(|| {
            attempts += 1;
            files.remove(RemovePath {
                path: path.clone(),
                recursive: Some(is_directory),
                // After a lost connection, the first attempt may have removed it.
                force: Some(self.force || attempts > 1),
                follow_symlinks: None,
                sandbox: None,
            })
        });
        removed.await.map_err(|error| {
            if matches!(error, FileError::NotFound(_)) {
                let what = format!("`{}` does not exist", display_path(path));
                return CommandFailure::new(FailureKind::NotFound, what);
            }
            CommandFailure::from(error)
        })
    }
}

/// Rejects the root, `.` and `..`, which are usually mistakes.
fn refuse_roots(operand: &RemotePath) -> Result<(), CommandFailure> {
    let typed = operand.typed.as_bytes();
    let last = typed
        .rsplit(|&byte| byte == b'/')
        .find(|name| !name.is_empty());
    let is_dots = matches!(last, Some(b"." | b".."));
    if is_dots || operand.path.parent().is_none() {
        let what = format!("refusing to remove `{}`", operand.typed.display());
        return Err(CommandFailure::usage(what).next("name the directory itself, or its contents"));
    }
    Ok(())
}
