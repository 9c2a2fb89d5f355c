//! Which process has a listening socket open.
//!
//! Finding out means reading the descriptors of processes. So the result is kept, and only checked
//! by one link per socket when ports are listed again. A search is made for sockets that are new,
//! first in the trees of the session. Invariant: an owner is reported only if it has the socket
//! open at that time.

use std::{
    collections::{HashMap, HashSet},
    fs,
    path::PathBuf,
    time::{Duration, Instant},
};

use exec_wire::{id::ProcessId, tunnel::ListeningPort};

use super::listening_sockets::{ListeningSocket, MAX_SOCKETS};

/// How long each listing searches for the owner of a new socket: its process may have been missed
/// while it forked.
const NEW_SOCKET_TIME: Duration = Duration::from_secs(3);
/// How often a search is made for the owner of older sockets.
const SEARCH_INTERVAL: Duration = Duration::from_secs(5);
/// Most descriptors that one search reads.
const MAX_DESCRIPTORS: usize = 1 << 18;

/// Processes in which owners are searched for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum ScanScope {
    /// The trees of the session.
    Session,
    /// All processes that this one may inspect, the trees of the session first.
    Host,
}

/// Owners of sockets by inode, as far as they are known.
#[derive(Debug, Default)]
pub(crate) struct SocketOwners {
    owners: HashMap<u64, SocketOwner>,
    /// Sockets without a known owner, and since when they are listed.
    unknown: HashMap<u64, Instant>,
    searched_at: Option<Instant>,
}

#[derive(Clone, Debug)]
struct SocketOwner {
    pid: u32,
    program: Option<String>,
    process_id: Option<ProcessId>,
    /// Link in `/proc` to the socket.
    link: PathBuf,
}

impl SocketOwner {
    fn has(&self, inode: u64) -> bool {
        socket_inode(&self.link) == Some(inode)
    }
}

impl SocketOwners {
    /// Finds the processes that have these sockets open. `trees` returns the OS pids of each
    /// process of the session and of each detached one. Blocks while it reads `/proc`.
    pub(crate) fn update(
        &mut self,
        sockets: &[ListeningSocket],
        trees: impl FnOnce() -> Vec<(ProcessId, Vec<i32>)>,
        scope: ScanScope,
        now: Instant,
    ) {
        // Listings of other networks may alternate with this one, so their owners stay.
        if self.owners.len() > 2 * MAX_SOCKETS {
            self.owners.clear();
        }
        let inodes = sockets.iter().map(|socket| socket.inode);
        // Sockets that are being closed have none.
        let inodes: HashSet<u64> = inodes.filter(|inode| *inode != 0).collect();
        let is_stale = |(inode, owner): (&u64, &SocketOwner)| {
            (inodes.contains(inode) && !owner.has(*inode)).then_some(*inode)
        };
        for inode in self.owners.iter().filter_map(is_stale).collect::<Vec<_>>() {
            self.owners.remove(&inode);
        }
        let missing = inodes
            .iter()
            .filter(|inode| !self.owners.contains_key(inode));
        let mut missing: HashSet<u64> = missing.copied().collect();
        self.unknown.retain(|inode, _| missing.contains(inode));
        for inode in &missing {
            self.unknown.entry(*inode).or_insert(now);
        }
        let is_new = |since: &Instant| now.saturating_duration_since(*since) < NEW_SOCKET_TIME;
        let is_due = |at: Instant| now.saturating_duration_since(at) >= SEARCH_INTERVAL;
        let is_worthwhile = scope == ScanScope::Host
            || self.unknown.values().any(is_new)
            || self.searched_at.is_none_or(is_due);
        let is_search_due = !missing.is_empty() && is_worthwhile;
        // A process that another session has detached meanwhile has a name here only now.
        let is_unnamed = |owner: &SocketOwner| owner.process_id.is_none();
        let has_unnamed = scope == ScanScope::Host
            && inodes
                .iter()
                .any(|inode| self.owners.get(inode).is_some_and(is_unnamed));
        if !is_search_due && !has_unnamed {
            return;
        }
        let trees = trees();
        if has_unnamed {
            self.name_owners(&trees);
        }
        if is_search_due {
            self.searched_at = Some(now);
            self.search(&mut missing, &trees, scope);
            self.unknown.retain(|inode, _| missing.contains(inode));
        }
    }

    /// Finds the process of the session, or the detached one, of each owner that has none.
    fn name_owners(&mut self, trees: &[(ProcessId, Vec<i32>)]) {
        let pids = trees
            .iter()
            .flat_map(|(id, pids)| pids.iter().map(move |pid| (pid.unsigned_abs(), id)));
        let names: HashMap<u32, &ProcessId> = pids.collect();
        for owner in self.owners.values_mut() {
            if owner.process_id.is_none() {
                owner.process_id = names.get(&owner.pid).map(|id| (*id).clone());
            }
        }
    }

    fn search(
        &mut self,
        missing: &mut HashSet<u64>,
        trees: &[(ProcessId, Vec<i32>)],
        scope: ScanScope,
    ) {
        let mut budget = MAX_DESCRIPTORS;
        let of_session = trees
            .iter()
            .flat_map(|(id, pids)| pids.iter().map(move |pid| (*pid, Some(id))));
        let of_host = (scope == ScanScope::Host)
            .then(all_pids)
            .into_iter()
            .flatten()
            .map(|pid| (pid, None));
        for (pid, process_id) in of_session.chain(of_host) {
            if missing.is_empty() || budget == 0 {
                return;
            }
            let descriptors = fs::read_dir(format!("/proc/{pid}/fd"));
            // It has exited, or belongs to an account that this process may not inspect.
            let Ok(descriptors) = descriptors else {
                continue;
            };
            for descriptor in descriptors.flatten().take(budget) {
                budget -= 1;
                let link = descriptor.path();
                let Some(inode) = socket_inode(&link).filter(|inode| missing.remove(inode)) else {
                    continue;
                };
                let owner = SocketOwner {
                    pid: pid.unsigned_abs(),
                    program: program_name(pid),
                    process_id: process_id.cloned(),
                    link,
                };
                self.owners.insert(inode, owner);
            }
        }
    }

    /// Describes a socket with its owner.
    pub(crate) fn port(&self, socket: &ListeningSocket) -> ListeningPort {
        let owner = self.owners.get(&socket.inode);
        ListeningPort {
            port: socket.port,
            address: socket.address.to_string(),
            process_id: owner.and_then(|owner| owner.process_id.clone()),
            os_pid: owner.map(|owner| owner.pid),
            program: owner.and_then(|owner| owner.program.clone()),
        }
    }
}

fn socket_inode(link: &std::path::Path) -> Option<u64> {
    let target = fs::read_link(link).ok()?;
    let inode = target.to_str()?.strip_prefix("socket:[")?;
    inode.strip_suffix(']')?.parse().ok()
}

fn all_pids() -> impl Iterator<Item = i32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// Returns the name of a program, which it may have chosen itself.
fn program_name(pid: i32) -> Option<String> {
    let name = fs::read(format!("/proc/{pid}/comm")).ok()?;
    let name: String = String::from_utf8_lossy(&name)
        .chars()
        .filter(|sign| !sign.is_control())
        .collect();
    (!name.is_empty()).then_some(name)
}
