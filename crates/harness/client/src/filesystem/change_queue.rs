//! Queue between the driver and the reader of a watch, and the open watches of a connection.
//!
//! Invariant: at most [`limits::MAX_GATHERED_CHANGES`] changes are queued. When there are more, one
//! overflow replaces all of them, and the reader must rescan.

use std::{
    collections::{BTreeMap, VecDeque},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use exec_env::filesystem::ChangeBatch;
use exec_wire::{
    fs::{MissingPathNotification, WatchNotification},
    id::WatchId,
    limits,
};
use futures_util::Stream;
use tokio::sync::oneshot;

use crate::{
    client::ExecServerClient, client_shared::ReleaseGuard, driver::OpenedResource,
    polled_state::PolledState,
};

/// Filled by the driver and emptied by the stream.
#[derive(Debug)]
pub(crate) struct ChangeQueue {
    id: WatchId,
    state: PolledState<QueueState>,
}

#[derive(Debug, Default)]
struct QueueState {
    queue: VecDeque<ChangeBatch>,
    /// Number of queued changes; an empty batch counts as one.
    queued_changes: usize,
    ended: bool,
}

impl ChangeQueue {
    pub(crate) fn new(id: WatchId) -> Self {
        Self {
            id,
            state: PolledState::default(),
        }
    }

    pub(crate) fn id(&self) -> &WatchId {
        &self.id
    }

    /// Queues changes, or an overflow.
    pub(crate) fn handle_changed(&self, changed: WatchNotification) {
        if changed.ended && changed.changes.is_empty() && !changed.overflow {
            return self.end();
        }
        self.state.update(|state| state.push(changed));
    }

    /// Ends the stream after the queued changes.
    pub(crate) fn end(&self) {
        self.state.update(|state| state.ended = true);
    }

    fn poll_changes(&self, cx: &mut Context<'_>) -> Poll<Option<ChangeBatch>> {
        self.state.poll(cx, QueueState::poll_changes)
    }
}

impl QueueState {
    fn push(&mut self, changed: WatchNotification) {
        let mut changes = ChangeBatch {
            changes: changed.changes,
            overflow: changed.overflow,
        };
        if self.queued_changes + weight(&changes) > limits::MAX_GATHERED_CHANGES {
            self.queue.clear();
            self.queued_changes = 0;
            changes = ChangeBatch {
                changes: Vec::new(),
                overflow: true,
            };
        }
        self.queued_changes += weight(&changes);
        self.queue.push_back(changes);
        self.ended |= changed.ended;
    }

    fn poll_changes(&mut self) -> Poll<Option<ChangeBatch>> {
        match self.queue.pop_front() {
            Some(changes) => {
                self.queued_changes -= weight(&changes);
                Poll::Ready(Some(changes))
            }
            None if self.ended => Poll::Ready(None),
            None => Poll::Pending,
        }
    }
}

/// The stream of a watch. Dropping it ends the watch.
#[derive(Debug)]
pub(super) struct ChangeStream {
    pub(super) change_queue: Arc<ChangeQueue>,
    pub(super) _release_guard: Option<ReleaseGuard>,
    /// A watch keeps the connection open.
    pub(super) _client: ExecServerClient,
}

impl Stream for ChangeStream {
    type Item = ChangeBatch;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<ChangeBatch>> {
        self.change_queue.poll_changes(cx)
    }
}

fn weight(changes: &ChangeBatch) -> usize {
    changes.changes.len().max(1)
}

/// Open file watches.
#[derive(Debug, Default)]
pub(crate) struct FileWatches {
    table: BTreeMap<WatchId, Arc<ChangeQueue>>,
    /// The missing-path watch, of which the wire allows only one. Dropping the sender signals its
    /// end.
    missing: Option<(u64, oneshot::Sender<()>)>,
}

impl FileWatches {
    /// Registers a watch before it is requested, because changes may arrive before the response. A
    /// new missing-path watch ends the previous one, as on the server.
    pub(crate) fn register(&mut self, resource: OpenedResource) -> OpenedResource {
        if let OpenedResource::MissingWatch(id, end_sender) = resource {
            self.missing = Some((id, end_sender));
            return OpenedResource::None;
        }
        if let OpenedResource::Watch(watch) = &resource {
            self.table.insert(watch.id().clone(), Arc::clone(watch));
        }
        resource
    }

    /// Removes a watch that could not be opened.
    pub(crate) fn cancel(&mut self, resource: &OpenedResource) {
        if let OpenedResource::Watch(watch) = resource {
            self.remove(watch.id());
        }
    }

    /// Removes a watch. Returns whether it existed.
    pub(crate) fn remove(&mut self, id: &WatchId) -> bool {
        self.table.remove(id).is_some()
    }

    /// Passes changes to their watch. Ignores changes of ended watches.
    pub(crate) fn handle_changed(&self, changed: WatchNotification) {
        if let Some(watch) = self.table.get(&changed.watch_id) {
            watch.handle_changed(changed);
        }
    }

    pub(crate) fn handle_missing_changed(&mut self, changed: MissingPathNotification) {
        self.missing.take_if(|(id, _)| *id == changed.watch_id);
    }

    /// Removes a missing-path watch. Returns whether it was active.
    pub(crate) fn remove_missing(&mut self, number: u64) -> bool {
        self.missing.take_if(|(id, _)| *id == number).is_some()
    }

    /// Ends all watches with the connection.
    pub(crate) fn disconnect(&mut self) {
        self.missing = None;
        for watch in std::mem::take(&mut self.table).into_values() {
            watch.end();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use exec_wire::fs::{PathChange, PathChangeKind};

    use super::*;

    fn change_queue() -> ChangeQueue {
        ChangeQueue::new(WatchId::new("w").unwrap())
    }

    fn changed(count: usize) -> WatchNotification {
        let change = |number| PathChange {
            path: format!("file:///{number}").parse().unwrap(),
            kind: PathChangeKind::Modified,
        };
        WatchNotification {
            watch_id: WatchId::new("w").unwrap(),
            changes: (0..count).map(change).collect(),
            overflow: false,
            ended: false,
        }
    }

    fn poll(change_queue: &ChangeQueue) -> Poll<Option<ChangeBatch>> {
        change_queue.poll_changes(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn changes_arrive_in_order_followed_by_the_end() {
        let change_queue = change_queue();
        assert_eq!(poll(&change_queue), Poll::Pending);
        change_queue.handle_changed(changed(2));
        change_queue.handle_changed(changed(1));
        change_queue.end();
        for count in [2, 1] {
            let Poll::Ready(Some(changes)) = poll(&change_queue) else {
                panic!("no changes");
            };
            assert_eq!((changes.changes.len(), changes.overflow), (count, false));
        }
        assert_eq!(poll(&change_queue), Poll::Ready(None));
    }

    #[test]
    fn excess_changes_become_one_overflow() {
        let change_queue = change_queue();
        change_queue.handle_changed(changed(limits::MAX_GATHERED_CHANGES));
        change_queue.handle_changed(changed(1));
        change_queue.handle_changed(changed(3));
        let overflow = ChangeBatch {
            changes: Vec::new(),
            overflow: true,
        };
        assert_eq!(poll(&change_queue), Poll::Ready(Some(overflow)));
        let Poll::Ready(Some(later)) = poll(&change_queue) else {
            panic!("no later changes");
        };
        assert_eq!((later.changes.len(), later.overflow), (3, false));
        assert_eq!(poll(&change_queue), Poll::Pending);
    }

    #[test]
    fn empty_notifications_are_bounded() {
        let change_queue = change_queue();
        for _ in 0..=limits::MAX_GATHERED_CHANGES {
            change_queue.handle_changed(changed(0));
        }
        change_queue
            .state
            .update(|state| assert_eq!(state.queue.len(), 1));
    }
}
