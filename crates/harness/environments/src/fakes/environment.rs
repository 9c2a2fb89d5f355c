//! An environment in which nothing runs.

use std::{fmt, sync::Arc};

use bytes::Bytes;
use exec_wire::{
    environment::EnvironmentInfo,
    error::RpcError,
    fs::{
        Canonicalize, Copy, CreateDirectory, DirectoryEntry, FileMetadata, Find, FoundPaths,
        GetMetadata, ReadDirectory, ReadFile, Remove, Rename, Search, SearchResult, Walk,
        WalkResult, WriteFile,
    },
    path_uri::PathUri,
};
use futures_util::future::{BoxFuture, FutureExt, ready};

use crate::manager::EnvironmentId;
use exec_env::{
    backend::{ExecBackend, StartError, StartedProcess},
    catalog::{ExecutorCatalog, NoCatalog},
    command::Command,
    environment::Environment,
    filesystem::{
        ExecutorFileSystem, FileError, FileFuture, MissingPaths, MissingWatch, Open, OpenFile,
        WatchPath, Watcher,
    },
    http::NoHttpClient,
};

/// Returns the id of an environment.
pub(crate) fn id(text: &str) -> EnvironmentId {
    EnvironmentId::parse(text).unwrap()
}

/// Returns an environment that can be told from others by its label.
pub(crate) fn environment(label: &str) -> Environment {
    environment_with(label, Arc::new(NoCatalog))
}

/// Returns an environment with a catalog.
pub(crate) fn environment_with(label: &str, catalog: Arc<dyn ExecutorCatalog>) -> Environment {
    Environment {
        backend: Arc::new(Labelled(label.to_owned())),
        files: Arc::new(NoFiles),
        http: Arc::new(NoHttpClient),
        catalog,
    }
}

/// Returns the label of an environment.
pub(crate) fn label(environment: &Environment) -> String {
    format!("{:?}", environment.backend)
}

/// Starts nothing, and has a label.
struct Labelled(String);

impl fmt::Debug for Labelled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl ExecBackend for Labelled {
    fn start(&self, _: Command) -> BoxFuture<'_, Result<StartedProcess, StartError>> {
        ready(Err(StartError::Cancelled)).boxed()
    }

    fn info(&self) -> BoxFuture<'_, Result<EnvironmentInfo, RpcError>> {
        ready(Err(RpcError::internal("no host"))).boxed()
    }
}

/// Has no files.
#[derive(Debug)]
struct NoFiles;

fn no_files<T: Send + 'static>() -> FileFuture<T> {
    ready(Err(FileError::Refused("no files".to_owned()))).boxed()
}

impl ExecutorFileSystem for NoFiles {
    fn read_file(&self, _: ReadFile) -> FileFuture<Bytes> {
        no_files()
    }
    fn write_file(&self, _: WriteFile, _: Bytes) -> FileFuture<()> {
        no_files()
    }
    fn create_directory(&self, _: CreateDirectory) -> FileFuture<()> {
        no_files()
    }
    fn metadata(&self, _: GetMetadata) -> FileFuture<FileMetadata> {
        no_files()
    }
    fn canonicalize(&self, _: Canonicalize) -> FileFuture<PathUri> {
        no_files()
    }
    fn read_directory(&self, _: ReadDirectory) -> FileFuture<Vec<DirectoryEntry>> {
        no_files()
    }
    fn walk(&self, _: Walk) -> FileFuture<WalkResult> {
        no_files()
    }
    fn remove(&self, _: Remove) -> FileFuture<()> {
        no_files()
    }
    fn copy(&self, _: Copy) -> FileFuture<()> {
        no_files()
    }
    fn rename(&self, _: Rename) -> FileFuture<()> {
        no_files()
    }
    fn open(&self, _: Open) -> FileFuture<Arc<dyn OpenFile>> {
        no_files()
    }
    fn search(&self, _: Search) -> FileFuture<SearchResult> {
        no_files()
    }
    fn find(&self, _: Find) -> FileFuture<FoundPaths> {
        no_files()
    }
    fn watch(&self, _: WatchPath) -> FileFuture<Watcher> {
        no_files()
    }
    fn watch_missing(&self, _: MissingPaths) -> FileFuture<Option<MissingWatch>> {
        no_files()
    }
}
