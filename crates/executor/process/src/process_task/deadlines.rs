//! Deadlines of a process: wall time, idle time, resource samples, and the end of draining. Also
//! the samples themselves: memory, CPU time and process count of a tree. Processes that exit during
//! a sample are not counted.

use std::{fs, time::Duration};

use exec_spawn::process_tree::{self as tree, ProcessStat};
use exec_wire::process::{ExitCause, ProcessLimits, ResourceUsage};
use tokio::time::Instant;

/// How long output may stay open after a process was killed, before it is abandoned.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);
/// How often the memory of a tree is sampled.
const MEMORY_SAMPLE: Duration = Duration::from_millis(100);
/// How often the processes of a tree are counted. Forking is faster than filling memory.
const PROCESS_SAMPLE: Duration = Duration::from_millis(20);

/// Returns how often the tree of a process with these limits is sampled.
fn sample_interval(limits: &ProcessLimits) -> Option<Duration> {
    // The kernel enforces RLIMIT_NPROC, except for root; sampling counts this tree only.
    let processes = limits.processes.map(|_| PROCESS_SAMPLE);
    processes.or(limits.memory_bytes.map(|_| MEMORY_SAMPLE))
}

#[derive(Debug)]
pub(super) struct ProcessDeadlines {
    /// Limits enforced by timers and by sampling.
    limits: ProcessLimits,
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
    Sample(ProcessLimits),
    /// Stop waiting for output that another process keeps open.
    Abandon,
}

impl ProcessDeadlines {
    /// Creates the deadlines of a process that started at `started`.
    pub(super) fn new(limits: ProcessLimits, started: Instant) -> Self {
        let wall = limits.wall_ms.map(Duration::from_millis);
        Self {
            limits,
            wall_at: wall.and_then(|wall| started.checked_add(wall)),
            // An adopted process may have started long ago.
            last_activity: Instant::now(),
            sample_at: sample_interval(&limits).map(|interval| started + interval),
            abandon_at: None,
        }
    }

    /// Resets the idle timer after a read or a write.
    pub(super) fn activity(&mut self) {
        if self.limits.idle_ms.is_some() {
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
        self.limits = ProcessLimits::default();
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
            self.limits.idle_ms = None;
            return Some(DueAction::Kill(ExitCause::IdleLimit));
        }
        if is_due(self.sample_at) {
            self.sample_at = sample_interval(&self.limits).map(|interval| now + interval);
            return Some(DueAction::Sample(self.limits));
        }
        if is_due(self.abandon_at) && !paused {
            self.abandon_at = None;
            return Some(DueAction::Abandon);
        }
        None
    }

    /// Returns the idle deadline. A limit too long to be represented counts as no limit.
    fn idle_at(&self) -> Option<Instant> {
        let idle = self.limits.idle_ms.map(Duration::from_millis);
        idle.and_then(|idle| self.last_activity.checked_add(idle))
    }
}

/// Most processes sampled by [`usage_of_tree`], which bounds the cost of a process listing.
const MAX_SAMPLED: usize = 1024;

/// Returns the processes of the tree that `pid` belongs to: all descendants of its supervisor.
pub(super) fn tree_of(pid: u32) -> Vec<i32> {
    match ProcessStat::read(pid.cast_signed()) {
        Some(stat) => tree::descendants(stat.parent),
        None => Vec::new(),
    }
}

/// Returns the total resident memory of these processes.
pub(super) fn resident_bytes(processes: &[i32]) -> u64 {
    let pages: u64 = processes.iter().copied().filter_map(resident_pages).sum();
    pages * rustix::param::page_size() as u64
}

/// Counts the processes that have not exited. Zombies hold only a pid.
pub(super) fn live_count(processes: &[i32]) -> u64 {
    let is_alive = |pid: &&i32| ProcessStat::read(**pid).is_some_and(|stat| !stat.is_dead());
    processes.iter().filter(is_alive).count() as u64
}

/// Samples the resources used so far by the tree that `pid` belongs to, which runs for `wall_ms`:
/// CPU time of live processes and of children they have waited for, and the largest peak resident
/// set of any live process.
pub(crate) fn usage_of_tree(pid: u32, wall_ms: u64) -> ResourceUsage {
    let (mut user, mut system, mut max_rss_bytes) = (0, 0, 0);
    for pid in tree_of(pid).into_iter().take(MAX_SAMPLED) {
        let [own_user, own_system, child_user, child_system] = ticks(pid).unwrap_or_default();
        user += own_user + child_user;
        system += own_system + child_system;
        max_rss_bytes = peak_bytes(pid).unwrap_or(0).max(max_rss_bytes);
    }
    let per_second = rustix::param::clock_ticks_per_second().max(1);
    let millis = |ticks: u64| ticks.saturating_mul(1000) / per_second;
    ResourceUsage {
        wall_ms,
        user_ms: millis(user),
        system_ms: millis(system),
        max_rss_bytes,
    }
}

/// Returns utime, stime, cutime and cstime of `/proc/PID/stat`.
fn ticks(pid: i32) -> Option<[u64; 4]> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_ascii_whitespace().skip(11);
    let mut next = || fields.next()?.parse().ok();
    Some([next()?, next()?, next()?, next()?])
}

fn peak_bytes(pid: i32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: u64 = line.split_ascii_whitespace().next()?.parse().ok()?;
    Some(kib * 1024)
}

fn resident_pages(pid: i32) -> Option<u64> {
    let statm = fs::read_to_string(format!("/proc/{pid}/statm")).ok()?;
    statm.split_ascii_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn backpressure_suspends_the_idle_timer() {
        let limits = ProcessLimits {
            idle_ms: Some(1000),
            ..ProcessLimits::default()
        };
        let mut deadlines = ProcessDeadlines::new(limits, Instant::now());
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
        let mut deadlines = ProcessDeadlines::new(ProcessLimits::default(), Instant::now());
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
