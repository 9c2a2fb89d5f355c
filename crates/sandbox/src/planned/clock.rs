//! The clock that the kernel stamps files with.
#![expect(unsafe_code, reason = "the standard library does not read this clock")]

use std::{mem::MaybeUninit, time::Duration};

/// Tells the time since 1970 as of the last tick. Whatever changes from now on bears this time or a
/// later one; the exact clock is ahead of it, by far if the machine is held up.
pub(crate) fn coarse_now() -> Duration {
    let mut time = MaybeUninit::<libc::timespec>::zeroed();
    // SAFETY: the pointer is valid for a write of this type.
    let result = unsafe { libc::clock_gettime(libc::CLOCK_REALTIME_COARSE, time.as_mut_ptr()) };
    if result != 0 {
        return Duration::ZERO;
    }
    // SAFETY: all zeroes are a value of this type, and the call has put another in its place.
    let time = unsafe { time.assume_init() };
    let seconds = u64::try_from(time.tv_sec).unwrap_or_default();
    let nanoseconds = u32::try_from(time.tv_nsec).unwrap_or_default();
    Duration::new(seconds, nanoseconds)
}
