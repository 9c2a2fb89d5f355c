//! Handing descriptors to the runtime.

use std::{io, os::fd::OwnedFd};

use tokio::io::{Interest, unix::AsyncFd};

/// Registers a descriptor. One that is not in non-blocking mode must be polled before it is used.
///
/// # Errors
/// When it cannot be waited for, as a file cannot.
#[expect(unsafe_code, reason = "tokio has no safe call that takes an `OwnedFd`")]
pub fn register(fd: OwnedFd, interest: Interest) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an `OwnedFd` returns the same descriptor for as long as it lives, and owns it.
    unsafe { AsyncFd::register_with_interest(fd, interest) }.map_err(Into::into)
}
