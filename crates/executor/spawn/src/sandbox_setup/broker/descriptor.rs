//! The broker's own descriptors, closed on drop.

use std::{
    ffi::{CStr, c_int},
    mem::MaybeUninit,
};

use crate::raw::{self, Errno};

/// A descriptor that is closed on drop.
#[derive(Debug)]
pub(super) struct OwnedDescriptor(c_int);

/// Metadata of a file that the broker needs.
#[derive(Clone, Copy, Debug)]
pub(super) struct FileFacts {
    /// Which file it is.
    pub(super) identity: FileIdentity,
    /// File type and permissions.
    pub(super) mode: u32,
    /// User id of the owner.
    pub(super) owner: u32,
}

/// Identifies a file by device and inode.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct FileIdentity {
    device: (u32, u32),
    inode: u64,
}

impl FileIdentity {
    /// An identity that no file has.
    pub(super) const NONE: Self = Self {
        device: (0, 0),
        inode: 0,
    };

    /// Returns whether the file may be on a procfs, which has no device.
    pub(super) const fn may_be_on_procfs(&self) -> bool {
        self.device.0 == 0
    }
}

impl OwnedDescriptor {
    /// Opens a path with `O_PATH`.
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
        // Resolution with `RESOLVE_BENEATH` fails with EAGAIN during concurrent renames.
        let mut opened = Err(libc::EAGAIN);
        for _ in 0..MAX_TRIES {
            opened = raw::syscall(libc::SYS_openat2, args);
            if opened != Err(libc::EAGAIN) {
                break;
            }
        }
        opened.map(|fd| Self(raw::to_i32(fd)))
    }

    /// Takes ownership of a descriptor that a system call returned.
    pub(super) const fn from_call(fd: c_int) -> Self {
        Self(fd)
    }

    /// Duplicates a descriptor without taking ownership of it.
    pub(super) fn duplicate(fd: c_int) -> Result<Self, Errno> {
        raw::dup_above(fd, 0).map(Self)
    }

    /// Keeps the descriptor open until the process exits.
    pub(super) fn leave_open(self) {
        std::mem::forget(self);
    }

    /// Returns its number.
    pub(super) const fn number(&self) -> c_int {
        self.0
    }

    /// Returns the metadata of the open file.
    pub(super) fn facts(&self) -> Result<FileFacts, Errno> {
        stat_at(self.0, c"", libc::AT_EMPTY_PATH)
    }

    /// Returns whether the file is on a procfs.
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
        // SAFETY: the record consists of integers and was zero-initialised.
        let record = unsafe { record.assume_init() };
        Ok(record.f_type == libc::PROC_SUPER_MAGIC)
    }
}

impl Drop for OwnedDescriptor {
    fn drop(&mut self) {
        // The number is free again, even if `close` fails.
        let _ = raw::close(self.0);
    }
}

/// Returns the metadata of the file at a path.
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
    // SAFETY: the record consists of integers and was zero-initialised.
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

/// The kernel's `open_how`.
#[derive(Debug, Default)]
#[repr(C)]
pub(super) struct OpenHow {
    /// Flags of `open`.
    pub(super) flags: u64,
    /// Permissions of a new file.
    pub(super) mode: u64,
    /// How links and mounts in the path are resolved.
    pub(super) resolve: u64,
}

/// How often a path is resolved again.
const MAX_TRIES: usize = 64;
