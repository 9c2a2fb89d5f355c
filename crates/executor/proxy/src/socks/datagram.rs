//! Datagrams over SOCKS5: one socket for all clients, and a flow for each place they send from.
//!
//! Invariant: a datagram goes to an address that the gate gave, and one comes back only from there.
//! Datagrams that find no room are lost, as datagrams are.

use std::{
    collections::HashMap,
    io,
    net::{IpAddr, SocketAddr, UdpSocket as StdSocket},
    sync::Arc,
};

use tokio::{
    net::UdpSocket,
    sync::{mpsc, watch},
    task::{Id, JoinSet},
};

use super::{flow::Flow, message};
use crate::gate::Gate;

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
