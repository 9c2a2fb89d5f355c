//! Who is connected to this process, and which frame goes where.
//!
//! The [`Switch`] knows the executor socket of each environment and hands new circuits to the task
//! that owns it. That task decides by its `Port`: pure code, which knows circuits and streams.
//! Not here: sockets (`rendezvous`), other nodes (`nats`).

mod stream_demux;
#[cfg(test)]
mod tests;

pub(crate) use self::stream_demux::{CircuitId, Delivery, Port, Verdict};

use std::{
    collections::HashMap,
    future::ready,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use futures_util::future::BoxFuture;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};

use crate::{
    circuit::{Circuit, Ending},
    circuit_dialer::{Dial, DialError, Exchange, HarnessTag},
    limits,
    store::{ConnectionId, EnvironmentId, RegistrationId, Store, StoreError},
};

/// Knows the executor sockets of this process, at most one per environment.
#[derive(Debug, Default)]
pub struct Switch {
    sockets: Mutex<HashMap<EnvironmentId, Socket>>,
}

/// An executor socket, as the switch sees it.
#[derive(Debug)]
struct Socket {
    registration: RegistrationId,
    connection: ConnectionId,
    arrivals: mpsc::Sender<Arrival>,
    evict: oneshot::Sender<Ending>,
    slots: Arc<Semaphore>,
}

/// A circuit on its way to the task of an executor socket.
#[derive(Debug)]
pub(crate) struct Arrival {
    /// The executor's end.
    pub(crate) circuit: Circuit,
    /// Who is at the other end.
    pub(crate) harness: HarnessTag,
    /// Its place among the harnesses of this executor.
    pub(crate) slot: OwnedSemaphorePermit,
}

/// An executor socket's place in the switch. Dropping it leaves the place.
#[derive(Debug)]
pub(crate) struct Attachment {
    /// New circuits.
    pub(crate) arrivals: mpsc::Receiver<Arrival>,
    /// Resolves when the socket must close, and says why.
    pub(crate) evicted: oneshot::Receiver<Ending>,
    switch: Arc<Switch>,
    environment: EnvironmentId,
    connection: ConnectionId,
}

impl Drop for Attachment {
    fn drop(&mut self) {
        let mut sockets = self.switch.lock();
        if sockets
            .get(&self.environment)
            .is_some_and(|socket| socket.connection == self.connection)
        {
            sockets.remove(&self.environment);
        }
    }
}

impl Switch {
    /// Puts an executor socket in place. One that was there before is closed.
    pub(crate) fn attach(
        self: &Arc<Self>,
        environment: EnvironmentId,
        registration: RegistrationId,
        connection: ConnectionId,
    ) -> Attachment {
        let (arrivals, arriving) = mpsc::channel(limits::PENDING_CIRCUITS);
        let (evict, evicted) = oneshot::channel();
        let socket = Socket {
            registration,
            connection: connection.clone(),
            arrivals,
            evict,
            slots: Arc::new(Semaphore::new(limits::HARNESSES_PER_EXECUTOR)),
        };
        let previous = self.lock().insert(environment.clone(), socket);
        if let Some(previous) = previous {
            previous.close(Ending::Replaced);
        }
        Attachment {
            arrivals: arriving,
            evicted,
            switch: Arc::clone(self),
            environment,
            connection,
        }
    }

    /// Closes the executor socket of an environment unless it is `connection`: the executor has
    /// appeared somewhere else.
    pub fn replace(&self, environment: &EnvironmentId, connection: &ConnectionId) {
        self.close_if(environment, |socket| socket.connection != *connection);
    }

    /// Closes this very executor socket of an environment, if it is still there.
    pub fn evict(&self, environment: &EnvironmentId, connection: &ConnectionId) {
        self.close_if(environment, |socket| socket.connection == *connection);
    }

    /// Closes the executor socket of an environment unless its registration is the current one.
    ///
    /// # Errors
    /// [`StoreError`]: the socket stays.
    pub async fn close_superseded(
        &self,
        environment: &EnvironmentId,
        store: &dyn Store,
    ) -> Result<(), StoreError> {
        let found = self
            .lock()
            .get(environment)
            .map(|socket| (socket.registration.clone(), socket.connection.clone()));
        let Some((registration, connection)) = found else {
            return Ok(());
        };
        // Asked after the socket was found: its registration was made before, so that another one
        // can only be newer. A socket that comes meanwhile asks the store itself.
        let current = store.registration(environment).await?;
        if current.is_none_or(|current| current.id != registration) {
            self.evict(environment, &connection);
        }
        Ok(())
    }

    /// Closes all executor sockets.
    pub fn close_all(&self, ending: Ending) {
        let sockets = std::mem::take(&mut *self.lock());
        for socket in sockets.into_values() {
            socket.close(ending);
        }
    }

    /// Returns the executor sockets of this process.
    pub fn attached(&self) -> Vec<(EnvironmentId, RegistrationId, ConnectionId)> {
        self.lock()
            .iter()
            .map(|(environment, socket)| {
                (
                    environment.clone(),
                    socket.registration.clone(),
                    socket.connection.clone(),
                )
            })
            .collect()
    }

    fn connect(&self, dial: &Dial) -> Result<Circuit, DialError> {
        let sockets = self.lock();
        let socket = sockets
            .get(&dial.environment)
            .filter(|socket| socket.registration == dial.registration)
            .ok_or(DialError::Offline)?;
        let slot = Arc::clone(&socket.slots)
            .try_acquire_owned()
            .map_err(|_| DialError::Busy)?;
        let (ours, theirs) = Circuit::pair(limits::TO_EXECUTOR, limits::TO_HARNESS);
        let arrival = Arrival {
            circuit: theirs,
            harness: dial.harness,
            slot,
        };
        socket
            .arrivals
            .try_send(arrival)
            .map_err(|error| match error {
                mpsc::error::TrySendError::Full(_) => DialError::Busy,
                mpsc::error::TrySendError::Closed(_) => DialError::Offline,
            })?;
        Ok(ours)
    }

    fn close_if(&self, environment: &EnvironmentId, condition: impl FnOnce(&Socket) -> bool) {
        let mut sockets = self.lock();
        if sockets.get(environment).is_some_and(condition)
            && let Some(socket) = sockets.remove(environment)
        {
            socket.close(Ending::Replaced);
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<EnvironmentId, Socket>> {
        self.sockets.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Socket {
    fn close(self, ending: Ending) {
        // Its task has ended by itself if nobody listens.
        let _ended = self.evict.send(ending);
    }
}

impl Exchange for Switch {
    fn dial(&self, dial: Dial) -> BoxFuture<'_, Result<Circuit, DialError>> {
        Box::pin(ready(self.connect(&dial)))
    }

    fn supersede<'a>(
        &'a self,
        environment: EnvironmentId,
        store: &'a dyn Store,
    ) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            if let Err(error) = self.close_superseded(&environment, store).await {
                tracing::warn!(%environment, %error, "sockets of superseded executors linger");
            }
        })
    }
}
