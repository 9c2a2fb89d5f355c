//! Cache of resolved plans, valid as long as their inputs are unchanged.
//!
//! A plan depends almost only on names in directories. The cache therefore records each directory
//! in which resolution looked up a name, with its change time (ctime). A cached plan is valid while
//! all of these are the same, by this argument from the root downwards: creating, removing or
//! replacing a name changes the ctime of its directory. A program cannot set the ctime. A change
//! within the same clock tick cannot be missed, because only directories that have not changed for
//! a while are cached. An unchanged directory has the same inode under each name, the type of an
//! inode never changes, and neither does the target of a symbolic link. So every lookup would
//! return the same result, and each path names the same file. The [`WorkerKey`] is therefore valid
//! as well.
//!
//! Changes that bypass directories are handled separately. Mounts: the kernel signals every change,
//! which clears the cache. File systems without reliable directory times, or that other hosts
//! change: not cached. File contents: read again and compared, since a mapped file can change
//! without a new time. Globs and unreadable paths: not cached.
//!
//! Not here: resolving a plan (`policy`).

mod evidence;
#[cfg(test)]
mod tests;

pub(crate) use self::evidence::coarse_now;

use std::{
    collections::VecDeque,
    fs::File,
    os::fd::{AsFd, BorrowedFd},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use exec_wire::sandbox::SandboxPolicy;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use self::evidence::{FactRecorder, PlanEvidence};
use crate::{
    facts::FileFacts,
    plan::SandboxPlan,
    policy::{PolicyError, PolicyPurpose, ResolveContext, resolve},
    sandboxed_fs::WorkerKey,
};

/// A plan, with the worker key if it is already known.
#[derive(Clone, Debug)]
pub struct CachedPlan {
    plan: Arc<SandboxPlan>,
    key: Option<Arc<WorkerKey>>,
}

impl CachedPlan {
    /// Returns the plan.
    pub fn plan(&self) -> &Arc<SandboxPlan> {
        &self.plan
    }

    /// Returns the worker key of the plan, and captures it if it is not known.
    pub(crate) fn key(&self) -> Arc<WorkerKey> {
        let now = || Arc::new(WorkerKey::capture(&self.plan));
        self.key.clone().unwrap_or_else(now)
    }
}

impl From<Arc<SandboxPlan>> for CachedPlan {
    fn from(plan: Arc<SandboxPlan>) -> Self {
        Self { plan, key: None }
    }
}

/// Resolves policies and caches the most recent plans. Clones share the cache.
#[derive(Clone, Debug, Default)]
pub(crate) struct PlanCache(Arc<Mutex<CacheState>>);

#[derive(Debug, Default)]
struct CacheState {
    mounts: MountMonitor,
    /// Mount generation in which the entries were resolved.
    mount_generation: Option<u64>,
    /// Ordered by last use; the most recent is first.
    entries: VecDeque<Arc<PlanCacheEntry>>,
}

#[derive(Debug)]
struct PlanCacheEntry {
    sandbox: SandboxPolicy,
    context: ResolveContext,
    evidence: PlanEvidence,
    plan: CachedPlan,
}

impl PlanCache {
    /// Returns the cached plan of a policy, if it is still valid.
    ///
    /// Accesses only local file systems, which do not block for long.
    pub(crate) fn lookup(
        &self,
        sandbox: &SandboxPolicy,
        context: &ResolveContext,
        facts: &dyn FileFacts,
    ) -> Option<CachedPlan> {
        let mut state = self.lock();
        state.check_mounts();
        let entry = state.find(sandbox, context)?;
        drop(state);
        if entry.evidence.is_current(facts) {
            return Some(entry.plan.clone());
        }
        self.lock().remove(&entry);
        None
    }

    /// Returns the plan of a policy, cached or resolved anew. `now` is the time of the kernel's
    /// coarse clock.
    ///
    /// Accesses files, and blocks as long as that takes.
    ///
    /// # Errors
    /// Fails as [`resolve`].
    pub(crate) fn get_or_resolve(
        &self,
        sandbox: &SandboxPolicy,
        context: &ResolveContext,
        facts: &dyn FileFacts,
        now: Duration,
    ) -> Result<CachedPlan, PolicyError> {
        if let Some(plan) = self.lookup(sandbox, context, facts) {
            return Ok(plan);
        }
        let mount_generation = self.lock().check_mounts();
        let recorder = FactRecorder::new(facts, now);
        let plan = Arc::new(resolve(sandbox, context, &recorder)?);
        let plan = match context.purpose {
            PolicyPurpose::Process => plan.into(),
            PolicyPurpose::Files => {
                for path in WorkerKey::relevant_paths(&plan) {
                    recorder.depend_on(path);
                }
                let key = Some(Arc::new(WorkerKey::capture(&plan)));
                CachedPlan { plan, key }
            }
        };
        if let Some(evidence) = recorder.into_evidence()
            && is_small(sandbox)
        {
            let entry = PlanCacheEntry {
                sandbox: sandbox.clone(),
                context: context.clone(),
                evidence,
                plan: plan.clone(),
            };
            self.lock().insert(entry, mount_generation);
        }
        Ok(plan)
    }

    /// Returns the number of cached plans.
    #[cfg(test)]
    fn len(&self) -> usize {
        self.lock().entries.len()
    }

    /// Simulates a changed mount.
    #[cfg(test)]
    fn simulate_mount_change(&self) {
        self.lock().mounts.bump_generation();
    }

    fn lock(&self) -> MutexGuard<'_, CacheState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl CacheState {
    /// Clears the cache if a mount has changed, or if that is unknown.
    fn check_mounts(&mut self) -> Option<u64> {
        let generation = self.mounts.generation();
        if generation.is_none() || generation != self.mount_generation {
            self.entries.clear();
        }
        self.mount_generation = generation;
        generation
    }

    fn find(
        &mut self,
        sandbox: &SandboxPolicy,
        context: &ResolveContext,
    ) -> Option<Arc<PlanCacheEntry>> {
        let matches =
            |entry: &Arc<PlanCacheEntry>| entry.context == *context && entry.sandbox == *sandbox;
        let index = self.entries.iter().position(matches)?;
        if index > 0 {
            let entry = self.entries.remove(index)?;
            self.entries.push_front(entry);
        }
        self.entries.front().cloned()
    }

    fn remove(&mut self, old: &Arc<PlanCacheEntry>) {
        self.entries.retain(|entry| !Arc::ptr_eq(entry, old));
    }

    /// Caches a plan that was resolved in this mount generation.
    fn insert(&mut self, entry: PlanCacheEntry, mount_generation: Option<u64>) {
        let generation = self.check_mounts();
        if generation.is_none() || generation != mount_generation {
            return;
        }
        // Concurrent requests may have resolved the same plan twice.
        let is_same =
            |old: &PlanCacheEntry| old.context == entry.context && old.sandbox == entry.sandbox;
        self.entries.retain(|old| !is_same(old));
        self.entries.truncate(MAX_PLANS - 1);
        self.entries.push_front(Arc::new(entry));
    }
}

/// Returns whether a policy is small enough to be cached.
fn is_small(sandbox: &SandboxPolicy) -> bool {
    serde_json::to_vec(sandbox).is_ok_and(|text| text.len() <= MAX_POLICY_BYTES)
}

/// A session uses one or two policies for commands, and as many for files.
const MAX_PLANS: usize = 32;
/// Policies of clients have a few kilobytes.
const MAX_POLICY_BYTES: usize = 64 << 10;

/// Detects changes of this process's mounts.
///
/// One system call covers all paths. A mount does not change the directory that contains the mount
/// point, so without it each name would have to be checked again.
#[derive(Debug, Default)]
struct MountMonitor {
    table: Option<File>,
    generation: u64,
}

impl MountMonitor {
    /// Returns a number that differs if a mount has changed since the last call. `None` if unknown.
    fn generation(&mut self) -> Option<u64> {
        let table = match &mut self.table {
            Some(table) => table,
            // The kernel reports changes since the file was opened.
            none => none.insert(File::open("/proc/self/mountinfo").ok()?),
        };
        if has_changed(table.as_fd())? {
            self.generation += 1;
        }
        Some(self.generation)
    }

    /// Simulates a changed mount.
    #[cfg(test)]
    fn bump_generation(&mut self) {
        self.generation += 1;
    }
}

/// Returns whether mounts have changed. The kernel reports each change once per open file.
fn has_changed(table: BorrowedFd<'_>) -> Option<bool> {
    let mut fds = [PollFd::from_borrowed_fd(table, PollFlags::PRI)];
    let zero_timeout = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    Some(poll(&mut fds, Some(&zero_timeout)).ok()? > 0)
}
