//! Processes that are found by a mark in their environment, wherever they went.

use std::{
    fs,
    path::PathBuf,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use exec_env::command::Command;
use rustix::process::{Pid, Signal, kill_process};
use tokio::time::sleep;

use crate::bounded_wait::within;

/// How often processes are looked for, where nobody tells when they are gone.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

const VARIABLE: &str = "EXEC_CONFORMANCE_MARK";

/// A mark of a case's own. What bears it is killed when this is dropped.
#[derive(Debug)]
pub(crate) struct Mark(String);

impl Mark {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        Self(format!("{}-{number}", std::process::id()))
    }

    /// Puts the mark on a command.
    pub(crate) fn on(&self, mut command: Command) -> Command {
        command.env.insert(VARIABLE.to_owned(), self.0.clone());
        command
    }

    /// Waits until nothing bears the mark.
    pub(crate) async fn gone(&self) {
        within("all are gone", async {
            while !self.bearers().is_empty() {
                sleep(LOOK_AGAIN).await;
            }
        })
        .await;
    }

    /// Waits until exactly so many bear the mark.
    pub(crate) async fn left(&self, count: usize) {
        within("some are left", async {
            while self.bearers().len() != count {
                sleep(LOOK_AGAIN).await;
            }
        })
        .await;
    }

    /// Returns the processes of this machine that bear the mark.
    fn bearers(&self) -> Vec<PathBuf> {
        let entry = format!("{VARIABLE}={}", self.0);
        let processes = fs::read_dir("/proc")
            .unwrap()
            .flatten()
            .map(|process| process.path());
        let has = |process: &PathBuf| {
            // What is gone, or another account's, cannot be read and is none of ours.
            let environment = fs::read(process.join("environ")).unwrap_or_default();
            environment
                .split(|byte| *byte == 0)
                .any(|variable| variable == entry.as_bytes())
        };
        processes.filter(has).collect()
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        let pid = |process: &PathBuf| process.file_name()?.to_str()?.parse().ok();
        for pid in self.bearers().iter().filter_map(pid) {
            if let Some(pid) = Pid::from_raw(pid) {
                // It may have ended meanwhile.
                kill_process(pid, Signal::KILL).ok();
            }
        }
    }
}
