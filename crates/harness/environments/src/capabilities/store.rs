//! Cached roots and discoveries in progress. Bounded: evicts the least recently used root.

use std::{collections::BTreeMap, sync::Arc};

use exec_wire::path_uri::PathUri;
use futures_util::future::{BoxFuture, Shared, WeakShared};

use super::{DiscoveryResults, metadata::RootCapabilities};
use crate::{
    manager::EnvironmentId,
    roots::{ResolvedRoot, RootId},
};

/// Maximum number of cached roots: eight threads with the maximum selection each.
pub const MAX_CACHED_ROOTS: usize = 1024;
/// Maximum total size of the cached roots.
pub const MAX_CACHED_BYTES: usize = 64 << 20;

/// A discovery that several steps can await. It runs while at least one of them does.
pub(super) type SharedDiscovery = Shared<BoxFuture<'static, Arc<DiscoveryResults>>>;

/// Permanent identity of a root. Independent of handles.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) struct RootKey {
    pub(super) environment: EnvironmentId,
    pub(super) root: RootId,
    pub(super) path: PathUri,
}

impl From<&ResolvedRoot> for RootKey {
    fn from(root: &ResolvedRoot) -> Self {
        Self {
            environment: root.environment_id.clone(),
            root: root.id.clone(),
            path: root.path.clone(),
        }
    }
}

/// Cached roots and discoveries in progress.
#[derive(Debug, Default)]
pub(super) struct CapabilityStore {
    cached: BTreeMap<RootKey, CachedRoot>,
    /// The keys of `cached` by last use, oldest first.
    by_use: BTreeMap<u64, RootKey>,
    /// Discoveries in progress. The weak references die with the last waiting step.
    in_progress: BTreeMap<RootKey, WeakShared<BoxFuture<'static, Arc<DiscoveryResults>>>>,
    uses: u64,
    bytes: usize,
}

/// A cached root.
#[derive(Debug)]
struct CachedRoot {
    found: Arc<RootCapabilities>,
    bytes: usize,
    last_use: u64,
}

impl CapabilityStore {
    /// Returns a cached root and records the use.
    pub(super) fn cached(&mut self, key: &RootKey) -> Option<Arc<RootCapabilities>> {
        let cached = self.cached.get_mut(key)?;
        self.uses += 1;
        self.by_use.remove(&cached.last_use);
        self.by_use.insert(self.uses, key.clone());
        cached.last_use = self.uses;
        Some(Arc::clone(&cached.found))
    }

    /// Returns the discovery of a root, if one is in progress.
    pub(super) fn in_progress(&self, key: &RootKey) -> Option<SharedDiscovery> {
        self.in_progress.get(key)?.upgrade()
    }

    /// Records a started discovery.
    pub(super) fn begin(&mut self, keys: &[RootKey], discovery: &SharedDiscovery) {
        // Every remaining discovery has a waiting step, so their number is bounded by the steps.
        self.in_progress.retain(|_, weak| weak.upgrade().is_some());
        for key in keys {
            if let Some(weak) = discovery.downgrade() {
                self.in_progress.insert(key.clone(), weak);
            }
        }
    }

    /// Records the result of a discovery. Failures are not cached.
    pub(super) fn record(&mut self, discovered: &DiscoveryResults) {
        for (key, found) in discovered {
            self.in_progress.remove(key);
            if let Ok(found) = found {
                self.insert(key.clone(), Arc::clone(found));
            }
        }
    }

    /// Returns the number of cached roots and their approximate size in bytes.
    #[cfg(test)]
    pub(super) fn size(&self) -> (usize, usize) {
        (self.cached.len(), self.bytes)
    }

    fn insert(&mut self, key: RootKey, found: Arc<RootCapabilities>) {
        let bytes = key.path.as_str().len() + found.bytes();
        if bytes > MAX_CACHED_BYTES {
            return;
        }
        self.remove(&key);
        self.uses += 1;
        let cached = CachedRoot {
            found,
            bytes,
            last_use: self.uses,
        };
        self.bytes += bytes;
        self.by_use.insert(self.uses, key.clone());
        self.cached.insert(key, cached);
        while self.cached.len() > MAX_CACHED_ROOTS || self.bytes > MAX_CACHED_BYTES {
            let Some((_, oldest)) = self.by_use.pop_first() else {
                break;
            };
            self.remove(&oldest);
        }
    }

    fn remove(&mut self, key: &RootKey) {
        if let Some(cached) = self.cached.remove(key) {
            self.by_use.remove(&cached.last_use);
            self.bytes -= cached.bytes;
        }
    }
}
