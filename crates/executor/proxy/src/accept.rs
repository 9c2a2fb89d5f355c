//! Takes connections from a listening socket, as many at a time as there are slots.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use tokio::{
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore},
    task::JoinSet,
};

use crate::limits;

/// How many connections there may be, over all sockets that share it.
#[derive(Clone, Debug)]
pub(crate) struct Slots {
    open: Arc<Semaphore>,
    turned_away: Arc<Semaphore>,
}

impl Slots {
    pub(crate) fn new(connections: usize) -> Self {
        Self {
            open: Arc::new(Semaphore::new(connections)),
            turned_away: Arc::new(Semaphore::new(limits::TURNED_AWAY)),
        }
    }

    fn take(&self) -> Option<Admission> {
        if let Ok(permit) = self.open.clone().try_acquire_owned() {
            return Some(Admission::Served(permit));
        }
        let permit = self.turned_away.clone().try_acquire_owned().ok()?;
        Some(Admission::TurnedAway(permit))
    }
}

/// What becomes of a connection. The permit lives as long as it.
#[derive(Debug)]
pub(crate) enum Admission {
    /// It is served.
    Served(OwnedSemaphorePermit),
    /// It is told that there are too many.
    TurnedAway(OwnedSemaphorePermit),
}

/// Serves connections until dropped, which cuts them all.
pub(crate) async fn accept<F, S>(listener: TcpListener, slots: Slots, serve: S)
where
    S: Fn(TcpStream, SocketAddr, Admission) -> F,
    F: Future<Output = ()> + Send + 'static,
{
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, peer)) => if let Some(admission) = slots.take() {
                    // Only a matter of speed: the connection works without.
                    drop(stream.set_nodelay(true));
                    connections.spawn(serve(stream, peer, admission));
                },
                Err(error) => {
                    tracing::debug!(%error, "cannot accept a connection");
                    tokio::time::sleep(PAUSE).await;
                }
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

/// Makes a listening socket of the standard library one of the runtime's.
pub(crate) fn adopt(listener: std::net::TcpListener) -> io::Result<TcpListener> {
    listener.set_nonblocking(true)?;
    TcpListener::from_std(listener)
}

/// After a failure to accept. Mostly there are no descriptors left, and some may soon be.
const PAUSE: Duration = Duration::from_millis(50);
