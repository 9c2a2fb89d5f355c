//! Pool of fs workers: leases, wait queue, eviction, and the key of the workers that may serve a
//! plan.
//!
//! The mounts and rules of a worker are bound to the files that the plan's paths named when the
//! worker started. If a directory was recreated or an editor replaced a file since then, the worker
//! would access the new file as if no layer covered it. The key therefore includes the identity of
//! these files.
//!
//! Invariant: no worker is idle while a waiter could use it or its slot. Not here: the worker
//! process (`fs_worker`).

#[cfg(test)]
mod tests;

use std::{
    collections::{HashMap, VecDeque},
    fmt,
    hash::{DefaultHasher, Hash, Hasher},
    mem,
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use exec_env::filesystem::FileError;
use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
use tokio::{sync::oneshot, time::Instant};

use crate::plan::{FileAccess, SandboxPlan};

/// Limits on the number and the lifetime of workers.
#[derive(Clone, Copy, Debug)]
pub struct WorkerLimits {
    /// Workers per plan: more would compete for the same disk.
    pub per_plan: usize,
    /// Workers in total: each takes memory.
    pub total: usize,
    /// Requests that may wait for a worker.
    pub max_waiting: usize,
    /// Watches, each with a worker that does not count above.
    pub max_watches: usize,
    /// Time after which an idle worker is stopped.
    pub idle_timeout: Duration,
    /// Maximum age of a worker: it does not see file systems that are mounted on the host later.
    pub max_age: Duration,
}

impl Default for WorkerLimits {
    fn default() -> Self {
        Self {
            per_plan: 4,
            total: 16,
            max_waiting: 1024,
            max_watches: 64,
            idle_timeout: Duration::from_secs(60),
            max_age: Duration::from_secs(120),
        }
    }
}

/// Workers by key.
#[derive(Debug)]
pub(super) struct WorkerPool<W: Send + 'static> {
    limits: WorkerLimits,
    state: Mutex<PoolState<W>>,
}

#[derive(Debug)]
struct PoolState<W: Send + 'static> {
    /// Workers that are idle, in use or starting.
    count: usize,
    groups: HashMap<Arc<WorkerKey>, WorkerGroup<W>>,
    waiters: VecDeque<WorkerWaiter<W>>,
    /// A sweeper task waits to retire idle workers.
    sweeper_running: bool,
}

/// Workers of one key.
#[derive(Debug)]
struct WorkerGroup<W: Send + 'static> {
    count: usize,
    /// Ordered by last use; the most recent is last.
    idle: Vec<(W, Instant)>,
}

#[derive(Debug)]
struct WorkerWaiter<W: Send + 'static> {
    key: Arc<WorkerKey>,
    sender: oneshot::Sender<WorkerLease<W>>,
}

impl<W: Send + 'static> WorkerPool<W> {
    pub(super) fn new(limits: WorkerLimits) -> Arc<Self> {
        Arc::new(Self {
            limits,
            state: Mutex::new(PoolState {
                count: 0,
                groups: HashMap::new(),
                waiters: VecDeque::new(),
                sweeper_running: false,
            }),
        })
    }

    /// Acquires an idle worker, or a slot for a new one. Waits in FIFO order.
    ///
    /// # Errors
    /// Fails if the wait queue is full.
    pub(super) async fn acquire(
        self: &Arc<Self>,
        key: &Arc<WorkerKey>,
    ) -> Result<WorkerLease<W>, FileError> {
        let receiver = match self.try_acquire(key)? {
            Ok(lease) => return Ok(lease),
            Err(receiver) => receiver,
        };
        // The pool holds the sender until it is used.
        let lost = |_| FileError::Host("the fs worker queue was dropped".to_owned());
        let mut lease = receiver.await.map_err(lost)?;
        if let Some(state) = &mut lease.0 {
            state.waited = true;
        }
        Ok(lease)
    }

    fn try_acquire(
        self: &Arc<Self>,
        key: &Arc<WorkerKey>,
    ) -> Result<Result<WorkerLease<W>, oneshot::Receiver<WorkerLease<W>>>, FileError> {
        let mut evicted = None;
        let mut state = self.lock();
        if let Some(worker) = state.take_idle(key) {
            return Ok(Ok(self.lease(key, Some(worker))));
        }
        if state.count_for(key) < self.limits.per_plan {
            if state.count >= self.limits.total {
                evicted = state.evict_oldest_idle();
            }
            if state.reserve(key, &self.limits) {
                drop(state);
                drop(evicted);
                return Ok(Ok(self.lease(key, None)));
            }
        }
        if state.waiters.len() >= self.limits.max_waiting {
            // Cancelled waiters do not count.
            state.waiters.retain(|waiter| !waiter.sender.is_closed());
        }
        if state.waiters.len() >= self.limits.max_waiting {
            let limit = self.limits.max_waiting;
            let text =
                format!("too many file operations: {limit} requests already wait for an fs worker");
            return Err(FileError::Host(text));
        }
        let (sender, receiver) = oneshot::channel();
        let key = Arc::clone(key);
        state.waiters.push_back(WorkerWaiter { key, sender });
        Ok(Err(receiver))
    }

    /// Takes back a worker for reuse.
    fn return_worker(self: &Arc<Self>, key: &Arc<WorkerKey>, worker: W) {
        let mut worker = worker;
        let mut state = self.lock();
        while let Some(index) = state.first_eligible_waiter(Some(key), &self.limits) {
            let Some(waiter) = state.waiters.remove(index) else {
                break;
            };
            if waiter.key != *key {
                state.release(key);
                state.waiters.insert(index, waiter);
                self.wake_waiters(&mut state);
                // The worker ends after the lock is released.
                drop(state);
                drop(worker);
                return;
            }
            match waiter.sender.send(self.lease(key, Some(worker))) {
                Ok(()) => return,
                Err(lease) => match lease.into_worker() {
                    Some(returned) => worker = returned,
                    None => return,
                },
            }
        }
        let now = Instant::now();
        if let Some(group) = state.groups.get_mut(key) {
            group.idle.push((worker, now));
        }
        if !mem::replace(&mut state.sweeper_running, true) {
            tokio::spawn(run_idle_sweeper(
                Arc::downgrade(self),
                now + self.limits.idle_timeout,
            ));
        }
    }

    /// Gives the slot of a lost worker to the next waiter.
    fn release_slot(self: &Arc<Self>, key: &Arc<WorkerKey>) {
        let mut state = self.lock();
        state.release(key);
        self.wake_waiters(&mut state);
    }

    /// Gives free slots to waiters in FIFO order.
    fn wake_waiters(self: &Arc<Self>, state: &mut PoolState<W>) {
        while let Some(index) = state.first_eligible_waiter(None, &self.limits) {
            let Some(WorkerWaiter { key, sender }) = state.waiters.remove(index) else {
                return;
            };
            if !state.reserve(&key, &self.limits) {
                return;
            }
            if let Err(lease) = sender.send(self.lease(&key, None)) {
                lease.into_worker();
                state.release(&key);
            }
        }
    }

    /// Retires workers that exceeded the idle timeout. Returns when to check again.
    fn retire_expired(&self, now: Instant) -> Option<Instant> {
        let mut evicted = Vec::new();
        let mut state = self.lock();
        let mut next: Option<Instant> = None;
        state.groups.retain(|_, group| {
            let keep_from = group
                .idle
                .partition_point(|(_, since)| *since + self.limits.idle_timeout <= now);
            evicted.extend(group.idle.drain(..keep_from));
            group.count -= keep_from;
            let oldest = group
                .idle
                .first()
                .map(|(_, since)| *since + self.limits.idle_timeout);
            next = next.into_iter().chain(oldest).min();
            group.count > 0
        });
        state.count -= evicted.len();
        state.sweeper_running = next.is_some();
        next
    }

    fn lease(self: &Arc<Self>, key: &Arc<WorkerKey>, worker: Option<W>) -> WorkerLease<W> {
        WorkerLease(Some(LeaseState {
            pool: Arc::clone(self),
            key: Arc::clone(key),
            worker,
            waited: false,
        }))
    }

    fn lock(&self) -> MutexGuard<'_, PoolState<W>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number of workers.
    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        self.lock().count
    }

    /// Inspects the idle workers of a key.
    #[cfg(test)]
    pub(super) fn idle<T>(&self, key: &Arc<WorkerKey>, inspect: impl Fn(&W) -> T) -> Vec<T> {
        let state = self.lock();
        let idle = state.groups.get(key).map(|group| &group.idle[..]);
        let idle = idle.unwrap_or_default().iter();
        idle.map(|(worker, _)| inspect(worker)).collect()
    }
}

impl<W: Send + 'static> PoolState<W> {
    fn count_for(&self, key: &Arc<WorkerKey>) -> usize {
        self.groups.get(key).map_or(0, |group| group.count)
    }

    fn take_idle(&mut self, key: &Arc<WorkerKey>) -> Option<W> {
        let (worker, _) = self.groups.get_mut(key)?.idle.pop()?;
        Some(worker)
    }

    /// Removes the worker that was idle for the longest time.
    fn evict_oldest_idle(&mut self) -> Option<W> {
        let oldest = |(key, group): (&Arc<WorkerKey>, &WorkerGroup<W>)| {
            let (_, since) = group.idle.first()?;
            Some((*since, Arc::clone(key)))
        };
        let (_, key) = self
            .groups
            .iter()
            .filter_map(oldest)
            .min_by_key(|(since, _)| *since)?;
        let (worker, _) = self.groups.get_mut(&key)?.idle.remove(0);
        self.release(&key);
        Some(worker)
    }

    fn reserve(&mut self, key: &Arc<WorkerKey>, limits: &WorkerLimits) -> bool {
        if self.count >= limits.total || self.count_for(key) >= limits.per_plan {
            return false;
        }
        self.count += 1;
        let group = self
            .groups
            .entry(Arc::clone(key))
            .or_insert_with(|| WorkerGroup {
                count: 0,
                idle: Vec::new(),
            });
        group.count += 1;
        true
    }

    fn release(&mut self, key: &Arc<WorkerKey>) {
        self.count -= 1;
        if let Some(group) = self.groups.get_mut(key) {
            group.count -= 1;
            if group.count == 0 {
                self.groups.remove(key);
            }
        }
    }

    /// Returns the queue index of the first waiter that could use a worker of `key`, or its slot.
    fn first_eligible_waiter(
        &self,
        key: Option<&Arc<WorkerKey>>,
        limits: &WorkerLimits,
    ) -> Option<usize> {
        if key.is_none() && self.count >= limits.total {
            return None;
        }
        self.waiters.iter().position(|waiter| {
            key == Some(&waiter.key) || self.count_for(&waiter.key) < limits.per_plan
        })
    }
}

/// Retires idle workers at their deadlines, until no worker is idle.
async fn run_idle_sweeper<W: Send + 'static>(pool: Weak<WorkerPool<W>>, mut next: Instant) {
    loop {
        tokio::time::sleep_until(next).await;
        let Some(pool) = pool.upgrade() else {
            return;
        };
        match pool.retire_expired(Instant::now()) {
            Some(later) => next = later,
            None => return,
        }
    }
}

/// A worker, or a slot for one, leased for one request. Dropping the lease stops the worker.
pub(super) struct WorkerLease<W: Send + 'static>(Option<LeaseState<W>>);

struct LeaseState<W: Send + 'static> {
    pool: Arc<WorkerPool<W>>,
    key: Arc<WorkerKey>,
    worker: Option<W>,
    waited: bool,
}

impl<W: Send + 'static> WorkerLease<W> {
    /// Returns the worker. `None` if the lease is for an empty slot.
    pub(super) fn worker(&mut self) -> Option<&mut W> {
        self.0.as_mut()?.worker.as_mut()
    }

    /// Returns whether the lease was queued: the plan's files may have changed meanwhile.
    pub(super) fn had_to_wait(&self) -> bool {
        self.0.as_ref().is_some_and(|state| state.waited)
    }

    /// Fills the slot with a started worker.
    pub(super) fn set_worker(&mut self, worker: W) {
        if let Some(state) = &mut self.0 {
            state.worker = Some(worker);
        }
    }

    /// Returns the worker to the pool for reuse.
    pub(super) fn return_to_pool(mut self) {
        match self.0.take() {
            Some(LeaseState {
                pool,
                key,
                worker: Some(worker),
                ..
            }) => pool.return_worker(&key, worker),
            state => drop(Self(state)),
        }
    }

    /// Takes the worker out without changing the pool's counts.
    fn into_worker(mut self) -> Option<W> {
        self.0.take()?.worker
    }
}

impl<W: Send + 'static> Drop for WorkerLease<W> {
    fn drop(&mut self) {
        if let Some(LeaseState {
            pool, key, worker, ..
        }) = self.0.take()
        {
            drop(worker);
            pool.release_slot(&key);
        }
    }
}

impl<W: Send + 'static> fmt::Debug for WorkerLease<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkerLease").finish_non_exhaustive()
    }
}

/// A plan, and the identity of the files that its paths name.
#[derive(Clone, Debug)]
pub(crate) struct WorkerKey {
    plan: Arc<SandboxPlan>,
    files: Vec<Option<InodeIdentity>>,
    /// Hash of the fields above: a key is created once and looked up for each request.
    hash: u64,
}

/// Identity of a file. Inode numbers are reused, so the birth time is part of it.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
struct InodeIdentity {
    mount: u64,
    device: (u32, u32),
    inode: u64,
    birth: (i64, u32),
}

impl WorkerKey {
    /// Captures the files that the plan's paths name now.
    pub(crate) fn capture(plan: &Arc<SandboxPlan>) -> Self {
        let files: Vec<_> = Self::relevant_paths(plan)
            .into_iter()
            .map(inode_identity)
            .collect();
        let mut hasher = DefaultHasher::new();
        (plan, &files).hash(&mut hasher);
        Self {
            plan: Arc::clone(plan),
            files,
            hash: hasher.finish(),
        }
    }

    /// Returns the paths of a plan that must keep their file identity.
    pub(crate) fn relevant_paths(plan: &SandboxPlan) -> Vec<&Path> {
        let FileAccess::View(view) = &plan.files else {
            return Vec::new();
        };
        let mut relevant_paths: Vec<_> = view.layers.iter().map(|layer| &*layer.path).collect();
        // Forbidden names mostly share a directory, which often is a layer.
        let mut last = None;
        for forbidden in &view.forbidden {
            let directory = &*forbidden.directory;
            let is_layer = || view.layers.iter().any(|layer| layer.path == directory);
            if last != Some(directory) && !is_layer() {
                relevant_paths.push(directory);
            }
            last = Some(directory);
        }
        relevant_paths
    }
}

impl PartialEq for WorkerKey {
    fn eq(&self, other: &Self) -> bool {
        // Keys that share a plan skip the comparison of its paths.
        self.hash == other.hash
            && self.files == other.files
            && (Arc::ptr_eq(&self.plan, &other.plan) || self.plan == other.plan)
    }
}

impl Eq for WorkerKey {}

impl Hash for WorkerKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash);
    }
}

/// Returns the identity of the file at a path without symbolic links. `None` if it cannot be read.
fn inode_identity(path: &Path) -> Option<InodeIdentity> {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::STATX_DONT_SYNC;
    let fields = StatxFlags::INO | StatxFlags::BTIME | StatxFlags::MNT_ID;
    let stat = statx(CWD, path, flags, fields).ok()?;
    Some(InodeIdentity {
        mount: stat.stx_mnt_id,
        device: (stat.stx_dev_major, stat.stx_dev_minor),
        inode: stat.stx_ino,
        birth: (stat.stx_btime.tv_sec, stat.stx_btime.tv_nsec),
    })
}
