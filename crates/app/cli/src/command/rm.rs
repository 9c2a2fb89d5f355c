//! `exec-server rm`.

use std::{ffi::OsString, os::unix::ffi::OsStrExt, process::ExitCode};

use clap::Args;
use exec_env::filesystem::FileError;
use exec_wire::fs::{GetMetadata, RemovePath};

use crate::command::{
    connect::EnvArgs,
    failure::{CommandFailure, FailureKind},
    files::{display_path, file_failure, retry_disconnected},
    operand::{OperandResolver, RemotePath},
    process_session::show_outages,
};

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
        let metadata_if_exists = GetMetadata {
            path: path.clone(),
            follow_symlinks: None,
            sandbox: None,
        };
        let found = retry_disconnected(|| files.metadata(metadata_if_exists.clone())).await;
        let is_directory = match &found {
            Ok(found) => found.is_directory && !found.is_symlink,
            // A dangling link is found when removing it.
            Err(FileError::NotFound(_)) => false,
            Err(error) => return Err(file_failure(error)),
        };
        if is_directory && !self.recursive {
            let what = format!("`{}` is a directory", display_path(path));
            return Err(CommandFailure::new(FailureKind::Failed, what).next("`rm -r` removes it"));
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
            file_failure(&error)
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
        return Err(CommandFailure::new(FailureKind::Usage, what)
            .next("name the directory itself, or its contents"));
    }
    Ok(())
}
