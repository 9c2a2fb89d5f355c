//! An environment that runs nothing: it tells the test what was started.

use std::{io, sync::Arc, time::Duration};

use bytes::Bytes;
use exec_core::log::{Follow, Page, Snapshot};
use exec_env::{
    backend::{ExecBackend, StartError, StartedProcess},
    command::Command,
    filesystem::{
        ExecutorFileSystem, FileError, FileFuture, MissingPaths, MissingWatch, Open, OpenFile,
        WatchPath, Watcher,
    },
    network::NetworkWatcher,
    process::{EventStream, ExecProcess, Hold, ProcessError, Read, Status},
};
use exec_wire::{
    environment::{Capabilities, EnvironmentInfo, Shell},
    error::RpcError,
    fs::{
        Canonicalize, Copy, CreateDirectory, DirectoryEntry, FileMetadata, Find, FoundPaths,
        GetMetadata, ReadDirectory, ReadFile, Remove, Rename, Search, SearchResult, Walk,
        WalkResult, WriteFile,
    },
    id::{OutputSeq, ProcessId, WriteId},
    path_uri::PathUri,
    process::{ProcessSignal, TerminalSize, TerminateMode, WaitUntil, WriteStatus},
};
use futures_util::{
    StreamExt,
    future::{BoxFuture, FutureExt, ready},
    stream,
};
use tokio::sync::{mpsc, watch};

use crate::written::Written;

/// Tells what it is to start.
#[derive(Debug)]
pub(crate) struct Fake {
    pub(crate) tell: mpsc::UnboundedSender<Started>,
    /// Held by every session there is.
    pub(crate) _session: Arc<()>,
}

/// What was started.
#[derive(Debug)]
pub(crate) struct Started {
    pub(crate) command: Command,
    /// The process, if it was to write.
    pub(crate) written: Option<Arc<Written>>,
    over: watch::Sender<bool>,
}

impl Started {
    pub(crate) fn watcher(&self) -> &Arc<dyn NetworkWatcher> {
        self.command
            .network
            .watcher
            .as_ref()
            .expect("somebody watches")
    }

    /// The process is over, and so is its output.
    pub(crate) fn end(&self) {
        self.over.send_replace(true);
    }
}

impl ExecBackend for Fake {
    fn start(&self, command: Command) -> BoxFuture<'_, Result<StartedProcess, StartError>> {
        let (over, watched) = watch::channel(false);
        let id = command.process_id.clone();
        if command.argv[0] == "fail" {
            let source = io::Error::from(io::ErrorKind::NotFound);
            let context = "cannot start `fail`".to_owned();
            return ready(Err(StartError::Spawn { context, source })).boxed();
        }
        let written = (command.argv[0] == "write").then(|| Arc::new(Written::new(id.clone())));
        let process: Arc<dyn ExecProcess> = match &written {
            Some(written) => Arc::<Written>::clone(written),
            None => Arc::new(Running { id, over: watched }),
        };
        let started = Started {
            command,
            written,
            over,
        };
        self.tell.send(started).expect("the test listens");
        ready(Ok(StartedProcess {
            process,
            sandbox_type: None,
        }))
        .boxed()
    }

    fn info(&self) -> BoxFuture<'_, Result<EnvironmentInfo, RpcError>> {
        let shell = Shell {
            name: "fake".to_owned(),
            path: "/fake".to_owned(),
        };
        ready(Ok(EnvironmentInfo {
            shell,
            cwd: None,
            executor_version: "0.0.0".to_owned(),
            provider_id: None,
            user_home_dir: None,
            platform_os: None,
            prepend_path_dirs: Vec::new(),
            temporary_directories: None,
            temp_dir: None,
            capabilities: Capabilities::default(),
        }))
        .boxed()
    }
}

/// A process that writes nothing, and ends when the test says so.
#[derive(Debug)]
struct Running {
    id: ProcessId,
    over: watch::Receiver<bool>,
}

fn status(over: bool) -> Status {
    Status {
        exit: None,
        closed: over,
        tree_alive: !over,
        next_seq: OutputSeq(1),
        retained_bytes: 0,
        os_pid: None,
        started_at_ms: 0,
    }
}

impl ExecProcess for Running {
    fn id(&self) -> &ProcessId {
        &self.id
    }

    fn status(&self) -> Status {
        status(*self.over.borrow())
    }

    fn follow(&self, _: Follow) -> EventStream {
        stream::pending().boxed()
    }

    fn hold(&self, _: OutputSeq) -> Box<dyn Hold> {
        Box::new(KeptAnyway)
    }

    fn read(&self, _: Read) -> BoxFuture<'_, Result<Page, ProcessError>> {
        ready(Err(ProcessError::Terminated)).boxed()
    }

    fn write(
        &self,
        _: Option<WriteId>,
        _: Bytes,
    ) -> BoxFuture<'static, Result<WriteStatus, ProcessError>> {
        ready(Err(ProcessError::Terminated)).boxed()
    }

    fn close_stdin(
        &self,
        _: Option<WriteId>,
    ) -> BoxFuture<'static, Result<WriteStatus, ProcessError>> {
        ready(Ok(WriteStatus::StdinClosed)).boxed()
    }

    fn resize(&self, _: TerminalSize) -> BoxFuture<'static, Result<(), ProcessError>> {
        ready(Err(ProcessError::NoTerminal(self.id.clone()))).boxed()
    }

    fn signal(&self, _: ProcessSignal) -> BoxFuture<'static, Result<(), ProcessError>> {
        ready(Ok(())).boxed()
    }

    fn terminate(&self, _: TerminateMode) -> BoxFuture<'static, Result<bool, ProcessError>> {
        ready(Ok(true)).boxed()
    }

    fn wait(
        &self,
        _: WaitUntil,
        _: Option<Duration>,
    ) -> BoxFuture<'static, Result<Status, ProcessError>> {
        let mut over = self.over.clone();
        async move {
            let over = over.wait_for(|over| *over).await.is_ok();
            Ok(status(over))
        }
        .boxed()
    }

    fn snapshot(&self) -> BoxFuture<'_, Result<Snapshot, ProcessError>> {
        ready(Err(ProcessError::Terminated)).boxed()
    }
}

/// Has no files.
#[derive(Debug)]
pub(crate) struct NoFiles;

fn no<T: Send + 'static>() -> FileFuture<T> {
    ready(Err(FileError::Invalid("this is a fake".to_owned()))).boxed()
}

impl ExecutorFileSystem for NoFiles {
    fn read_file(&self, _: ReadFile) -> FileFuture<Bytes> {
        no()
    }

    fn write_file(&self, _: WriteFile, _: Bytes) -> FileFuture<()> {
        no()
    }

    fn create_directory(&self, _: CreateDirectory) -> FileFuture<()> {
        no()
    }

    fn metadata(&self, _: GetMetadata) -> FileFuture<FileMetadata> {
        no()
    }

    fn canonicalize(&self, _: Canonicalize) -> FileFuture<PathUri> {
        no()
    }

    fn read_directory(&self, _: ReadDirectory) -> FileFuture<Vec<DirectoryEntry>> {
        no()
    }

    fn walk(&self, _: Walk) -> FileFuture<WalkResult> {
        no()
    }

    fn remove(&self, _: Remove) -> FileFuture<()> {
        no()
    }

    fn copy(&self, _: Copy) -> FileFuture<()> {
        no()
    }

    fn rename(&self, _: Rename) -> FileFuture<()> {
        no()
    }

    fn open(&self, _: Open) -> FileFuture<Arc<dyn OpenFile>> {
        no()
    }

    fn search(&self, _: Search) -> FileFuture<SearchResult> {
        no()
    }

    fn find(&self, _: Find) -> FileFuture<FoundPaths> {
        no()
    }

    fn watch(&self, _: WatchPath) -> FileFuture<Watcher> {
        no()
    }

    fn watch_missing(&self, _: MissingPaths) -> FileFuture<Option<MissingWatch>> {
        no()
    }
}

/// Nothing is ever dropped.
#[derive(Debug)]
struct KeptAnyway;

impl Hold for KeptAnyway {
    fn acknowledge(&self, _: OutputSeq) {}
}
