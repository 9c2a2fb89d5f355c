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

use crate::{connection::Dialect, server_requests::Asked};

/// Room that is left to answers by what may be lost.
const RESERVED_BYTES: usize = limits::OUTBOX_BYTES / 8;

/// Sends messages to one connection's writer. Answers wait for room; events are pulled by the
/// writer from the logs, which hold them anyway.
#[derive(Debug)]
pub(crate) struct Outbox {
    items: mpsc::UnboundedSender<Item>,
    room: Arc<Semaphore>,
    follows: Arc<Follows>,
    lifecycle: AtomicBool,
    asked: Arc<Asked>,
}

/// Something for the writer.
#[derive(Debug)]
pub(crate) enum Item {
    /// A message, and the room it takes until it is flushed.
    Message(Outgoing, Option<OwnedSemaphorePermit>),
    /// Data travels raw from now on.
    Binary,
    /// Events to pull from now on.
    Follow(Followed),
}

/// The events of one process, on their way to one connection.
pub(crate) struct Followed {
    pub(crate) id: ProcessId,
    pub(crate) dialect: Dialect,
    pub(crate) events: Abortable<EventStream>,
    number: u64,
    follows: Arc<Follows>,
}

impl fmt::Debug for Followed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Followed")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

impl Drop for Followed {
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
struct Follows(Mutex<Current>);

#[derive(Debug, Default)]
struct Current {
    by_id: BTreeMap<ProcessId, (u64, AbortHandle)>,
    next: u64,
}

impl Follows {
    fn lock(&self) -> MutexGuard<'_, Current> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Outbox {
    pub(crate) fn new() -> (Self, mpsc::UnboundedReceiver<Item>) {
        let (items, queue) = mpsc::unbounded_channel();
        let room = Arc::new(Semaphore::new(limits::OUTBOX_BYTES));
        (
            Self {
                items,
                room,
                follows: Arc::default(),
                lifecycle: AtomicBool::new(false),
                asked: Arc::default(),
            },
            queue,
        )
    }

    /// Applies what was granted: from here on data travels raw, or lifecycle events are sent.
    pub(crate) fn grant(&self, extension: Extension) {
        if extension == Extension::BinaryData {
            drop(self.items.send(Item::Binary));
        }
        if extension == Extension::Lifecycle {
            self.lifecycle.store(true, Ordering::Relaxed);
        }
    }

    /// Queues a message if there is room for it now; otherwise gives it back.
    pub(crate) fn try_send(&self, message: Outgoing) -> Result<(), Outgoing> {
        let Ok(room) = Arc::clone(&self.room).try_acquire_many_owned(room_for(&message)) else {
            return Err(message);
        };
        // A writer that is gone needs nothing.
        drop(self.items.send(Item::Message(message, Some(room))));
        Ok(())
    }

    /// Queues a message when there is room for it.
    pub(crate) async fn send(&self, message: Outgoing) {
        self.send_after(message, || {}).await;
    }

    /// Queues a message when there is room for it, and does something right before.
    pub(crate) async fn send_after(&self, message: Outgoing, before: impl FnOnce()) {
        let size = room_for(&message);
        // The semaphore is never closed.
        let room = Arc::clone(&self.room).acquire_many_owned(size).await.ok();
        before();
        // A writer that is gone needs nothing.
        drop(self.items.send(Item::Message(message, room)));
    }

    /// Queues a message that may be lost, if that leaves room for those that may not.
    pub(crate) fn offer(&self, message: Outgoing) {
        if self.room.available_permits() >= RESERVED_BYTES {
            drop(self.try_send(message));
        }
    }

    /// Asks the client about a process's network. `None`: it does not answer, or not so that it
    /// could be taken.
    pub(crate) async fn ask(self: Arc<Self>, request: &PolicyRequest) -> Option<Decision> {
        let mut question = self.asked.ask()?;
        let request = Outgoing::request(&question.id, NETWORK_POLICY_REQUEST, request);
        tokio::select! {
            // The connection is gone before there was room.
            answer = question.answer() => return answer,
            () = self.send(request) => {}
        }
        // Whoever waits for an answer does not keep the connection open.
        drop(self);
        question.answer().await
    }

    /// Returns what waits for the client to take it.
    pub(crate) fn waiting_bytes(&self) -> usize {
        limits::OUTBOX_BYTES.saturating_sub(self.room.available_permits())
    }

    /// Returns what the client was asked.
    pub(crate) fn asked(&self) -> &Asked {
        &self.asked
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
    pub(crate) fn follow(&self, id: ProcessId, dialect: Dialect, events: EventStream) {
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
        drop(self.items.send(Item::Follow(Followed {
            id,
            dialect,
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
fn room_for(message: &Outgoing) -> u32 {
    let size = message.text_len().clamp(1, limits::OUTBOX_BYTES);
    u32::try_from(size).unwrap_or(u32::MAX)
}
