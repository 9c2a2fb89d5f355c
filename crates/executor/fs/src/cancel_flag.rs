//! Cancellation of operations, and the number of threads they use.

use std::{
    num::NonZero,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use exec_env::filesystem::FileError;

/// A cancellation flag, shared by the caller and the operation.
#[derive(Clone, Debug, Default)]
pub struct CancelFlag(Arc<AtomicBool>);

impl CancelFlag {
    /// Cancels the operation.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Returns whether the operation was cancelled.
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Fails if the operation was cancelled. No client receives this error.
    ///
    /// # Errors
    /// Returns an error after a cancellation.
    pub fn check(&self) -> Result<(), FileError> {
        if self.is_cancelled() {
            return Err(FileError::Host("operation was cancelled".to_owned()));
        }
        Ok(())
    }
}

/// Returns how many threads one operation may use, including its own.
pub(crate) fn thread_count() -> usize {
    // Cached, because determining it takes longer than a small operation.
    static COUNT: OnceLock<usize> = OnceLock::new();
    *COUNT.get_or_init(|| {
        let cores = thread::available_parallelism().map_or(1, NonZero::get);
        cores.min(MAX_THREADS)
    })
}

/// Limits threads because other operations run concurrently, and more threads would wait for the
/// same disk.
const MAX_THREADS: usize = 8;
