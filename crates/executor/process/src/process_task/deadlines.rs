//! Deadlines of a process: wall time, idle time, resource samples, and the end of draining.

use std::time::Duration;

use exec_wire::process::ExitCause;
use tokio::time::Instant;

/// How long output may stay open after a process was killed, before it is abandoned.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);
/// How often the memory of a tree is sampled.
const MEMORY_SAMPLE: Duration = Duration::from_millis(100);
/// How often the processes of a tree are counted. Forking is faster than filling memory.
const PROCESS_SAMPLE: Duration = Duration::from_millis(20);

/// Limits enforced by timers.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ProcessTimers {
    pub(crate) wall: Option<Duration>,
    pub(crate) idle: Option<Duration>,
    pub(crate) tree: TreeLimits,
}

/// Limits of a whole process tree, enforced by sampling.
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

/// An action that is due.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum DueAction {
    /// Kill the tree and record this cause.
    Kill(ExitCause),
    /// Sample the tree and compare it with these limits.
    Sample(TreeLimits),
    /// Stop waiting for output that another process keeps open.
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

    /// Resets the idle timer after a read or a write.
    pub(super) fn activity(&mut self) {
        if self.timers.idle.is_some() {
            self.last_activity = Instant::now();
        }
    }

    /// Extends the deadlines of a process that is or was paused by backpressure: a paused process
    /// is not idle, and its remaining output still has to be read.
    pub(super) fn handle_backpressure(&mut self) {
        self.activity();
        if let Some(at) = &mut self.abandon_at {
            *at = (*at).max(Instant::now() + DRAIN_TIMEOUT);
        }
    }

    /// Clears the limits of a process that has exited. If the server killed it, starts the drain
    /// timeout for its output.
    pub(super) fn handle_exit(&mut self, ended_by_us: bool, kill_at: Option<Instant>) {
        self.wall_at = None;
        self.timers = ProcessTimers::default();
        self.sample_at = None;
        // Descendants may still write until the graceful period ends.
        let dead_at = kill_at.unwrap_or_else(Instant::now).max(Instant::now());
        self.abandon_at = dead_at.checked_add(DRAIN_TIMEOUT).filter(|_| ended_by_us);
    }

    /// Returns the next deadline. Backpressure suspends the idle and drain deadlines.
    pub(super) fn next(&self, kill_at: Option<Instant>, paused: bool) -> Option<Instant> {
        let abandon = self.abandon_at.filter(|_| !paused);
        let idle = self.idle_at().filter(|_| !paused);
        [self.wall_at, idle, self.sample_at, abandon, kill_at]
            .into_iter()
            .flatten()
            .min()
    }

    /// Returns the first action that is due, if any.
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

    /// Returns the idle deadline. A limit too long to be represented counts as no limit.
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
    async fn backpressure_suspends_the_idle_timer() {
        let mut deadlines = ProcessDeadlines::new(IDLE, Instant::now());
        advance(Duration::from_secs(60)).await;
        assert_eq!(deadlines.due(None, true), None, "paused");
        deadlines.handle_backpressure();
        assert_eq!(deadlines.due(None, false), None, "resumed");
        advance(Duration::from_secs(1)).await;
        let idle = DueAction::Kill(ExitCause::IdleLimit);
        assert_eq!(deadlines.due(None, false), Some(idle));
    }

    #[tokio::test(start_paused = true)]
    async fn drain_timeout_restarts_after_backpressure() {
        let mut deadlines = ProcessDeadlines::new(ProcessTimers::default(), Instant::now());
        deadlines.handle_exit(true, None);
        advance(Duration::from_secs(60)).await;
        assert_eq!(deadlines.next(None, true), None, "paused");
        deadlines.handle_backpressure();
        assert_eq!(deadlines.due(None, false), None, "still draining");
        assert_eq!(
            deadlines.next(None, false),
            Some(Instant::now() + DRAIN_TIMEOUT)
        );
        advance(DRAIN_TIMEOUT).await;
        assert_eq!(deadlines.due(None, false), Some(DueAction::Abandon));
    }
}
