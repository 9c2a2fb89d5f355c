//! The service on a fake environment: it needs only the traits.
#![expect(
    clippy::unwrap_used,
    reason = "a subject that cannot be built fails its case"
)]

use std::{num::NonZeroUsize, sync::Arc, time::Duration};

use bytes::Bytes;
use exec_client::{backend::RemoteBackend, client::ExecServerClient, filesystem::RemoteFileSystem};
use exec_core::output_log::{
    BackpressureMode, ExitInfo, FollowOptions, FollowStart, LogPage, OutputChunk, OutputLog,
    OutputSnapshot, RetentionLimits,
};
use exec_env::{
    environment::{Command, Environment, ExecBackend, NoCatalog, StartError, StartedProcess},
    filesystem::{
        ExecutorFileSystem, FileError, FileFuture, MissingPathsRequest, MissingPathsWatch,
        OpenFile, OpenFileRequest, PathWatcher, WatchPathRequest,
    },
    http::NoHttpClient,
    process::{
        EventStream, ExecProcess, ExecProcessEvent as Event, OutputHold, OutputReadRequest,
        ProcessError, ProcessStatus,
    },
};
use exec_service::{Concurrency, Service, ServiceConfig};
use exec_transport::memory;
use exec_wire::{
    environment::{EnvironmentInfo, ServerCapabilities, ShellProgram},
    error::RpcError,
    fs::{
        CanonicalizePath, CopyPath, CreateDirectory, DirectoryEntry, FileMetadata, FindPaths,
        FoundPaths, GetMetadata, ReadDirectory, ReadFile, RemovePath, RenamePath, SearchResult,
        SearchText, WalkResult, WalkTree, WriteFile,
    },
    id::{OutputSeq, ProcessId, WriteId},
    initialize::ServerInfo,
    limits,
    path_uri::PathUri,
    process::{
        ExitCause, OutputStream, ProcessSignal, TerminalSize, TerminateMode, WaitUntil, WriteStatus,
    },
};
use futures_util::{
    StreamExt,
    future::{BoxFuture, FutureExt, ready},
    stream,
};

/// Backend whose processes only write their arguments.
#[derive(Debug)]
struct FakeBackend;

impl ExecBackend for FakeBackend {
    fn start(&self, command: Command) -> BoxFuture<'_, Result<StartedProcess, StartError>> {
        let mut log = OutputLog::new(RetentionLimits::default());
        log.append(OutputStream::Stdout, Bytes::from(command.argv.join(" ")));
        log.record_exit(ExitInfo {
            code: 42,
            signal: None,
            cause: ExitCause::Exit,
            usage: None,
            sandbox_denied: false,
        });
        log.record_close();
        let process = Arc::new(FinishedProcess {
            id: command.process_id,
            log,
        });
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
        let info = EnvironmentInfo {
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
        };
        ready(Ok(info)).boxed()
    }
}

/// Process that has exited and closed.
#[derive(Debug)]
struct FinishedProcess {
    id: ProcessId,
    log: OutputLog,
}

impl ExecProcess for FinishedProcess {
    fn id(&self) -> &ProcessId {
        &self.id
    }

    fn status(&self) -> ProcessStatus {
        ProcessStatus {
            exit: self.log.exit().cloned(),
            closed: true,
            tree_alive: false,
            next_seq: self.log.next_seq(),
            retained_bytes: self.log.retained_bytes(),
            os_pid: None,
            started_at_ms: 0,
        }
    }

    fn follow(&self, follow: FollowOptions) -> EventStream {
        let mut after = match follow.start {
            FollowStart::After(after) => after,
            FollowStart::Now => self.log.next_seq(),
        };
        let events = std::iter::from_fn(|| {
            let event = self.log.event_after(after)?;
            after = event.seq();
            Some(Event::from(event))
        });
        stream::iter(events.collect::<Vec<_>>()).boxed()
    }

    fn hold(&self, _: OutputSeq) -> Box<dyn OutputHold> {
        Box::new(NoopHold)
    }

    fn read(&self, read: OutputReadRequest) -> BoxFuture<'_, Result<LogPage, ProcessError>> {
        ready(Ok(self.log.page(read.after, read.max_bytes))).boxed()
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
        ready(Ok(false)).boxed()
    }

    fn wait(
        &self,
        _: WaitUntil,
        _: Option<Duration>,
    ) -> BoxFuture<'static, Result<ProcessStatus, ProcessError>> {
        ready(Ok(self.status())).boxed()
    }

    fn snapshot(&self) -> BoxFuture<'_, Result<OutputSnapshot, ProcessError>> {
        ready(Ok(self.log.snapshot())).boxed()
    }
}

/// File system in which reading any path returns the path.
#[derive(Debug)]
struct FakeFileSystem;

fn refuse<T: Send + 'static>() -> FileFuture<T> {
    ready(Err(FileError::Invalid("this is a fake".to_owned()))).boxed()
}

impl ExecutorFileSystem for FakeFileSystem {
    fn read_file(&self, read: ReadFile) -> FileFuture<Bytes> {
        ready(Ok(Bytes::from(read.path.to_string()))).boxed()
    }

    fn write_file(&self, _: WriteFile, _: Bytes) -> FileFuture<()> {
        refuse()
    }

    fn create_directory(&self, _: CreateDirectory) -> FileFuture<()> {
        refuse()
    }

    fn metadata(&self, _: GetMetadata) -> FileFuture<FileMetadata> {
        refuse()
    }

    fn canonicalize(&self, _: CanonicalizePath) -> FileFuture<PathUri> {
        refuse()
    }

    fn read_directory(&self, _: ReadDirectory) -> FileFuture<Vec<DirectoryEntry>> {
        refuse()
    }

    fn walk(&self, _: WalkTree) -> FileFuture<WalkResult> {
        refuse()
    }

    fn remove(&self, _: RemovePath) -> FileFuture<()> {
        refuse()
    }

    fn copy(&self, _: CopyPath) -> FileFuture<()> {
        refuse()
    }

    fn rename(&self, _: RenamePath) -> FileFuture<()> {
        refuse()
    }

    fn open(&self, _: OpenFileRequest) -> FileFuture<Arc<dyn OpenFile>> {
        refuse()
    }

    fn search(&self, _: SearchText) -> FileFuture<SearchResult> {
        refuse()
    }

    fn find(&self, _: FindPaths) -> FileFuture<FoundPaths> {
        refuse()
    }

    fn watch(&self, _: WatchPathRequest) -> FileFuture<PathWatcher> {
        refuse()
    }

    fn watch_missing(&self, _: MissingPathsRequest) -> FileFuture<Option<MissingPathsWatch>> {
        refuse()
    }
}

async fn connect() -> ExecServerClient {
    let config = ServiceConfig {
        session_ttl: Duration::ZERO,
        process_retention: limits::CLOSED_RETENTION,
        max_processes: limits::MAX_PROCESSES,
        allow_direct_exec: true,
        allow_prepared_exec: true,
        concurrency: Concurrency::AtMost(NonZeroUsize::MIN),
        busy_poll: Duration::ZERO,
        server_name: ServerInfo {
            name: "fake".to_owned(),
            version: "0.0.0".to_owned(),
        },
    };
    let service = Service::new(config, || Environment {
        backend: Arc::new(FakeBackend),
        files: Arc::new(FakeFileSystem),
        http: Arc::new(NoHttpClient),
        catalog: Arc::new(NoCatalog),
    });
    let (here, there) = memory::pair();
    tokio::spawn(async move { service.serve(there).await });
    let connected = ExecServerClient::connect(here, Default::default()).await;
    connected.unwrap()
}

#[tokio::test]
async fn service_serves_a_fake_environment() {
    let backend = RemoteBackend::new(connect().await);
    assert_eq!(backend.info().await.unwrap().shell.name, "fake");
    let id = ProcessId::new("p").unwrap();
    let argv = ["a", "b"].map(str::to_owned).to_vec();
    let command = Command::new(id, argv, "file:///".parse().unwrap());
    let process = backend.start(command).await.unwrap().process;
    let follow = FollowOptions {
        start: FollowStart::After(OutputSeq(0)),
        backpressure: BackpressureMode::Pause,
    };
    let events: Vec<Event> = process.follow(follow).collect().await;
    let chunk = OutputChunk {
        seq: OutputSeq(1),
        stream: OutputStream::Stdout,
        data: Bytes::from_static(b"a b"),
    };
    assert_eq!(events[0], Event::Output(chunk));
    assert!(matches!(&events[1..], [Event::Exited(_, exit), Event::Closed(_)] if exit.code == 42));
    assert_eq!(
        process
            .read(OutputReadRequest::default())
            .await
            .unwrap()
            .chunks
            .len(),
        1
    );
    assert_eq!(process.snapshot().await.unwrap().stdout.data, b"a b");
}

#[tokio::test]
async fn service_serves_a_fake_filesystem() {
    let files = RemoteFileSystem::new(connect().await);
    let path: PathUri = "file:///nowhere".parse().unwrap();
    let read = ReadFile {
        path: path.clone(),
        follow_symlinks: None,
        sandbox: None,
    };
    assert_eq!(files.read_file(read).await.unwrap(), path.as_str());
    let canonicalize = CanonicalizePath {
        path,
        sandbox: None,
    };
    let refusal = files.canonicalize(canonicalize).await;
    assert_eq!(
        refusal,
        Err(FileError::Invalid("this is a fake".to_owned()))
    );
}

/// Retention hold without effect: the log drops nothing.
#[derive(Debug)]
struct NoopHold;

impl OutputHold for NoopHold {
    fn acknowledge(&self, _: OutputSeq) {}
}
