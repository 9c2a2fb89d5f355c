//! How much memory and processor time a process tree uses.
//! Processes come and go while they are counted; what is gone counts nothing.

use std::{fs, time::Duration};

/// Processes of a tree that are counted for [`usage_of_tree`], to bound what a listing costs.
const MAX_SAMPLED: usize = 1024;

/// Returns the resident bytes of the tree that `pid` belongs to: everything below its supervisor.
pub(super) fn of_tree(pid: u32) -> u64 {
    let mut pages = 0;
    visit_tree(pid, |pid| {
        pages += resident_pages(pid).unwrap_or(0);
        true
    });
    pages * rustix::param::page_size() as u64
}

/// What a tree has used so far.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct TreeUsage {
    /// Processor time in user mode, of live processes and of children they have waited for.
    pub(crate) user: Duration,
    /// The same in the kernel.
    pub(crate) system: Duration,
    /// The largest resident set that one of its live processes had.
    pub(crate) max_rss_bytes: u64,
}

/// Samples what the tree that `pid` belongs to has used so far.
pub(crate) fn usage_of_tree(pid: u32) -> TreeUsage {
    let (mut user, mut system, mut max_rss_bytes, mut sampled) = (0, 0, 0, 0);
    visit_tree(pid, |pid| {
        let [own_user, own_system, child_user, child_system] = ticks(pid).unwrap_or_default();
        user += own_user + child_user;
        system += own_system + child_system;
        max_rss_bytes = peak_bytes(pid).unwrap_or(0).max(max_rss_bytes);
        sampled += 1;
        sampled < MAX_SAMPLED
    });
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

/// Calls `visit` for every process below the supervisor of `pid`, until it returns `false`.
fn visit_tree(pid: u32, mut visit: impl FnMut(u32) -> bool) {
    let mut todo = match parent(pid) {
        Some(supervisor) => children(supervisor),
        None => vec![pid],
    };
    while let Some(pid) = todo.pop() {
        if !visit(pid) {
            return;
        }
        todo.extend(children(pid));
    }
}

/// Returns utime, stime, cutime and cstime of `/proc/PID/stat`.
fn ticks(pid: u32) -> Option<[u64; 4]> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_ascii_whitespace().skip(11);
    let mut next = || fields.next()?.parse().ok();
    Some([next()?, next()?, next()?, next()?])
}

fn peak_bytes(pid: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: u64 = line.split_ascii_whitespace().next()?.parse().ok()?;
    Some(kib * 1024)
}

fn parent(pid: u32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, fields) = stat.rsplit_once(')')?;
    fields.split_ascii_whitespace().nth(1)?.parse().ok()
}

fn resident_pages(pid: u32) -> Option<u64> {
    let statm = fs::read_to_string(format!("/proc/{pid}/statm")).ok()?;
    statm.split_ascii_whitespace().nth(1)?.parse().ok()
}

fn children(pid: u32) -> Vec<u32> {
    let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else {
        return Vec::new();
    };
    tasks
        .flatten()
        .filter_map(|task| fs::read_to_string(task.path().join("children")).ok())
        .flat_map(|list| {
            list.split_ascii_whitespace()
                .filter_map(|pid| pid.parse().ok())
                .collect::<Vec<_>>()
        })
        .collect()
}
