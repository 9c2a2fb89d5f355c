//! Environments for tests. Nothing runs in them; the test controls their readiness and their
//! responses.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use exec_env::{
    environment::{
        Command, Environment, ExecBackend, ExecutorCatalog, NoCatalog, StartError, StartedProcess,
    },
    filesystem::{
        ExecutorFileSystem, FileError, FileFuture, MissingPathsRequest, MissingPathsWatch,
        OpenFile, OpenFileRequest, PathWatcher, WatchPathRequest,
    },
    http::NoHttpClient,
};
use exec_wire::{
    discovery::{
        DiscoverCapabilities, DiscoverRoots, DiscoveredCapabilities, DiscoveredRoot,
        DiscoveredRoots, DiscoveryRoot,
    },
    environment::{EnvironmentConfig, EnvironmentInfo, ReadEnvironmentConfig},
    error::RpcError,
    fs::{
        CanonicalizePath, CopyPath, CreateDirectory, DirectoryEntry, FileMetadata, FindPaths,
        FoundPaths, GetMetadata, ReadDirectory, ReadFile, RemovePath, RenamePath, SearchResult,
        SearchText, WalkResult, WalkTree, WriteFile,
    },
    path_uri::PathUri,
};
use futures_util::future::{BoxFuture, FutureExt, ready};
use tokio::sync::{Semaphore, mpsc, watch};

use crate::manager::{EnvironmentId, EnvironmentOpenError, EnvironmentSource};

/// Returns the id of an environment.
pub(crate) fn id(text: &str) -> EnvironmentId {
    EnvironmentId::parse(text).unwrap()
}

/// Returns an environment that is identified by its label.
pub(crate) fn environment(label: &str) -> Environment {
    environment_with(label, Arc::new(NoCatalog))
}

/// Returns an environment with a catalog.
pub(crate) fn environment_with(label: &str, catalog: Arc<dyn ExecutorCatalog>) -> Environment {
    Environment {
        backend: Arc::new(LabelledBackend(label.to_owned())),
        files: Arc::new(NoFileSystem),
        http: Arc::new(NoHttpClient),
        catalog,
    }
}

/// Returns the label of an environment.
pub(crate) fn label(environment: &Environment) -> String {
    format!("{:?}", environment.backend)
}

/// Starts nothing and has a label.
struct LabelledBackend(String);

impl fmt::Debug for LabelledBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl ExecBackend for LabelledBackend {
    fn start(&self, _: Command) -> BoxFuture<'_, Result<StartedProcess, StartError>> {
        ready(Err(StartError::Cancelled)).boxed()
    }

    fn info(&self) -> BoxFuture<'_, Result<EnvironmentInfo, RpcError>> {
        ready(Err(RpcError::internal("no host"))).boxed()
    }
}

/// A file system without files.
#[derive(Debug)]
struct NoFileSystem;

fn no_files<T: Send + 'static>() -> FileFuture<T> {
    ready(Err(FileError::Refused("no files".to_owned()))).boxed()
}

impl ExecutorFileSystem for NoFileSystem {
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
    fn canonicalize(&self, _: CanonicalizePath) -> FileFuture<PathUri> {
        no_files()
    }
    fn read_directory(&self, _: ReadDirectory) -> FileFuture<Vec<DirectoryEntry>> {
        no_files()
    }
    fn walk(&self, _: WalkTree) -> FileFuture<WalkResult> {
        no_files()
    }
    fn remove(&self, _: RemovePath) -> FileFuture<()> {
        no_files()
    }
    fn copy(&self, _: CopyPath) -> FileFuture<()> {
        no_files()
    }
    fn rename(&self, _: RenamePath) -> FileFuture<()> {
        no_files()
    }
    fn open(&self, _: OpenFileRequest) -> FileFuture<Arc<dyn OpenFile>> {
        no_files()
    }
    fn search(&self, _: SearchText) -> FileFuture<SearchResult> {
        no_files()
    }
    fn find(&self, _: FindPaths) -> FileFuture<FoundPaths> {
        no_files()
    }
    fn watch(&self, _: WatchPathRequest) -> FileFuture<PathWatcher> {
        no_files()
    }
    fn watch_missing(&self, _: MissingPathsRequest) -> FileFuture<Option<MissingPathsWatch>> {
        no_files()
    }
}

/// Opens when the test allows it.
#[derive(Debug)]
pub(crate) struct ControlledSource {
    calls: watch::Sender<usize>,
    send: mpsc::UnboundedSender<Result<Environment, EnvironmentOpenError>>,
    outcomes:
        Arc<tokio::sync::Mutex<mpsc::UnboundedReceiver<Result<Environment, EnvironmentOpenError>>>>,
}

impl ControlledSource {
    pub(crate) fn new() -> Arc<Self> {
        let (send, outcomes) = mpsc::unbounded_channel();
        Arc::new(Self {
            calls: watch::Sender::new(0),
            send,
            outcomes: Arc::new(tokio::sync::Mutex::new(outcomes)),
        })
    }

    /// Returns a source that opens immediately.
    pub(crate) fn ready(label: &str) -> Arc<Self> {
        let source = Self::new();
        source.finish(Ok(environment(label)));
        source
    }

    /// Completes one call of `open` with this outcome, in the order of the calls.
    pub(crate) fn finish(&self, outcome: Result<Environment, EnvironmentOpenError>) {
        self.send.send(outcome).unwrap();
    }

    /// Fails one call of `open`.
    pub(crate) fn fail(&self, reason: &str) {
        self.finish(Err(EnvironmentOpenError::Configuration(reason.to_owned())));
    }

    /// Returns the number of calls of `open`.
    pub(crate) fn calls(&self) -> usize {
        *self.calls.borrow()
    }

    /// Waits for this number of calls.
    pub(crate) async fn wait_for_calls(&self, times: usize) {
        let mut calls = self.calls.subscribe();
        within(calls.wait_for(|calls| *calls >= times))
            .await
            .unwrap();
    }
}

impl EnvironmentSource for ControlledSource {
    fn open(&self) -> BoxFuture<'static, Result<Environment, EnvironmentOpenError>> {
        self.calls.send_modify(|calls| *calls += 1);
        let outcomes = Arc::clone(&self.outcomes);
        async move { outcomes.lock().await.recv().await.unwrap() }.boxed()
    }
}

/// Opens with a closure.
pub(crate) struct ScriptedSource<F>(pub(crate) F);

impl<F> fmt::Debug for ScriptedSource<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ScriptedSource")
    }
}

impl<F> EnvironmentSource for ScriptedSource<F>
where
    F: Fn() -> BoxFuture<'static, Result<Environment, EnvironmentOpenError>> + Send + Sync,
{
    fn open(&self) -> BoxFuture<'static, Result<Environment, EnvironmentOpenError>> {
        (self.0)()
    }
}

/// A catalog that responds from a table when the test allows it.
#[derive(Debug)]
pub(crate) struct FakeCatalog {
    roots: Mutex<BTreeMap<PathUri, Result<DiscoveredRoot, FileError>>>,
    calls: watch::Sender<usize>,
    requested_roots: AtomicUsize,
    gate: Arc<Semaphore>,
}

impl FakeCatalog {
    /// Returns a catalog that responds immediately.
    pub(crate) fn open() -> Arc<Self> {
        Self::with_permits(Semaphore::MAX_PERMITS)
    }

    /// Returns a catalog that responds only after [`Self::allow_responses`].
    pub(crate) fn closed() -> Arc<Self> {
        Self::with_permits(0)
    }

    fn with_permits(permits: usize) -> Arc<Self> {
        Arc::new(Self {
            roots: Mutex::default(),
            calls: watch::Sender::new(0),
            requested_roots: AtomicUsize::new(0),
            gate: Arc::new(Semaphore::new(permits)),
        })
    }

    /// Sets the contents of a root, or the failure of every request that names it.
    pub(crate) fn put(&self, path: PathUri, root: Result<DiscoveredRoot, FileError>) {
        let mut roots = self.roots.lock().unwrap_or_else(PoisonError::into_inner);
        roots.insert(path, root);
    }

    /// Allows this number of responses.
    pub(crate) fn allow_responses(&self, count: usize) {
        self.gate.add_permits(count);
    }

    /// Returns the number of requests.
    pub(crate) fn calls(&self) -> usize {
        *self.calls.borrow()
    }

    /// Returns the total number of requested roots.
    pub(crate) fn requested_roots(&self) -> usize {
        self.requested_roots.load(Ordering::SeqCst)
    }

    /// Waits for this number of requests.
    pub(crate) async fn wait_for_calls(&self, times: usize) {
        let mut calls = self.calls.subscribe();
        within(calls.wait_for(|calls| *calls >= times))
            .await
            .unwrap();
    }
}

impl ExecutorCatalog for FakeCatalog {
    fn read_config(&self, read: ReadEnvironmentConfig) -> FileFuture<EnvironmentConfig> {
        NoCatalog.read_config(read)
    }

    fn discover_roots(&self, discover: DiscoverRoots) -> FileFuture<DiscoveredRoots> {
        self.calls.send_modify(|calls| *calls += 1);
        self.requested_roots
            .fetch_add(discover.roots.len(), Ordering::SeqCst);
        let catalog = self.roots.lock().unwrap_or_else(PoisonError::into_inner);
        let discovered = |root: &DiscoveryRoot| {
            let discovered = catalog.get(&root.path).cloned();
            let missing = || Err(FileError::NotFound(root.path.to_string()));
            discovered
                .unwrap_or_else(missing)
                .map(|discovered| DiscoveredRoot {
                    id: root.id.clone(),
                    ..discovered
                })
        };
        let roots: Result<Vec<_>, _> = discover.roots.iter().map(discovered).collect();
        let gate = Arc::clone(&self.gate);
        async move {
            gate.acquire().await.unwrap().forget();
            Ok(DiscoveredRoots { roots: roots? })
        }
        .boxed()
    }

    fn discover(&self, discover: DiscoverCapabilities) -> FileFuture<DiscoveredCapabilities> {
        NoCatalog.discover(discover)
    }
}

/// Awaits an event that must happen.
#[track_caller]
pub(crate) fn within<F: Future>(future: F) -> impl Future<Output = F::Output> {
    let caller = std::panic::Location::caller();
    async move {
        match tokio::time::timeout(LIMIT, future).await {
            Ok(output) => output,
            Err(_) => panic!("did not happen within {LIMIT:?}, at {caller}"),
        }
    }
}

/// Timeout that suffices on a loaded machine.
const LIMIT: Duration = Duration::from_secs(20);
