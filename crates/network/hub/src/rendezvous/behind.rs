//! How long an executor's socket has been held up, and how much of it was read meanwhile.

use tokio::time::Instant;

use crate::limits;

/// What was read while harnesses held up the executor, with short breaks or without.
#[derive(Debug)]
pub(super) struct Behind {
    since: Instant,
    bytes: usize,
    /// When the executor was read again.
    resumed: Option<Instant>,
}

impl Behind {
    /// The executor is held up.
    pub(super) fn begin() -> Self {
        Self {
            since: Instant::now(),
            bytes: 0,
            resumed: None,
        }
    }

    /// Counts what was read.
    pub(super) fn add(&mut self, bytes: usize) {
        self.bytes += bytes;
    }

    /// The executor is read again.
    pub(super) fn resume(&mut self) {
        self.resumed = Some(Instant::now());
    }

    /// The executor is held up again.
    pub(super) fn go_on(&mut self) {
        if let Some(resumed) = self.resumed.take()
            && resumed.elapsed() >= limits::CAUGHT_UP
        {
            *self = Self::begin();
        }
    }

    /// Tells whether too little was read by the deadline.
    pub(super) fn is_too_slow(&self) -> bool {
        self.bytes < limits::STALL_BYTES
    }

    /// Returns when it is time to ask.
    pub(super) fn deadline(&self) -> Instant {
        self.since + limits::STALL
    }
}
