//! A server that nobody looks at: this machine's own, which the commands for people start.

use std::{
    io::{self, Write},
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
};

/// Gives this process the name of the program: it was started as `/proc/self/exe`, and `ps` and `top`
/// would call it `exe`. Then leaves the terminal that this process was started from: neither its Ctrl-C nor its end is meant for
/// it any more. What is logged from now on is bounded, as nobody empties the file that it goes to.
pub fn detach_from_terminal() {
    if let Err(error) = rustix::process::setsid() {
        // The process leads a group already, which then is nobody else's.
        tracing::debug!(%error, "no session of its own");
    }
    if let Err(error) = rustix::thread::set_name(NAME) {
        tracing::debug!(%error, "process name was not set");
    }
    IS_BOUNDED.store(true, Ordering::Relaxed);
}

const NAME: &std::ffi::CStr = c"exec-server";

/// Standard error for logs. In the background it takes a megabyte, and no more.
#[derive(Debug)]
pub struct BoundedLog(io::Stderr);

impl BoundedLog {
    /// Returns a writer, for one event. All of them count together.
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

/// Counts bytes up to the limit.
#[derive(Debug)]
struct LogBudget(AtomicU64);

impl LogBudget {
    /// Counts some more, and tells whether there was room before them.
    fn admits(&self, bytes: usize) -> bool {
        self.0.fetch_add(bytes as u64, Ordering::Relaxed) < LIMIT
    }
}

/// Bytes of logs, a line more or less.
const LIMIT: u64 = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_grows_by_no_more_than_a_line_beyond_its_limit() {
        let budget = LogBudget(AtomicU64::new(0));
        let admitted = (0..100_000).filter(|_| budget.admits(100)).count() as u64;
        assert_eq!(admitted * 100, LIMIT.next_multiple_of(100));
    }
}
