//! Endpoints of a copy, and where each source is copied to.

use std::{collections::BTreeMap, fs, path::Path, sync::Arc};

use exec_env::filesystem::{ExecutorFileSystem, FileError};
use exec_local::filesystem::LocalFileSystem;
use exec_wire::{
    error::ErrorCode,
    fs::{CopyPath, FileMetadata, RemovePath, RenamePath, SetMetadata},
    path_uri::PathUri,
};

use crate::command::{
    connect::{ConnectedEnv, EnvArgs},
    cp::staged_tree::TargetState,
    failure::{CommandFailure, FailureKind},
    files::{
        DirectoryListing, canonicalize, child_path, display_path, entries, is_dangling_link,
        metadata_if_exists, retry_disconnected,
    },
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
    pub(super) fn local() -> Self {
        Self {
            files: Arc::new(LocalFileSystem::default()),
            env: None,
            env_args: None,
        }
    }

    /// Connects to an environment.
    pub(super) async fn connect(env_args: EnvArgs) -> Result<Self, CommandFailure> {
        let env = ConnectedEnv::open(&env_args).await?;
        Ok(Self {
            files: env.environment().files,
            env: Some(env),
            env_args: Some(env_args),
        })
    }

    /// Opens a second connection to the same endpoint, which does not wait for requests in flight
    /// on this one.
    pub(super) async fn reopen(&self) -> Result<Self, CommandFailure> {
        match &self.env_args {
            Some(env_args) => Self::connect(env_args.clone()).await,
            None => Ok(Self::local()),
        }
    }

    /// Renames a path. A server without rename, such as the stock one, copies instead, which is not
    /// atomic. A retry after a disconnect may find that the first attempt succeeded: `is_source`
    /// judges what is at the destination then.
    pub(super) async fn rename(
        &self,
        rename: RenamePath,
        is_source: impl Fn(&FileMetadata) -> bool,
    ) -> Result<(), FileError> {
        let renamed = match retry_disconnected(|| self.files.rename(rename.clone())).await {
            Err(FileError::Remote(error)) if error.code == ErrorCode::METHOD_NOT_FOUND => {
                let copy = CopyPath {
                    source_path: rename.source_path.clone(),
                    destination_path: rename.destination_path.clone(),
                    recursive: true,
                    sandbox: None,
                };
                match retry_disconnected(|| self.files.copy(copy.clone())).await {
                    Ok(()) => self.remove_tree(&rename.source_path).await,
                    Err(error) => Err(error),
                }
            }
            outcome => outcome,
        };
        match renamed {
            Err(FileError::NotFound(text)) => {
                let found = self.metadata(&rename.destination_path).await?;
                let is_done = found.as_ref().is_some_and(is_source);
                is_done.then_some(()).ok_or(FileError::NotFound(text))
            }
            outcome => outcome,
        }
    }

    /// Removes a file. A directory with entries in its place stays.
    pub(super) async fn remove_file(&self, path: &PathUri) -> Result<(), FileError> {
        let remove = removal(path);
        retry_disconnected(|| self.files.remove(remove.clone())).await
    }

    /// Removes a partial file, in one attempt. Errors are ignored: nothing can be done about them.
    pub(super) async fn remove_part(&self, path: &PathUri) {
        drop(self.files.remove(removal(path)).await);
    }

    /// Removes remains of an earlier run, or what has been copied instead of renamed.
    pub(super) async fn remove_tree(&self, path: &PathUri) -> Result<(), FileError> {
        let remove = RemovePath {
            recursive: Some(true),
            ..removal(path)
        };
        retry_disconnected(|| self.files.remove(remove.clone())).await
    }

    /// Returns whether the files are on this machine, with or without a server.
    pub(super) fn is_this_machine(&self) -> bool {
        self.env.as_ref().is_none_or(|env| env.is_this_machine)
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

    /// Returns metadata, following links; `None` if the path does not exist.
    pub(super) async fn metadata(&self, path: &PathUri) -> Result<Option<FileMetadata>, FileError> {
        metadata_if_exists(&*self.files, path).await
    }

    /// Lists a directory.
    pub(super) async fn entries(&self, directory: &PathUri) -> Result<DirectoryListing, FileError> {
        entries(&*self.files, directory).await
    }

    /// Sets the mode and the modification time of a path. The stock server cannot.
    pub(super) async fn set_metadata(
        &self,
        path: &PathUri,
        mode: Option<u32>,
        modified_at_ms: Option<i64>,
    ) -> Result<(), FileError> {
        let set = SetMetadata {
            path: path.clone(),
            mode,
            modified_at_ms,
            follow_symlinks: None,
            sandbox: None,
        };
        retry_disconnected(|| self.files.set_metadata(set.clone())).await
    }

    /// Resolves a typed path.
    pub(super) async fn path(&self, operand: &PathOperand) -> Result<PathUri, CommandFailure> {
        match &self.env {
            Some(env) => env.path(operand.path()).await,
            None => absolute_path(Path::new(operand.path())),
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

/// Returns the request that removes a file or an empty directory, if it exists.
fn removal(path: &PathUri) -> RemovePath {
    RemovePath {
        path: path.clone(),
        recursive: Some(false),
        force: Some(true),
        follow_symlinks: None,
        sandbox: None,
    }
}

/// Makes a local path absolute. Resolves links before a `..`.
fn absolute_path(path: &Path) -> Result<PathUri, CommandFailure> {
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

/// Target of a copy.
#[derive(Debug)]
pub(super) struct CopyTarget {
    /// Endpoint of the target.
    pub(super) endpoint: CopyEndpoint,
    path: PathUri,
    /// Metadata of what exists there.
    found: Option<FileMetadata>,
}

/// Source and its resolved target.
#[derive(Clone, Debug)]
pub(super) struct CopyPair {
    /// Source path.
    pub(super) source: PathUri,
    /// Metadata of the source.
    pub(super) found: FileMetadata,
    /// Target path.
    pub(super) target: PathUri,
    /// What exists at the target.
    pub(super) target_state: TargetState,
}

impl CopyTarget {
    /// Inspects the target. Several sources require a directory.
    pub(super) async fn find(
        endpoint: CopyEndpoint,
        operand: &PathOperand,
        sources: usize,
    ) -> Result<Self, CommandFailure> {
        let path = endpoint.path(operand).await?;
        let found = endpoint.metadata(&path).await?;
        let displayed = endpoint.display(&path);
        let must_be_directory = sources > 1 || operand.is_directory();
        match found {
            Some(found) if must_be_directory && !found.is_directory => {
                let what = format!("`{displayed}` is not a directory");
                return Err(CommandFailure::failed(what)
                    .next("name a directory to copy several sources into"));
            }
            None if must_be_directory => {
                let what = format!("directory `{displayed}` does not exist");
                return Err(
                    CommandFailure::new(FailureKind::NotFound, what).next("create it first")
                );
            }
            None => require_parent_directory(&endpoint, &path).await?,
            Some(_) => {}
        }
        Ok(Self {
            endpoint,
            path,
            found,
        })
    }

    /// Resolves a source and its target. Rejects directories unless `trees` allows them.
    pub(super) async fn pair(
        &self,
        from: &CopyEndpoint,
        operand: &PathOperand,
        trees: DirectoryPolicy,
    ) -> Result<CopyPair, CommandFailure> {
        let source = from.path(operand).await?;
        let displayed = from.display(&source);
        let found = from.metadata(&source).await?;
        let Some(found) = found else {
            return Err(source_missing(from, &source).await);
        };
        match (found.is_directory, found.is_file) {
            (true, _) if trees == DirectoryPolicy::Refused => {
                let what = format!("`{displayed}` is a directory");
                return Err(CommandFailure::failed(what).next("copy it with -r"));
            }
            (false, true) if operand.is_directory() => {
                let what = format!("`{displayed}` is not a directory");
                return Err(
                    CommandFailure::failed(what).next("remove the trailing slash to copy the file")
                );
            }
            (false, false) => {
                let what = format!("`{displayed}` is neither a file nor a directory");
                return Err(
                    CommandFailure::failed(what).next("only files and directories are copied")
                );
            }
            (true, _) | (false, true) => {}
        }
        let target = self.target_path(&source, operand)?;
        let target_kind = TargetKind::find(&self.endpoint, target).await?;
        let (target, target_state) = match (found.is_directory, target_kind) {
            (false, target_kind) => (target_kind.for_file(&self.endpoint)?, TargetState::New),
            (true, TargetKind::Free(path)) => (path, TargetState::New),
            (true, TargetKind::Directory(path)) => (path, TargetState::Existing),
            (true, TargetKind::File(path)) => {
                let displayed = self.endpoint.display(&path);
                let what = format!("`{displayed}` is a file; a directory does not replace it");
                return Err(CommandFailure::failed(what).next("choose another target"));
            }
        };
        let pair = CopyPair {
            source,
            found,
            target,
            target_state,
        };
        if from.is_same_machine(&self.endpoint) {
            self.check_overlap(from, &pair).await?;
        }
        Ok(pair)
    }

    fn target_path(
        &self,
        source: &PathUri,
        operand: &PathOperand,
    ) -> Result<PathUri, CommandFailure> {
        let directory = self.endpoint.display(&self.path);
        match &self.found {
            Some(target) if target.is_directory && operand.has_name() => {
                let target = source
                    .file_name()
                    .and_then(|name| child_path(&self.path, &name));
                target.ok_or_else(|| {
                    let what = format!(
                        "`{}` has no name to use below `{directory}`",
                        source.as_str()
                    );
                    CommandFailure::usage(what)
                })
            }
            Some(_) | None => Ok(self.path.clone()),
        }
    }

    /// Rejects copying something onto or into itself.
    async fn check_overlap(
        &self,
        from: &CopyEndpoint,
        pair: &CopyPair,
    ) -> Result<(), CommandFailure> {
        let source = resolved_path(&*from.files, &pair.source).await?;
        let target = resolved_path(&*self.endpoint.files, &pair.target).await?;
        let (Some(source), Some(target)) = (source, target) else {
            return Ok(());
        };
        let from_path = from.display(&pair.source);
        let to_path = self.endpoint.display(&pair.target);
        let what = if source == target {
            format!("`{from_path}` and `{to_path}` are the same")
        } else if pair.found.is_directory && source.contains(&target) {
            format!("`{to_path}` is inside `{from_path}`")
        } else {
            return Ok(());
        };
        Err(CommandFailure::failed(what).next("choose another target"))
    }
}

/// Rejects sources that map to the same target.
pub(super) fn check_duplicates(
    pairs: &[(CopyEndpoint, CopyPair)],
    to: &CopyEndpoint,
) -> Result<(), CommandFailure> {
    let mut targets = BTreeMap::new();
    for (from, pair) in pairs {
        let Some((other, twin)) = targets.insert(&pair.target, (from, pair)) else {
            continue;
        };
        let what = format!(
            "`{}` and `{}` have the same target `{}`",
            other.display(&twin.source),
            from.display(&pair.source),
            to.display(&pair.target)
        );
        return Err(CommandFailure::usage(what)
            .next("copy them one after the other, or to different targets"));
    }
    Ok(())
}

/// Explains that a source does not exist.
async fn source_missing(from: &CopyEndpoint, source: &PathUri) -> CommandFailure {
    let displayed = from.display(source);
    let is_dangling = is_dangling_link(&*from.files, source).await;
    let what = match is_dangling {
        Ok(true) => format!("cannot copy `{displayed}`: it is a dangling link"),
        Ok(false) | Err(_) => format!("cannot copy `{displayed}`: it does not exist"),
    };
    let failure = CommandFailure::new(FailureKind::NotFound, what);
    match &from.env {
        Some(_) => failure.next("`exec-server ls` lists a directory there"),
        None => failure.next("write `:` before a path in the environment"),
    }
}

/// Checks that the parent directory of a new target exists.
async fn require_parent_directory(
    endpoint: &CopyEndpoint,
    path: &PathUri,
) -> Result<(), CommandFailure> {
    let Some(above) = path.parent() else {
        return Ok(());
    };
    let found = endpoint.metadata(&above).await;
    let what = match found? {
        Some(found) if found.is_directory => return Ok(()),
        Some(_) => format!("`{}` is not a directory", endpoint.display(&above)),
        None => {
            let what = format!("directory `{}` does not exist", endpoint.display(&above));
            return Err(CommandFailure::new(FailureKind::NotFound, what).next("create it first"));
        }
    };
    Err(CommandFailure::failed(what).next("choose another target"))
}

/// Whether directories are copied.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum DirectoryPolicy {
    /// Copied recursively.
    Copied,
    /// Rejected without `-r`.
    Refused,
}

/// Resolves links in a path. For a missing path, resolves its nearest existing ancestor.
pub(super) async fn resolved_path(
    files: &dyn ExecutorFileSystem,
    path: &PathUri,
) -> Result<Option<PathUri>, FileError> {
    let mut missing = Vec::new();
    let mut existing = path.clone();
    loop {
        match canonicalize(files, &existing).await {
            Ok(resolved_path) => {
                let mut names = missing.iter().rev();
                return Ok(names.try_fold(resolved_path, |path, name: &Vec<u8>| {
                    child_path(&path, name)
                }));
            }
            Err(FileError::NotFound(_)) => {
                let (Some(parent), Some(name)) = (existing.parent(), existing.file_name()) else {
                    return Ok(None);
                };
                missing.push(name);
                existing = parent;
            }
            Err(error) => return Err(error),
        }
    }
}

/// What exists at a target path.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum TargetKind {
    /// Nothing.
    Free(PathUri),
    /// Regular file; the resolved path if it is behind a link.
    File(PathUri),
    /// Directory, possibly behind a link.
    Directory(PathUri),
}

impl TargetKind {
    /// Inspects a target. Rejects anything but files and directories.
    pub(super) async fn find(
        endpoint: &CopyEndpoint,
        path: PathUri,
    ) -> Result<Self, CommandFailure> {
        let refused =
            |why: &str| CommandFailure::failed(format!("`{}` {why}", endpoint.display(&path)));
        let found = endpoint.metadata(&path).await?;
        let Some(found) = found else {
            let is_dangling = is_dangling_link(&*endpoint.files, &path).await?;
            return match is_dangling {
                true => Err(refused("is a dangling link")
                    .next("remove it, or name the file it should point to")),
                false => Ok(Self::Free(path)),
            };
        };
        if found.is_directory {
            return Ok(Self::Directory(path));
        }
        if !found.is_file {
            return Err(refused("is neither a file nor a directory").next("choose another target"));
        }
        if !found.is_symlink {
            return Ok(Self::File(path));
        }
        Ok(Self::File(canonicalize(&*endpoint.files, &path).await?))
    }

    /// Returns the path to write a file to.
    pub(super) fn for_file(self, endpoint: &CopyEndpoint) -> Result<PathUri, CommandFailure> {
        match self {
            Self::Free(path) | Self::File(path) => Ok(path),
            Self::Directory(path) => {
                let displayed = endpoint.display(&path);
                let what = format!("`{displayed}` is a directory; a file does not replace it");
                Err(CommandFailure::failed(what).next("choose another target"))
            }
        }
    }
}
