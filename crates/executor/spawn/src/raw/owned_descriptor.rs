//! Descriptors that are closed on drop.

use std::ffi::{CStr, c_int};

use super::{Errno, close, close_range, dup_above, int_arg, syscall, to_i32};

/// A descriptor that is closed on drop.
#[derive(Debug)]
pub(crate) struct OwnedDescriptor(c_int);

impl OwnedDescriptor {
    /// Opens a path with `O_PATH`.
    pub(crate) fn open_path(
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
            int_arg(base),
            path.as_ptr() as usize,
            &raw const how as usize,
            size_of::<OpenHow>(),
        ];
        // Resolution with `RESOLVE_BENEATH` fails with EAGAIN during concurrent renames.
        let mut opened = Err(libc::EAGAIN);
        for _ in 0..MAX_TRIES {
            opened = syscall(libc::SYS_openat2, args);
            if opened != Err(libc::EAGAIN) {
                break;
            }
        }
        opened.map(Self::from_call)
    }

    /// Takes ownership of the descriptor that a system call returned.
    pub(crate) fn from_call(result: usize) -> Self {
        Self(to_i32(result))
    }

    /// Duplicates a descriptor without taking ownership of it.
    pub(crate) fn duplicate(fd: c_int) -> Result<Self, Errno> {
        dup_above(fd, 0).map(Self)
    }

    /// Returns its number.
    pub(crate) const fn number(&self) -> c_int {
        self.0
    }

    /// Returns its number, and leaves the descriptor open.
    pub(crate) fn into_raw(self) -> c_int {
        let fd = self.0;
        std::mem::forget(self);
        fd
    }
}

impl Drop for OwnedDescriptor {
    fn drop(&mut self) {
        // The number is free again, even if `close` fails.
        let _ = close(self.0);
    }
}

/// The kernel's `open_how`.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct OpenHow {
    /// Flags of `open`.
    pub(crate) flags: u64,
    /// Permissions of a new file.
    pub(crate) mode: u64,
    /// How links and mounts in the path are resolved.
    pub(crate) resolve: u64,
}

/// How often a path is resolved again.
const MAX_TRIES: usize = 64;

/// Closes all descriptors from `first` on, except these. Returns the first error, after all ranges
/// were tried.
pub(crate) fn close_from_except(
    mut first: c_int,
    keep: impl Iterator<Item = c_int> + Clone,
) -> Result<usize, Errno> {
    let mut outcome = Ok(0);
    while let Some(next) = keep.clone().filter(|fd| *fd >= first).min() {
        if next > first {
            outcome = outcome.and(close_range(first, next - 1));
        }
        first = next + 1;
    }
    outcome.and(close_range(first, c_int::MAX))
}
