//! Descriptors of the broker's own, closed when dropped.

use std::{
    ffi::{CStr, c_int},
    mem::MaybeUninit,
};

use crate::raw::{self, Errno};

/// A descriptor that is closed when dropped.
#[derive(Debug)]
pub(super) struct OwnedDescriptor(c_int);

/// What the broker wants to know of a file.
#[derive(Clone, Copy, Debug)]
pub(super) struct FileFacts {
    /// Which file it is.
    pub(super) identity: FileIdentity,
    /// Its type and permissions.
    pub(super) mode: u32,
    /// Who owns it.
    pub(super) owner: u32,
}

/// Which file of which file system.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct FileIdentity {
    device: (u32, u32),
    inode: u64,
}

impl FileIdentity {
    /// No file's.
    pub(super) const NONE: Self = Self {
        device: (0, 0),
        inode: 0,
    };

    /// Whether it could be of the view of processes: that is on no device.
    pub(super) const fn may_be_on_procfs(&self) -> bool {
        self.device.0 == 0
    }
}

impl OwnedDescriptor {
    /// Opens a path without opening what is there: as a place only.
    pub(super) fn open_place(
        base: c_int,
        path: &CStr,
        flags: c_int,
        resolve: u64,
    ) -> Result<Self, Errno> {
        let how = OpenHow {
            flags: u64::from((libc::O_PATH | libc::O_CLOEXEC | flags).unsigned_abs()),
            mode: 0,
            resolve,
        };
        let args = [
            raw::int_arg(base),
            path.as_ptr() as usize,
            &raw const how as usize,
            size_of::<OpenHow>(),
            0,
            0,
        ];
        // A path that must stay below somewhere cannot be followed while somebody renames anything.
        let mut opened = Err(libc::EAGAIN);
        for _ in 0..MAX_TRIES {
            opened = raw::syscall(libc::SYS_openat2, args);
            if opened != Err(libc::EAGAIN) {
                break;
            }
        }
        opened.map(|fd| Self(raw::to_i32(fd)))
    }

    /// Takes over a descriptor that a call of the broker has made.
    pub(super) const fn from_call(fd: c_int) -> Self {
        Self(fd)
    }

    /// Duplicates a descriptor that somebody else keeps.
    pub(super) fn duplicate(fd: c_int) -> Result<Self, Errno> {
        raw::dup_above(fd, 0).map(Self)
    }

    /// Keeps the descriptor open for as long as the process lives.
    pub(super) fn leave_open(self) {
        std::mem::forget(self);
    }

    /// Its number.
    pub(super) const fn number(&self) -> c_int {
        self.0
    }

    /// Tells about the file itself.
    pub(super) fn facts(&self) -> Result<FileFacts, Errno> {
        stat_at(self.0, c"", libc::AT_EMPTY_PATH)
    }

    /// Whether it is of the view of processes.
    pub(super) fn is_on_procfs(&self) -> Result<bool, Errno> {
        let mut record = MaybeUninit::<libc::statfs>::zeroed();
        let args = [
            raw::int_arg(self.0),
            record.as_mut_ptr() as usize,
            0,
            0,
            0,
            0,
        ];
        raw::syscall(libc::SYS_fstatfs, args)?;
        // SAFETY: the record is plain numbers, and began as zeroes.
        let record = unsafe { record.assume_init() };
        Ok(record.f_type == libc::PROC_SUPER_MAGIC)
    }
}

impl Drop for OwnedDescriptor {
    fn drop(&mut self) {
        // The number is free again, whatever close says.
        let _ = raw::close(self.0);
    }
}

/// Tells about the file at a path.
pub(super) fn stat_at(base: c_int, path: &CStr, flags: c_int) -> Result<FileFacts, Errno> {
    let mut record = MaybeUninit::<libc::statx>::zeroed();
    let flags = flags | libc::AT_STATX_DONT_SYNC;
    let mask = libc::STATX_TYPE | libc::STATX_MODE | libc::STATX_UID | libc::STATX_INO;
    let args = [
        raw::int_arg(base),
        path.as_ptr() as usize,
        raw::int_arg(flags),
        mask as usize,
        record.as_mut_ptr() as usize,
        0,
    ];
    raw::syscall(libc::SYS_statx, args)?;
    // SAFETY: the record is plain numbers, and began as zeroes.
    let record = unsafe { record.assume_init() };
    Ok(FileFacts {
        identity: FileIdentity {
            device: (record.stx_dev_major, record.stx_dev_minor),
            inode: record.stx_ino,
        },
        mode: u32::from(record.stx_mode),
        owner: record.stx_uid,
    })
}

/// How to open, as the kernel reads it.
#[derive(Debug, Default)]
#[repr(C)]
pub(super) struct OpenHow {
    /// Flags of `open`.
    pub(super) flags: u64,
    /// Permissions of a new file.
    pub(super) mode: u64,
    /// How links and mounts on the way are treated.
    pub(super) resolve: u64,
}

/// How often a path is followed again.
const MAX_TRIES: usize = 64;
