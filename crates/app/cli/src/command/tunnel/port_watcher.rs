//! Notices the ports that a process opens, and forwards them.

use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use exec_env::tunnel::TunnelError;
use exec_wire::{
    id::ProcessId,
    tunnel::{ListeningPort, TunnelHost},
};
use tokio::{task::JoinSet, time::sleep};

use crate::command::{
    failure::CommandFailure,
    tunnel::{
        port_forward::{ForwardContext, ForwardNotice, ForwardedPort, LocalForward, tunnel_host},
        tunnel_spec::TunnelSpec,
    },
};

/// Pause before the first poll and after a new port: programs open several ports together.
const MIN_INTERVAL: Duration = Duration::from_millis(100);
/// Longest pause. Pause and poll together stay within the promised second.
const MAX_INTERVAL: Duration = Duration::from_millis(700);
/// Maximum forwarded ports of one process.
const MAX_PORTS: usize = 64;

/// Watches the ports of a process. A forward stays when its port closes, so that a restarted
/// program keeps its URL.
#[derive(Debug)]
pub(crate) struct PortWatcher {
    /// The process, and with it its descendants.
    pub(crate) process: ProcessId,
    /// Address to listen on. Absent: the loopback.
    pub(crate) bind: Option<IpAddr>,
    /// Where the process runs.
    pub(crate) host: ProcessHost,
}

/// Where a watched process runs.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum ProcessHost {
    /// On this machine, perhaps in a private network.
    Here,
    /// Elsewhere.
    Remote,
}

impl PortWatcher {
    /// Forwards ports until listening stops.
    pub(crate) async fn run(self, context: Arc<ForwardContext>) -> Result<(), TunnelError> {
        let mut forwards = JoinSet::new();
        let mut interval = MIN_INTERVAL;
        // Ports that were handled, also if that failed.
        let mut seen = BTreeSet::new();
        loop {
            tokio::select! {
                () = context.stopped() => break,
                () = sleep(interval) => {}
            }
            interval = (interval * 3 / 2).min(MAX_INTERVAL);
            let ports = match context.network.ports(Some(self.process.clone())).await {
                Ok(ports) => ports,
                Err(error @ (TunnelError::Disconnected(_) | TunnelError::Unsupported)) => {
                    return Err(error);
                }
                // The process has ended, or its host temporarily lacks a resource.
                Err(_) => continue,
            };
            for port in ports {
                let is_ours = port.process_id.as_ref() == Some(&self.process);
                if !is_ours || seen.len() >= MAX_PORTS || !seen.insert(port.port) {
                    continue;
                }
                interval = MIN_INTERVAL;
                if seen.len() == MAX_PORTS {
                    let text = format!("forwarding {MAX_PORTS} ports, and no more");
                    context.notify(ForwardNotice::Problem(text));
                }
                let address = match self.direct_address(&port, &context).await {
                    Some(address) => address,
                    None => match self.bind(&port) {
                        Ok(forward) => {
                            let address = forward.address();
                            forwards.spawn(forward.serve(Arc::clone(&context)));
                            address
                        }
                        Err(failure) => {
                            context.notify(ForwardNotice::Problem(failure.to_string()));
                            continue;
                        }
                    },
                };
                context.notify(ForwardNotice::Opened(ForwardedPort {
                    port: port.port,
                    address,
                    program: port.program,
                }));
            }
        }
        while forwards.join_next().await.is_some() {}
        Ok(())
    }

    /// Returns the address of a port that this machine reaches without a tunnel, because the process
    /// shares its network.
    async fn direct_address(
        &self,
        port: &ListeningPort,
        context: &ForwardContext,
    ) -> Option<SocketAddr> {
        if self.host == ProcessHost::Remote || self.bind.is_some() {
            return None;
        }
        let is_same = |one: &ListeningPort| {
            one.port == port.port && one.process_id.as_ref() == Some(&self.process)
        };
        let all = context.network.ports(None).await.ok()?;
        let found = all.iter().find(|one| is_same(one))?;
        let address: IpAddr = found.address.parse().ok()?;
        Some(SocketAddr::new(address, found.port))
    }

    fn bind(&self, port: &ListeningPort) -> Result<LocalForward, CommandFailure> {
        let spec = TunnelSpec {
            host: listener_host(&port.address),
            ..TunnelSpec::loopback(port.port)
        };
        LocalForward::bind(&spec, self.bind, Some(self.process.clone()))
    }
}

/// Returns the host that reaches a listener. `None`: the loopback.
fn listener_host(address: &str) -> Option<TunnelHost> {
    let address: IpAddr = address.parse().ok()?;
    match (address, address.is_unspecified()) {
        (IpAddr::V4(_), true) | (IpAddr::V4(Ipv4Addr::LOCALHOST), _) => None,
        (IpAddr::V6(_), true) => tunnel_host(Ipv6Addr::LOCALHOST.into()),
        (address, false) => tunnel_host(address),
    }
}
