//! When something must happen to a process although nothing else does.

use std::time::Duration;

use exec_wire::process::ExitCause;
use tokio::time::Instant;

/// How long output may stay open after a process was ended, before it is given up.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);
/// How often the memory of a tree is looked at.
const MEMORY_SAMPLE: Duration = Duration::from_millis(100);
/// How often the processes of a tree are counted: forking is faster than filling memory.
const PROCESS_SAMPLE: Duration = Duration::from_millis(20);

/// Limits that are kept by the clock.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ProcessTimers {
    pub(crate) wall: Option<Duration>,
    pub(crate) idle: Option<Duration>,
    pub(crate) tree: TreeLimits,
}

/// Limits on a whole tree that are kept by looking at it.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct TreeLimits {
    pub(crate) memory_bytes: Option<u64>,
    pub(crate) processes: Option<u64>,
}

impl TreeLimits {
    fn sample_interval(self) -> Option<Duration> {
        let processes = self.processes.map(|_| PROCESS_SAMPLE);
        processes.or(self.memory_bytes.map(|_| MEMORY_SAMPLE))
    }
}

#[derive(Debug)]
pub(super) struct ProcessDeadlines {
    timers: ProcessTimers,
    wall_at: Option<Instant>,
    last_activity: Instant,
    sample_at: Option<Instant>,
    abandon_at: Option<Instant>,
}

/// What is due.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum DueAction {
    /// The tree is to be killed, for this cause.
    Kill(ExitCause),
    /// The tree is to be looked at; this much is allowed.
    Sample(TreeLimits),
    /// Output that nobody closes is to be given up.
    Abandon,
}

impl ProcessDeadlines {
    pub(super) fn new(timers: ProcessTimers, now: Instant) -> Self {
        Self {
            timers,
            wall_at: timers.wall.and_then(|wall| now.checked_add(wall)),
            last_activity: now,
            sample_at: timers.tree.sample_interval().map(|interval| now + interval),
            abandon_at: None,
        }
    }

    /// Something was read or written.
    pub(super) fn activity(&mut self) {
        if self.timers.idle.is_some() {
            self.last_activity = Instant::now();
        }
    }

    /// The process is paused, or was until now. Whoever waits for its reader is not idle, and what it
    /// could not be rid of meanwhile is yet to be read.
    pub(super) fn handle_backpressure(&mut self) {
        self.activity();
        if let Some(at) = &mut self.abandon_at {
            *at = (*at).max(Instant::now() + DRAIN_TIMEOUT);
        }
    }

    /// The process has ended: its limits no longer matter. If it was ended by us, its output may
    /// not stay open for long.
    pub(super) fn handle_exit(&mut self, ended_by_us: bool, kill_at: Option<Instant>) {
        self.wall_at = None;
        self.timers = ProcessTimers::default();
        self.sample_at = None;
        // Descendants that a graceful end has not killed yet may still write.
        let dead_at = kill_at.unwrap_or_else(Instant::now).max(Instant::now());
        self.abandon_at = dead_at.checked_add(DRAIN_TIMEOUT).filter(|_| ended_by_us);
    }

    /// Returns when to look again. Output that waits for a slow client is not given up.
    pub(super) fn next(&self, kill_at: Option<Instant>, paused: bool) -> Option<Instant> {
        let abandon = self.abandon_at.filter(|_| !paused);
        let idle = self.idle_at().filter(|_| !paused);
        [self.wall_at, idle, self.sample_at, abandon, kill_at]
            .into_iter()
            .flatten()
            .min()
    }

    /// Takes what is due now.
    pub(super) fn due(&mut self, kill_at: Option<Instant>, paused: bool) -> Option<DueAction> {
        let now = Instant::now();
        let is_due = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        if is_due(kill_at) {
            return Some(DueAction::Kill(ExitCause::Terminated));
        }
        if is_due(self.wall_at) {
            self.wall_at = None;
            return Some(DueAction::Kill(ExitCause::WallLimit));
        }
        if is_due(self.idle_at()) && !paused {
            self.timers.idle = None;
            return Some(DueAction::Kill(ExitCause::IdleLimit));
        }
        if is_due(self.sample_at) {
            let interval = self.timers.tree.sample_interval();
            self.sample_at = interval.map(|interval| now + interval);
            return Some(DueAction::Sample(self.timers.tree));
        }
        if is_due(self.abandon_at) && !paused {
            self.abandon_at = None;
            return Some(DueAction::Abandon);
        }
        None
    }

    /// A limit too long to be represented is none.
    fn idle_at(&self) -> Option<Instant> {
        self.timers
            .idle
            .and_then(|idle| self.last_activity.checked_add(idle))
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    const IDLE: ProcessTimers = ProcessTimers {
        wall: None,
        idle: Some(Duration::from_secs(1)),
        tree: TreeLimits {
            memory_bytes: None,
            processes: None,
        },
    };

    #[tokio::test(start_paused = true)]
    async fn a_pause_is_not_idleness() {
        let mut deadlines = ProcessDeadlines::new(IDLE, Instant::now());
        advance(Duration::from_secs(60)).await;
        assert_eq!(deadlines.due(None, true), None, "it is paused");
        deadlines.handle_backpressure();
        assert_eq!(deadlines.due(None, false), None, "it goes on");
        advance(Duration::from_secs(1)).await;
        let idle = DueAction::Kill(ExitCause::IdleLimit);
        assert_eq!(deadlines.due(None, false), Some(idle));
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_held_up_is_given_up_some_time_after_the_pause() {
        let mut deadlines = ProcessDeadlines::new(ProcessTimers::default(), Instant::now());
        deadlines.handle_exit(true, None);
        advance(Duration::from_secs(60)).await;
        assert_eq!(deadlines.next(None, true), None, "it is paused");
        deadlines.handle_backpressure();
        assert_eq!(deadlines.due(None, false), None, "it is read");
        assert_eq!(
            deadlines.next(None, false),
            Some(Instant::now() + DRAIN_TIMEOUT)
        );
        advance(DRAIN_TIMEOUT).await;
        assert_eq!(deadlines.due(None, false), Some(DueAction::Abandon));
    }
}
