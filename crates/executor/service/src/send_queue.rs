//! The send queue of a connection: bounded messages, plus the event streams that the writer
//! follows.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use exec_env::process::EventStream;
use exec_transport::session_tunnels::TunnelSender;
use exec_wire::{
    id::ProcessId,
    initialize::ProtocolExtension,
    limits,
    method::NETWORK_POLICY_REQUEST,
    network::{NetworkDecision, PolicyRequest},
    outgoing_message::OutgoingMessage,
};
use futures_util::stream::{AbortHandle, Abortable, abortable};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};

use crate::{connection::MethodFamily, server_requests::ServerRequests};

/// Bytes of the queue that lossy messages leave free for responses.
const RESERVED_BYTES: usize = limits::SEND_BUFFER_BYTES / 8;

/// Sends messages to the writer of one connection.
///
/// Responses wait for permits, which bounds the queue (backpressure). Events are not queued: the
/// writer pulls them from the output logs.
#[derive(Debug)]
pub(crate) struct SendQueue {
    items: mpsc::UnboundedSender<SendItem>,
    permits: Arc<Semaphore>,
    follow_table: Arc<FollowTable>,
    lifecycle: AtomicBool,
    server_requests: Arc<ServerRequests>,
}

/// An instruction to the writer.
#[derive(Debug)]
pub(crate) enum SendItem {
    /// A message, and its permits, held until it is flushed.
    Message(OutgoingMessage, Option<OwnedSemaphorePermit>),
    /// Switches to binary encoding of data.
    Binary,
    /// Adds an event stream.
    Follow(FollowedProcess),
    /// Begins to send about tunnels.
    Tunnels(TunnelSender),
    /// Drops the sender once everything that is ready is flushed.
    NotifyFlushed(oneshot::Sender<()>),
}

/// Event stream of one process, followed by one connection.
pub(crate) struct FollowedProcess {
    pub(crate) id: ProcessId,
    pub(crate) family: MethodFamily,
    pub(crate) events: Abortable<EventStream>,
    number: u64,
    follow_table: Arc<FollowTable>,
}

impl fmt::Debug for FollowedProcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FollowedProcess")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

impl Drop for FollowedProcess {
    fn drop(&mut self) {
        let mut followed = self.follow_table.lock();
        if followed
            .by_id
            .get(&self.id)
            .is_some_and(|(number, _)| *number == self.number)
        {
            followed.by_id.remove(&self.id);
        }
    }
}

/// The processes that a connection follows.
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
        let permits = Arc::new(Semaphore::new(limits::SEND_BUFFER_BYTES));
        (
            Self {
                items,
                permits,
                follow_table: Arc::default(),
                lifecycle: AtomicBool::new(false),
                server_requests: Arc::default(),
            },
            queue,
        )
    }

    /// Applies a granted extension.
    pub(crate) fn grant(&self, extension: ProtocolExtension) {
        if extension == ProtocolExtension::BinaryData {
            drop(self.items.send(SendItem::Binary));
        }
        if extension == ProtocolExtension::Lifecycle {
            self.lifecycle.store(true, Ordering::Relaxed);
        }
    }

    /// Queues a message if permits are available, otherwise returns it.
    pub(crate) fn try_send(&self, message: OutgoingMessage) -> Result<(), OutgoingMessage> {
        let Ok(permits) = Arc::clone(&self.permits).try_acquire_many_owned(permits_for(&message))
        else {
            return Err(message);
        };
        // Sending fails only if the writer ended.
        drop(self.items.send(SendItem::Message(message, Some(permits))));
        Ok(())
    }

    /// Waits for permits and queues a message.
    pub(crate) async fn send(&self, message: OutgoingMessage) {
        self.send_with(message, || {}).await;
    }

    /// Waits for permits, calls `before_send`, and queues a message.
    pub(crate) async fn send_with(&self, message: OutgoingMessage, before_send: impl FnOnce()) {
        let size = permits_for(&message);
        // The semaphore is never closed.
        let permits = Arc::clone(&self.permits)
            .acquire_many_owned(size)
            .await
            .ok();
        before_send();
        // Sending fails only if the writer ended.
        drop(self.items.send(SendItem::Message(message, permits)));
    }

    /// Queues a message unless that would leave less than the reserve for responses. Otherwise
    /// drops it.
    pub(crate) fn send_lossy(&self, message: OutgoingMessage) {
        if self.permits.available_permits() >= RESERVED_BYTES {
            drop(self.try_send(message));
        }
    }

    /// Asks the client whether a process may connect. Returns `None` without a valid response.
    pub(crate) async fn request_decision(
        self: Arc<Self>,
        request: &PolicyRequest,
    ) -> Option<NetworkDecision> {
        let mut pending = self.server_requests.register()?;
        let request = OutgoingMessage::request(&pending.id, NETWORK_POLICY_REQUEST, request);
        tokio::select! {
            // The connection ended before permits were available.
            decision = pending.decision() => return decision,
            () = self.send(request) => {}
        }
        // A pending decision must not keep the connection open.
        drop(self);
        pending.decision().await
    }

    /// Returns the bytes that are queued and not yet flushed.
    pub(crate) fn buffered_bytes(&self) -> usize {
        limits::SEND_BUFFER_BYTES.saturating_sub(self.permits.available_permits())
    }

    /// Returns the pending requests to the client.
    pub(crate) fn server_requests(&self) -> &ServerRequests {
        &self.server_requests
    }

    /// Resolves when all messages and events that are ready now are flushed, or the writer has
    /// ended.
    pub(crate) async fn flushed(&self) {
        let (notifier, flushed) = oneshot::channel();
        drop(self.items.send(SendItem::NotifyFlushed(notifier)));
        // The sender is dropped without a value in both cases.
        drop::<Result<(), _>>(flushed.await);
    }

    /// Resolves when the writer has ended.
    pub(crate) async fn closed(&self) {
        self.items.closed().await;
    }

    /// Returns whether the client enabled `process/started` and `process/failed`.
    pub(crate) fn lifecycle(&self) -> bool {
        self.lifecycle.load(Ordering::Relaxed)
    }

    /// Sends the events of a process from now on, replacing an earlier stream of the same id.
    pub(crate) fn follow(&self, id: ProcessId, family: MethodFamily, events: EventStream) {
        let (events, stop) = abortable(events);
        let mut followed = self.follow_table.lock();
        let number = followed.next;
        followed.next += 1;
        let previous = followed.by_id.insert(id.clone(), (number, stop));
        drop(followed);
        if let Some((_, previous)) = previous {
            previous.abort();
        }
        let follow_table = Arc::clone(&self.follow_table);
        drop(self.items.send(SendItem::Follow(FollowedProcess {
            id,
            family,
            events,
            number,
            follow_table,
        })));
    }

    /// Sends the messages of the session's tunnels from now on.
    pub(crate) fn send_tunnels(&self, tunnels: TunnelSender) {
        drop(self.items.send(SendItem::Tunnels(tunnels)));
    }

    /// Stops sending the events of a process.
    pub(crate) fn unfollow(&self, id: &ProcessId) {
        let followed = self.follow_table.lock().by_id.remove(id);
        if let Some((_, stop)) = followed {
            stop.abort();
        }
    }
}

/// Returns the permits that a message needs, at most the whole queue.
fn permits_for(message: &OutgoingMessage) -> u32 {
    let size = message.text_len().clamp(1, limits::SEND_BUFFER_BYTES);
    u32::try_from(size).unwrap_or(u32::MAX)
}
