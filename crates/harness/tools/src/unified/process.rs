//! A command that was started, whatever runs it.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, SystemTime},
};

use exec_env::process::{ExecProcess, ProcessNumber};
use exec_wire::path_uri::PathUri;
use tokio::{
    sync::{Notify, watch},
    time::{Instant, timeout_at},
};

use super::{buffer::Gathered, call::CallId};

/// How long the watcher is waited for. It lags behind only if the whole program does.
const CATCHING_UP: Duration = Duration::from_millis(100);

/// What is known of a command: the same for every backend.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct ProcessState {
    /// It has ended.
    pub has_exited: bool,
    /// The code that it ended with.
    pub exit_code: Option<i32>,
    /// Why nothing more can be known of it.
    pub failure: Option<String>,
}

/// A command that was started. When the last handle is dropped, its tree is killed.
#[derive(Debug)]
pub struct UnifiedExecProcess {
    pub(super) about: About,
    pub(super) process: Arc<dyn ExecProcess>,
    pub(super) shared: Arc<Shared>,
}

/// What a command was started as.
#[derive(Clone, Debug)]
pub(super) struct About {
    pub(super) number: ProcessNumber,
    pub(super) call_id: CallId,
    pub(super) argv: Vec<String>,
    pub(super) cwd: PathUri,
    pub(super) tty: bool,
    pub(super) input: Input,
    pub(super) started: SystemTime,
}

/// Whether a command was given something to read.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Input {
    Open,
    None,
}

/// What the watcher of a command keeps for others. It outlives the handle, so that an end is told.
#[derive(Debug)]
pub(super) struct Shared {
    gathered: Mutex<Gathered>,
    /// Told whenever something was gathered. One call waits at a time.
    pub(super) changed: Notify,
    pub(super) state: watch::Sender<ProcessState>,
    /// Whether the end was told.
    pub(super) over: watch::Sender<bool>,
}

/// A command, as a list shows it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ProcessSummary {
    /// What a model calls it.
    pub number: ProcessNumber,
    /// The call that started it.
    pub call_id: CallId,
    /// What runs.
    pub argv: Vec<String>,
    /// Where.
    pub cwd: PathUri,
    /// It has a terminal.
    pub tty: bool,
    /// When it was started.
    pub started: SystemTime,
    /// What is known of it.
    pub state: ProcessState,
}

impl UnifiedExecProcess {
    /// Returns what is known of it now.
    pub fn state(&self) -> ProcessState {
        self.shared.state.borrow().clone()
    }

    /// Returns what is known of it, now and whenever that changes.
    pub fn states(&self) -> watch::Receiver<ProcessState> {
        self.shared.state.subscribe()
    }

    /// Returns it as a list shows it.
    pub fn summary(&self) -> ProcessSummary {
        self.about.summary(self.state())
    }

    /// Waits until its end was told.
    pub async fn over(&self) {
        let mut over = self.shared.over.subscribe();
        // It cannot fail: the sender is in this handle.
        drop(over.wait_for(|over| *over).await);
    }
}

impl UnifiedExecProcess {
    /// Waits until the watcher has taken what the process had written by now, if it does so soon.
    pub(super) async fn catch_up(&self) {
        let next = self.process.status().next_seq;
        let by = Instant::now() + CATCHING_UP;
        loop {
            let changed = self.shared.changed.notified();
            {
                let gathered = self.shared.lock();
                if gathered.over || gathered.last_seq.next() >= next {
                    return;
                }
            }
            if timeout_at(by, changed).await.is_err() {
                return;
            }
        }
    }
}

impl About {
    /// Returns a command as a list shows it.
    pub(super) fn summary(&self, state: ProcessState) -> ProcessSummary {
        let Self {
            number,
            call_id,
            argv,
            cwd,
            tty,
            input: _,
            started,
        } = self.clone();
        ProcessSummary {
            number,
            call_id,
            argv,
            cwd,
            tty,
            started,
            state,
        }
    }
}

impl Shared {
    pub(super) fn new(gathered: Gathered) -> Self {
        Self {
            gathered: Mutex::new(gathered),
            changed: Notify::new(),
            state: watch::Sender::new(ProcessState::default()),
            over: watch::Sender::new(false),
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Gathered> {
        self.gathered.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
