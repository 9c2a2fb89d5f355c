//! The processes that an environment has started or adopted, by id: what a tunnel needs to find the
//! network of one, and the rules of that network.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
};

use exec_env::process::ExecProcess;
use exec_process::LocalProcess;
use exec_proxy::policy_gate::TunnelGate;
use exec_wire::id::ProcessId;

/// Processes of one environment that may be alive. Clones share the table.
#[derive(Clone, Debug, Default)]
pub(crate) struct SessionProcesses {
    entries: Arc<Mutex<BTreeMap<ProcessId, SessionEntry>>>,
}

/// A process, and how its network was arranged.
#[derive(Clone, Debug)]
pub(crate) struct SessionEntry {
    pub(crate) process: Weak<dyn ExecProcess>,
    pub(crate) placement: NetworkPlacement,
    pub(crate) rules: NetworkRules,
}

/// Where the network namespace of a process is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum NetworkPlacement {
    /// That of the command.
    Command,
    /// That of the processes that a wrapper has started in a namespace of their own.
    BelowWrapper,
    /// An earlier server has started the process, perhaps with a wrapper.
    Unknown,
}

/// Which destinations the managed network of a process allows.
#[derive(Clone, Debug)]
pub(crate) enum NetworkRules {
    /// The network is not managed.
    Unmanaged,
    /// What the proxy of this server allows.
    Proxy(TunnelGate),
    /// What a proxy of the client allows.
    ClientProxy,
    /// They are not known, because an earlier server has started the process.
    Unknown,
}

impl SessionProcesses {
    /// Enters a process. An older one with its id, which has ended, is forgotten.
    pub(crate) fn insert(&self, id: ProcessId, entry: SessionEntry) {
        let mut entries = self.lock();
        // The sessions limit the processes that are alive, so the table is as bounded as they are.
        entries.retain(|_, entry| entry.process.strong_count() > 0);
        entries.insert(id, entry);
    }

    /// Enters a process that an earlier server has started.
    pub(crate) fn adopt(&self, process: &Arc<dyn ExecProcess>) {
        let entry = SessionEntry {
            process: Arc::downgrade(process),
            placement: NetworkPlacement::Unknown,
            rules: NetworkRules::Unknown,
        };
        self.insert(process.id().clone(), entry);
    }

    /// Returns the process that the id names, if it has not been dropped.
    pub(crate) fn find(&self, id: &ProcessId) -> Option<SessionEntry> {
        let entry = self.lock().get(id).cloned();
        entry.filter(|entry| entry.process.strong_count() > 0)
    }

    /// Returns the OS pids of each process tree.
    pub(crate) fn trees(&self) -> Vec<(ProcessId, Vec<i32>)> {
        let entries = self.lock().clone();
        let trees = entries.into_iter().filter_map(|(id, entry)| {
            let process = entry.process.upgrade()?;
            Some((id, local(&process)?.tree_pids()))
        });
        trees.collect()
    }

    /// Returns the OS pids of each of these process trees, without those of this table.
    pub(crate) fn trees_of_others(
        &self,
        others: &[Arc<dyn ExecProcess>],
    ) -> Vec<(ProcessId, Vec<i32>)> {
        let is_known = |process: &Arc<dyn ExecProcess>| {
            let entry = self.find(process.id());
            entry.is_some_and(|entry| entry.process.ptr_eq(&Arc::downgrade(process)))
        };
        let others = others.iter().filter(|process| !is_known(process));
        let trees =
            others.filter_map(|process| Some((process.id().clone(), local(process)?.tree_pids())));
        trees.collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<ProcessId, SessionEntry>> {
        // No code panics while holding the lock. If one did, the table would still be consistent.
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the process as one of this host.
pub(crate) fn local(process: &Arc<dyn ExecProcess>) -> Option<&LocalProcess> {
    process.as_any()?.downcast_ref()
}
