//! A proxy that cuts connections at random points, to see what a client makes of it.
//!
//! Every connection has a budget of bytes, both directions together; when it is used up, both ends are
//! closed at once, in the middle of whatever travels. The points follow from a seed. It can also let
//! connections die without a word: they stay open, and nothing comes through.

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

/// Small, so that a cut falls into the middle of messages.
const READ_BYTES: usize = 4096;

/// The proxy. Dropping it cuts everything.
#[derive(Debug)]
pub struct CuttingProxy {
    address: SocketAddr,
    state: Arc<State>,
    accepting: AbortHandle,
}

#[derive(Debug)]
struct State {
    upstream: SocketAddr,
    /// Connections that are still to be passed on whole.
    spared: AtomicUsize,
    /// Connections that are still to be cut after that.
    left: AtomicUsize,
    cuts: AtomicUsize,
    cut: Notify,
    random: AtomicU64,
    /// Connections so far.
    accepted: AtomicUsize,
    /// How many of the first of them swallow everything.
    swallowing: AtomicUsize,
}

impl CuttingProxy {
    /// Passes connections on to `upstream`, and cuts the first `cuts` of them.
    pub async fn start(upstream: SocketAddr, cuts: usize, seed: u64) -> Self {
        Self::start_after(0, upstream, cuts, seed).await
    }

    /// The same, but the first `spared` connections are not cut: what is asked for on them cannot be
    /// asked for again.
    pub async fn start_after(spared: usize, upstream: SocketAddr, cuts: usize, seed: u64) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("a bound address");
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

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// How many connections were cut so far.
    pub fn cuts(&self) -> usize {
        self.state.cuts.load(Ordering::Relaxed)
    }

    /// Lets all connections that there are swallow everything from now on. Their ends hear nothing of
    /// it; new ones work.
    pub fn swallow(&self) {
        let accepted = self.state.accepted.load(Ordering::Relaxed);
        self.state.swallowing.store(accepted, Ordering::Relaxed);
    }

    /// Waits until `cuts` connections were cut.
    pub async fn until_cut(&self, cuts: usize) {
        loop {
            // Registered before looking, so that no cut in between is missed.
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
    let cut = !take_one(&state.spared) && take_one(&state.left);
    let budget = if cut { state.budget() } else { u64::MAX };
    let used = AtomicU64::new(0);
    let swallows = || number < state.swallowing.load(Ordering::Relaxed);
    let ((from_client, to_client), (from_server, to_server)) =
        (client.into_split(), server.into_split());
    tokio::select! {
        () = copy(from_client, to_server, budget, &used, swallows) => {}
        () = copy(from_server, to_client, budget, &used, swallows) => {}
    }
    // Both ends are dropped here: what was not passed on yet is gone.
    if cut {
        state.cuts.fetch_add(1, Ordering::Relaxed);
        state.cut.notify_waiters();
    }
}

/// Counts one down; tells whether there was one left.
fn take_one(left: &AtomicUsize) -> bool {
    left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
        left.checked_sub(1)
    })
    .is_ok()
}

/// Passes bytes on until the budget is used up; of the last piece only what is in the budget. What is
/// swallowed is gone, and so is the end of a connection.
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
    /// A number of bytes from the first to half a megabyte, small ones as likely as large ones. Most are
    /// beyond the handshake: a cut within it is tried again only after a pause.
    fn budget(&self) -> u64 {
        let early = self.random().is_multiple_of(20);
        let bits = if early { 11 } else { 11 + self.random() % 9 };
        let base = if early { 0 } else { 1 << 11 };
        base + self.random() % (1 << bits)
    }

    /// The next number of a linear congruence; its low bits repeat, so they are left out.
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
