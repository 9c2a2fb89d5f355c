//! Datagrams over SOCKS5: one socket for all clients, and a flow for each place they send from.
//!
//! Invariant: a datagram goes to an address that the gate gave, and one comes back only from there.
//! Datagrams that find no room are lost, as datagrams are.
//!
//! What one place of a client's sends, and gets back.

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
    time::{Instant, timeout},
};

use super::message;
use crate::{
    policy_gate::{Gate, Wish},
    target_host::Host,
};

/// The socket that clients send their datagrams to.
#[derive(Debug)]
pub(crate) struct Datagrams {
    near: Arc<UdpSocket>,
    bound: SocketAddr,
    associations: watch::Sender<usize>,
}

impl Datagrams {
    /// Takes the socket. Nothing is carried before [`run`](Self::run).
    pub(crate) fn adopt(socket: StdSocket) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        let near = Arc::new(UdpSocket::from_std(socket)?);
        Ok(Self {
            bound: near.local_addr()?,
            near,
            associations: watch::Sender::new(0),
        })
    }

    /// Returns where a client sends its datagrams that reaches us at `local`.
    pub(super) fn address(&self, local: IpAddr) -> SocketAddr {
        let ip = if self.bound.ip().is_unspecified() {
            local
        } else {
            self.bound.ip()
        };
        SocketAddr::new(ip, self.bound.port())
    }

    /// Carries datagrams as long as what it returns lives. All clients belong to one process, so
    /// that it does not matter which of them a datagram is from.
    pub(super) fn associate(&self) -> Association {
        self.associations.send_modify(|count| *count += 1);
        Association(self.associations.clone())
    }

    /// Carries datagrams until dropped.
    pub(crate) async fn run(&self, gate: Arc<Gate>) {
        let mut associations = self.associations.subscribe();
        let mut flows = Flows::default();
        let mut buffer = vec![0; MAX_DATAGRAM];
        loop {
            tokio::select! {
                received = self.near.recv_from(&mut buffer) => {
                    // An error tells of a datagram that did not arrive, and of no more than that.
                    let Ok((length, client)) = received else { continue };
                    if *associations.borrow() > 0 && message::datagram(&buffer[..length]).is_ok() {
                        flows.pass(client, buffer[..length].to_vec(), &self.near, &gate);
                    }
                }
                Ok(()) = associations.changed() => {
                    if *associations.borrow_and_update() == 0 {
                        flows = Flows::default();
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

/// Lets datagrams through while it lives.
#[derive(Debug)]
pub(super) struct Association(watch::Sender<usize>);

impl Drop for Association {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count = count.saturating_sub(1));
    }
}

#[derive(Debug, Default)]
struct Flows {
    // Dropping the set ends its tasks.
    tasks: JoinSet<()>,
    inputs: HashMap<SocketAddr, (Id, mpsc::Sender<Vec<u8>>)>,
}

impl Flows {
    fn pass(
        &mut self,
        client: SocketAddr,
        datagram: Vec<u8>,
        near: &Arc<UdpSocket>,
        gate: &Arc<Gate>,
    ) {
        if !self.inputs.contains_key(&client) && self.inputs.len() < MAX_FLOWS {
            let (sender, receiver) = mpsc::channel(MAX_WAITING);
            let flow = Flow::new(client, near.clone(), gate.clone());
            let task = self.tasks.spawn(flow.run(receiver)).id();
            self.inputs.insert(client, (task, sender));
        }
        if let Some((_, sender)) = self.inputs.get(&client) {
            // Without room, the datagram is lost.
            drop(sender.try_send(datagram));
        }
    }
}

/// The largest datagram there is.
pub(super) const MAX_DATAGRAM: usize = 64 * 1024;
/// Places that clients send from at a time.
const MAX_FLOWS: usize = 64;
/// Datagrams that wait while a destination is decided about.
const MAX_WAITING: usize = 16;

/// The datagrams of one client address.
#[derive(Debug)]
pub(super) struct Flow {
    client: SocketAddr,
    near: Arc<UdpSocket>,
    gate: Arc<Gate>,
    far: Far,
    destinations: HashMap<(Host, u16), Ruling>,
}

impl Flow {
    pub(super) fn new(client: SocketAddr, near: Arc<UdpSocket>, gate: Arc<Gate>) -> Self {
        Self {
            client,
            near,
            gate,
            far: Far::default(),
            destinations: HashMap::new(),
        }
    }

    /// Carries datagrams until none came for a while.
    pub(super) async fn run(mut self, mut input: mpsc::Receiver<Vec<u8>>) {
        let (mut v4, mut v6) = (vec![0; MAX_DATAGRAM], vec![0; MAX_DATAGRAM]);
        loop {
            let next = async {
                tokio::select! {
                    datagram = input.recv() => datagram.map(Event::Out),
                    received = receive(self.far.v4.as_ref(), &mut v4) => Some(Event::V4(received)),
                    received = receive(self.far.v6.as_ref(), &mut v6) => Some(Event::V6(received)),
                }
            };
            match timeout(IDLE, next).await {
                Ok(Some(Event::Out(datagram))) => self.send(&datagram).await,
                Ok(Some(Event::V4(Some((length, source))))) => {
                    self.give_back(source, &v4[..length]).await;
                }
                Ok(Some(Event::V6(Some((length, source))))) => {
                    self.give_back(source, &v6[..length]).await;
                }
                // An error tells of a datagram that did not arrive, and of no more than that.
                Ok(Some(Event::V4(None) | Event::V6(None))) => {}
                Ok(None) | Err(_) => return,
            }
        }
    }

    async fn send(&mut self, datagram: &[u8]) {
        let Ok((host, port, data)) = message::datagram(datagram) else {
            return;
        };
        if let Some(address) = self.destination(host, port).await
            && let Ok(socket) = self.far.towards(address).await
        {
            // Datagrams may be lost.
            drop(socket.send_to(data, address).await);
        }
    }

    /// Returns where datagrams for a host go. The gate decides once, and again some time after it
    /// refused.
    async fn destination(&mut self, host: Host, port: u16) -> Option<SocketAddr> {
        let key = (host, port);
        match self.destinations.get(&key) {
            Some(Ruling::Granted(address)) => return Some(*address),
            Some(Ruling::Refused(since)) if since.elapsed() < REFUSED => return None,
            Some(Ruling::Refused(_)) => {}
            None if port == 0 || self.destinations.len() >= MAX_DESTINATIONS => return None,
            None => {}
        }
        let wish = Wish {
            protocol: NetworkProtocol::Socks5Udp,
            host: key.0.clone(),
            port,
            method: None,
            client: self.client,
        };
        let admitted = self.gate.admit(&wish).await.ok();
        let address = admitted.and_then(|all| all.first().copied());
        let address = address.map(|address| SocketAddr::new(address, port));
        let ruling = address.map_or_else(|| Ruling::Refused(Instant::now()), Ruling::Granted);
        self.destinations.insert(key, ruling);
        address
    }

    async fn give_back(&self, source: SocketAddr, data: &[u8]) {
        let source = SocketAddr::new(source.ip().to_canonical(), source.port());
        let asked = |ruling: &Ruling| matches!(ruling, Ruling::Granted(to) if *to == source);
        if !self.destinations.values().any(asked) {
            return;
        }
        let mut out = Vec::new();
        message::write_datagram(source, data, &mut out);
        // Datagrams may be lost.
        drop(self.near.send_to(&out, self.client).await);
    }
}

/// Our sockets on the outside, made when there is something to send.
#[derive(Debug, Default)]
struct Far {
    v4: Option<UdpSocket>,
    v6: Option<UdpSocket>,
}

impl Far {
    async fn towards(&mut self, address: SocketAddr) -> io::Result<&UdpSocket> {
        let (place, any): (_, SocketAddr) = match address {
            SocketAddr::V4(_) => (&mut self.v4, (Ipv4Addr::UNSPECIFIED, 0).into()),
            SocketAddr::V6(_) => (&mut self.v6, (Ipv6Addr::UNSPECIFIED, 0).into()),
        };
        match place {
            Some(socket) => Ok(socket),
            None => Ok(place.insert(UdpSocket::bind(any).await?)),
        }
    }
}

#[derive(Debug)]
enum Event {
    Out(Vec<u8>),
    V4(Option<(usize, SocketAddr)>),
    V6(Option<(usize, SocketAddr)>),
}

#[derive(Debug)]
enum Ruling {
    Granted(SocketAddr),
    Refused(Instant),
}

async fn receive(socket: Option<&UdpSocket>, buffer: &mut [u8]) -> Option<(usize, SocketAddr)> {
    match socket {
        Some(socket) => socket.recv_from(buffer).await.ok(),
        None => std::future::pending().await,
    }
}

/// How long a place is remembered that sends nothing.
const IDLE: Duration = Duration::from_secs(120);
/// How long a refusal holds before the gate is asked again.
const REFUSED: Duration = Duration::from_secs(10);
/// Destinations of one place.
const MAX_DESTINATIONS: usize = 64;
