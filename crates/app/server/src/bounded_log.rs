//! Support for the local server that commands for people start in the background.

use std::{
    io::{self, Write},
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
};

/// Detaches from the terminal that started this process, so that its Ctrl-C and hang-up no longer
/// apply. Also sets the process name, because the process was started as `/proc/self/exe` and `ps`
/// would show `exe`, and bounds the log from now on, because nothing rotates its file.
pub fn detach_from_terminal() {
    if let Err(error) = rustix::process::setsid() {
        // The process already leads its own group.
        tracing::debug!(%error, "cannot create a session");
    }
    if let Err(error) = rustix::thread::set_name(NAME) {
        tracing::debug!(%error, "cannot set the process name");
    }
    IS_BOUNDED.store(true, Ordering::Relaxed);
}

const NAME: &std::ffi::CStr = c"exec-server";

/// Stderr for logs. In the background it accepts one megabyte.
#[derive(Debug)]
pub struct BoundedLog(io::Stderr);

impl BoundedLog {
    /// Returns a writer for one event. All writers share the limit.
    pub fn of_stderr() -> Self {
        Self(io::stderr())
    }
}

impl Write for BoundedLog {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if !IS_BOUNDED.load(Ordering::Relaxed) || WRITTEN.admits(bytes.len()) {
            self.0.write_all(bytes)?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

static IS_BOUNDED: AtomicBool = AtomicBool::new(false);
static WRITTEN: LogBudget = LogBudget(AtomicU64::new(0));

/// Counts logged bytes up to the limit.
#[derive(Debug)]
struct LogBudget(AtomicU64);

impl LogBudget {
    /// Adds to the count, and returns whether the limit was not yet reached.
    fn admits(&self, bytes: usize) -> bool {
        self.0.fetch_add(bytes as u64, Ordering::Relaxed) < LIMIT
    }
}

/// Maximum bytes of logs, plus at most one line.
const LIMIT: u64 = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_exceeds_its_limit_by_at_most_one_line() {
        let budget = LogBudget(AtomicU64::new(0));
        let admitted = (0..100_000).filter(|_| budget.admits(100)).count() as u64;
        assert_eq!(admitted * 100, LIMIT.next_multiple_of(100));
    }
}
