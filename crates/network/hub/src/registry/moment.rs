//! When a request came.

use std::time::Instant;

use crate::store::Timestamp;

/// Both clocks, read once for each request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment {
    /// For what others are told, and what is kept.
    pub(crate) at: Timestamp,
    /// For what is counted.
    pub(crate) instant: Instant,
}

impl Moment {
    /// Reads the clocks.
    pub(crate) fn now() -> Self {
        Self {
            at: Timestamp::now(),
            instant: Instant::now(),
        }
    }
}
