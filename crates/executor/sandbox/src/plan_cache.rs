//! Plans that are remembered for as long as nothing has changed that they were made from.
//!
//! What a policy comes to depends on names in directories, and on little else. So each directory in
//! which a name was looked for is remembered with the time of its last change, and a plan counts as
//! long as all of these are the same. The argument, from the root downwards: a name that comes, goes
//! or is replaced changes the time of its directory; nobody can set that time, and a change in the
//! same tick of the clock is excluded, because only directories that have not changed for a while are
//! remembered. An unchanged directory has the same file under the same name, a file never becomes a
//! directory or a link, and a link never says anything else. So every look would find what it found,
//! and each path names the very file that it named: what hands are kept for ([`WorkerKey`]) holds as well.
//!
//! What goes around directories has its own answer. Mounts: the kernel says when any has changed, and
//! all is forgotten. File systems whose directories do not keep times, or change elsewhere: nothing
//! there is remembered. Content that was read is read again and compared, since a mapped file can
//! change without its time. Globs, and what cannot be looked at: not remembered.
//!
//! Not here: how a plan is made (`policy`).
//!
//! [`WorkerKey`]: crate::files::Key
//!
//! The plans that are remembered.
//!
//! Whether anything was mounted or unmounted.

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

use exec_wire::sandbox::Sandbox;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use self::evidence::{FactRecorder, PlanEvidence};
use crate::{
    facts::FileFacts,
    files::WorkerKey,
    plan::SandboxPlan,
    policy::{PolicyError, PolicyPurpose, ResolveContext, resolve},
};

/// A plan, and what a hand is kept for under it, if that is known already.
#[derive(Clone, Debug)]
pub struct Planned {
    plan: Arc<SandboxPlan>,
    key: Option<Arc<WorkerKey>>,
}

impl Planned {
    /// Returns the plan.
    pub fn plan(&self) -> &Arc<SandboxPlan> {
        &self.plan
    }

    /// Returns which files the plan's paths name, or looks.
    pub(crate) fn key(&self) -> Arc<WorkerKey> {
        let now = || Arc::new(WorkerKey::capture(&self.plan));
        self.key.clone().unwrap_or_else(now)
    }
}

impl From<Arc<SandboxPlan>> for Planned {
    fn from(plan: Arc<SandboxPlan>) -> Self {
        Self { plan, key: None }
    }
}

/// Makes plans, and remembers the last ones. Clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct PlanCache(Arc<Mutex<CacheState>>);

#[derive(Debug, Default)]
struct CacheState {
    mounts: MountMonitor,
    /// What `mounts` told when these were made.
    mount_generation: Option<u64>,
    /// The one that was used last is the first.
    entries: VecDeque<Arc<PlanCacheEntry>>,
}

#[derive(Debug)]
struct PlanCacheEntry {
    sandbox: Sandbox,
    context: ResolveContext,
    evidence: PlanEvidence,
    plan: Planned,
}

impl PlanCache {
    /// Returns the plan of a policy, if it is remembered and nothing has changed since.
    ///
    /// Looks at file systems of this machine only, which do not keep anybody waiting.
    pub(crate) fn lookup(
        &self,
        sandbox: &Sandbox,
        context: &ResolveContext,
        facts: &dyn FileFacts,
    ) -> Option<Planned> {
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

    /// Returns the plan of a policy. `now` is the time of the kernel's coarse clock.
    ///
    /// Looks at files, and blocks as long as that takes.
    ///
    /// # Errors
    /// Fails as [`resolve`].
    pub(crate) fn get_or_resolve(
        &self,
        sandbox: &Sandbox,
        context: &ResolveContext,
        facts: &dyn FileFacts,
        now: Duration,
    ) -> Result<Planned, PolicyError> {
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
                Planned { plan, key }
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

    /// How many plans are remembered.
    #[cfg(test)]
    fn len(&self) -> usize {
        self.lock().entries.len()
    }

    /// Does as if a mount had changed.
    #[cfg(test)]
    fn simulate_mount_change(&self) {
        self.lock().mounts.bump_generation();
    }

    fn lock(&self) -> MutexGuard<'_, CacheState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl CacheState {
    /// Forgets everything if a mount has changed, or if that cannot be told.
    fn check_mounts(&mut self) -> Option<u64> {
        let generation = self.mounts.generation();
        if generation.is_none() || generation != self.mount_generation {
            self.entries.clear();
        }
        self.mount_generation = generation;
        generation
    }

    fn find(&mut self, sandbox: &Sandbox, context: &ResolveContext) -> Option<Arc<PlanCacheEntry>> {
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

    /// Remembers a plan that was begun when mounts were counted like this.
    fn insert(&mut self, entry: PlanCacheEntry, mount_generation: Option<u64>) {
        let generation = self.check_mounts();
        if generation.is_none() || generation != mount_generation {
            return;
        }
        // Two who asked at the same time have made the same twice.
        let is_same =
            |old: &PlanCacheEntry| old.context == entry.context && old.sandbox == entry.sandbox;
        self.entries.retain(|old| !is_same(old));
        self.entries.truncate(MAX_PLANS - 1);
        self.entries.push_front(Arc::new(entry));
    }
}

/// Tells whether a policy is worth its memory.
fn is_small(sandbox: &Sandbox) -> bool {
    serde_json::to_vec(sandbox).is_ok_and(|text| text.len() <= MAX_POLICY_BYTES)
}

/// A session has a policy or two for commands, and as many for files.
const MAX_PLANS: usize = 32;
/// The policies that clients send have some kilobytes.
const MAX_POLICY_BYTES: usize = 64 << 10;

/// Counts the changes of this process's mounts, as far as they were noticed.
///
/// One call for all paths: a mount over a name does not touch the directory that the name is in, so
/// each name that was looked for would have to be looked at again to see it.
#[derive(Debug, Default)]
struct MountMonitor {
    table: Option<File>,
    generation: u64,
}

impl MountMonitor {
    /// Returns a number that is another one if a mount has changed since the last call. `None`: it
    /// cannot be told.
    fn generation(&mut self) -> Option<u64> {
        let table = match &mut self.table {
            Some(table) => table,
            // The kernel tells of changes since it was opened.
            none => none.insert(File::open("/proc/self/mountinfo").ok()?),
        };
        if has_changed(table.as_fd())? {
            self.generation += 1;
        }
        Some(self.generation)
    }

    /// Does as if a mount had changed.
    #[cfg(test)]
    fn bump_generation(&mut self) {
        self.generation += 1;
    }
}

/// The kernel says so once for each file that was opened.
fn has_changed(table: BorrowedFd<'_>) -> Option<bool> {
    let mut fds = [PollFd::from_borrowed_fd(table, PollFlags::PRI)];
    let at_once = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    Some(poll(&mut fds, Some(&at_once)).ok()? > 0)
}
