//! Progress and summary of a copy.

use std::{
    cell::RefCell,
    time::{Duration, Instant},
};

use exec_client::client::ConnectionState;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;

use crate::command::{failure::CommandFailure, print::printable, process_session::print_notice};

/// Maximum number of failures shown; the rest is only counted.
const MAX_COMPLAINTS: u64 = 20;

/// Summary of a copy.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct CopySummary {
    /// Files that exist at the target.
    pub(super) files: u64,
    /// Directories that exist at the target.
    pub(super) directories: u64,
    /// Total size of those files.
    pub(super) bytes: u64,
    /// Bytes written by this run.
    pub(super) written_bytes: u64,
    /// Bytes reused from an earlier run.
    pub(super) resumed_bytes: u64,
    /// Skipped entries: special files and dangling links.
    pub(super) skipped: u64,
    /// Entries that could not be copied.
    pub(super) failed: u64,
    /// Duration.
    pub(super) seconds: f64,
}

/// Whether a progress bar is shown.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum ProgressDisplay {
    /// If stderr is a terminal.
    OnTerminal,
    /// Only failures.
    Nothing,
}

/// Counts progress, and shows a bar on stderr.
#[derive(Debug)]
pub(super) struct CopyProgress {
    bar: ProgressBar,
    begun: Instant,
    counts: RefCell<CopySummary>,
    first: RefCell<Option<CommandFailure>>,
}

impl CopyProgress {
    /// Starts counting.
    pub(super) fn new(show: ProgressDisplay) -> Self {
        let draw = match show {
            ProgressDisplay::OnTerminal => ProgressDrawTarget::stderr(),
            ProgressDisplay::Nothing => ProgressDrawTarget::hidden(),
        };
        let bar = ProgressBar::with_draw_target(Some(0), draw);
        if let Ok(style) = ProgressStyle::with_template(LINE) {
            bar.set_style(style.progress_chars("=> "));
        }
        Self {
            bar,
            begun: Instant::now(),
            counts: RefCell::default(),
            first: RefCell::default(),
        }
    }

    /// Adds to the expected total.
    pub(super) fn expect(&self, bytes: u64) {
        self.bar.inc_length(bytes);
    }

    /// Shows the name of a file that is now copied.
    pub(super) fn begin(&self, name: &str) {
        self.bar.set_prefix(printable(name));
    }

    /// Counts written bytes.
    pub(super) fn written(&self, bytes: u64) {
        self.counts.borrow_mut().written_bytes += bytes;
        self.bar.inc(bytes);
    }

    /// Counts reused bytes.
    pub(super) fn resumed(&self, bytes: u64) {
        self.counts.borrow_mut().resumed_bytes += bytes;
        self.bar.inc(bytes);
        // Reused bytes say nothing about the transfer rate.
        self.bar.reset_eta();
    }

    /// Counts a complete file.
    pub(super) fn file(&self, bytes: u64) {
        let mut counts = self.counts.borrow_mut();
        counts.files += 1;
        counts.bytes += bytes;
    }

    /// Counts a directory.
    pub(super) fn directory(&self) {
        self.counts.borrow_mut().directories += 1;
    }

    /// Counts an entry that cannot be copied by design.
    pub(super) fn skip(&self, why: &str) {
        let skipped = {
            let mut counts = self.counts.borrow_mut();
            counts.skipped += 1;
            counts.skipped
        };
        if skipped <= MAX_COMPLAINTS {
            self.bar.suspend(|| print_notice(why));
        }
    }

    /// Counts a failure. The caller reports the first one at the end.
    pub(super) fn fail(&self, failure: CommandFailure) {
        let failed = {
            let mut counts = self.counts.borrow_mut();
            counts.failed += 1;
            counts.failed
        };
        let mut first = self.first.borrow_mut();
        if first.is_none() {
            *first = Some(failure);
        } else if failed <= MAX_COMPLAINTS {
            self.bar.suspend(|| print_notice(&failure.to_string()));
        }
    }

    /// Shows the connection state in the bar. Returns whether the bar is visible.
    pub(super) fn connection(&self, state: ConnectionState) -> bool {
        let text = match state {
            ConnectionState::Connected => "",
            ConnectionState::Reconnecting => "reconnecting…",
            ConnectionState::Lost => "lost",
        };
        self.bar.set_message(text);
        !self.bar.is_hidden()
    }

    /// Removes the bar.
    pub(super) fn end(&self) {
        self.bar.finish_and_clear();
    }

    /// Returns the summary and the first failure.
    pub(super) fn outcome(&self) -> (CopySummary, Option<CommandFailure>) {
        let mut summary = self.counts.borrow().clone();
        let took: Duration = self.begun.elapsed();
        summary.seconds = (took.as_secs_f64() * 1000.0).round() / 1000.0;
        (summary, self.first.borrow_mut().take())
    }
}

/// Name, bar, bytes, rate, remaining time, and connection state.
const LINE: &str =
    "{prefix:.bold} [{bar:24}] {bytes}/{total_bytes} {bytes_per_sec} eta {eta} {msg}";
