//! Samples the memory, CPU time and process count of a process tree. Processes that exit during a
//! sample are not counted.

use std::{fs, time::Duration};

use exec_spawn::process_tree::{self as tree, ProcessStat};

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

/// Resources that a tree has used so far.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct TreeUsage {
    /// CPU time in user mode, of live processes and of children they have waited for.
    pub(crate) user: Duration,
    /// CPU time in kernel mode, counted likewise.
    pub(crate) system: Duration,
    /// Largest peak resident set of any live process.
    pub(crate) max_rss_bytes: u64,
}

/// Samples the resources used so far by the tree that `pid` belongs to.
pub(crate) fn usage_of_tree(pid: u32) -> TreeUsage {
    let (mut user, mut system, mut max_rss_bytes) = (0, 0, 0);
    for pid in tree_of(pid).into_iter().take(MAX_SAMPLED) {
        let [own_user, own_system, child_user, child_system] = ticks(pid).unwrap_or_default();
        user += own_user + child_user;
        system += own_system + child_system;
        max_rss_bytes = peak_bytes(pid).unwrap_or(0).max(max_rss_bytes);
    }
    let time = |ticks: u64| {
        let per_second = rustix::param::clock_ticks_per_second().max(1);
        Duration::from_millis(ticks.saturating_mul(1000) / per_second)
    };
    TreeUsage {
        user: time(user),
        system: time(system),
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
