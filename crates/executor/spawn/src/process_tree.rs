//! Process trees as `/proc` shows them, and killing a tree from outside, without the help of any
//! process in it.
//!
//! A supervisor kills its own tree. This module is the fallback for a supervisor that a command has
//! stopped or killed. It allocates, so it must not run between clone and exec.

use std::{fs, io, os::fd::OwnedFd, path::Path};

use rustix::process::{
    Pid, PidfdFlags, Signal, getpid, kill_process, pidfd_open, pidfd_send_signal,
};

use crate::{network_namespace::NetworkNamespaceHandle, spawner::has_exited};

/// How often one call scans a tree. Later scans find children that were forked meanwhile.
const KILL_ROUNDS: usize = 4;

/// Kills all descendants of `root`, but not `root` itself. Returns whether any may still be alive:
/// a signal takes a moment, and a process in uninterruptible sleep takes longer.
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

/// Kills a process if its parent is one of `parents`; otherwise the pid may have been reused.
/// Orphans of a process that was just killed are adopted by the root. Returns whether it was alive.
fn kill_if_below(pid: i32, parents: [i32; 2]) -> bool {
    let Some(number) = Pid::from_raw(pid) else {
        return false;
    };
    // The pidfd refers to the process checked below, or to one that is dead.
    let Ok(process) = pidfd_open(number, PidfdFlags::empty()) else {
        return false;
    };
    match ProcessStat::read(pid) {
        Some(stat) if stat.is_dead() => false,
        Some(stat) if parents.contains(&stat.parent) => {
            // It may have exited meanwhile.
            let _ = pidfd_send_signal(&process, Signal::KILL);
            true
        }
        // Adopted by another process of the tree, where the next round finds it.
        Some(_) => true,
        None => false,
    }
}

/// Sends a signal to a process that is alive, or has not been reaped.
pub fn signal(pid: i32, signal: Signal) {
    if let Some(pid) = Pid::from_raw(pid)
        && let Err(errno) = kill_process(pid, signal)
    {
        tracing::debug!(%errno, ?pid, ?signal, "failed to signal process");
    }
}

/// Returns all descendants of `root`.
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

/// Deepest process of a tree that can be opened.
const MAX_DEPTH: usize = 256;

/// A process that was alive below the root of a tree when it was opened.
#[derive(Debug)]
pub struct TreeMember {
    pid: i32,
    pidfd: OwnedFd,
}

impl TreeMember {
    /// Opens a process if it is alive and a descendant of `root`, so that a reused pid is not
    /// mistaken for it. The caller checks afterwards that the root has not been reaped.
    pub fn open(pid: i32, root: i32) -> Option<Self> {
        let pidfd = pidfd_open(Pid::from_raw(pid)?, PidfdFlags::empty()).ok()?;
        let mut ancestor = pid;
        for _ in 0..MAX_DEPTH {
            ancestor = ProcessStat::read(ancestor)?.parent;
            if ancestor == root {
                let member = Self { pid, pidfd };
                return member.is_alive().then_some(member);
            }
        }
        None
    }

    /// Returns the pid. It names another process once this one is dead.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Returns whether the process has not exited.
    pub fn is_alive(&self) -> bool {
        !has_exited(&self.pidfd)
    }

    /// Opens the network namespace of the process. `None`: it is the namespace of this process.
    ///
    /// # Errors
    /// Fails if the process has exited, or belongs to an account that this one may not inspect.
    pub fn network_namespace(&self) -> io::Result<Option<NetworkNamespaceHandle>> {
        let namespace = NetworkNamespaceHandle::of_process(self.pid)?;
        // The pid was not reused while the process was alive.
        match self.is_alive() {
            true => Ok(namespace),
            false => Err(rustix::io::Errno::SRCH.into()),
        }
    }
}

/// Returns the children of all threads of a process.
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

/// Returns whether the kernel lists children, which needs `CONFIG_PROC_CHILDREN`.
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

/// Fields of `/proc/<pid>/stat`.
#[derive(Clone, Copy, Debug)]
pub struct ProcessStat {
    state: u8,
    /// Pid of the parent.
    pub parent: i32,
    /// Id of the session.
    pub session: i32,
}

impl ProcessStat {
    /// Reads the fields. `None`: the process does not exist.
    pub fn read(pid: i32) -> Option<Self> {
        let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
        // The command name may contain anything; the fields follow its last parenthesis.
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

    /// Returns whether the process has exited and was not reaped yet.
    pub fn is_dead(self) -> bool {
        matches!(self.state, b'Z' | b'X')
    }

    /// Returns whether a signal or a tracer has stopped the process.
    pub fn is_stopped(self) -> bool {
        matches!(self.state, b'T' | b't')
    }
}

/// Returns the children that this process did not start: orphans of commands, which a subreaper
/// adopts. Every command leads its own session, so its descendants are never in the session of
/// this process.
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

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn only_live_descendants_of_the_root_are_members() {
        let own = getpid().as_raw_nonzero().get();
        let mut child = Command::new("sleep")
            .arg("1000")
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let pid = child.id().cast_signed();
        let member = TreeMember::open(pid, own).expect("the child is below this process");
        assert!(member.is_alive());
        // It shares the network of this process.
        assert!(member.network_namespace().unwrap().is_none());
        let outside = [
            (own, pid),
            (own, own),
            (pid, pid),
            (1, own),
            (i32::MAX, own),
            (0, own),
        ];
        for (pid, root) in outside {
            assert!(TreeMember::open(pid, root).is_none(), "{pid} below {root}");
        }
        child.kill().unwrap();
        // The pidfd is readable when the process has exited, also before it is reaped.
        while member.is_alive() {
            std::thread::yield_now();
        }
        assert!(TreeMember::open(pid, own).is_none());
        let error = member.network_namespace().unwrap_err();
        assert!(
            [libc::ESRCH, libc::ENOENT]
                .map(Some)
                .contains(&error.raw_os_error()),
            "{error}"
        );
        child.wait().unwrap();
    }
}
