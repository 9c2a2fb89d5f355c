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

#[cfg(test)]
mod tests;

use std::{
    cell::RefCell,
    collections::{HashMap, VecDeque},
    fs::File,
    os::fd::{AsFd, BorrowedFd},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use exec_wire::sandbox::SandboxPolicy;
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::{AtFlags, CWD, FileType, StatxFlags, statfs, statx},
    time::{ClockId, clock_gettime},
};

use crate::{
    facts::{FileFacts, ListError, ListedEntry, PathState},
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
    Some(poll(&mut fds, Some(&Timespec::default())).ok()? > 0)
}

/// Passes on facts, and records the evidence for each before it is read. A change between the two
/// invalidates the evidence later.
struct FactRecorder<'a> {
    facts: &'a dyn FileFacts,
    now: Duration,
    recorded: RefCell<RecordedFacts>,
}

#[derive(Default)]
struct RecordedFacts {
    directories: HashMap<PathBuf, DirectoryStamp>,
    contents: Vec<RecordedContent>,
    devices: Vec<DeviceId>,
    /// Total length of all recorded paths.
    bytes: usize,
    /// A fact may change undetected, or is unknown.
    is_uncacheable: bool,
}

/// Inputs that a plan depends on.
#[derive(Debug)]
struct PlanEvidence {
    /// Parents come before children.
    directories: Vec<(PathBuf, DirectoryStamp)>,
    contents: Vec<RecordedContent>,
}

#[derive(Debug)]
struct RecordedContent {
    path: PathBuf,
    limit: usize,
    content: Vec<u8>,
}

impl<'a> FactRecorder<'a> {
    /// Creates an empty recorder. `now` is the time of the kernel's coarse clock.
    fn new(facts: &'a dyn FileFacts, now: Duration) -> Self {
        Self {
            facts,
            now,
            recorded: RefCell::default(),
        }
    }

    /// Records that the plan depends on a path.
    fn depend_on(&self, path: &Path) {
        let mut recorded = self.recorded.borrow_mut();
        recorded.bytes += path.as_os_str().len();
        recorded.is_uncacheable |= recorded.bytes > MAX_PATH_BYTES;
        let Some(parent) = path.parent() else {
            return;
        };
        if recorded.is_uncacheable || recorded.directories.contains_key(parent) {
            return;
        }
        // From the root downwards: each stamp is read through a path that the stamps above it
        // validate.
        let mut ancestors: Vec<_> = parent.ancestors().collect();
        ancestors.reverse();
        for directory in ancestors {
            recorded.stamp(directory, self.now);
        }
    }

    /// Returns the evidence. `None` if a fact may change undetected.
    fn into_evidence(self) -> Option<PlanEvidence> {
        let recorded = self.recorded.into_inner();
        if recorded.is_uncacheable {
            return None;
        }
        let mut directories: Vec<_> = recorded.directories.into_iter().collect();
        directories.sort_by(|(one, _), (other, _)| one.cmp(other));
        Some(PlanEvidence {
            directories,
            contents: recorded.contents,
        })
    }

    fn mark_uncacheable(&self) {
        self.recorded.borrow_mut().is_uncacheable = true;
    }
}

impl RecordedFacts {
    fn stamp(&mut self, directory: &Path, now: Duration) {
        if self.is_uncacheable || self.directories.contains_key(directory) {
            return;
        }
        match DirectoryStamp::of(directory) {
            Some(stamp)
                if self.directories.len() < MAX_DIRECTORIES
                    && stamp.is_settled(now)
                    && self.has_reliable_times(directory, stamp.device()) =>
            {
                self.directories.insert(directory.to_owned(), stamp);
            }
            Some(_) | None => self.is_uncacheable = true,
        }
    }

    fn has_reliable_times(&mut self, directory: &Path, device: DeviceId) -> bool {
        let is_known = self.devices.contains(&device);
        if !is_known && has_reliable_times(directory) {
            self.devices.push(device);
            return true;
        }
        is_known
    }
}

impl FileFacts for FactRecorder<'_> {
    fn lookup(&self, path: &Path) -> PathState {
        self.depend_on(path);
        let stat = self.facts.lookup(path);
        if stat == PathState::Unknown {
            self.mark_uncacheable();
        }
        stat
    }

    fn read(&self, path: &Path, limit: usize) -> Option<Vec<u8>> {
        self.depend_on(path);
        let content = self.facts.read(path, limit);
        let mut recorded = self.recorded.borrow_mut();
        match &content {
            Some(content) if recorded.contents.len() < MAX_CONTENTS => {
                recorded.contents.push(RecordedContent {
                    path: path.to_owned(),
                    limit,
                    content: content.clone(),
                })
            }
            Some(_) | None => recorded.is_uncacheable = true,
        }
        content
    }

    /// Listings are not cached: every directory of a tree would need a stamp.
    fn list(&self, path: &Path, limit: usize) -> Result<Vec<ListedEntry>, ListError> {
        self.mark_uncacheable();
        self.facts.list(path, limit)
    }
}

impl PlanEvidence {
    /// Returns whether all inputs are unchanged.
    fn is_current(&self, facts: &dyn FileFacts) -> bool {
        let is_same = |(path, stamp): &(PathBuf, DirectoryStamp)| {
            DirectoryStamp::of(path).is_some_and(|now| now == *stamp)
        };
        let reads_same = |read: &RecordedContent| {
            let now = facts.read(&read.path, read.limit);
            now.is_some_and(|now| now == read.content)
        };
        self.directories.iter().all(is_same) && self.contents.iter().all(reads_same)
    }
}

/// Checking more directories is not faster than resolving the policy.
const MAX_DIRECTORIES: usize = 512;
/// Two for each git directory that a file points to.
const MAX_CONTENTS: usize = 16;
/// Total length of the paths of one plan.
const MAX_PATH_BYTES: usize = 256 << 10;

/// State of a directory. Equal stamps at two times: no name in it, and no permission of it, has
/// changed in between.
#[derive(Clone, Debug, Eq, PartialEq)]
struct DirectoryStamp {
    mount: u64,
    device: DeviceId,
    inode: u64,
    mode: u16,
    owner: (u32, u32),
    /// Last change (ctime), which programs cannot set.
    changed: (i64, u32),
    modified: (i64, u32),
}

/// Device number of a file system.
type DeviceId = (u32, u32);

impl DirectoryStamp {
    /// Reads the stamp of a directory. The path must not contain symbolic links. `None` if it is
    /// not a directory or cannot be read.
    fn of(path: &Path) -> Option<Self> {
        let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::STATX_DONT_SYNC;
        let fields = StatxFlags::BASIC_STATS | StatxFlags::MNT_ID;
        let stat = statx(CWD, path, flags, fields).ok()?;
        let is_directory = FileType::from_raw_mode(stat.stx_mode.into()) == FileType::Directory;
        is_directory.then_some(Self {
            mount: stat.stx_mnt_id,
            device: (stat.stx_dev_major, stat.stx_dev_minor),
            inode: stat.stx_ino,
            mode: stat.stx_mode,
            owner: (stat.stx_uid, stat.stx_gid),
            changed: (stat.stx_ctime.tv_sec, stat.stx_ctime.tv_nsec),
            modified: (stat.stx_mtime.tv_sec, stat.stx_mtime.tv_nsec),
        })
    }

    /// Returns whether every change after `now` results in another stamp: the last change is so
    /// long ago that the next cannot have the same time.
    fn is_settled(&self, now: Duration) -> bool {
        let (seconds, nanoseconds) = self.changed;
        let Ok(seconds) = u64::try_from(seconds) else {
            return true;
        };
        // Old file systems store whole seconds.
        let margin = if nanoseconds == 0 {
            SECOND_MARGIN
        } else {
            TICK_MARGIN
        };
        let changed = Duration::new(seconds, nanoseconds);
        now.checked_sub(changed).is_some_and(|age| age > margin)
    }

    fn device(&self) -> DeviceId {
        self.device
    }
}

/// Returns whether directories of this file system change their times with their names, and are
/// changed only by this kernel. Excludes virtual file systems (`/proc`) and those that other hosts
/// or programs change.
fn has_reliable_times(path: &Path) -> bool {
    const ZFS: libc::c_long = 0x2fc1_2fc1;
    const KNOWN: [libc::c_long; 7] = [
        libc::EXT4_SUPER_MAGIC,
        libc::XFS_SUPER_MAGIC,
        libc::BTRFS_SUPER_MAGIC,
        libc::F2FS_SUPER_MAGIC,
        ZFS,
        libc::TMPFS_MAGIC,
        libc::OVERLAYFS_SUPER_MAGIC,
    ];
    let is_known = |kind| KNOWN.iter().any(|known| i128::from(*known) == kind);
    statfs(path).is_ok_and(|stat| is_known(i128::from(stat.f_type)))
}

/// A few clock ticks; the clock ticks at least 100 times a second.
const TICK_MARGIN: Duration = Duration::from_millis(20);
const SECOND_MARGIN: Duration = Duration::from_secs(2);

/// Returns the time since 1970 at the last clock tick. Every later change gets this time or a later
/// one. The precise clock is ahead of it, by a lot if the machine is stalled.
pub(crate) fn coarse_now() -> Duration {
    let time = clock_gettime(ClockId::RealtimeCoarse);
    let seconds = u64::try_from(time.tv_sec).unwrap_or_default();
    let nanoseconds = u32::try_from(time.tv_nsec).unwrap_or_default();
    Duration::new(seconds, nanoseconds)
}
