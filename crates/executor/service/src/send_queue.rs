//! The way out of a connection: a bounded queue of messages, and the processes it follows.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use exec_env::process::EventStream;
use exec_wire::{
    id::ProcessId,
    initialize::Extension,
    limits,
    method::NETWORK_POLICY_REQUEST,
    network::{Decision, PolicyRequest},
    outgoing::Outgoing,
};
use futures_util::stream::{AbortHandle, Abortable, abortable};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use crate::{connection::MethodFamily, server_requests::ServerRequests};

/// Room that is left to answers by what may be lost.
const RESERVED_BYTES: usize = limits::OUTBOX_BYTES / 8;

/// Sends messages to one connection's writer. Answers wait for room; events are pulled by the
/// writer from the logs, which hold them anyway.
#[derive(Debug)]
pub(crate) struct SendQueue {
    items: mpsc::UnboundedSender<SendItem>,
    permits: Arc<Semaphore>,
    follows: Arc<FollowTable>,
    lifecycle: AtomicBool,
    server_requests: Arc<ServerRequests>,
}

/// Something for the writer.
#[derive(Debug)]
pub(crate) enum SendItem {
    /// A message, and the room it takes until it is flushed.
    Message(Outgoing, Option<OwnedSemaphorePermit>),
    /// Data travels raw from now on.
    Binary,
    /// Events to pull from now on.
    Follow(FollowedProcess),
}

/// The events of one process, on their way to one connection.
pub(crate) struct FollowedProcess {
    pub(crate) id: ProcessId,
    pub(crate) family: MethodFamily,
    pub(crate) events: Abortable<EventStream>,
    number: u64,
    follows: Arc<FollowTable>,
}

impl fmt::Debug for FollowedProcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Followed")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

impl Drop for FollowedProcess {
    fn drop(&mut self) {
        let mut current = self.follows.lock();
        if current
            .by_id
            .get(&self.id)
            .is_some_and(|(number, _)| *number == self.number)
        {
            current.by_id.remove(&self.id);
        }
    }
}

/// Which processes a connection follows.
#[derive(Debug, Default)]
struct FollowTable(Mutex<FollowState>);

#[derive(Debug, Default)]
struct FollowState {
    by_id: BTreeMap<ProcessId, (u64, AbortHandle)>,
    next: u64,
}

impl FollowTable {
    fn lock(&self) -> MutexGuard<'_, FollowState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SendQueue {
    pub(crate) fn new() -> (Self, mpsc::UnboundedReceiver<SendItem>) {
        let (items, queue) = mpsc::unbounded_channel();
        let permits = Arc::new(Semaphore::new(limits::OUTBOX_BYTES));
        (
            Self {
                items,
                permits,
                follows: Arc::default(),
                lifecycle: AtomicBool::new(false),
                server_requests: Arc::default(),
            },
            queue,
        )
    }

    /// Applies what was granted: from here on data travels raw, or lifecycle events are sent.
    pub(crate) fn grant(&self, extension: Extension) {
        if extension == Extension::BinaryData {
            drop(self.items.send(SendItem::Binary));
        }
        if extension == Extension::Lifecycle {
            self.lifecycle.store(true, Ordering::Relaxed);
        }
    }

    /// Queues a message if there is room for it now; otherwise gives it back.
    pub(crate) fn try_send(&self, message: Outgoing) -> Result<(), Outgoing> {
        let Ok(permits) = Arc::clone(&self.permits).try_acquire_many_owned(permits_for(&message))
        else {
            return Err(message);
        };
        // A writer that is gone needs nothing.
        drop(self.items.send(SendItem::Message(message, Some(permits))));
        Ok(())
    }

    /// Queues a message when there is room for it.
    pub(crate) async fn send(&self, message: Outgoing) {
        self.send_with(message, || {}).await;
    }

    /// Queues a message when there is room for it, and does something right before.
    pub(crate) async fn send_with(&self, message: Outgoing, before: impl FnOnce()) {
        let size = permits_for(&message);
        // The semaphore is never closed.
        let permits = Arc::clone(&self.permits)
            .acquire_many_owned(size)
            .await
            .ok();
        before();
        // A writer that is gone needs nothing.
        drop(self.items.send(SendItem::Message(message, permits)));
    }

    /// Queues a message that may be lost, if that leaves room for those that may not.
    pub(crate) fn send_lossy(&self, message: Outgoing) {
        if self.permits.available_permits() >= RESERVED_BYTES {
            drop(self.try_send(message));
        }
    }

    /// Asks the client about a process's network. `None`: it does not answer, or not so that it
    /// could be taken.
    pub(crate) async fn request_decision(
        self: Arc<Self>,
        request: &PolicyRequest,
    ) -> Option<Decision> {
        let mut pending = self.server_requests.register()?;
        let request = Outgoing::request(&pending.id, NETWORK_POLICY_REQUEST, request);
        tokio::select! {
            // The connection is gone before there was room.
            answer = pending.decision() => return answer,
            () = self.send(request) => {}
        }
        // Whoever waits for an answer does not keep the connection open.
        drop(self);
        pending.decision().await
    }

    /// Returns what waits for the client to take it.
    pub(crate) fn buffered_bytes(&self) -> usize {
        limits::OUTBOX_BYTES.saturating_sub(self.permits.available_permits())
    }

    /// Returns what the client was asked.
    pub(crate) fn server_requests(&self) -> &ServerRequests {
        &self.server_requests
    }

    /// Resolves when the writer is gone: the peer cannot be written to.
    pub(crate) async fn closed(&self) {
        self.items.closed().await;
    }

    /// Tells whether the client asked for `process/started` and `process/failed`.
    pub(crate) fn lifecycle(&self) -> bool {
        self.lifecycle.load(Ordering::Relaxed)
    }

    /// Sends the events of a process from now on, instead of any that were sent before.
    pub(crate) fn follow(&self, id: ProcessId, family: MethodFamily, events: EventStream) {
        let (events, stop) = abortable(events);
        let mut current = self.follows.lock();
        let number = current.next;
        current.next += 1;
        let before = current.by_id.insert(id.clone(), (number, stop));
        drop(current);
        if let Some((_, before)) = before {
            before.abort();
        }
        let follows = Arc::clone(&self.follows);
        drop(self.items.send(SendItem::Follow(FollowedProcess {
            id,
            family,
            events,
            number,
            follows,
        })));
    }

    /// Stops sending the events of a process.
    pub(crate) fn release(&self, id: &ProcessId) {
        let followed = self.follows.lock().by_id.remove(id);
        if let Some((_, stop)) = followed {
            stop.abort();
        }
    }
}

/// What a message takes of the room; a large one takes all of it.
fn permits_for(message: &Outgoing) -> u32 {
    let size = message.text_len().clamp(1, limits::OUTBOX_BYTES);
    u32::try_from(size).unwrap_or(u32::MAX)
}
