//! How many threads one operation takes.

use std::{num::NonZero, sync::OnceLock, thread};

/// Returns how many threads one operation may keep busy, its own among them.
pub(crate) fn count() -> usize {
    // To find out takes longer than a small operation does.
    static COUNT: OnceLock<usize> = OnceLock::new();
    *COUNT.get_or_init(|| {
        let cores = thread::available_parallelism().map_or(1, NonZero::get);
        cores.min(MOST)
    })
}

/// Others have operations under way, too, and more threads would wait for the disk together.
const MOST: usize = 8;
