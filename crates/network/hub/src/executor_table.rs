//! Executor websockets of this process, and the assignment of frames to circuits.
//!
//! The [`ExecutorTable`] has the executor websocket of each environment and hands new circuits to
//! the task that owns it. That task uses its `StreamDemux`, which is pure code, to assign frames.
//! Elsewhere: websockets (`rendezvous`), other nodes (`nats`).

mod stream_demux;
#[cfg(test)]
mod tests;

pub(crate) use self::stream_demux::{
    CircuitId, ExecutorFrameAction, HarnessFrameAction, StreamDemux,
};

use std::{
    collections::{HashMap, HashSet},
    future::ready,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use futures_util::future::BoxFuture;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};

use crate::{
    circuit::{Circuit, CircuitDialer, CloseReason, DialError, DialRequest, HarnessTag},
    limits,
    store::{ConnectionId, EnvironmentId, RegistrationId, Store, StoreError},
};

/// The executor websockets of this process, at most one per environment.
#[derive(Debug, Default)]
pub struct ExecutorTable {
    sockets: Mutex<HashMap<EnvironmentId, ExecutorEntry>>,
}

/// Entry of an executor websocket.
#[derive(Debug)]
struct ExecutorEntry {
    registration: RegistrationId,
    connection: ConnectionId,
    arrivals: mpsc::Sender<NewCircuit>,
    evict: oneshot::Sender<CloseReason>,
    slots: Arc<Semaphore>,
}

/// A new circuit for the task of an executor websocket.
#[derive(Debug)]
pub(crate) struct NewCircuit {
    /// The executor's end.
    pub(crate) circuit: Circuit,
    /// The harness at the other end.
    pub(crate) harness: HarnessTag,
    /// Permit that counts against the limit of harnesses per executor.
    pub(crate) slot: OwnedSemaphorePermit,
}

/// Attachment of an executor websocket to the table. Dropping it detaches.
#[derive(Debug)]
pub(crate) struct TableAttachment {
    /// New circuits.
    pub(crate) arrivals: mpsc::Receiver<NewCircuit>,
    /// Resolves with the reason when the websocket must close.
    pub(crate) evicted: oneshot::Receiver<CloseReason>,
    executor_table: Arc<ExecutorTable>,
    environment: EnvironmentId,
    connection: ConnectionId,
}

impl Drop for TableAttachment {
    fn drop(&mut self) {
        let mut sockets = self.executor_table.lock();
        if sockets
            .get(&self.environment)
            .is_some_and(|socket| socket.connection == self.connection)
        {
            sockets.remove(&self.environment);
        }
    }
}

impl ExecutorTable {
    /// Attaches an executor websocket and closes a previous one.
    pub(crate) fn attach(
        self: &Arc<Self>,
        environment: EnvironmentId,
        registration: RegistrationId,
        connection: ConnectionId,
    ) -> TableAttachment {
        let (arrivals, arriving) = mpsc::channel(limits::PENDING_CIRCUITS);
        let (evict, evicted) = oneshot::channel();
        let socket = ExecutorEntry {
            registration,
            connection: connection.clone(),
            arrivals,
            evict,
            slots: Arc::new(Semaphore::new(limits::HARNESSES_PER_EXECUTOR)),
        };
        let previous = self.lock().insert(environment.clone(), socket);
        if let Some(previous) = previous {
            previous.close(CloseReason::Replaced);
        }
        TableAttachment {
            arrivals: arriving,
            evicted,
            executor_table: Arc::clone(self),
            environment,
            connection,
        }
    }

    /// Closes this executor websocket of an environment if it is still attached.
    pub fn evict(&self, environment: &EnvironmentId, connection: &ConnectionId) {
        let mut sockets = self.lock();
        let is_attached = |socket: &ExecutorEntry| socket.connection == *connection;
        if sockets.get(environment).is_some_and(is_attached)
            && let Some(socket) = sockets.remove(environment)
        {
            socket.close(CloseReason::Replaced);
        }
    }

    /// Closes the executor websocket of an environment unless its registration is current.
    ///
    /// # Errors
    /// Returns [`StoreError`] and keeps the websocket if the store fails.
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
        // Queried after the lookup: any other registration can then only be newer. A websocket that
        // attaches meanwhile queries the store itself.
        let current = store.registration(environment).await?;
        if current.is_none_or(|current| current.id != registration) {
            self.evict(environment, &connection);
        }
        Ok(())
    }

    /// Closes all executor websockets.
    pub fn close_all(&self, close_reason: CloseReason) {
        let sockets = std::mem::take(&mut *self.lock());
        for socket in sockets.into_values() {
            socket.close(close_reason);
        }
    }

    /// Returns the executor websockets of this process.
    pub fn attached(&self) -> HashSet<ConnectionId> {
        let sockets = self.lock();
        let connections = sockets.values().map(|socket| socket.connection.clone());
        connections.collect()
    }

    fn connect(&self, dial: &DialRequest) -> Result<Circuit, DialError> {
        let sockets = self.lock();
        let socket = sockets
            .get(&dial.environment)
            .filter(|socket| socket.registration == dial.registration)
            .ok_or(DialError::Offline)?;
        let slot = Arc::clone(&socket.slots)
            .try_acquire_owned()
            .map_err(|_| DialError::Busy)?;
        let (ours, theirs) = Circuit::pair(limits::TO_EXECUTOR, limits::TO_HARNESS);
        let arrival = NewCircuit {
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

    fn lock(&self) -> MutexGuard<'_, HashMap<EnvironmentId, ExecutorEntry>> {
        self.sockets.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ExecutorEntry {
    fn close(self, close_reason: CloseReason) {
        // The receiver is gone if the task has already ended.
        let _ended = self.evict.send(close_reason);
    }
}

impl CircuitDialer for ExecutorTable {
    fn dial(&self, dial: DialRequest) -> BoxFuture<'_, Result<Circuit, DialError>> {
        Box::pin(ready(self.connect(&dial)))
    }

    fn supersede<'a>(
        &'a self,
        environment: EnvironmentId,
        store: &'a dyn Store,
    ) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            if let Err(error) = self.close_superseded(&environment, store).await {
                tracing::warn!(%environment, %error, "failed to close websockets of superseded executors");
            }
        })
    }
}
