//! The way out of a connection: a bounded queue of messages, and the processes it follows.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
};

use exec_env::process::EventStream;
use exec_wire::{id::ProcessId, initialize::Extension, limits, outgoing::Outgoing};
use futures_util::stream::{AbortHandle, Abortable, abortable};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use crate::notify::Dialect;

/// Sends messages to one connection's writer. Answers wait for room; events are pulled by the
/// writer from the logs, which hold them anyway.
#[derive(Debug)]
pub(crate) struct Outbox {
    items: mpsc::UnboundedSender<Item>,
    room: Arc<Semaphore>,
    follows: Mutex<BTreeMap<ProcessId, AbortHandle>>,
    lifecycle: AtomicBool,
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
}

impl std::fmt::Debug for Followed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Followed")
            .field("id", &self.id)
            .finish_non_exhaustive()
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
                follows: Mutex::default(),
                lifecycle: AtomicBool::new(false),
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

    /// Queues a message when there is room for it.
    pub(crate) async fn send(&self, message: Outgoing) {
        let size = message.text_len().clamp(1, limits::OUTBOX_BYTES);
        let size = u32::try_from(size).unwrap_or(u32::MAX);
        // The semaphore is never closed.
        let permit = Arc::clone(&self.room).acquire_many_owned(size).await.ok();
        // A writer that is gone needs nothing.
        drop(self.items.send(Item::Message(message, permit)));
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
        if let Some(before) = self.lock().insert(id.clone(), stop) {
            before.abort();
        }
        drop(self.items.send(Item::Follow(Followed {
            id,
            dialect,
            events,
        })));
    }

    /// Stops sending the events of a process.
    pub(crate) fn release(&self, id: &ProcessId) {
        if let Some(stop) = self.lock().remove(id) {
            stop.abort();
        }
    }

    /// Forgets a process whose events have ended.
    pub(crate) fn forget(&self, id: &ProcessId) {
        self.lock().remove(id);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<ProcessId, AbortHandle>> {
        self.follows
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}
