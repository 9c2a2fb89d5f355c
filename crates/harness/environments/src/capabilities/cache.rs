//! The cache, and what of it a step sees.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use exec_wire::limits;
use futures_util::future::{FutureExt, join_all};

use super::{
    available::{AvailableCapabilities, FailedRoot},
    discover::{Discovered, discover},
    metadata::RootCapabilities,
    store::{Discovery, RootKey, Store},
};
use crate::{
    manager::EnvironmentId,
    roots::{ResolvedRoot, StepRoots},
};
use exec_env::environment::Environment;

/// What lies below the roots of every environment, found once for each environment id, root id and
/// path. Clones share it.
///
/// A new handle for an environment changes nothing here: one id means the same contents. A failure
/// is not remembered.
#[derive(Clone, Debug, Default)]
pub struct CapabilityCache {
    store: Arc<Mutex<Store>>,
}

impl CapabilityCache {
    /// Shows what a step can use: what lies below the roots that it has resolved. Roots that are not
    /// known are discovered first, through the step's own handles, in one call for each environment;
    /// a discovery that another step has begun is joined. Fails for single roots only.
    ///
    /// Dropping the future ends the discoveries that no other step waits for.
    pub async fn project(&self, step: &StepRoots) -> AvailableCapabilities {
        let mut found = Discovered::default();
        let mut wanted: Vec<&ResolvedRoot> = step.resolved.iter().collect();
        // What is joined goes through another step's handle, and can fail where the step's own does
        // not. So a root whose discovery was joined and failed gets a second round.
        for _round in 0..2 {
            let plan = self.plan(&wanted);
            found.extend(plan.known.into_iter().map(|(key, known)| (key, Ok(known))));
            for discovered in join_all(plan.discoveries).await {
                let results = discovered.iter();
                found.extend(results.map(|(key, result)| (key.clone(), result.clone())));
            }
            wanted.retain(|root| {
                let key = RootKey::from(*root);
                plan.joined.contains(&key) && found.get(&key).is_none_or(Result::is_err)
            });
        }
        let mut available = AvailableCapabilities::default();
        for root in &step.resolved {
            match found.get(&RootKey::from(root)) {
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

    /// Decides for each root: known, being discovered, or to be discovered. Discoveries do nothing
    /// until they are awaited.
    fn plan(&self, wanted: &[&ResolvedRoot]) -> Plan {
        let mut plan = Plan::default();
        let mut unknown: BTreeMap<EnvironmentId, (Arc<Environment>, BTreeSet<RootKey>)> =
            BTreeMap::new();
        let mut store = self.store();
        for root in wanted {
            let key = RootKey::from(*root);
            if let Some(known) = store.known(&key) {
                plan.known.push((key, known));
            } else if let Some(discovery) = store.under_way(&key) {
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

    /// Prepares a discovery that records what it comes to.
    fn discovery(&self, environment: Arc<Environment>, keys: Vec<RootKey>) -> Discovery {
        let cache = self.clone();
        let run = async move {
            let discovered = discover(environment, keys).await;
            cache.store().record(&discovered);
            Arc::new(discovered)
        };
        run.boxed().shared()
    }

    fn store(&self) -> MutexGuard<'_, Store> {
        self.store.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns how many roots are known, and about how many bytes they take.
    #[cfg(test)]
    pub(super) fn size(&self) -> (usize, usize) {
        self.store().size()
    }
}

/// What has to be done to know the roots of a step.
#[derive(Debug, Default)]
struct Plan {
    known: Vec<(RootKey, Arc<RootCapabilities>)>,
    /// Roots that another step discovers.
    joined: BTreeSet<RootKey>,
    discoveries: Vec<Discovery>,
}
