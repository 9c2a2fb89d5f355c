//! Tells an operation that nobody waits for it any more.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
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
