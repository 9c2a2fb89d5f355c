//! How much memory a process tree holds.

use std::fs;

/// Returns the resident bytes of the tree that `pid` belongs to: everything below its supervisor.
/// Processes come and go while they are counted; what is gone counts nothing.
pub(super) fn of_tree(pid: u32) -> u64 {
    let mut todo = match parent(pid) {
        Some(supervisor) => children(supervisor),
        None => vec![pid],
    };
    let mut pages = 0;
    while let Some(pid) = todo.pop() {
        pages += resident_pages(pid).unwrap_or(0);
        todo.extend(children(pid));
    }
    pages * rustix::param::page_size() as u64
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
