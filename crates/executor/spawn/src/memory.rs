//! Gives freed memory back to the system.

/// Has the allocator give back every free page. By itself it keeps those below a page that is in
/// use, so that a burst of connections would cost its peak for ever. Takes milliseconds for some
/// hundred megabytes, and other threads may wait for that long. With another C library than glibc
/// nothing happens.
pub fn release_free_memory() {
    #[cfg(target_env = "gnu")]
    {
        // SAFETY: no precondition; the allocator locks what it looks at.
        let _something_was_released = unsafe { libc::malloc_trim(0) };
    }
}
