//! The service over an environment that runs nothing: it needs the traits, and no more.
#![expect(
    clippy::unwrap_used,
    reason = "a subject that cannot be built fails its case"
)]

use std::{num::NonZeroUsize, sync::Arc, time::Duration};

use bytes::Bytes;
use exec_client::{backend::RemoteBackend, client::ExecServerClient, filesystem::RemoteFileSystem};
use exec_core::log::{Exit, Follow, From, OutputChunk, OutputLog, Pace, Page, Retention, Snapshot};
use exec_env::{
    backend::{ExecBackend, StartError, StartedProcess},
    catalog::NoCatalog,
    command::Command,
    environment::Environment,
    filesystem::{
        ExecutorFileSystem, FileError, FileFuture, MissingPaths, MissingWatch, Open, OpenFile,
        WatchPath, Watcher,
    },
    http::NoHttpClient,
    process::{
        EventStream, ExecProcess, ExecProcessEvent as Event, Hold, ProcessError, Read, Status,
    },
};
use exec_service::{Concurrency, Service, ServiceConfig};
use exec_transport::memory;
use exec_wire::{
    environment::{Capabilities, EnvironmentInfo, Shell},
    error::RpcError,
    fs::{
        Canonicalize, Copy, CreateDirectory, DirectoryEntry, FileMetadata, Find, FoundPaths,
        GetMetadata, ReadDirectory, ReadFile, Remove, Rename, Search, SearchResult, Walk,
        WalkResult, WriteFile,
    },
    id::{OutputSeq, ProcessId, WriteId},
    initialize::ServerName,
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

/// "Runs" a command by writing its arguments.
#[derive(Debug)]
struct Fake;

impl ExecBackend for Fake {
    fn start(&self, command: Command) -> BoxFuture<'_, Result<StartedProcess, StartError>> {
        let mut log = OutputLog::new(Retention::default());
        log.append(OutputStream::Stdout, Bytes::from(command.argv.join(" ")));
        log.record_exit(Exit {
            code: 42,
            signal: None,
            cause: ExitCause::Exit,
            usage: None,
            sandbox_denied: false,
        });
        log.record_close();
        let process = Arc::new(Over {
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
        let shell = Shell {
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
            capabilities: Capabilities::default(),
        };
        ready(Ok(info)).boxed()
    }
}

/// A process that is over.
#[derive(Debug)]
struct Over {
    id: ProcessId,
    log: OutputLog,
}

impl ExecProcess for Over {
    fn id(&self) -> &ProcessId {
        &self.id
    }

    fn status(&self) -> Status {
        Status {
            exit: self.log.exit().cloned(),
            closed: true,
            tree_alive: false,
            next_seq: self.log.next_seq(),
            retained_bytes: self.log.retained_bytes(),
            os_pid: None,
            started_at_ms: 0,
        }
    }

    fn follow(&self, follow: Follow) -> EventStream {
        let mut after = match follow.from {
            From::After(after) => after,
            From::Now => self.log.next_seq(),
        };
        let events = std::iter::from_fn(|| {
            let event = self.log.event_after(after)?;
            after = event.seq();
            Some(Event::from(event))
        });
        stream::iter(events.collect::<Vec<_>>()).boxed()
    }

    fn hold(&self, _: OutputSeq) -> Box<dyn Hold> {
        Box::new(KeptAnyway)
    }

    fn read(&self, read: Read) -> BoxFuture<'_, Result<Page, ProcessError>> {
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
    ) -> BoxFuture<'static, Result<Status, ProcessError>> {
        ready(Ok(self.status())).boxed()
    }

    fn snapshot(&self) -> BoxFuture<'_, Result<Snapshot, ProcessError>> {
        ready(Ok(self.log.snapshot())).boxed()
    }
}

/// Has one file, whatever its name.
#[derive(Debug)]
struct FakeFiles;

fn no<T: Send + 'static>() -> FileFuture<T> {
    ready(Err(FileError::Invalid("this is a fake".to_owned()))).boxed()
}

impl ExecutorFileSystem for FakeFiles {
    fn read_file(&self, read: ReadFile) -> FileFuture<Bytes> {
        ready(Ok(Bytes::from(read.path.to_string()))).boxed()
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

async fn connect() -> ExecServerClient {
    let config = ServiceConfig {
        session_ttl: Duration::ZERO,
        process_retention: limits::CLOSED_RETENTION,
        max_processes: limits::MAX_PROCESSES,
        allow_direct_exec: true,
        allow_prepared_exec: true,
        concurrency: Concurrency::AtMost(NonZeroUsize::MIN),
        attention: Duration::ZERO,
        server: ServerName {
            name: "fake".to_owned(),
            version: "0.0.0".to_owned(),
        },
    };
    let service = Service::new(config, || Environment {
        backend: Arc::new(Fake),
        files: Arc::new(FakeFiles),
        http: Arc::new(NoHttpClient),
        catalog: Arc::new(NoCatalog),
    });
    let (here, there) = memory::pair();
    tokio::spawn(async move { service.serve(there).await });
    let connected = ExecServerClient::connect(here, Default::default()).await;
    connected.unwrap()
}

#[tokio::test]
async fn the_service_serves_an_environment_that_runs_nothing() {
    let backend = RemoteBackend::new(connect().await);
    assert_eq!(backend.info().await.unwrap().shell.name, "fake");
    let id = ProcessId::new("p").unwrap();
    let argv = ["a", "b"].map(str::to_owned).to_vec();
    let command = Command::new(id, argv, "file:///".parse().unwrap());
    let process = backend.start(command).await.unwrap().process;
    let follow = Follow {
        from: From::After(OutputSeq(0)),
        pace: Pace::Held,
    };
    let events: Vec<Event> = process.follow(follow).collect().await;
    let chunk = OutputChunk {
        seq: OutputSeq(1),
        stream: OutputStream::Stdout,
        data: Bytes::from_static(b"a b"),
    };
    assert_eq!(events[0], Event::Output(chunk));
    assert!(matches!(&events[1..], [Event::Exited(_, exit), Event::Closed(_)] if exit.code == 42));
    assert_eq!(process.read(Read::default()).await.unwrap().chunks.len(), 1);
    assert_eq!(process.snapshot().await.unwrap().stdout.data, b"a b");
}

#[tokio::test]
async fn the_service_serves_files_that_are_nowhere() {
    let files = RemoteFileSystem::new(connect().await);
    let path: PathUri = "file:///nowhere".parse().unwrap();
    let read = ReadFile {
        path: path.clone(),
        follow_symlinks: None,
        sandbox: None,
    };
    assert_eq!(files.read_file(read).await.unwrap(), path.as_str());
    let canonicalize = Canonicalize {
        path,
        sandbox: None,
    };
    let refusal = files.canonicalize(canonicalize).await;
    assert_eq!(
        refusal,
        Err(FileError::Invalid("this is a fake".to_owned()))
    );
}

/// Nothing is ever dropped.
#[derive(Debug)]
struct KeptAnyway;

impl Hold for KeptAnyway {
    fn acknowledge(&self, _: OutputSeq) {}
}
