//! How far a copy is, and what it came to.

use std::{
    cell::RefCell,
    time::{Duration, Instant},
};

use exec_client::connection::ConnectionState;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;

use crate::command::{failure::CommandFailure, print::printable, process_session::print_notice};

/// Complaints that are shown; the rest is counted.
const MAX_COMPLAINTS: u64 = 20;

/// What a copy came to.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct CopySummary {
    /// Files that are there now.
    pub(super) files: u64,
    /// Directories that are there now.
    pub(super) directories: u64,
    /// What those files hold.
    pub(super) bytes: u64,
    /// What was written of it now.
    pub(super) written_bytes: u64,
    /// What an earlier run had left, and was not written again.
    pub(super) resumed_bytes: u64,
    /// What is no file and no directory, or a link that leads nowhere.
    pub(super) skipped: u64,
    /// What could not be copied.
    pub(super) failed: u64,
    /// How long it took.
    pub(super) seconds: f64,
}

/// Whether a bar is shown on a terminal.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum ProgressDisplay {
    /// If standard error is a terminal.
    OnTerminal,
    /// Nothing but complaints.
    Nothing,
}

/// Counts, and shows a bar on standard error.
#[derive(Debug)]
pub(super) struct CopyProgress {
    bar: ProgressBar,
    begun: Instant,
    counts: RefCell<CopySummary>,
    first: RefCell<Option<CommandFailure>>,
}

impl CopyProgress {
    /// Begins.
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

    /// More is to be copied.
    pub(super) fn expect(&self, bytes: u64) {
        self.bar.inc_length(bytes);
    }

    /// A file is begun.
    pub(super) fn begin(&self, name: &str) {
        self.bar.set_prefix(printable(name));
    }

    /// Some of it was written.
    pub(super) fn written(&self, bytes: u64) {
        self.counts.borrow_mut().written_bytes += bytes;
        self.bar.inc(bytes);
    }

    /// Some of it was there.
    pub(super) fn resumed(&self, bytes: u64) {
        self.counts.borrow_mut().resumed_bytes += bytes;
        self.bar.inc(bytes);
        // What was there before says nothing of the rate.
        self.bar.reset_eta();
    }

    /// A file is there.
    pub(super) fn file(&self, bytes: u64) {
        let mut counts = self.counts.borrow_mut();
        counts.files += 1;
        counts.bytes += bytes;
    }

    /// A directory is there.
    pub(super) fn directory(&self) {
        self.counts.borrow_mut().directories += 1;
    }

    /// Something is not copied, which nobody can.
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

    /// Something could not be copied. The first one is told by whoever ends.
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

    /// The connection is out, or back. Tells whether that is to be seen.
    pub(super) fn connection(&self, state: ConnectionState) -> bool {
        let text = match state {
            ConnectionState::Connected => "",
            ConnectionState::Reconnecting => "reconnecting…",
            ConnectionState::Lost => "lost",
        };
        self.bar.set_message(text);
        !self.bar.is_hidden()
    }

    /// Takes the bar away.
    pub(super) fn end(&self) {
        self.bar.finish_and_clear();
    }

    /// Returns what it came to, and the first failure.
    pub(super) fn outcome(&self) -> (CopySummary, Option<CommandFailure>) {
        let mut summary = self.counts.borrow().clone();
        let took: Duration = self.begun.elapsed();
        summary.seconds = (took.as_secs_f64() * 1000.0).round() / 1000.0;
        (summary, self.first.borrow_mut().take())
    }
}

/// Name, bar, amount, rate, rest, and what is said of the connection.
const LINE: &str =
    "{prefix:.bold} [{bar:24}] {bytes}/{total_bytes} {bytes_per_sec} eta {eta} {msg}";
