//! The outcome of one bulk transfer.

use std::time::Duration;

/// How fast bytes came through and what that cost the process in between.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Transfer {
    /// Bytes per second.
    pub(crate) rate: f64,
    /// CPU seconds per GiB, if the process can be seen.
    pub(crate) cpu_per_gib: Option<f64>,
}

impl Transfer {
    /// Makes it from what was moved, how long that took, and the CPU seconds it cost.
    pub(crate) fn new(bytes: u64, took: Duration, cpu: Option<f64>) -> Self {
        let gib = bytes as f64 / f64::from(1 << 30);
        Self {
            rate: bytes as f64 / took.as_secs_f64(),
            cpu_per_gib: cpu.map(|cpu| cpu / gib),
        }
    }
}
