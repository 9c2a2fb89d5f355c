//! `exec-server mkdir`.

use std::{ffi::OsString, process::ExitCode};

use clap::Args;
use exec_env::filesystem::FileError;
use exec_wire::fs::CreateDirectory;

use crate::command::{
    connect::EnvArgs,
    failure::{CommandFailure, FailureKind},
    files::{display_path, file_failure, metadata_if_exists, retry_disconnected},
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
        let failed = |error: FileError| file_failure(&error);
        if !self.parents
            && metadata_if_exists(&*files, &operand.path)
                .await
                .map_err(failed)?
                .is_some()
        {
            let what = format!("`{}` already exists", display_path(&operand.path));
            return Err(CommandFailure::new(FailureKind::Failed, what));
        }
        let mut attempts = 0;
        let made = retry_disconnected(|| {
            attempts += 1;
            files.create_directory(CreateDirectory {
                path: operand.path.clone(),
                // After a lost connection, the first attempt may have created it.
                recursive: Some(self.parents || attempts > 1),
                follow_symlinks: None,
                sandbox: None,
            })
        });
        made.await.map_err(failed)
    }
}
