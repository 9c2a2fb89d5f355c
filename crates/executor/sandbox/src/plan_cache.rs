//! Plans that are remembered for as long as nothing has changed that they were made from.
//!
//! What a policy comes to depends on names in directories, and on little else. So each directory in
//! which a name was looked for is remembered with the time of its last change, and a plan counts as
//! long as all of these are the same. The argument, from the root downwards: a name that comes, goes
//! or is replaced changes the time of its directory; nobody can set that time, and a change in the
//! same tick of the clock is excluded, because only directories that have not changed for a while are
//! remembered. An unchanged directory has the same file under the same name, a file never becomes a
//! directory or a link, and a link never says anything else. So every look would find what it found,
//! and each path names the very file that it named: what hands are kept for ([`Key`]) holds as well.
//!
//! What goes around directories has its own answer. Mounts: the kernel says when any has changed, and
//! all is forgotten. File systems whose directories do not keep times, or change elsewhere: nothing
//! there is remembered. Content that was read is read again and compared, since a mapped file can
//! change without its time. Globs, and what cannot be looked at: not remembered.
//!
//! Not here: how a plan is made (`policy`).
//!
//! [`Key`]: crate::files::Key
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

use self::evidence::{Evidence, Recorder};
use crate::{
    facts::Facts,
    files::Key,
    plan::Plan,
    policy::{Context, PolicyError, Purpose, resolve},
};

/// A plan, and what a hand is kept for under it, if that is known already.
#[derive(Clone, Debug)]
pub struct Planned {
    plan: Arc<Plan>,
    key: Option<Arc<Key>>,
}

impl Planned {
    /// Returns the plan.
    pub fn plan(&self) -> &Arc<Plan> {
        &self.plan
    }

    /// Returns which files the plan's paths name, or looks.
    pub(crate) fn key(&self) -> Arc<Key> {
        let now = || Arc::new(Key::now(&self.plan));
        self.key.clone().unwrap_or_else(now)
    }
}

impl From<Arc<Plan>> for Planned {
    fn from(plan: Arc<Plan>) -> Self {
        Self { plan, key: None }
    }
}

/// Makes plans, and remembers the last ones. Clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Plans(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    mounts: Mounts,
    /// What `mounts` told when these were made.
    mount_count: Option<u64>,
    /// The one that was used last is the first.
    kept: VecDeque<Arc<Kept>>,
}

#[derive(Debug)]
struct Kept {
    sandbox: Sandbox,
    context: Context,
    evidence: Evidence,
    planned: Planned,
}

impl Plans {
    /// Returns the plan of a policy, if it is remembered and nothing has changed since.
    ///
    /// Looks at file systems of this machine only, which do not keep anybody waiting.
    pub(crate) fn remembered(
        &self,
        sandbox: &Sandbox,
        context: &Context,
        facts: &dyn Facts,
    ) -> Option<Planned> {
        let mut state = self.lock();
        state.count_mounts();
        let kept = state.find(sandbox, context)?;
        drop(state);
        if kept.evidence.holds(facts) {
            return Some(kept.planned.clone());
        }
        self.lock().forget(&kept);
        None
    }

    /// Returns the plan of a policy. `now` is the time of the kernel's coarse clock.
    ///
    /// Looks at files, and blocks as long as that takes.
    ///
    /// # Errors
    /// Fails as [`resolve`].
    pub(crate) fn planned(
        &self,
        sandbox: &Sandbox,
        context: &Context,
        facts: &dyn Facts,
        now: Duration,
    ) -> Result<Planned, PolicyError> {
        if let Some(planned) = self.remembered(sandbox, context, facts) {
            return Ok(planned);
        }
        let mount_count = self.lock().count_mounts();
        let recorder = Recorder::new(facts, now);
        let plan = Arc::new(resolve(sandbox, context, &recorder)?);
        let planned = match context.purpose {
            Purpose::Process => plan.into(),
            Purpose::Files => {
                for path in Key::paths(&plan) {
                    recorder.rely_on(path);
                }
                let key = Some(Arc::new(Key::now(&plan)));
                Planned { plan, key }
            }
        };
        if let Some(evidence) = recorder.into_evidence()
            && is_small(sandbox)
        {
            let kept = Kept {
                sandbox: sandbox.clone(),
                context: context.clone(),
                evidence,
                planned: planned.clone(),
            };
            self.lock().keep(kept, mount_count);
        }
        Ok(planned)
    }

    /// How many plans are remembered.
    #[cfg(test)]
    fn len(&self) -> usize {
        self.lock().kept.len()
    }

    /// Does as if a mount had changed.
    #[cfg(test)]
    fn change_mounts(&self) {
        self.lock().mounts.change();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Forgets everything if a mount has changed, or if that cannot be told.
    fn count_mounts(&mut self) -> Option<u64> {
        let count = self.mounts.count();
        if count.is_none() || count != self.mount_count {
            self.kept.clear();
        }
        self.mount_count = count;
        count
    }

    fn find(&mut self, sandbox: &Sandbox, context: &Context) -> Option<Arc<Kept>> {
        let is_it = |kept: &Arc<Kept>| kept.context == *context && kept.sandbox == *sandbox;
        let place = self.kept.iter().position(is_it)?;
        if place > 0 {
            let kept = self.kept.remove(place)?;
            self.kept.push_front(kept);
        }
        self.kept.front().cloned()
    }

    fn forget(&mut self, old: &Arc<Kept>) {
        self.kept.retain(|kept| !Arc::ptr_eq(kept, old));
    }

    /// Remembers a plan that was begun when mounts were counted like this.
    fn keep(&mut self, kept: Kept, mount_count: Option<u64>) {
        let count = self.count_mounts();
        if count.is_none() || count != mount_count {
            return;
        }
        // Two who asked at the same time have made the same twice.
        let is_same = |old: &Kept| old.context == kept.context && old.sandbox == kept.sandbox;
        self.kept.retain(|old| !is_same(old));
        self.kept.truncate(MAX_PLANS - 1);
        self.kept.push_front(Arc::new(kept));
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
struct Mounts {
    table: Option<File>,
    count: u64,
}

impl Mounts {
    /// Returns a number that is another one if a mount has changed since the last call. `None`: it
    /// cannot be told.
    fn count(&mut self) -> Option<u64> {
        let table = match &mut self.table {
            Some(table) => table,
            // The kernel tells of changes since it was opened.
            none => none.insert(File::open("/proc/self/mountinfo").ok()?),
        };
        if has_changed(table.as_fd())? {
            self.count += 1;
        }
        Some(self.count)
    }

    /// Does as if a mount had changed.
    #[cfg(test)]
    fn change(&mut self) {
        self.count += 1;
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
