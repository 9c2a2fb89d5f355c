//! Process trees as `/proc` shows them: who descends from a process, and killing all of that from
//! outside, without the help of any process in it.
//!
//! A supervisor kills its own tree; this is for the case that it cannot, because a command stopped or
//! killed it. Not for use between a clone and an exec: it allocates.

use std::{fs, path::Path};

use rustix::process::{
    Pid, PidfdFlags, Signal, getpid, kill_process, pidfd_open, pidfd_send_signal,
};

/// How often one call looks at a tree again. Children that were forked meanwhile are found then.
const KILL_ROUNDS: usize = 4;

/// Kills everything that descends from `root`, but not `root` itself. Returns whether anything may
/// still live: a signal takes a moment, and a process in uninterruptible sleep takes longer.
pub fn kill_descendants(root: i32) -> bool {
    let mut alive = true;
    for _ in 0..KILL_ROUNDS {
        alive = false;
        let mut todo: Vec<(i32, i32)> = children(root).into_iter().map(|pid| (pid, root)).collect();
        while let Some((pid, parent)) = todo.pop() {
            todo.extend(children(pid).into_iter().map(|child| (child, pid)));
            alive |= kill_if_below(pid, [parent, root]);
        }
        if !alive {
            break;
        }
    }
    alive
}

/// Kills a process if its parent is one of these: its number may name another by now. Orphans of a
/// process that was just killed are adopted by the root. Returns whether it lived.
fn kill_if_below(pid: i32, parents: [i32; 2]) -> bool {
    let Some(number) = Pid::from_raw(pid) else {
        return false;
    };
    // The descriptor names the process that is looked at afterwards, or one that is dead.
    let Ok(process) = pidfd_open(number, PidfdFlags::empty()) else {
        return false;
    };
    match ProcessStat::read(pid) {
        Some(stat) if stat.is_dead() => false,
        Some(stat) if parents.contains(&stat.parent) => {
            // It may have died meanwhile.
            let _ = pidfd_send_signal(&process, Signal::KILL);
            true
        }
        // Adopted by another process of the tree: the next round finds it there.
        Some(_) => true,
        None => false,
    }
}

/// Sends a signal to a process that the caller knows to be alive or not yet reaped.
pub fn signal(pid: i32, signal: Signal) {
    if let Some(pid) = Pid::from_raw(pid)
        && let Err(errno) = kill_process(pid, signal)
    {
        tracing::debug!(%errno, ?pid, ?signal, "process was not signalled");
    }
}

/// Returns everything that descends from `root`.
pub fn descendants(root: i32) -> Vec<i32> {
    let mut found = children(root);
    let mut next = 0;
    while let Some(pid) = found.get(next) {
        let below = children(*pid);
        found.extend(below);
        next += 1;
    }
    found
}

/// Returns the children of a process, of all its threads.
pub fn children(pid: i32) -> Vec<i32> {
    let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else {
        return Vec::new();
    };
    let numbers = |list: String| -> Vec<i32> {
        let words = list.split_ascii_whitespace();
        words.filter_map(|pid| pid.parse().ok()).collect()
    };
    let mut lists = tasks
        .flatten()
        .filter_map(|task| fs::read_to_string(task.path().join("children")).ok())
        .peekable();
    if lists.peek().is_none() && !has_child_lists() {
        return children_by_scan(pid);
    }
    lists.flat_map(numbers).collect()
}

/// Kernels without `CONFIG_PROC_CHILDREN` have no lists of children.
fn has_child_lists() -> bool {
    Path::new("/proc/thread-self/children").exists()
}

fn children_by_scan(parent: i32) -> Vec<i32> {
    let Ok(processes) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    processes
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|pid| ProcessStat::read(*pid).is_some_and(|stat| stat.parent == parent))
        .collect()
}

/// What `/proc/<pid>/stat` tells of a process.
#[derive(Clone, Copy, Debug)]
pub struct ProcessStat {
    state: u8,
    /// Number of its parent.
    pub parent: i32,
    /// Number of the session it is in.
    pub session: i32,
}

impl ProcessStat {
    /// Reads it. `None`: there is no such process.
    pub fn read(pid: i32) -> Option<Self> {
        let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
        // The name may hold anything; fields follow its last parenthesis.
        let end = stat.iter().rposition(|byte| *byte == b')')?;
        let mut fields = std::str::from_utf8(stat.get(end + 1..)?)
            .ok()?
            .split_ascii_whitespace();
        let state = *fields.next()?.as_bytes().first()?;
        let parent = fields.next()?.parse().ok()?;
        let session = fields.nth(1)?.parse().ok()?;
        Some(Self {
            state,
            parent,
            session,
        })
    }

    /// Tells whether it has ended and was not reaped yet.
    pub fn is_dead(self) -> bool {
        matches!(self.state, b'Z' | b'X')
    }

    /// Tells whether a signal has stopped it, or a tracer holds it.
    pub fn is_stopped(self) -> bool {
        matches!(self.state, b'T' | b't')
    }
}

/// Returns the children of this process that it did not start: orphans of commands, which come here
/// if this process is a subreaper. Every command leads a session, so its descendants are never in
/// the session of this process.
pub fn adopted_orphans(spawners: &[i32]) -> Vec<i32> {
    let own = getpid().as_raw_nonzero().get();
    let Some(own_stat) = ProcessStat::read(own) else {
        return Vec::new();
    };
    let is_foreign = |pid: &i32| {
        !spawners.contains(pid)
            && ProcessStat::read(*pid)
                .is_some_and(|stat| stat.parent == own && stat.session != own_stat.session)
    };
    children(own).into_iter().filter(is_foreign).collect()
}
