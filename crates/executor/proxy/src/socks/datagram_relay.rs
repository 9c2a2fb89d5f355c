//! SOCKS5 datagrams: one socket for all clients, and one flow per client address.
//!
//! Invariant: datagrams are sent only to addresses that the gate authorized, and accepted only from
//! there. Full queues drop datagrams.

use std::{
    collections::HashMap,
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket as StdSocket},
    sync::Arc,
    time::Duration,
};

use exec_wire::network::NetworkProtocol;
use tokio::{
    net::UdpSocket,
    sync::{mpsc, watch},
    task::{Id, JoinSet},
    time::{Instant, sleep},
};

use super::{parse_datagram, write_datagram};
use crate::{
    policy_gate::{ConnectRequest, PolicyGate},
    target_host::TargetHost,
};

/// Socket that receives the datagrams of all clients.
#[derive(Debug)]
pub(crate) struct DatagramRelay {
    client_socket: Arc<UdpSocket>,
    local_address: SocketAddr,
    associations: watch::Sender<usize>,
}

impl DatagramRelay {
    /// Takes the socket. [`run`](Self::run) starts relaying.
    pub(crate) fn new(socket: StdSocket) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        let client_socket = Arc::new(UdpSocket::from_std(socket)?);
        Ok(Self {
            local_address: client_socket.local_addr()?,
            client_socket,
            associations: watch::Sender::new(0),
        })
    }

    /// Returns the relay address for a client that is connected to `local`.
    pub(super) fn address(&self, local: IpAddr) -> SocketAddr {
        let ip = if self.local_address.ip().is_unspecified() {
            local
        } else {
            self.local_address.ip()
        };
        SocketAddr::new(ip, self.local_address.port())
    }

    /// Relays datagrams while the returned value lives. All clients belong to one process, so it
    /// does not matter which of them sends a datagram.
    pub(super) fn associate(&self) -> UdpAssociation {
        self.associations.send_modify(|count| *count += 1);
        UdpAssociation(self.associations.clone())
    }

    /// Relays datagrams until dropped.
    pub(crate) async fn run(&self, gate: Arc<PolicyGate>) {
        let mut associations = self.associations.subscribe();
        let mut flows = FlowTable::default();
        let mut buffer = vec![0; MAX_DATAGRAM];
        loop {
            tokio::select! {
                received = self.client_socket.recv_from(&mut buffer) => {
                    // An error refers to a single undelivered datagram.
                    let Ok((length, client)) = received else { continue };
                    let datagram = &buffer[..length];
                    if *associations.borrow() > 0 && parse_datagram(datagram).is_ok() {
                        flows.forward(client, datagram.to_vec(), &self.client_socket, &gate);
                    }
                }
                Ok(()) = associations.changed() => {
                    if *associations.borrow_and_update() == 0 {
                        flows = FlowTable::default();
                    }
                }
                Some(ended) = flows.tasks.join_next_with_id() => {
                    let id = ended.map_or_else(|error| error.id(), |(id, ())| id);
                    flows.inputs.retain(|_, (task, _)| *task != id);
                }
            }
        }
    }
}

/// Enables relaying while it lives.
#[derive(Debug)]
pub(super) struct UdpAssociation(watch::Sender<usize>);

impl Drop for UdpAssociation {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count = count.saturating_sub(1));
    }
}

#[derive(Debug, Default)]
struct FlowTable {
    // Dropping the set aborts its tasks.
    tasks: JoinSet<()>,
    inputs: HashMap<SocketAddr, (Id, mpsc::Sender<Vec<u8>>)>,
}

impl FlowTable {
    fn forward(
        &mut self,
        client: SocketAddr,
        datagram: Vec<u8>,
        client_socket: &Arc<UdpSocket>,
        gate: &Arc<PolicyGate>,
    ) {
        if !self.inputs.contains_key(&client) && self.inputs.len() < MAX_FLOWS {
            let (sender, receiver) = mpsc::channel(FLOW_QUEUE);
            let flow = DatagramFlow::new(client, client_socket.clone(), gate.clone());
            let task = self.tasks.spawn(flow.run(receiver)).id();
            self.inputs.insert(client, (task, sender));
        }
        if let Some((_, sender)) = self.inputs.get(&client) {
            // A full queue drops the datagram.
            drop(sender.try_send(datagram));
        }
    }
}

/// Maximum size of a datagram.
pub(super) const MAX_DATAGRAM: usize = 64 * 1024;
/// Maximum number of concurrent flows.
const MAX_FLOWS: usize = 64;
/// Datagrams queued per flow while a destination is being authorized.
const FLOW_QUEUE: usize = 16;

/// Datagrams of one client address.
#[derive(Debug)]
pub(super) struct DatagramFlow {
    client: SocketAddr,
    client_socket: Arc<UdpSocket>,
    gate: Arc<PolicyGate>,
    outbound: OutboundSockets,
    destinations: HashMap<(TargetHost, u16), DestinationState>,
}

impl DatagramFlow {
    pub(super) fn new(
        client: SocketAddr,
        client_socket: Arc<UdpSocket>,
        gate: Arc<PolicyGate>,
    ) -> Self {
        Self {
            client,
            client_socket,
            gate,
            outbound: OutboundSockets::default(),
            destinations: HashMap::new(),
        }
    }

    /// Relays datagrams until the flow is idle.
    pub(super) async fn run(mut self, mut input: mpsc::Receiver<Vec<u8>>) {
        let (mut v4, mut v6) = (vec![0; MAX_DATAGRAM], vec![0; MAX_DATAGRAM]);
        loop {
            tokio::select! {
                datagram = input.recv() => match datagram {
                    Some(datagram) => self.send(&datagram).await,
                    None => return,
                },
                received = receive(self.outbound.v4.as_ref(), &mut v4) => {
                    self.send_to_client(received, &v4).await;
                }
                received = receive(self.outbound.v6.as_ref(), &mut v6) => {
                    self.send_to_client(received, &v6).await;
                }
                () = sleep(FLOW_IDLE_TIMEOUT) => return,
            }
        }
    }

    async fn send(&mut self, datagram: &[u8]) {
        let Ok((host, port, data)) = parse_datagram(datagram) else {
            return;
        };
        if let Some(address) = self.destination(host, port).await
            && let Ok(socket) = self.outbound.socket_for(address).await
        {
            // Datagrams may be lost.
            drop(socket.send_to(data, address).await);
        }
    }

    /// Returns the address for a host. The gate authorizes it once, and again some time after a
    /// denial.
    async fn destination(&mut self, host: TargetHost, port: u16) -> Option<SocketAddr> {
        let key = (host, port);
        match self.destinations.get(&key) {
            Some(DestinationState::Allowed(address)) => return Some(*address),
            Some(DestinationState::Denied(since)) if since.elapsed() < DENIAL_TTL => return None,
            Some(DestinationState::Denied(_)) => {}
            None if port == 0 || self.destinations.len() >= MAX_DESTINATIONS => return None,
            None => {}
        }
        let request = ConnectRequest {
            protocol: NetworkProtocol::Socks5Udp,
            host: key.0.clone(),
            port,
            method: None,
            client: Some(self.client),
        };
        let authorized = self.gate.authorize(&request).await.ok();
        let address = authorized.and_then(|all| all.first().copied());
        let address = address.map(|address| SocketAddr::new(address, port));
        let state = address.map_or_else(
            || DestinationState::Denied(Instant::now()),
            DestinationState::Allowed,
        );
        self.destinations.insert(key, state);
        address
    }

    /// Sends the client a datagram that was received into `buffer`.
    async fn send_to_client(&self, received: Option<(usize, SocketAddr)>, buffer: &[u8]) {
        // An error refers to a single undelivered datagram.
        let Some((length, source)) = received else {
            return;
        };
        let source = SocketAddr::new(source.ip().to_canonical(), source.port());
        let is_source = |state: &DestinationState| match state {
            DestinationState::Allowed(address) => *address == source,
            DestinationState::Denied(_) => false,
        };
        if !self.destinations.values().any(is_source) {
            return;
        }
        let mut out = Vec::new();
        write_datagram(source, &buffer[..length], &mut out);
        // Datagrams may be lost.
        drop(self.client_socket.send_to(&out, self.client).await);
    }
}

/// Outbound sockets, created on demand.
#[derive(Debug, Default)]
struct OutboundSockets {
    v4: Option<UdpSocket>,
    v6: Option<UdpSocket>,
}

impl OutboundSockets {
    async fn socket_for(&mut self, address: SocketAddr) -> io::Result<&UdpSocket> {
        let (slot, unspecified): (_, SocketAddr) = match address {
            SocketAddr::V4(_) => (&mut self.v4, (Ipv4Addr::UNSPECIFIED, 0).into()),
            SocketAddr::V6(_) => (&mut self.v6, (Ipv6Addr::UNSPECIFIED, 0).into()),
        };
        match slot {
            Some(socket) => Ok(socket),
            None => Ok(slot.insert(UdpSocket::bind(unspecified).await?)),
        }
    }
}

#[derive(Debug)]
enum DestinationState {
    Allowed(SocketAddr),
    Denied(Instant),
}

async fn receive(socket: Option<&UdpSocket>, buffer: &mut [u8]) -> Option<(usize, SocketAddr)> {
    match socket {
        Some(socket) => socket.recv_from(buffer).await.ok(),
        None => std::future::pending().await,
    }
}

/// Idle timeout of a flow.
const FLOW_IDLE_TIMEOUT: Duration = Duration::from_secs(120);
/// How long a denial is cached.
const DENIAL_TTL: Duration = Duration::from_secs(10);
/// Maximum number of destinations per flow.
const MAX_DESTINATIONS: usize = 64;
