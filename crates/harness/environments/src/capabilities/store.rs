//! What is known of roots, and what is being discovered. Bounded: the least recently used goes.

use std::{collections::BTreeMap, sync::Arc};

use exec_wire::path_uri::PathUri;
use futures_util::future::{BoxFuture, Shared, WeakShared};

use super::{DiscoveryResults, metadata::RootCapabilities};
use crate::{
    manager::EnvironmentId,
    roots::{ResolvedRoot, RootId},
};

/// Roots that are remembered: eight threads with as many as one may select.
pub const MAX_CACHED_ROOTS: usize = 1024;
/// What they may take, all together.
pub const MAX_CACHED_BYTES: usize = 64 << 20;

/// A discovery that several steps can wait for. It runs as long as one of them does.
pub(super) type SharedDiscovery = Shared<BoxFuture<'static, Arc<DiscoveryResults>>>;

/// What identifies a root for good. No handle is part of it.
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

/// All that is known, and being discovered.
#[derive(Debug, Default)]
pub(super) struct CapabilityStore {
    cached: BTreeMap<RootKey, CachedRoot>,
    /// The keys of `known` by their last use, the oldest first.
    by_use: BTreeMap<u64, RootKey>,
    /// Discoveries under way; those that nobody waits for any more are gone.
    in_progress: BTreeMap<RootKey, WeakShared<BoxFuture<'static, Arc<DiscoveryResults>>>>,
    uses: u64,
    bytes: usize,
}

/// One root that is known.
#[derive(Debug)]
struct CachedRoot {
    found: Arc<RootCapabilities>,
    bytes: usize,
    last_use: u64,
}

impl CapabilityStore {
    /// Returns what is known of a root, which counts as a use.
    pub(super) fn cached(&mut self, key: &RootKey) -> Option<Arc<RootCapabilities>> {
        let cached = self.cached.get_mut(key)?;
        self.uses += 1;
        self.by_use.remove(&cached.last_use);
        self.by_use.insert(self.uses, key.clone());
        cached.last_use = self.uses;
        Some(Arc::clone(&cached.found))
    }

    /// Returns the discovery of a root that is under way, if there is one.
    pub(super) fn in_progress(&self, key: &RootKey) -> Option<SharedDiscovery> {
        self.in_progress.get(key)?.upgrade()
    }

    /// Records a discovery that begins.
    pub(super) fn begin(&mut self, keys: &[RootKey], discovery: &SharedDiscovery) {
        // Each that is left is waited for by a step: there are no more than the steps ask for.
        self.in_progress.retain(|_, weak| weak.upgrade().is_some());
        for key in keys {
            if let Some(weak) = discovery.downgrade() {
                self.in_progress.insert(key.clone(), weak);
            }
        }
    }

    /// Records what a discovery came to. Failures are not remembered.
    pub(super) fn record(&mut self, discovered: &DiscoveryResults) {
        for (key, found) in discovered {
            self.in_progress.remove(key);
            if let Ok(found) = found {
                self.insert(key.clone(), Arc::clone(found));
            }
        }
    }

    /// Returns how many roots are known, and about how many bytes they take.
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
