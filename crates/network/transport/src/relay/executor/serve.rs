//! An executor: what stays the same from one connection to the next.

use std::{
    fmt, io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use exec_relay::identity::Identity;
use tokio::{sync::mpsc, time::sleep_until};

use super::{Validator, connection::Connection, streams::Streams};
use crate::{
    link::{Link, ReadError},
    websocket::socket::Socket,
};

/// Serves the streams of harnesses, on one connection after the other.
pub struct Executor {
    pub(super) identity: Arc<Identity>,
    pub(super) environment_id: String,
    pub(super) validator: Arc<dyn Validator>,
    pub(super) links: mpsc::Sender<Link>,
    streams: Arc<Mutex<Streams>>,
}

/// How a connection ended. Its plain streams have ended, its reliable ones are parked.
#[derive(Debug)]
#[non_exhaustive]
pub enum Ended {
    /// The relay closed it.
    Closed,
    /// It cannot be read any further.
    Read(ReadError),
    /// It cannot be written to, or its pings stay unanswered.
    Write(io::Error),
    /// Nobody takes links any more.
    Unwanted,
}

impl Executor {
    /// Makes an executor whose streams go to `links`. When those are not taken, new streams are
    /// reset.
    pub fn new(
        identity: Arc<Identity>,
        environment_id: String,
        validator: Arc<dyn Validator>,
        links: mpsc::Sender<Link>,
    ) -> Self {
        Self {
            identity,
            environment_id,
            validator,
            links,
            streams: Arc::default(),
        }
    }

    /// Serves one connection until it ends. Reliable streams of the one before are still there, for
    /// their harnesses to come back to. Dropping the future drops the connection.
    pub async fn serve(&mut self, socket: Socket, registration_id: String) -> Ended {
        let lease = Lease(Arc::clone(&self.streams));
        let ended = Connection::new(self, &self.streams, socket, registration_id)
            .run()
            .await;
        drop(lease);
        ended
    }
}

impl fmt::Debug for Executor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Executor")
            .field("environment_id", &self.environment_id)
            .finish_non_exhaustive()
    }
}

/// Parks the streams when their connection is gone, however it went.
struct Lease(Arc<Mutex<Streams>>);

impl Drop for Lease {
    fn drop(&mut self) {
        let now = tokio::time::Instant::now();
        lock(&self.0).park_all(now.into_std());
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            return;
        };
        // Until there is a connection again, nobody else looks at the clock.
        let streams = Arc::downgrade(&self.0);
        drop(runtime.spawn(async move {
            loop {
                let next = streams.upgrade().and_then(|all| lock(&all).poll_expiry());
                let Some(next) = next else {
                    return;
                };
                sleep_until(next.into()).await;
                if let Some(streams) = streams.upgrade() {
                    lock(&streams).expire(tokio::time::Instant::now().into_std());
                }
            }
        }));
    }
}

pub(super) fn lock(streams: &Mutex<Streams>) -> MutexGuard<'_, Streams> {
    streams.lock().unwrap_or_else(PoisonError::into_inner)
}
