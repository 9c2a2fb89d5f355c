//! An environment that runs nothing: it tells the test what was started.

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
use exec_core::log::{Exit, Follow, FollowedLog, FollowerId, OutputLog, Page, Retention, Snapshot};
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
    process::{
        ExitCause, OutputStream, ProcessSignal, TerminalSize, TerminateMode, WaitUntil, WriteStatus,
    },
};
use futures_util::{
    StreamExt,
    future::{BoxFuture, FutureExt, ready, ready as at_once},
    stream,
};
use tokio::sync::{mpsc, watch};

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

/// What a process retains that nobody holds.
pub(crate) const RETAINED: usize = 4096;

/// A process, and what it wrote.
#[derive(Debug)]
pub(crate) struct Written {
    id: ProcessId,
    log: Arc<Mutex<FollowedLog>>,
    closed: watch::Sender<bool>,
    /// Whether something that it started runs on.
    left: AtomicBool,
}

impl Written {
    pub(crate) fn new(id: ProcessId) -> Self {
        let retention = Retention {
            bytes: RETAINED,
            chunks: 50_000,
        };
        Self {
            id,
            log: Arc::new(Mutex::new(FollowedLog::new(OutputLog::new(retention)))),
            closed: watch::Sender::new(false),
            left: AtomicBool::new(false),
        }
    }

    /// Writes this many chunks of 1 KiB; returns the number of the last.
    pub(crate) fn write(&self, chunks: usize) -> u64 {
        let chunk = Bytes::from_static(&[b'x'; 1024]);
        self.log().record(|log| {
            let seqs = (0..chunks).map(|_| log.append(OutputStream::Stdout, chunk.clone()));
            seqs.last().flatten().unwrap().0
        })
    }

    /// Ends it and its output; returns the number of the close.
    pub(crate) fn close(&self) -> u64 {
        let closed = self.log().record(|log| {
            log.record_exit(Exit {
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

    /// Ends it and its output, but not something that it started.
    pub(crate) fn leave(&self) {
        self.left.store(true, Ordering::SeqCst);
        self.close();
    }

    pub(crate) fn is_paused(&self) -> bool {
        self.log().is_held()
    }

    pub(crate) fn retained(&self) -> usize {
        self.log().log().retained_bytes()
    }

    fn log(&self) -> MutexGuard<'_, FollowedLog> {
        self.log.lock().unwrap()
    }
}

/// A place in the log, given up when it is dropped.
#[derive(Debug)]
struct Place {
    log: Arc<Mutex<FollowedLog>>,
    id: FollowerId,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.log.lock().unwrap().unfollow(self.id);
    }
}

impl Hold for Place {
    fn acknowledge(&self, seq: OutputSeq) {
        self.log.lock().unwrap().acknowledge(self.id, seq);
    }
}

impl ExecProcess for Written {
    fn id(&self) -> &ProcessId {
        &self.id
    }

    fn status(&self) -> Status {
        let followed = self.log();
        let log = followed.log();
        Status {
            exit: log.exit().cloned(),
            closed: log.is_closed(),
            tree_alive: !log.is_closed() || self.left.load(Ordering::SeqCst),
            next_seq: log.next_seq(),
            retained_bytes: log.retained_bytes(),
            os_pid: None,
            started_at_ms: 0,
        }
    }

    fn follow(&self, follow: Follow) -> EventStream {
        let place = Place {
            log: Arc::clone(&self.log),
            id: self.log().follow(follow),
        };
        stream::poll_fn(move |cx| {
            let followed = ready!(place.log.lock().unwrap().poll_event(place.id, cx));
            followed.event.map(Into::into).into()
        })
        .boxed()
    }

    fn hold(&self, after: OutputSeq) -> Box<dyn Hold> {
        Box::new(Place {
            log: Arc::clone(&self.log),
            id: self.log().hold(after),
        })
    }

    fn read(&self, read: Read) -> BoxFuture<'_, Result<Page, ProcessError>> {
        let page = self.log().log().page(read.after, read.max_bytes);
        at_once(Ok(page)).boxed()
    }

    fn write(
        &self,
        _: Option<WriteId>,
        _: Bytes,
    ) -> BoxFuture<'static, Result<WriteStatus, ProcessError>> {
        at_once(Err(ProcessError::Terminated)).boxed()
    }

    fn close_stdin(
        &self,
        _: Option<WriteId>,
    ) -> BoxFuture<'static, Result<WriteStatus, ProcessError>> {
        at_once(Ok(WriteStatus::StdinClosed)).boxed()
    }

    fn resize(&self, _: TerminalSize) -> BoxFuture<'static, Result<(), ProcessError>> {
        at_once(Err(ProcessError::NoTerminal(self.id.clone()))).boxed()
    }

    fn signal(&self, _: ProcessSignal) -> BoxFuture<'static, Result<(), ProcessError>> {
        at_once(Ok(())).boxed()
    }

    fn terminate(&self, _: TerminateMode) -> BoxFuture<'static, Result<bool, ProcessError>> {
        at_once(Ok(true)).boxed()
    }

    fn wait(
        &self,
        _: WaitUntil,
        _: Option<Duration>,
    ) -> BoxFuture<'static, Result<Status, ProcessError>> {
        let status = Status {
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

    fn snapshot(&self) -> BoxFuture<'_, Result<Snapshot, ProcessError>> {
        at_once(Err(ProcessError::Terminated)).boxed()
    }
}
