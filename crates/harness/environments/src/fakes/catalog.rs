//! A catalog that the test fills.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

use exec_wire::{
    config::{EnvironmentConfig, ReadEnvironmentConfig},
    discovery::{
        DiscoverCapabilities, DiscoverRoots, DiscoveredCapabilities, DiscoveredRoot,
        DiscoveredRoots, DiscoveryRoot,
    },
    path_uri::PathUri,
};
use futures_util::future::FutureExt;
use tokio::sync::{Semaphore, watch};

use super::within::within;
use exec_env::{
    catalog::{ExecutorCatalog, NoCatalog},
    filesystem::{FileError, FileFuture},
};

/// A catalog that answers from a table, when the test lets it.
#[derive(Debug)]
pub(crate) struct Shelf {
    roots: Mutex<BTreeMap<PathUri, Result<DiscoveredRoot, FileError>>>,
    calls: watch::Sender<usize>,
    asked: AtomicUsize,
    gate: Arc<Semaphore>,
}

impl Shelf {
    /// Returns one that answers at once.
    pub(crate) fn open() -> Arc<Self> {
        Self::with_permits(Semaphore::MAX_PERMITS)
    }

    /// Returns one that answers only what it is let.
    pub(crate) fn closed() -> Arc<Self> {
        Self::with_permits(0)
    }

    fn with_permits(permits: usize) -> Arc<Self> {
        Arc::new(Self {
            roots: Mutex::default(),
            calls: watch::Sender::new(0),
            asked: AtomicUsize::new(0),
            gate: Arc::new(Semaphore::new(permits)),
        })
    }

    /// Puts a root on the shelf, or the failure of every question that names it.
    pub(crate) fn put(&self, path: PathUri, root: Result<DiscoveredRoot, FileError>) {
        let mut roots = self.roots.lock().unwrap_or_else(PoisonError::into_inner);
        roots.insert(path, root);
    }

    /// Lets so many questions be answered.
    pub(crate) fn answer(&self, questions: usize) {
        self.gate.add_permits(questions);
    }

    /// Returns how many questions were asked.
    pub(crate) fn calls(&self) -> usize {
        *self.calls.borrow()
    }

    /// Returns how many roots were asked for, all together.
    pub(crate) fn roots_asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }

    /// Waits until so many questions were asked.
    pub(crate) async fn called(&self, times: usize) {
        let mut calls = self.calls.subscribe();
        within(calls.wait_for(|calls| *calls >= times))
            .await
            .unwrap();
    }
}

impl ExecutorCatalog for Shelf {
    fn read_config(&self, read: ReadEnvironmentConfig) -> FileFuture<EnvironmentConfig> {
        NoCatalog.read_config(read)
    }

    fn discover_roots(&self, discover: DiscoverRoots) -> FileFuture<DiscoveredRoots> {
        self.calls.send_modify(|calls| *calls += 1);
        self.asked.fetch_add(discover.roots.len(), Ordering::SeqCst);
        let shelf = self.roots.lock().unwrap_or_else(PoisonError::into_inner);
        let found = |root: &DiscoveryRoot| {
            let found = shelf.get(&root.path).cloned();
            let missing = || Err(FileError::NotFound(root.path.to_string()));
            found.unwrap_or_else(missing).map(|found| DiscoveredRoot {
                id: root.id.clone(),
                ..found
            })
        };
        let roots: Result<Vec<_>, _> = discover.roots.iter().map(found).collect();
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
