//! Evidence that a cached plan is still valid: directory stamps and file contents.
//!
//! Also reads the coarse clock, which the kernel uses for file times.

use std::{
    cell::RefCell,
    collections::HashMap,
    path::{Path, PathBuf},
    time::Duration,
};

use rustix::{
    fs::{AtFlags, CWD, FileType, StatxFlags, statfs, statx},
    time::{ClockId, clock_gettime},
};

use crate::facts::{FileFacts, ListError, ListedEntry, PathState};

/// Passes on facts, and records the evidence for each before it is read. A change between the two
/// invalidates the evidence later.
pub(super) struct FactRecorder<'a> {
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
pub(super) struct PlanEvidence {
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
    pub(super) fn new(facts: &'a dyn FileFacts, now: Duration) -> Self {
        Self {
            facts,
            now,
            recorded: RefCell::default(),
        }
    }

    /// Records that the plan depends on a path.
    pub(super) fn depend_on(&self, path: &Path) {
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
        let mut above: Vec<_> = parent.ancestors().collect();
        above.reverse();
        for directory in above {
            recorded.stamp(directory, self.now);
        }
    }

    /// Returns the evidence. `None` if a fact may change undetected.
    pub(super) fn into_evidence(self) -> Option<PlanEvidence> {
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
    pub(super) fn is_current(&self, facts: &dyn FileFacts) -> bool {
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
pub(super) struct DirectoryStamp {
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
pub(super) type DeviceId = (u32, u32);

impl DirectoryStamp {
    /// Reads the stamp of a directory. The path must not contain symbolic links. `None` if it is
    /// not a directory or cannot be read.
    pub(super) fn of(path: &Path) -> Option<Self> {
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
    pub(super) fn is_settled(&self, now: Duration) -> bool {
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

    pub(super) fn device(&self) -> DeviceId {
        self.device
    }
}

/// Returns whether directories of this file system change their times with their names, and are
/// changed only by this kernel. Excludes virtual file systems (`/proc`) and those that other hosts
/// or programs change.
pub(super) fn has_reliable_times(path: &Path) -> bool {
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
