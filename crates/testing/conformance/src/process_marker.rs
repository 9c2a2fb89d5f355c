//! Finds processes by a marker in their environment.

use std::{
    fs,
    path::PathBuf,
    sync::atomic::{AtomicU64, Ordering},
};

use exec_env::environment::Command;
use exec_test_support::bounded_wait::wait_until;
use rustix::process::{Pid, Signal, kill_process};

const VARIABLE: &str = "EXEC_CONFORMANCE_MARK";

/// Unique marker of a case. Dropping it kills all marked processes.
#[derive(Debug)]
pub(crate) struct ProcessMarker(String);

impl ProcessMarker {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        Self(format!("{}-{number}", std::process::id()))
    }

    /// Adds the marker to a command.
    pub(crate) fn on(&self, mut command: Command) -> Command {
        command.env.insert(VARIABLE.to_owned(), self.0.clone());
        command
    }

    /// Waits until no marked process is left.
    pub(crate) async fn gone(&self) {
        let gone = || self.marked_processes().is_empty();
        wait_until("all marked processes are gone", gone).await;
    }

    /// Waits until exactly `count` marked processes are left.
    pub(crate) async fn left(&self, count: usize) {
        let left = || self.marked_processes().len() == count;
        wait_until("expected number of marked processes is left", left).await;
    }

    /// Returns the marked processes of this machine.
    fn marked_processes(&self) -> Vec<PathBuf> {
        let entry = format!("{VARIABLE}={}", self.0);
        let processes = fs::read_dir("/proc")
            .unwrap()
            .flatten()
            .map(|process| process.path());
        let has = |process: &PathBuf| {
            // Processes that are gone or belong to another user cannot be read, and are not marked.
            let environment = fs::read(process.join("environ")).unwrap_or_default();
            environment
                .split(|byte| *byte == 0)
                .any(|variable| variable == entry.as_bytes())
        };
        processes.filter(has).collect()
    }
}

impl Drop for ProcessMarker {
    fn drop(&mut self) {
        let pid = |process: &PathBuf| process.file_name()?.to_str()?.parse().ok();
        for pid in self.marked_processes().iter().filter_map(pid) {
            if let Some(pid) = Pid::from_raw(pid) {
                // It may have exited already.
                kill_process(pid, Signal::KILL).ok();
            }
        }
    }
}
