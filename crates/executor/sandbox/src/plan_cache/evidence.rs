//! Facts, and what they rest on.
//!
//! What a directory has that changes with its names.
//!
//! The clock that the kernel stamps files with.

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

use crate::facts::{Facts, Found, ListError, Listed};

/// Passes on facts, and notes what they rest on before it looks: what changes between the two is then
/// seen later as a change.
pub(super) struct Recorder<'a> {
    facts: &'a dyn Facts,
    now: Duration,
    noted: RefCell<Noted>,
}

#[derive(Default)]
struct Noted {
    directories: HashMap<PathBuf, Stamp>,
    contents: Vec<Content>,
    devices: Vec<Device>,
    /// All paths that were looked at.
    bytes: usize,
    /// Something does not last, or cannot be told.
    is_doubtful: bool,
}

/// What facts rest on.
#[derive(Debug)]
pub(super) struct Evidence {
    /// Those above first.
    directories: Vec<(PathBuf, Stamp)>,
    contents: Vec<Content>,
}

#[derive(Debug)]
struct Content {
    path: PathBuf,
    most: usize,
    content: Vec<u8>,
}

impl<'a> Recorder<'a> {
    /// Starts with nothing noted at a time that the kernel's coarse clock has told.
    pub(super) fn new(facts: &'a dyn Facts, now: Duration) -> Self {
        Self {
            facts,
            now,
            noted: RefCell::default(),
        }
    }

    /// Notes that it matters what is at a path.
    pub(super) fn rely_on(&self, path: &Path) {
        let mut noted = self.noted.borrow_mut();
        noted.bytes += path.as_os_str().len();
        noted.is_doubtful |= noted.bytes > MAX_BYTES;
        let Some(parent) = path.parent() else {
            return;
        };
        if noted.is_doubtful || noted.directories.contains_key(parent) {
            return;
        }
        // From the root on: each is stamped by a path that the stamps above it vouch for.
        let mut above: Vec<_> = parent.ancestors().collect();
        above.reverse();
        for directory in above {
            noted.stamp(directory, self.now);
        }
    }

    /// Returns what everything so far rests on. `None`: on something that may change unnoticed.
    pub(super) fn into_evidence(self) -> Option<Evidence> {
        let noted = self.noted.into_inner();
        if noted.is_doubtful {
            return None;
        }
        let mut directories: Vec<_> = noted.directories.into_iter().collect();
        directories.sort_by(|(one, _), (other, _)| one.cmp(other));
        Some(Evidence {
            directories,
            contents: noted.contents,
        })
    }

    fn doubt(&self) {
        self.noted.borrow_mut().is_doubtful = true;
    }
}

impl Noted {
    fn stamp(&mut self, directory: &Path, now: Duration) {
        if self.is_doubtful || self.directories.contains_key(directory) {
            return;
        }
        match Stamp::of(directory) {
            Some(stamp)
                if self.directories.len() < MAX_DIRECTORIES
                    && stamp.is_settled(now)
                    && self.keeps_times(directory, stamp.device()) =>
            {
                self.directories.insert(directory.to_owned(), stamp);
            }
            Some(_) | None => self.is_doubtful = true,
        }
    }

    fn keeps_times(&mut self, directory: &Path, device: Device) -> bool {
        let is_known = self.devices.contains(&device);
        if !is_known && keeps_times(directory) {
            self.devices.push(device);
            return true;
        }
        is_known
    }
}

impl Facts for Recorder<'_> {
    fn look(&self, path: &Path) -> Found {
        self.rely_on(path);
        let found = self.facts.look(path);
        if found == Found::Unknown {
            self.doubt();
        }
        found
    }

    fn read(&self, path: &Path, most: usize) -> Option<Vec<u8>> {
        self.rely_on(path);
        let content = self.facts.read(path, most);
        let mut noted = self.noted.borrow_mut();
        match &content {
            Some(content) if noted.contents.len() < MAX_CONTENTS => noted.contents.push(Content {
                path: path.to_owned(),
                most,
                content: content.clone(),
            }),
            Some(_) | None => noted.is_doubtful = true,
        }
        content
    }

    /// Nothing that was listed is remembered: whole trees would have to be stamped.
    fn list(&self, path: &Path, most: usize) -> Result<Vec<Listed>, ListError> {
        self.doubt();
        self.facts.list(path, most)
    }
}

impl Evidence {
    /// Tells whether all is as it was.
    pub(super) fn holds(&self, facts: &dyn Facts) -> bool {
        let is_same =
            |(path, stamp): &(PathBuf, Stamp)| Stamp::of(path).is_some_and(|now| now == *stamp);
        let reads_same = |read: &Content| {
            let now = facts.read(&read.path, read.most);
            now.is_some_and(|now| now == read.content)
        };
        self.directories.iter().all(is_same) && self.contents.iter().all(reads_same)
    }
}

/// More are not faster to look at than the policy is to resolve.
const MAX_DIRECTORIES: usize = 512;
/// Two for each directory of git's that a file points to.
const MAX_CONTENTS: usize = 16;
/// Of all paths in one plan.
const MAX_BYTES: usize = 256 << 10;

/// A directory at one moment. Equal stamps at two moments: no name in it has changed in between, and
/// who may look for one has not either.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Stamp {
    mount: u64,
    device: Device,
    inode: u64,
    mode: u16,
    owner: (u32, u32),
    /// When it was last changed. Nobody can set this one.
    changed: (i64, u32),
    modified: (i64, u32),
}

/// Which file system.
pub(super) type Device = (u32, u32);

impl Stamp {
    /// Stamps a directory whose path holds no link. `None`: it is none, or cannot be seen.
    pub(super) fn of(path: &Path) -> Option<Self> {
        let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::STATX_DONT_SYNC;
        let wanted = StatxFlags::BASIC_STATS | StatxFlags::MNT_ID;
        let found = statx(CWD, path, flags, wanted).ok()?;
        let is_directory = FileType::from_raw_mode(found.stx_mode.into()) == FileType::Directory;
        is_directory.then_some(Self {
            mount: found.stx_mnt_id,
            device: (found.stx_dev_major, found.stx_dev_minor),
            inode: found.stx_ino,
            mode: found.stx_mode,
            owner: (found.stx_uid, found.stx_gid),
            changed: (found.stx_ctime.tv_sec, found.stx_ctime.tv_nsec),
            modified: (found.stx_mtime.tv_sec, found.stx_mtime.tv_nsec),
        })
    }

    /// Tells whether every change after `now` gives another stamp: the last one is so long ago that
    /// the next cannot bear the same time.
    pub(super) fn is_settled(&self, now: Duration) -> bool {
        let (seconds, nanoseconds) = self.changed;
        let Ok(seconds) = u64::try_from(seconds) else {
            return true;
        };
        // Old file systems keep whole seconds.
        let margin = if nanoseconds == 0 { WHOLE } else { MARGIN };
        let changed = Duration::new(seconds, nanoseconds);
        now.checked_sub(changed).is_some_and(|age| age > margin)
    }

    pub(super) fn device(&self) -> Device {
        self.device
    }
}

/// Tells whether directories of the file system at a path change their times with their names, and
/// are changed by this kernel alone. Those that the kernel makes up (`/proc`), or shares with other
/// machines or programs, are not among them.
pub(super) fn keeps_times(path: &Path) -> bool {
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
    statfs(path).is_ok_and(|found| is_known(i128::from(found.f_type)))
}

/// Some ticks of the clock: it ticks at least 100 times a second.
const MARGIN: Duration = Duration::from_millis(20);
const WHOLE: Duration = Duration::from_secs(2);

/// Tells the time since 1970 as of the last tick. Whatever changes from now on bears this time or a
/// later one; the exact clock is ahead of it, by far if the machine is held up.
pub(crate) fn coarse_now() -> Duration {
    let time = clock_gettime(ClockId::RealtimeCoarse);
    let seconds = u64::try_from(time.tv_sec).unwrap_or_default();
    let nanoseconds = u32::try_from(time.tv_nsec).unwrap_or_default();
    Duration::new(seconds, nanoseconds)
}
