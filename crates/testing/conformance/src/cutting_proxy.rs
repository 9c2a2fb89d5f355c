//! TCP proxy that cuts connections at random points, for testing reconnects.
//!
//! Each connection has a byte budget for both directions together. When it is used up, the proxy
//! closes both ends in the middle of any message. The budgets follow from a seed. The proxy can
//! also blackhole connections: they stay open, but no byte gets through.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::Notify,
    task::AbortHandle,
};

/// Small, so that cuts fall into the middle of messages.
const READ_BYTES: usize = 4096;

/// Proxy that cuts connections. Dropping it closes every connection.
#[derive(Debug)]
pub struct CuttingProxy {
    address: SocketAddr,
    state: Arc<State>,
    accepting: AbortHandle,
}

#[derive(Debug)]
struct State {
    upstream: SocketAddr,
    /// Connections still to be forwarded without a cut.
    spared: AtomicUsize,
    /// Connections still to be cut after those.
    left: AtomicUsize,
    cuts: AtomicUsize,
    cut: Notify,
    random: AtomicU64,
    /// Connections accepted so far.
    accepted: AtomicUsize,
    /// Connections up to this number are blackholed.
    swallowing: AtomicUsize,
}

impl CuttingProxy {
    /// Forwards connections to `upstream` and cuts the first `cuts` of them.
    pub async fn start(upstream: SocketAddr, cuts: usize, seed: u64) -> Self {
        Self::start_after(0, upstream, cuts, seed).await
    }

    /// Like [`start`](Self::start), but does not cut the first `spared` connections, whose requests
    /// cannot be repeated.
    pub async fn start_after(spared: usize, upstream: SocketAddr, cuts: usize, seed: u64) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0")
            .await
            .expect("failed to bind a loopback port");
        let address = listener
            .local_addr()
            .expect("failed to read the local address");
        let state = Arc::new(State {
            upstream,
            spared: AtomicUsize::new(spared),
            left: AtomicUsize::new(cuts),
            cuts: AtomicUsize::new(0),
            cut: Notify::new(),
            random: AtomicU64::new(seed),
            accepted: AtomicUsize::new(0),
            swallowing: AtomicUsize::new(0),
        });
        let accepting = tokio::spawn(accept(listener, Arc::clone(&state))).abort_handle();
        Self {
            address,
            state,
            accepting,
        }
    }

    /// Returns the listening address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the number of connections cut so far.
    pub fn cuts(&self) -> usize {
        self.state.cuts.load(Ordering::Relaxed)
    }

    /// Blackholes all current connections. Their peers get no error; new connections work.
    pub fn blackhole_existing(&self) {
        let accepted = self.state.accepted.load(Ordering::Relaxed);
        self.state.swallowing.store(accepted, Ordering::Relaxed);
    }

    /// Waits until `cuts` connections have been cut.
    pub async fn until_cut(&self, cuts: usize) {
        loop {
            // Register before reading the counter, so that no cut in between is missed.
            let next = self.state.cut.notified();
            if self.cuts() >= cuts {
                return;
            }
            next.await;
        }
    }
}

impl Drop for CuttingProxy {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn accept(listener: TcpListener, state: Arc<State>) {
    let mut connections = tokio::task::JoinSet::new();
    while let Ok((client, _)) = listener.accept().await {
        connections.spawn(pass(client, Arc::clone(&state)));
        while connections.try_join_next().is_some() {}
    }
}

async fn pass(client: TcpStream, state: Arc<State>) {
    let number = state.accepted.fetch_add(1, Ordering::Relaxed);
    let Ok(server) = TcpStream::connect(state.upstream).await else {
        return;
    };
    drop((client.set_nodelay(true), server.set_nodelay(true)));
    let cut = !decrement_if_positive(&state.spared) && decrement_if_positive(&state.left);
    let budget = if cut { state.budget() } else { u64::MAX };
    let used = AtomicU64::new(0);
    let swallows = || number < state.swallowing.load(Ordering::Relaxed);
    let ((from_client, to_client), (from_server, to_server)) =
        (client.into_split(), server.into_split());
    tokio::select! {
        () = copy(from_client, to_server, budget, &used, swallows) => {}
        () = copy(from_server, to_client, budget, &used, swallows) => {}
    }
    // Dropping both ends loses all bytes not yet forwarded.
    if cut {
        state.cuts.fetch_add(1, Ordering::Relaxed);
        state.cut.notify_waiters();
    }
}

/// Decrements a counter unless it is zero, and returns whether it did.
fn decrement_if_positive(left: &AtomicUsize) -> bool {
    left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
        left.checked_sub(1)
    })
    .is_ok()
}

/// Forwards bytes until the budget is used up, and only the part of the last read that fits the
/// budget. A blackholed connection drops its bytes and its end of file.
async fn copy(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    budget: u64,
    used: &AtomicU64,
    swallows: impl Fn() -> bool,
) {
    let mut buffer = vec![0; READ_BYTES];
    loop {
        let read = from.read(&mut buffer).await;
        if swallows() {
            match read {
                Ok(1..) => continue,
                Ok(0) | Err(_) => std::future::pending().await,
            }
        }
        let Ok(read @ 1..) = read else {
            return;
        };
        let before = used.fetch_add(read as u64, Ordering::Relaxed);
        let room = budget.saturating_sub(before);
        let passed = usize::try_from(room).unwrap_or(usize::MAX).min(read);
        if to.write_all(&buffer[..passed]).await.is_err() || passed < read {
            return;
        }
    }
}

impl State {
    /// Returns a byte budget between 1 and half a megabyte, on a logarithmic scale. Most budgets
    /// exceed the handshake, since a cut handshake is retried only after a delay.
    fn budget(&self) -> u64 {
        let early = self.random().is_multiple_of(20);
        let bits = if early { 11 } else { 11 + self.random() % 9 };
        let base = if early { 0 } else { 1 << 11 };
        base + self.random() % (1 << bits)
    }

    /// Returns the next number of a linear congruential generator, without its weak low bits.
    fn random(&self) -> u64 {
        let step = |seed: u64| {
            seed.wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407)
        };
        let seed = self
            .random
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |seed| {
                Some(step(seed))
            });
        seed.unwrap_or_default() >> 33
    }
}
