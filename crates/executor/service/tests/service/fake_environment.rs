//! Fake environment: it runs nothing and reports started commands to the test.

use std::{
    io,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering},
    },
    task::ready,
    time::Duration,
};

use bytes::Bytes;
use exec_core::output_log::{
    ExitInfo, FollowOptions, FollowedLog, FollowerId, LogPage, OutputLog, OutputSnapshot,
    RetentionLimits,
};
use exec_env::{
    environment::{Command, ExecBackend, NetworkPolicyHook, StartError, StartedProcess},
    filesystem::{
        ExecutorFileSystem, FileError, FileFuture, MissingPathsRequest, MissingPathsWatch,
        OpenFile, OpenFileRequest, PathWatcher, WatchPathRequest,
    },
    process::{
        EventStream, ExecProcess, OutputHold, OutputReadRequest, ProcessError, ProcessStatus,
    },
};
use exec_wire::{
    environment::{EnvironmentInfo, ServerCapabilities, ShellProgram},
    error::RpcError,
    fs::{
        CanonicalizePath, CopyPath, CreateDirectory, DirectoryEntry, FileMetadata, FindPaths,
        FoundPaths, GetMetadata, ReadDirectory, ReadFile, RemovePath, RenamePath, SearchResult,
        SearchText, WalkResult, WalkTree, WriteFile,
    },
    id::{OutputSeq, ProcessId, WriteId},
    path_uri::PathUri,
    process::{
        ExitCause, OutputStream, ProcessSignal, TerminalSize, TerminateMode, WaitUntil, WriteStatus,
    },
};
use futures_util::{
    StreamExt,
    future::{BoxFuture, FutureExt, ready, ready as ready_future},
    stream,
};
use tokio::sync::{mpsc, watch};

/// Backend that sends each started command to the test.
#[derive(Debug)]
pub(crate) struct FakeBackend {
    pub(crate) started_tx: mpsc::UnboundedSender<StartedCommand>,
    /// Cloned into every session, to count them.
    pub(crate) _session: Arc<()>,
}

/// A command that the service started.
#[derive(Debug)]
pub(crate) struct StartedCommand {
    pub(crate) command: Command,
    /// The process, if the program is `write`.
    pub(crate) written: Option<Arc<WriterProcess>>,
    ended: watch::Sender<bool>,
}

impl StartedCommand {
    pub(crate) fn watcher(&self) -> &Arc<dyn NetworkPolicyHook> {
        self.command
            .network
            .policy_hook
            .as_ref()
            .expect("process has a network watcher")
    }

    /// Ends the process and its output.
    pub(crate) fn end(&self) {
        self.ended.send_replace(true);
    }
}

impl ExecBackend for FakeBackend {
    fn start(&self, command: Command) -> BoxFuture<'_, Result<StartedProcess, StartError>> {
        let (ended, watched) = watch::channel(false);
        let id = command.process_id.clone();
        if command.argv[0] == "fail" {
            let source = io::Error::from(io::ErrorKind::NotFound);
            let context = "cannot start `fail`".to_owned();
            return ready(Err(StartError::Spawn { context, source })).boxed();
        }
        let written =
            (command.argv[0] == "write").then(|| Arc::new(WriterProcess::new(id.clone())));
        let process: Arc<dyn ExecProcess> = match &written {
            Some(written) => Arc::<WriterProcess>::clone(written),
            None => Arc::new(SilentProcess { id, ended: watched }),
        };
        let started = StartedCommand {
            command,
            written,
            ended,
        };
        self.started_tx
            .send(started)
            .expect("receiver of started commands is open");
        ready(Ok(StartedProcess {
            process,
            sandbox_type: None,
        }))
        .boxed()
    }

    fn info(&self) -> BoxFuture<'_, Result<EnvironmentInfo, RpcError>> {
        let shell = ShellProgram {
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
            capabilities: ServerCapabilities::default(),
        }))
        .boxed()
    }
}

/// A process without output that ends on demand.
#[derive(Debug)]
struct SilentProcess {
    id: ProcessId,
    ended: watch::Receiver<bool>,
}

fn status(ended: bool) -> ProcessStatus {
    ProcessStatus {
        exit: None,
        closed: ended,
        tree_alive: !ended,
        next_seq: OutputSeq(1),
        retained_bytes: 0,
        os_pid: None,
        started_at_ms: 0,
    }
}

impl ExecProcess for SilentProcess {
    fn id(&self) -> &ProcessId {
        &self.id
    }

    fn status(&self) -> ProcessStatus {
        status(*self.ended.borrow())
    }

    fn follow(&self, _: FollowOptions) -> EventStream {
        stream::pending().boxed()
    }

    fn hold(&self, _: OutputSeq) -> Box<dyn OutputHold> {
        Box::new(NoopHold)
    }

    fn read(&self, _: OutputReadRequest) -> BoxFuture<'_, Result<LogPage, ProcessError>> {
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
    ) -> BoxFuture<'static, Result<ProcessStatus, ProcessError>> {
        let mut ended = self.ended.clone();
        async move {
            let ended = ended.wait_for(|ended| *ended).await.is_ok();
            Ok(status(ended))
        }
        .boxed()
    }

    fn snapshot(&self) -> BoxFuture<'_, Result<OutputSnapshot, ProcessError>> {
        ready(Err(ProcessError::Terminated)).boxed()
    }
}

/// File system that rejects every operation.
#[derive(Debug)]
pub(crate) struct NoFiles;

fn unsupported<T: Send + 'static>() -> FileFuture<T> {
    ready(Err(FileError::Invalid(
        "the fake environment has no files".to_owned(),
    )))
    .boxed()
}

impl ExecutorFileSystem for NoFiles {
    fn read_file(&self, _: ReadFile) -> FileFuture<Bytes> {
        unsupported()
    }

    fn write_file(&self, _: WriteFile, _: Bytes) -> FileFuture<()> {
        unsupported()
    }

    fn create_directory(&self, _: CreateDirectory) -> FileFuture<()> {
        unsupported()
    }

    fn metadata(&self, _: GetMetadata) -> FileFuture<FileMetadata> {
        unsupported()
    }

    fn canonicalize(&self, _: CanonicalizePath) -> FileFuture<PathUri> {
        unsupported()
    }

    fn read_directory(&self, _: ReadDirectory) -> FileFuture<Vec<DirectoryEntry>> {
        unsupported()
    }

    fn walk(&self, _: WalkTree) -> FileFuture<WalkResult> {
        unsupported()
    }

    fn remove(&self, _: RemovePath) -> FileFuture<()> {
        unsupported()
    }

    fn copy(&self, _: CopyPath) -> FileFuture<()> {
        unsupported()
    }

    fn rename(&self, _: RenamePath) -> FileFuture<()> {
        unsupported()
    }

    fn open(&self, _: OpenFileRequest) -> FileFuture<Arc<dyn OpenFile>> {
        unsupported()
    }

    fn search(&self, _: SearchText) -> FileFuture<SearchResult> {
        unsupported()
    }

    fn find(&self, _: FindPaths) -> FileFuture<FoundPaths> {
        unsupported()
    }

    fn watch(&self, _: WatchPathRequest) -> FileFuture<PathWatcher> {
        unsupported()
    }

    fn watch_missing(&self, _: MissingPathsRequest) -> FileFuture<Option<MissingPathsWatch>> {
        unsupported()
    }
}

/// Hold without an effect.
#[derive(Debug)]
struct NoopHold;

impl OutputHold for NoopHold {
    fn acknowledge(&self, _: OutputSeq) {}
}

/// Retention of a process without a hold.
pub(crate) const RETAINED_BYTES: usize = 4096;

/// A process that writes on demand and reports whether it is paused.
#[derive(Debug)]
pub(crate) struct WriterProcess {
    id: ProcessId,
    log: Arc<Mutex<FollowedLog>>,
    closed: watch::Sender<bool>,
    /// Whether descendants outlive the process.
    descendants_alive: AtomicBool,
}

impl WriterProcess {
    pub(crate) fn new(id: ProcessId) -> Self {
        let retention = RetentionLimits {
            bytes: RETAINED_BYTES,
            chunks: 50_000,
        };
        Self {
            id,
            log: Arc::new(Mutex::new(FollowedLog::new(OutputLog::new(retention)))),
            closed: watch::Sender::new(false),
            descendants_alive: AtomicBool::new(false),
        }
    }

    /// Writes this many chunks of 1 KiB. Returns the last sequence number.
    pub(crate) fn write(&self, chunks: usize) -> u64 {
        let chunk = Bytes::from_static(&[b'x'; 1024]);
        self.log().record(|log| {
            let seqs = (0..chunks).map(|_| log.append(OutputStream::Stdout, chunk.clone()));
            seqs.last().flatten().unwrap().0
        })
    }

    /// Ends the process and its output. Returns the sequence number of the close.
    pub(crate) fn close(&self) -> u64 {
        let closed = self.log().record(|log| {
            log.record_exit(ExitInfo {
                code: 0,
                signal: None,
                cause: ExitCause::Exit,
                usage: None,
                sandbox_denied: false,
            });
            log.record_close()
        });
        self.closed.send_replace(true);
        closed.unwrap().0
    }

    /// Ends the process and its output while descendants stay alive.
    pub(crate) fn close_with_descendants(&self) {
        self.descendants_alive.store(true, Ordering::SeqCst);
        self.close();
    }

    pub(crate) fn is_paused(&self) -> bool {
        self.log().is_backpressured()
    }

    pub(crate) fn retained(&self) -> usize {
        self.log().log().retained_bytes()
    }

    fn log(&self) -> MutexGuard<'_, FollowedLog> {
        self.log.lock().unwrap()
    }
}

/// A follower of the log. Dropping it unfollows.
#[derive(Debug)]
struct LogFollower {
    log: Arc<Mutex<FollowedLog>>,
    id: FollowerId,
}

impl Drop for LogFollower {
    fn drop(&mut self) {
        self.log.lock().unwrap().unfollow(self.id);
    }
}

impl OutputHold for LogFollower {
    fn acknowledge(&self, seq: OutputSeq) {
        self.log.lock().unwrap().acknowledge(self.id, seq);
    }
}

impl ExecProcess for WriterProcess {
    fn id(&self) -> &ProcessId {
        &self.id
    }

    fn status(&self) -> ProcessStatus {
        let followed = self.log();
        let log = followed.log();
        ProcessStatus {
            exit: log.exit().cloned(),
            closed: log.is_closed(),
            tree_alive: !log.is_closed() || self.descendants_alive.load(Ordering::SeqCst),
            next_seq: log.next_seq(),
            retained_bytes: log.retained_bytes(),
            os_pid: None,
            started_at_ms: 0,
        }
    }

    fn follow(&self, follow: FollowOptions) -> EventStream {
        let follower = LogFollower {
            log: Arc::clone(&self.log),
            id: self.log().follow(follow),
        };
        stream::poll_fn(move |cx| {
            let followed = ready!(follower.log.lock().unwrap().poll_event(follower.id, cx));
            followed.event.map(Into::into).into()
        })
        .boxed()
    }

    fn hold(&self, after: OutputSeq) -> Box<dyn OutputHold> {
        Box::new(LogFollower {
            log: Arc::clone(&self.log),
            id: self.log().retain_unacked(after),
        })
    }

    fn read(&self, read: OutputReadRequest) -> BoxFuture<'_, Result<LogPage, ProcessError>> {
        let page = self.log().log().page(read.after, read.max_bytes);
        ready_future(Ok(page)).boxed()
    }

    fn write(
        &self,
        _: Option<WriteId>,
        _: Bytes,
    ) -> BoxFuture<'static, Result<WriteStatus, ProcessError>> {
        ready_future(Err(ProcessError::Terminated)).boxed()
    }

    fn close_stdin(
        &self,
        _: Option<WriteId>,
    ) -> BoxFuture<'static, Result<WriteStatus, ProcessError>> {
        ready_future(Ok(WriteStatus::StdinClosed)).boxed()
    }

    fn resize(&self, _: TerminalSize) -> BoxFuture<'static, Result<(), ProcessError>> {
        ready_future(Err(ProcessError::NoTerminal(self.id.clone()))).boxed()
    }

    fn signal(&self, _: ProcessSignal) -> BoxFuture<'static, Result<(), ProcessError>> {
        ready_future(Ok(())).boxed()
    }

    fn terminate(&self, _: TerminateMode) -> BoxFuture<'static, Result<bool, ProcessError>> {
        ready_future(Ok(true)).boxed()
    }

    fn wait(
        &self,
        _: WaitUntil,
        _: Option<Duration>,
    ) -> BoxFuture<'static, Result<ProcessStatus, ProcessError>> {
        let status = ProcessStatus {
            closed: true,
            ..self.status()
        };
        let mut closed = self.closed.subscribe();
        async move {
            drop(closed.wait_for(|closed| *closed).await);
            Ok(status)
        }
        .boxed()
    }

    fn snapshot(&self) -> BoxFuture<'_, Result<OutputSnapshot, ProcessError>> {
        ready_future(Err(ProcessError::Terminated)).boxed()
    }
}
