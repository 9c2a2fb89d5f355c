//! A TCP load balancer: what stands before several nodes of a hub.
//!
//! Each connection goes to the next node that accepts it. Nothing of what travels is looked at.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    task::{AbortHandle, JoinSet},
};

/// The balancer. Dropping it cuts everything.
#[derive(Debug)]
pub struct Balancer {
    address: SocketAddr,
    accepting: AbortHandle,
}

impl Balancer {
    /// Spreads connections over `nodes`, in turns.
    pub async fn start(nodes: Vec<SocketAddr>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("a bound address");
        let accepting = tokio::spawn(accept(listener, nodes.into())).abort_handle();
        Self { address, accepting }
    }

    /// The registry behind it.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }
}

impl Drop for Balancer {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn accept(listener: TcpListener, nodes: Arc<[SocketAddr]>) {
    let turn = Arc::new(AtomicUsize::new(0));
    let mut connections = JoinSet::new();
    while let Ok((client, _)) = listener.accept().await {
        connections.spawn(pass(client, Arc::clone(&nodes), Arc::clone(&turn)));
        while connections.try_join_next().is_some() {}
    }
}

async fn pass(mut client: TcpStream, nodes: Arc<[SocketAddr]>, turn: Arc<AtomicUsize>) {
    for _ in 0..nodes.len() {
        let node = nodes[turn.fetch_add(1, Ordering::Relaxed) % nodes.len()];
        if let Ok(mut server) = TcpStream::connect(node).await {
            drop((client.set_nodelay(true), server.set_nodelay(true)));
            // However it ends, both are closed then.
            drop(copy_bidirectional(&mut client, &mut server).await);
            return;
        }
    }
}
