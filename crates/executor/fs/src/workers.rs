//! How many threads an operation uses, and how it is asked to stop.

use std::{
    num::NonZero,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use exec_env::filesystem::FileError;

/// A request to stop, shared by who waits and who works.
#[derive(Clone, Debug, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Asks for the operation to stop.
    pub fn ask(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Tells whether it was asked for.
    pub fn is_asked(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Fails if it was asked for. Nobody sees the error.
    ///
    /// # Errors
    /// Says that the operation was cancelled.
    pub fn check(&self) -> Result<(), FileError> {
        if self.is_asked() {
            return Err(FileError::Host("operation was cancelled".to_owned()));
        }
        Ok(())
    }
}

/// Returns how many threads one operation may keep busy, its own among them.
pub(crate) fn thread_count() -> usize {
    // To find out takes longer than a small operation does.
    static COUNT: OnceLock<usize> = OnceLock::new();
    *COUNT.get_or_init(|| {
        let cores = thread::available_parallelism().map_or(1, NonZero::get);
        cores.min(MAX_THREADS)
    })
}

/// Others have operations under way, too, and more threads would wait for the disk together.
const MAX_THREADS: usize = 8;
