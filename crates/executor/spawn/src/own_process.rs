//! Memory and descriptors of the process that links this crate.

use std::{io, mem::MaybeUninit, os::fd::BorrowedFd, ptr};

use rustix::process::Pid;

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

/// Makes a process group the foreground group of a terminal, also from a background group: SIGTTOU,
/// which would stop this process, is blocked meanwhile.
///
/// # Errors
/// When the terminal is not that of this session, or the group does not exist.
pub fn set_foreground_group(terminal: BorrowedFd<'_>, group: Pid) -> io::Result<()> {
    let mut blocked = MaybeUninit::<libc::sigset_t>::uninit();
    let mut before = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: the pointer is valid for writes; this initialises the set.
    let _always_zero = unsafe { libc::sigemptyset(blocked.as_mut_ptr()) };
    // SAFETY: the set was initialised above.
    let _always_zero = unsafe { libc::sigaddset(blocked.as_mut_ptr(), libc::SIGTTOU) };
    // SAFETY: both pointers are valid; `before` is written.
    let masked =
        unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, blocked.as_ptr(), before.as_mut_ptr()) };
    if masked != 0 {
        return Err(io::Error::from_raw_os_error(masked));
    }
    let outcome = rustix::termios::tcsetpgrp(terminal, group);
    // SAFETY: `before` was written by the successful call above.
    let _same_set =
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), ptr::null_mut()) };
    Ok(outcome?)
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
