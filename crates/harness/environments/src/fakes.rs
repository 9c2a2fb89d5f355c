//! Environments for tests. Nothing runs in them; the test controls their readiness and their
//! responses.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

use exec_env::{
    environment::{Environment, ExecutorCatalog, NoCatalog},
    filesystem::{FileError, FileFuture},
};
use exec_test_support::{bounded_wait, fake_environment::FakeBackend};
use exec_wire::{
    discovery::{
        DiscoverCapabilities, DiscoverRoots, DiscoveredCapabilities, DiscoveredRoot,
        DiscoveredRoots, DiscoveryRoot,
    },
    environment::{EnvironmentConfig, ReadEnvironmentConfig},
    path_uri::PathUri,
};
use futures_util::future::{BoxFuture, FutureExt};
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
        catalog,
        ..Arc::new(FakeBackend::named(label)).environment()
    }
}

/// Returns the label of an environment.
pub(crate) fn label(environment: &Environment) -> String {
    format!("{:?}", environment.backend)
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
    bounded_wait::within("event", future)
}
