//! What a directory has that changes with its names.

use std::{path::Path, time::Duration};

use rustix::fs::{AtFlags, CWD, FileType, StatxFlags, statfs, statx};

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
