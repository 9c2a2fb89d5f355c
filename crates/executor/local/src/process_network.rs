//! Network of one command: decides between the host network, a proxy on the host and a proxy in
//! front of an isolated network namespace, and runs the proxy or bridge.

use std::{
    collections::BTreeMap,
    ffi::OsString,
    io::{self, IoSliceMut},
    mem::MaybeUninit,
    net::TcpListener,
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
};

use crate::session_processes::NetworkRules;
use exec_env::{
    environment::{CommandNetwork, NetworkPolicyHook, StartError},
    process::ExecProcess,
};
use exec_process::LocalProcess;
use exec_proxy::{
    environment,
    limits::ProxyLimits,
    policy_gate::Connector,
    proxy::{
        CheckedSettings, ProxyBridge, ProxyConfig, ProxyListeners, ProxyServer, check_settings,
    },
};
use exec_sandbox::ManagedNetworkRequest;
use exec_wire::{
    id::ProcessId,
    network::ManagedNetwork,
    process::WaitUntil,
    sandbox::{NetworkAccess, SandboxPermissions, SandboxPolicy},
};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

/// Ports of the proxy in an isolated network namespace, where every port is free.
const HTTP_PORT: u16 = 43128;
const SOCKS_PORT: u16 = 43129;
/// Maximum number of bridged ports of one sandbox: the descriptors must fit into one message.
const MAX_PORTS: usize = 64;

/// Network of one command, prepared before the launch.
#[derive(Debug)]
pub(crate) struct ProcessNetwork {
    placement: ProxyPlacement,
    process_id: ProcessId,
    policy_hook: Option<Arc<dyn NetworkPolicyHook>>,
    connector: Arc<dyn Connector>,
    unix: bool,
}

#[derive(Debug)]
enum ProxyPlacement {
    /// Neither proxy nor bridge.
    Unmanaged,
    /// A proxy on the host's loopback. The command may bypass it.
    OnHost(Box<CheckedSettings>, ProxyListeners),
    /// Our proxy is the only way out of the sandbox.
    InSandbox(Box<CheckedSettings>),
    /// Bridges to the client's proxy ports are the only way out of the sandbox.
    Bridged(Vec<u16>),
    /// The sandbox has a loopback that nothing leads out of.
    OwnLoopback,
}

impl ProcessNetwork {
    /// Chooses the proxy placement and sets the proxy variables in the command's environment.
    pub(crate) fn new(
        network: CommandNetwork,
        sandbox: Option<&SandboxPolicy>,
        process_id: &ProcessId,
        connector: &Arc<dyn Connector>,
        env: &mut BTreeMap<OsString, OsString>,
    ) -> Result<Self, StartError> {
        let managed = network.managed.unwrap_or_default();
        let restricted = sandbox.is_some_and(|sandbox| !has_host_network(sandbox));
        let isolated = sandbox.is_some() && (network.enforced || restricted);
        let placement = match &network.proxy {
            Some(proxy) => {
                let checked = check_settings(proxy).map_err(|error| StartError::Refused {
                    field: "networkProxy",
                    reason: error.to_string(),
                })?;
                place_proxy(checked, isolated, env)?
            }
            None if network.enforced && sandbox.is_some() => place_bridge(&managed, env)?,
            None if restricted && managed.allow_local_binding => ProxyPlacement::OwnLoopback,
            None => ProxyPlacement::Unmanaged,
        };
        if isolated && !managed.allow_unix_sockets.is_empty() {
            return Err(StartError::Refused {
                field: "managedNetwork.allowUnixSockets",
                reason: "single sockets cannot be allowed on this host: allow none or all"
                    .to_owned(),
            });
        }
        Ok(Self {
            placement,
            process_id: process_id.clone(),
            policy_hook: network.policy_hook,
            connector: Arc::clone(connector),
            unix: managed.dangerously_allow_all_unix_sockets,
        })
    }

    /// Returns whether a proxy or bridge of this process serves the command.
    pub(crate) fn is_managed(&self) -> bool {
        !matches!(
            self.placement,
            ProxyPlacement::Unmanaged | ProxyPlacement::OwnLoopback
        )
    }

    /// Returns the ports that the sandbox must listen on. `None` without an isolated network.
    pub(crate) fn sandbox_request(&self) -> Option<ManagedNetworkRequest> {
        let ports = match &self.placement {
            ProxyPlacement::Unmanaged | ProxyPlacement::OnHost(..) => return None,
            ProxyPlacement::InSandbox(checked) if checked.has_socks() => {
                vec![HTTP_PORT, SOCKS_PORT]
            }
            ProxyPlacement::InSandbox(_) => vec![HTTP_PORT],
            ProxyPlacement::Bridged(ports) => ports.clone(),
            ProxyPlacement::OwnLoopback => Vec::new(),
        };
        Some(ManagedNetworkRequest {
            ports,
            unix: self.unix,
        })
    }

    /// Runs the proxy or bridge until the command's output is closed. Returns the rules that it
    /// enforces.
    pub(crate) fn run(
        self,
        listener_socket: Option<OwnedFd>,
        process: &Arc<LocalProcess>,
    ) -> Result<NetworkRules, StartError> {
        let host_error = |source: io::Error| StartError::Spawn {
            context: "cannot set up the managed network".to_owned(),
            source,
        };
        let (process_id, policy_hook, connector) =
            (self.process_id, self.policy_hook, self.connector);
        let proxy = |settings: CheckedSettings, listeners| {
            let limits = ProxyLimits::default();
            let config = ProxyConfig {
                settings,
                process_id,
                policy_hook,
                connector,
                limits,
            };
            ProxyServer::start(config, listeners).map(NetworkGuard::Proxy)
        };
        let guard = match (self.placement, listener_socket) {
            (ProxyPlacement::Unmanaged | ProxyPlacement::OwnLoopback, _) => {
                return Ok(NetworkRules::Unmanaged);
            }
            (ProxyPlacement::OnHost(settings, listeners), _) => {
                proxy(*settings, listeners).map_err(host_error)?
            }
            (ProxyPlacement::InSandbox(settings), Some(listener_socket)) => {
                let mut sockets = receive_listeners(&listener_socket)
                    .map_err(host_error)?
                    .into_iter();
                let missing = || host_error(io::Error::other("a listening socket is missing"));
                let listeners = ProxyListeners {
                    http: sockets.next().ok_or_else(missing)?,
                    socks: sockets.next(),
                    datagrams: None,
                };
                proxy(*settings, listeners).map_err(host_error)?
            }
            (ProxyPlacement::Bridged(ports), Some(listener_socket)) => {
                let sockets = receive_listeners(&listener_socket).map_err(host_error)?;
                let ports = sockets.into_iter().zip(ports).collect();
                NetworkGuard::Bridge(
                    ProxyBridge::start(ports, ProxyLimits::default()).map_err(host_error)?,
                )
            }
            (ProxyPlacement::InSandbox(_) | ProxyPlacement::Bridged(_), None) => {
                return Err(host_error(io::Error::other(
                    "the sandbox has no isolated network",
                )));
            }
        };
        let rules = match &guard {
            NetworkGuard::Proxy(proxy) => NetworkRules::Proxy(proxy.tunnel_gate()),
            NetworkGuard::Bridge(_) => NetworkRules::ClientProxy,
        };
        let closed = process.wait(WaitUntil::Closed, None);
        tokio::spawn(async move {
            // Dropping the guard closes the connections.
            drop((closed.await, guard));
        });
        Ok(rules)
    }
}

/// Keeps the proxy or bridge running until dropped.
#[derive(Debug)]
enum NetworkGuard {
    Proxy(ProxyServer),
    Bridge(#[expect(dead_code, reason = "runs until dropped")] ProxyBridge),
}

fn place_proxy(
    checked: CheckedSettings,
    isolated: bool,
    env: &mut BTreeMap<OsString, OsString>,
) -> Result<ProxyPlacement, StartError> {
    let host_error = |source: io::Error| StartError::Spawn {
        context: "cannot listen for the managed network".to_owned(),
        source,
    };
    let local_binding = checked.allows_local_binding();
    let (placement, http, socks) = if isolated {
        let socks = checked.has_socks().then_some(SOCKS_PORT);
        (
            ProxyPlacement::InSandbox(Box::new(checked)),
            HTTP_PORT,
            socks,
        )
    } else {
        let listeners = ProxyListeners::on_loopback(&checked).map_err(host_error)?;
        let http = listeners.http_port().map_err(host_error)?;
        let socks = listeners.socks_port().map_err(host_error)?;
        (
            ProxyPlacement::OnHost(Box::new(checked), listeners),
            http,
            socks,
        )
    };
    let variables = environment::proxy_variables(http, socks, local_binding);
    env.extend(
        variables
            .into_iter()
            .map(|(name, value)| (name.into(), value.into())),
    );
    Ok(placement)
}

fn place_bridge(
    managed: &ManagedNetwork,
    env: &BTreeMap<OsString, OsString>,
) -> Result<ProxyPlacement, StartError> {
    let reject = |field, reason: &str| {
        Err(StartError::Refused {
            field,
            reason: reason.to_owned(),
        })
    };
    let texts = env
        .iter()
        .filter_map(|(name, value)| Some((name.to_str()?, value.to_str()?)));
    let proxy_ports = environment::proxy_ports(texts);
    if proxy_ports.is_empty() {
        return reject(
            "enforceManagedNetwork",
            "requires networkProxy or a proxy on 127.0.0.1 in the environment",
        );
    }
    let mut ports = managed.loopback_ports.clone();
    if ports.is_empty() {
        ports = proxy_ports;
    }
    ports.sort_unstable();
    ports.dedup();
    if ports.contains(&0) || ports.len() > MAX_PORTS {
        return reject(
            "managedNetwork.loopbackPorts",
            "expected at most 64 ports, none of them 0",
        );
    }
    Ok(ProxyPlacement::Bridged(ports))
}

/// Returns the policy without network access, for helpers that run before the managed network
/// exists.
pub(crate) fn without_network(sandbox: &SandboxPolicy) -> SandboxPolicy {
    let mut sandbox = sandbox.clone();
    match &mut sandbox.permissions {
        SandboxPermissions::Managed { network, .. } | SandboxPermissions::External { network } => {
            *network = NetworkAccess::Restricted;
        }
        SandboxPermissions::Disabled => {
            sandbox.permissions = SandboxPermissions::External {
                network: NetworkAccess::Restricted,
            };
        }
    }
    sandbox
}

pub(crate) fn has_host_network(sandbox: &SandboxPolicy) -> bool {
    match &sandbox.permissions {
        SandboxPermissions::Managed { network, .. } | SandboxPermissions::External { network } => {
            *network == NetworkAccess::Enabled
        }
        SandboxPermissions::Disabled => true,
    }
}

/// Receives the listening sockets that the sandbox sent before its command started.
fn receive_listeners(listener_socket: &OwnedFd) -> io::Result<Vec<TcpListener>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_PORTS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let mut slices = [IoSliceMut::new(&mut byte)];
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    recvmsg(listener_socket.as_fd(), &mut slices, &mut control, flags)?;
    let mut sockets = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(descriptors) = message {
            sockets.extend(descriptors.map(TcpListener::from));
        }
    }
    Ok(sockets)
}
