//! Memory and descriptors of the process that links this crate.

use crate::raw;

/// Returns all free pages of the allocator to the kernel. glibc keeps free pages below a page in
/// use, so that a burst of connections would cost its peak forever. Takes milliseconds for some
/// hundred megabytes, and may block other threads that long. Does nothing with another C library.
pub fn release_free_memory() {
    #[cfg(target_env = "gnu")]
    {
        // SAFETY: no precondition; the allocator takes its own locks.
        let _released = unsafe { libc::malloc_trim(0) };
    }
}

/// Marks every descriptor except the standard ones close-on-exec, so that programs started from now
/// on do not inherit what this process's parent left open.
///
/// Needs Linux 5.11; on older kernels nothing changes.
pub fn set_descriptors_close_on_exec() {
    if let Err(error) = raw::close_range_on_exec(3, i32::MAX) {
        tracing::debug!(
            error,
            "failed to set close-on-exec: programs inherit descriptors"
        );
    }
}
