//! A server with its helpers.

use std::collections::BTreeSet;
use std::thread;
use std::time::{Duration, Instant};

use super::process::{self, Stat};

/// Resource usage of a server and its helpers at one moment.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct Usage {
    /// Resident bytes of the server process.
    pub(crate) server_rss: u64,
    /// Resident bytes of its helpers, summed; helpers that share one address space count once,
    /// pages shared with the server count again.
    pub(crate) helper_rss: u64,
    /// Peak resident bytes of the server process, since it started.
    pub(crate) server_peak: u64,
    /// How many helpers there are.
    pub(crate) helpers: usize,
    /// How many processes it runs for us.
    pub(crate) workload: usize,
    /// Clock ticks used so far by the server, its helpers, and whatever these have reaped.
    ticks: u64,
}

impl Usage {
    /// Samples the tree below `server`.
    ///
    /// Reaped ticks include processes run for us, unless none ended between two samples: measures
    /// that compare CPU time keep theirs alive.
    pub(crate) fn sample(server: u32) -> Self {
        let stats: Vec<Stat> = process::all().filter_map(Stat::read).collect();
        let mut usage = Self::default();
        let mut seen = BTreeSet::new();
        (usage.server_rss, usage.server_peak) = process::memory(server);
        for stat in tree(&stats, server) {
            if stat.pid != server {
                if process::is_workload(stat.pid) {
                    usage.workload += 1;
                    continue;
                }
                usage.helpers += 1;
                if stat.layout == (0, 0) || seen.insert(stat.layout) {
                    usage.helper_rss += process::memory(stat.pid).0;
                }
            }
            usage.ticks += stat.ticks + stat.reaped_ticks;
        }
        usage
    }

    /// Samples until the memory stays within `SLACK` for `calm`, at most for `limit`.
    ///
    /// Returns the last sample and the highest total that was seen.
    pub(crate) fn settle(server: u32, calm: Duration, limit: Duration) -> (Self, u64) {
        let began = Instant::now();
        let mut usage = Self::sample(server);
        let (mut level, mut since) = (usage.rss(), began);
        let mut highest = level;
        while since.elapsed() < calm && began.elapsed() < limit {
            thread::sleep(INTERVAL);
            usage = Self::sample(server);
            highest = highest.max(usage.rss());
            if usage.rss().abs_diff(level) > SLACK {
                (level, since) = (usage.rss(), Instant::now());
            }
        }
        (usage, highest)
    }

    /// Resident bytes of server and helpers together.
    pub(crate) const fn rss(&self) -> u64 {
        self.server_rss + self.helper_rss
    }

    /// CPU seconds used since `earlier`.
    pub(crate) fn cpu_since(&self, earlier: &Self) -> f64 {
        let ticks = self.ticks.saturating_sub(earlier.ticks);
        ticks as f64 / rustix::param::clock_ticks_per_second() as f64
    }
}

/// Returns the processes that `server` runs for us.
pub(crate) fn workload(server: u32) -> Vec<u32> {
    let stats: Vec<Stat> = process::all().filter_map(Stat::read).collect();
    let pids = tree(&stats, server).into_iter().map(|stat| stat.pid);
    pids.filter(|&pid| pid != server && process::is_workload(pid))
        .collect()
}

/// Returns what the processes below `server` that call themselves `name` use, each with its share
/// of what it has in common with others.
pub(crate) fn named(server: u32, name: &str) -> impl Iterator<Item = u64> {
    let stats: Vec<Stat> = process::all().filter_map(Stat::read).collect();
    let pids = tree(&stats, server).into_iter().map(|stat| stat.pid);
    pids.filter(move |&pid| process::name(pid).as_deref() == Some(name))
        .filter_map(process::share)
        .collect::<Vec<_>>()
        .into_iter()
}

/// Time between two samples of a tree that is watched.
const INTERVAL: Duration = Duration::from_millis(50);

/// Memory that may come and go in a tree that counts as calm.
const SLACK: u64 = 128 * 1024;

/// Returns the processes of the tree whose root is `root`, in no order.
fn tree(stats: &[Stat], root: u32) -> Vec<Stat> {
    let mut known = BTreeSet::from([root]);
    // Ids wrap around, so a child may come before its parent: repeat until nothing is added.
    loop {
        let before = known.len();
        for stat in stats {
            if known.contains(&stat.parent) {
                known.insert(stat.pid);
            }
        }
        if known.len() == before {
            break;
        }
    }
    stats
        .iter()
        .filter(|stat| known.contains(&stat.pid))
        .copied()
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tree_contains_grandchildren_and_no_other_processes() {
        let stat = |pid, parent| Stat {
            pid,
            parent,
            ticks: 0,
            reaped_ticks: 0,
            layout: (0, 0),
        };
        let stats = [stat(3, 9), stat(9, 5), stat(5, 1), stat(6, 1), stat(1, 0)];
        let mut pids: Vec<u32> = tree(&stats, 5).iter().map(|stat| stat.pid).collect();
        pids.sort_unstable();
        assert_eq!(pids, [3, 5, 9]);
    }

    #[test]
    fn this_process_has_memory_and_no_helpers() {
        let usage = Usage::sample(std::process::id());
        assert!(usage.server_rss > 0);
        assert!(usage.server_peak >= usage.server_rss / 2);
        assert_eq!(usage.rss(), usage.server_rss + usage.helper_rss);
    }
}
