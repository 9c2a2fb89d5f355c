//! Skills and plugins below selected roots: discovered once, available in every step that resolves
//! their root.
//!
//! Cached results belong to an environment id and a root, not to a handle, so a replaced handle
//! reuses them. The cache is bounded: it evicts the least recently used root. Each step sees only
//! capabilities below the roots that it has resolved. Not here: which roots a step has
//! ([`roots`](crate::roots)), and starting the servers that a plugin declares.

mod metadata;
#[cfg(test)]
mod tests;

pub use self::metadata::{PluginMetadata, RootCapabilities, SkillMetadata};

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use exec_env::{environment::Environment, filesystem::FileError};
use exec_wire::{
    discovery::{DiscoverRoots, DiscoveredRoot, DiscoveryRoot},
    limits,
    path_uri::PathUri,
};
use futures_util::future::{BoxFuture, FutureExt, Shared, WeakShared, join_all};
use tokio::time::timeout;

use crate::{
    manager::EnvironmentId,
    roots::{ResolvedRoot, RootId, StepRoots},
};

/// Caches the capabilities below the roots of all environments, by environment id, root id and
/// path. Clones share it.
///
/// A new handle for an environment does not invalidate the cache: an id means the same contents.
/// Failures are not cached.
#[derive(Clone, Debug, Default)]
pub struct CapabilityCache {
    store: Arc<Mutex<CapabilityStore>>,
}

impl CapabilityCache {
    /// Returns the capabilities below the roots that a step has resolved. Discovers unknown roots
    /// first, through the step's own handles and with one call per environment, or joins a
    /// discovery that another step has started. A failure affects only its own roots.
    ///
    /// Dropping the future ends the discoveries that no other step waits for.
    pub async fn project(&self, step: &StepRoots) -> AvailableCapabilities {
        let mut results = DiscoveryResults::default();
        let mut pending: Vec<&ResolvedRoot> = step.resolved.iter().collect();
        // A joined discovery uses another step's handle and may fail where this step's handle
        // works, so roots with a failed joined discovery get a second round.
        for _round in 0..2 {
            let plan = self.plan(&pending);
            results.extend(
                plan.cached
                    .into_iter()
                    .map(|(key, cached)| (key, Ok(cached))),
            );
            for discovered in join_all(plan.discoveries).await {
                let entries = discovered.iter();
                results.extend(entries.map(|(key, result)| (key.clone(), result.clone())));
            }
            pending.retain(|root| {
                let key = RootKey::from(*root);
                plan.joined.contains(&key) && results.get(&key).is_none_or(Result::is_err)
            });
        }
        let mut available = AvailableCapabilities::default();
        for root in &step.resolved {
            match results.get(&RootKey::from(root)) {
                Some(Ok(capabilities)) => available.add(root, capabilities),
                Some(Err(error)) => available.failed.push(FailedRoot {
                    root: root.clone(),
                    error: error.clone(),
                }),
                None => {}
            }
        }
        available
    }

    /// Sorts the roots into cached, in progress, and new. Discoveries are lazy: they start when
    /// awaited.
    fn plan(&self, roots: &[&ResolvedRoot]) -> DiscoveryPlan {
        let mut plan = DiscoveryPlan::default();
        let mut unknown: BTreeMap<EnvironmentId, (Arc<Environment>, BTreeSet<RootKey>)> =
            BTreeMap::new();
        let mut store = self.store();
        for root in roots {
            let key = RootKey::from(*root);
            if let Some(cached) = store.cached(&key) {
                plan.cached.push((key, cached));
            } else if let Some(discovery) = store.in_progress(&key) {
                plan.joined.insert(key);
                if !plan
                    .discoveries
                    .iter()
                    .any(|other| other.ptr_eq(&discovery))
                {
                    plan.discoveries.push(discovery);
                }
            } else {
                unknown
                    .entry(root.environment_id.clone())
                    .or_insert_with(|| (Arc::clone(&root.environment), BTreeSet::new()))
                    .1
                    .insert(key);
            }
        }
        for (environment, keys) in unknown.into_values() {
            let keys: Vec<RootKey> = keys.into_iter().collect();
            for keys in keys.chunks(limits::MAX_DISCOVERY_ROOTS) {
                let discovery = self.discovery(Arc::clone(&environment), keys.to_vec());
                store.begin(keys, &discovery);
                plan.discoveries.push(discovery);
            }
        }
        plan
    }

    /// Creates a discovery that stores its result in the cache.
    fn discovery(&self, environment: Arc<Environment>, keys: Vec<RootKey>) -> SharedDiscovery {
        let cache = self.clone();
        let run = async move {
            let discovered = discover(environment, keys).await;
            cache.store().record(&discovered);
            Arc::new(discovered)
        };
        run.boxed().shared()
    }

    fn store(&self) -> MutexGuard<'_, CapabilityStore> {
        self.store.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number of cached roots and their approximate size in bytes.
    #[cfg(test)]
    fn size(&self) -> (usize, usize) {
        self.store().size()
    }
}

/// Work that is needed to know the roots of a step.
#[derive(Debug, Default)]
struct DiscoveryPlan {
    cached: Vec<(RootKey, Arc<RootCapabilities>)>,
    /// Roots that another step is discovering.
    joined: BTreeSet<RootKey>,
    discoveries: Vec<SharedDiscovery>,
}

/// The skills and plugins of one step, in the order of its roots.
#[derive(Clone, Debug, Default)]
pub struct AvailableCapabilities {
    /// Skills.
    pub skills: Vec<AvailableSkill>,
    /// Plugins.
    pub plugins: Vec<AvailablePlugin>,
    /// Roots that could not be read. A later step retries them.
    pub failed: Vec<FailedRoot>,
    /// Warnings about files that were skipped below readable roots, for people.
    pub warnings: Vec<RootWarning>,
}

impl AvailableCapabilities {
    /// Adds the capabilities below a root.
    fn add(&mut self, root: &ResolvedRoot, found: &RootCapabilities) {
        if let Some(plugin) = &found.plugin {
            self.plugins.push(AvailablePlugin {
                root: root.clone(),
                plugin: Arc::clone(plugin),
            });
        }
        self.skills
            .extend(found.skills.iter().map(|skill| AvailableSkill {
                root: root.clone(),
                skill: Arc::clone(skill),
            }));
        self.warnings
            .extend(found.warnings.iter().map(|text| RootWarning {
                root: root.clone(),
                text: text.clone(),
            }));
    }
}

/// A skill that a step can use.
#[derive(Clone, Debug)]
pub struct AvailableSkill {
    /// The root that contains it, with the handle for reading its files.
    pub root: ResolvedRoot,
    /// The skill.
    pub skill: Arc<SkillMetadata>,
}

/// A plugin that a step can use.
#[derive(Clone, Debug)]
pub struct AvailablePlugin {
    /// The root of the plugin, with the handle for using it.
    pub root: ResolvedRoot,
    /// The plugin.
    pub plugin: Arc<PluginMetadata>,
}

/// A warning about a skipped file below a root.
#[derive(Clone, Debug)]
pub struct RootWarning {
    /// The root.
    pub root: ResolvedRoot,
    /// The file and the reason.
    pub text: String,
}

/// A root that could not be read.
#[derive(Clone, Debug)]
pub struct FailedRoot {
    /// The root.
    pub root: ResolvedRoot,
    /// The cause.
    pub error: DiscoverError,
}

/// Time limit of one discovery. A model step waits for it.
pub const DISCOVERY_TIMEOUT: Duration = Duration::from_secs(30);

/// Result of a discovery for each of its roots.
type DiscoveryResults = BTreeMap<RootKey, Result<Arc<RootCapabilities>, DiscoverError>>;

/// Discovers the capabilities below each root through one handle.
async fn discover(environment: Arc<Environment>, keys: Vec<RootKey>) -> DiscoveryResults {
    let root = |key: &RootKey| DiscoveryRoot {
        id: key.root.as_str().to_owned(),
        path: key.path.clone(),
        sandbox: None,
    };
    let roots = keys.iter().map(root).collect();
    let request = environment.catalog.discover_roots(DiscoverRoots { roots });
    let answer = match timeout(DISCOVERY_TIMEOUT, request).await {
        Ok(Ok(answer)) if answer.roots.len() == keys.len() => Ok(answer.roots),
        Ok(Ok(_)) => Err(DiscoverError::Answer("expected one result per root")),
        Ok(Err(error)) => Err(DiscoverError::Catalog(error)),
        Err(_elapsed) => Err(DiscoverError::TimedOut),
    };
    match answer {
        Ok(roots) => keys
            .into_iter()
            .zip(roots)
            .map(|(key, root)| {
                let found = parse_root(&key, root);
                (key, found)
            })
            .collect(),
        Err(error) => keys
            .into_iter()
            .map(|key| (key, Err(error.clone())))
            .collect(),
    }
}

fn parse_root(key: &RootKey, root: DiscoveredRoot) -> Result<Arc<RootCapabilities>, DiscoverError> {
    if root.id != key.root.as_str() {
        return Err(DiscoverError::Answer("results are in the wrong order"));
    }
    match root.error {
        Some(text) => Err(DiscoverError::Root(text)),
        None => Ok(Arc::new(RootCapabilities::from_discovered(root))),
    }
}

/// Why a root could not be read.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum DiscoverError {
    /// Host: the root itself could not be read.
    #[error("{0}")]
    Root(String),
    /// The catalog failed. The inner error says who must act.
    #[error(transparent)]
    Catalog(FileError),
    /// Peer: the response does not match the request.
    #[error("invalid discovery response: {0}")]
    Answer(&'static str),
    /// Peer: the response did not arrive in time.
    #[error("no response within {} seconds", DISCOVERY_TIMEOUT.as_secs())]
    TimedOut,
}

/// Maximum number of cached roots: eight threads with the maximum selection each.
pub const MAX_CACHED_ROOTS: usize = 1024;
/// Maximum total size of the cached roots.
pub const MAX_CACHED_BYTES: usize = 64 << 20;

/// A discovery that several steps can await. It runs while at least one of them does.
type SharedDiscovery = Shared<BoxFuture<'static, Arc<DiscoveryResults>>>;

/// Permanent identity of a root. Independent of handles.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
struct RootKey {
    environment: EnvironmentId,
    root: RootId,
    path: PathUri,
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
struct CapabilityStore {
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
    fn cached(&mut self, key: &RootKey) -> Option<Arc<RootCapabilities>> {
        let cached = self.cached.get_mut(key)?;
        self.uses += 1;
        self.by_use.remove(&cached.last_use);
        self.by_use.insert(self.uses, key.clone());
        cached.last_use = self.uses;
        Some(Arc::clone(&cached.found))
    }

    /// Returns the discovery of a root, if one is in progress.
    fn in_progress(&self, key: &RootKey) -> Option<SharedDiscovery> {
        self.in_progress.get(key)?.upgrade()
    }

    /// Records a started discovery.
    fn begin(&mut self, keys: &[RootKey], discovery: &SharedDiscovery) {
        // Every remaining discovery has a waiting step, so their number is bounded by the steps.
        self.in_progress.retain(|_, weak| weak.upgrade().is_some());
        for key in keys {
            if let Some(weak) = discovery.downgrade() {
                self.in_progress.insert(key.clone(), weak);
            }
        }
    }

    /// Records the result of a discovery. Failures are not cached.
    fn record(&mut self, discovered: &DiscoveryResults) {
        for (key, found) in discovered {
            self.in_progress.remove(key);
            if let Ok(found) = found {
                self.insert(key.clone(), Arc::clone(found));
            }
        }
    }

    /// Returns the number of cached roots and their approximate size in bytes.
    #[cfg(test)]
    fn size(&self) -> (usize, usize) {
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
