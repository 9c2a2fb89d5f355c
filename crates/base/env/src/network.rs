//! What is managed of a command's network, and who is asked about it.

use std::{fmt, sync::Arc};

use exec_wire::network::{Decision, Destination, ManagedNetwork, NetworkProxy, PolicyDecision};
use futures_util::future::BoxFuture;

/// What is managed of a command's network.
#[derive(Clone, Debug, Default)]
pub struct Network {
    /// Only what is managed may be reached. Without a sandbox it has no effect.
    pub enforced: bool,
    /// What stays reachable in a sandbox without network.
    pub managed: Option<ManagedNetwork>,
    /// A proxy of the command's own.
    pub proxy: Option<NetworkProxy>,
    /// Who is asked, and told, about the proxy's connections. Absent: nobody, and what nothing
    /// decides is denied.
    pub watcher: Option<Arc<dyn NetworkWatcher>>,
}

/// Is asked and told about the connections of one process.
pub trait NetworkWatcher: fmt::Debug + Send + Sync {
    /// Decides about a destination that the static policy leaves open. The caller waits only so
    /// long, and takes silence for a denial.
    fn decide(&self, destination: Destination) -> BoxFuture<'static, Decision>;

    /// Takes note of what was decided. Never waits; a record may be lost.
    fn record(&self, decision: PolicyDecision);
}
