//! Endpoints of a copy.

use std::{fs, path::Path, sync::Arc};

use exec_env::filesystem::{ExecutorFileSystem, FileError};
use exec_local::filesystem::LocalFileSystem;
use exec_wire::{
    error::ErrorCode,
    fs::{CopyPath, RenamePath},
    path_uri::PathUri,
};

use crate::command::{
    connect::{ConnectedEnv, EnvArgs},
    cp::staged_tree::remove,
    failure::{CommandFailure, FailureKind},
    files::{DirectoryListing, display_path, entries, list_local_directory, retry_disconnected},
    operand::PathOperand,
};

/// One endpoint: the local file system, or an environment.
#[derive(Clone, Debug)]
pub(super) struct CopyEndpoint {
    /// File system of the endpoint.
    pub(super) files: Arc<dyn ExecutorFileSystem>,
    /// The environment; `None` for the local file system without a server.
    pub(super) env: Option<ConnectedEnv>,
    /// Arguments that selected the environment.
    env_args: Option<EnvArgs>,
}

impl CopyEndpoint {
    /// Returns the local endpoint.
    pub(super) fn here() -> Self {
        Self {
            files: Arc::new(LocalFileSystem::default()),
            env: None,
            env_args: None,
        }
    }

    /// Connects to an environment.
    pub(super) async fn there(env_args: EnvArgs) -> Result<Self, CommandFailure> {
        let env = ConnectedEnv::open(&env_args).await?;
        Ok(Self {
            files: env.environment().files,
            env: Some(env),
            env_args: Some(env_args),
        })
    }

    /// Opens a second connection to the same endpoint, which does not wait for requests in flight
    /// on this one.
    pub(super) async fn again(&self) -> Result<Self, CommandFailure> {
        match &self.env_args {
            Some(env_args) => Self::there(env_args.clone()).await,
            None => Ok(Self::here()),
        }
    }

    /// Renames a path. A server without rename, such as the stock one, copies instead, which is not
    /// atomic.
    pub(super) async fn rename(&self, rename: &RenamePath) -> Result<(), FileError> {
        match retry_disconnected(|| self.files.rename(rename.clone())).await {
            Err(FileError::Remote(error)) if error.code == ErrorCode::METHOD_NOT_FOUND => {
                let copy = CopyPath {
                    source_path: rename.source_path.clone(),
                    destination_path: rename.destination_path.clone(),
                    recursive: true,
                    sandbox: None,
                };
                retry_disconnected(|| self.files.copy(copy.clone())).await?;
                remove(self, &rename.source_path).await
            }
            outcome => outcome,
        }
    }

    /// Returns whether the files are on this machine, with or without a server.
    pub(super) fn is_this_machine(&self) -> bool {
        self.env.as_ref().is_none_or(|env| env.here)
    }

    /// Returns whether both are the same environment.
    pub(super) fn is(&self, other: &Self) -> bool {
        match (&self.env, &other.env) {
            (None, None) => true,
            (Some(one), Some(other)) => one.name == other.name,
            (None, Some(_)) | (Some(_), None) => false,
        }
    }

    /// Returns whether both endpoints share a file system.
    pub(super) fn is_same_machine(&self, other: &Self) -> bool {
        self.is(other) || self.is_this_machine() && other.is_this_machine()
    }

    /// Returns whether links copied from here could redirect later writes outside the target: the
    /// server of this endpoint controls where its links point.
    pub(super) fn has_unreliable_listing(&self, to: &Self) -> bool {
        !self.is_this_machine() && !self.is(to)
    }

    /// Lists a directory. Only servers limit its size.
    pub(super) async fn entries(&self, directory: &PathUri) -> Result<DirectoryListing, FileError> {
        match (&self.env, directory.to_native()) {
            (None, Ok(native)) => list_local_directory(native).await,
            _ => entries(&*self.files, directory).await,
        }
    }

    /// Resolves a typed path.
    pub(super) async fn path(&self, operand: &PathOperand) -> Result<PathUri, CommandFailure> {
        match &self.env {
            Some(env) => env.path(operand.path()).await,
            None => here(Path::new(operand.path())),
        }
    }

    /// Formats a path for messages.
    pub(super) fn display(&self, path: &PathUri) -> String {
        match &self.env {
            Some(env) => format!("{}:{}", env.name, display_path(path)),
            None => display_path(path),
        }
    }
}

/// Makes a local path absolute. Resolves links before a `..`.
fn here(path: &Path) -> Result<PathUri, CommandFailure> {
    let wrong = |error: &dyn std::fmt::Display| {
        let what = format!("cannot use `{}`: {error}", path.display());
        CommandFailure::new(FailureKind::NotFound, what)
    };
    let goes_up = path.components().any(|part| part.as_os_str() == "..");
    let absolute = match path.parent() {
        Some(parent) if goes_up && path.file_name().is_some() => {
            let parent = fs::canonicalize(parent).map_err(|error| wrong(&error))?;
            parent.join(path.file_name().unwrap_or_default())
        }
        _ if goes_up => fs::canonicalize(path).map_err(|error| wrong(&error))?,
        _ => std::path::absolute(path).map_err(|error| wrong(&error))?,
    };
    PathUri::from_native(&absolute).map_err(|error| wrong(&error))
}
