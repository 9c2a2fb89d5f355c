//! The clock that the kernel stamps files with.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Tells the time since 1970 as of the last tick. Whatever changes from now on bears this time or a
/// later one; the exact clock is ahead of it, by far if the machine is held up.
pub(crate) fn coarse_now() -> Duration {
    let time = clock_gettime(ClockId::RealtimeCoarse);
    let seconds = u64::try_from(time.tv_sec).unwrap_or_default();
    let nanoseconds = u32::try_from(time.tv_nsec).unwrap_or_default();
    Duration::new(seconds, nanoseconds)
}
