//! Environment that runs nothing: the test scripts its processes and its file reads.

use std::{
    collections::VecDeque,
    fmt,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use bytes::Bytes;
use exec_env::{
    environment::{Command, Environment, ExecBackend, NoCatalog, StartError, StartedProcess},
    filesystem::{
        ExecutorFileSystem, FileError, FileFuture, MissingPathsRequest, MissingPathsWatch,
        OpenFile, OpenFileRequest, PathWatcher, WatchPathRequest,
    },
    http::NoHttpClient,
};
use exec_wire::{
    environment::{EnvironmentInfo, ServerCapabilities, ShellProgram},
    error::RpcError,
    fs::{
        CanonicalizePath, CopyPath, CreateDirectory, CreateSymlink, DirectoryListing, FileMetadata,
        FindPaths, FoundPaths, GetMetadata, ReadDirectory, ReadFile, RemovePath, RenamePath,
        SearchResult, SearchText, SetMetadata, WalkResult, WalkTree, WriteFile,
    },
    path_uri::PathUri,
};
use futures_util::future::{BoxFuture, FutureExt, ready};
use tokio::sync::watch;

use crate::fake_process::FakeProcess;

/// Backend that starts a [`FakeProcess`] for every command. `Debug` shows its name only.
pub struct FakeBackend {
    name: String,
    start_hook: Mutex<StartHook>,
    next_starts: Mutex<VecDeque<StartScript>>,
    started: watch::Sender<Vec<(Command, FakeProcess)>>,
    info_requests: AtomicUsize,
}

type StartHook = Box<dyn FnMut(&Command) -> Result<FakeProcess, StartError> + Send>;
type StartScript = Box<dyn FnOnce(&FakeProcess) + Send>;

impl Default for FakeBackend {
    fn default() -> Self {
        Self::named("fake")
    }
}

impl FakeBackend {
    /// Creates a backend with this name.
    pub fn named(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            start_hook: Mutex::new(Box::new(|_| Ok(FakeProcess::default()))),
            next_starts: Mutex::default(),
            started: watch::Sender::default(),
            info_requests: AtomicUsize::new(0),
        }
    }

    /// Returns an environment with this backend, a [`FakeFileSystem`], no HTTP and no catalog.
    pub fn environment(self: &Arc<Self>) -> Environment {
        Environment {
            backend: Arc::clone(self) as Arc<dyn ExecBackend>,
            files: Arc::new(FakeFileSystem::default()),
            http: Arc::new(NoHttpClient),
            catalog: Arc::new(NoCatalog),
            network: Arc::new(exec_env::tunnel::NoNetwork),
        }
    }

    /// Sets the function that creates the process of a command, or fails its start.
    pub fn on_start(
        &self,
        hook: impl FnMut(&Command) -> Result<FakeProcess, StartError> + Send + 'static,
    ) {
        *self.start_hook.lock().expect("a start panicked") = Box::new(hook);
    }

    /// Scripts the next process that has no script yet.
    pub fn script_next<T>(&self, script: impl FnOnce(&FakeProcess) -> T + Send + 'static) {
        let script = Box::new(|fake: &FakeProcess| drop(script(fake)));
        let mut next = self.next_starts.lock().expect("a start panicked");
        next.push_back(script);
    }

    /// Waits for the start with this index, and returns its command and process.
    pub async fn started(&self, index: usize) -> (Command, FakeProcess) {
        let mut started = self.started.subscribe();
        let started = started.wait_for(|started| started.len() > index);
        started.await.expect("this backend sends")[index].clone()
    }

    /// Returns the number of started processes.
    pub fn start_count(&self) -> usize {
        self.started.borrow().len()
    }

    /// Returns the number of info requests.
    pub fn info_requests(&self) -> usize {
        self.info_requests.load(Ordering::SeqCst)
    }

    fn start_fake(&self, command: Command) -> Result<StartedProcess, StartError> {
        let fake = (self.start_hook.lock().expect("a start panicked"))(&command)?;
        let script = self
            .next_starts
            .lock()
            .expect("a start panicked")
            .pop_front();
        if let Some(script) = script {
            script(&fake);
        }
        let process = fake.handle(command.process_id.clone());
        self.started
            .send_modify(|started| started.push((command, fake)));
        Ok(StartedProcess {
            process,
            sandbox_type: None,
        })
    }
}

impl fmt::Debug for FakeBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

impl ExecBackend for FakeBackend {
    fn start(&self, command: Command) -> BoxFuture<'_, Result<StartedProcess, StartError>> {
        ready(self.start_fake(command)).boxed()
    }

    fn info(&self) -> BoxFuture<'_, Result<EnvironmentInfo, RpcError>> {
        self.info_requests.fetch_add(1, Ordering::SeqCst);
        ready(Ok(fake_info())).boxed()
    }
}

/// Returns the description of the host of every [`FakeBackend`].
pub fn fake_info() -> EnvironmentInfo {
    EnvironmentInfo {
        shell: ShellProgram {
            name: "sh".to_owned(),
            path: "/bin/sh".to_owned(),
        },
        cwd: Some("file:///work".parse().expect("the path is valid")),
        executor_version: "0.0.0".to_owned(),
        provider_id: None,
        user_home_dir: None,
        platform_os: None,
        prepend_path_dirs: Vec::new(),
        temporary_directories: None,
        temp_dir: None,
        capabilities: ServerCapabilities::default(),
    }
}

/// File system that rejects every operation but scripted reads.
#[derive(Debug, Default)]
pub struct FakeFileSystem {
    /// Result of reading a path. Absent: rejected.
    pub read_file: Option<ReadScript>,
}

/// Returns the result of reading a path.
pub type ReadScript = fn(&PathUri) -> Result<Bytes, FileError>;

impl FakeFileSystem {
    /// Returns the error of every rejected operation.
    pub fn rejection() -> FileError {
        FileError::Invalid("the fake file system has no files".to_owned())
    }
}

/// Implements operations as rejected.
macro_rules! rejects {
    ($($operation:ident($($request:ty),+) -> $output:ty;)+) => {
        $(fn $operation(&self, $(_: $request),+) -> FileFuture<$output> {
            ready(Err(Self::rejection())).boxed()
        })+
    };
}

impl ExecutorFileSystem for FakeFileSystem {
    fn read_file(&self, read: ReadFile) -> FileFuture<Bytes> {
        let rejected = |_: &PathUri| Err(Self::rejection());
        ready(self.read_file.unwrap_or(rejected)(&read.path)).boxed()
    }

    rejects! {
        write_file(WriteFile, Bytes) -> ();
        create_directory(CreateDirectory) -> ();
        metadata(GetMetadata) -> FileMetadata;
        canonicalize(CanonicalizePath) -> PathUri;
        set_metadata(SetMetadata) -> ();
        read_directory(ReadDirectory) -> DirectoryListing;
        walk(WalkTree) -> WalkResult;
        remove(RemovePath) -> ();
        copy(CopyPath) -> ();
        rename(RenamePath) -> ();
        create_symlink(CreateSymlink) -> ();
        open(OpenFileRequest) -> Arc<dyn OpenFile>;
        search(SearchText) -> SearchResult;
        find(FindPaths) -> FoundPaths;
        watch(WatchPathRequest) -> PathWatcher;
        watch_missing(MissingPathsRequest) -> Option<MissingPathsWatch>;
    }
}
