//! The changes of one watch on their way to whoever reads them.
//!
//! Invariant: at most [`limits::MAX_GATHERED_CHANGES`] wait; when there are more, all of them give
//! way to one overflow, and whoever reads it looks at everything again.

use std::{
    collections::VecDeque,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
};

use exec_env::filesystem::Changes;
use exec_wire::{fs::Changed, id::WatchId, limits};
use futures_util::Stream;

use crate::{client::ExecServerClient, client_shared::Kept};

/// Shared by the driver, which fills it, and the stream, which empties it.
#[derive(Debug)]
pub(crate) struct Gathered {
    id: WatchId,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    queue: VecDeque<Changes>,
    /// What the queue holds; something that is empty counts as one.
    held: usize,
    ended: bool,
    reader: Option<Waker>,
}

impl Gathered {
    pub(crate) fn new(id: WatchId) -> Self {
        Self {
            id,
            state: Mutex::default(),
        }
    }

    pub(crate) fn id(&self) -> &WatchId {
        &self.id
    }

    /// Takes changes, or the fact that there are too many.
    pub(crate) fn handle_changed(&self, changed: Changed) {
        if changed.ended && changed.changes.is_empty() && !changed.overflow {
            return self.end();
        }
        let ended = changed.ended;
        let mut changes = Changes {
            changes: changed.changes,
            overflow: changed.overflow,
        };
        let mut state = self.lock();
        if state.held + weight(&changes) > limits::MAX_GATHERED_CHANGES {
            state.queue.clear();
            state.held = 0;
            changes = Changes {
                changes: Vec::new(),
                overflow: true,
            };
        }
        state.held += weight(&changes);
        state.queue.push_back(changes);
        state.ended |= ended;
        wake(state);
    }

    /// Nothing more will come.
    pub(crate) fn end(&self) {
        let mut state = self.lock();
        state.ended = true;
        wake(state);
    }

    fn poll_changes(&self, cx: &mut Context<'_>) -> Poll<Option<Changes>> {
        let mut state = self.lock();
        match state.queue.pop_front() {
            Some(changes) => {
                state.held -= weight(&changes);
                Poll::Ready(Some(changes))
            }
            None if state.ended => Poll::Ready(None),
            None => {
                state.reader = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing panics while it holds the lock; if something did, the state is still whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The stream of a watch. The watch ends when it is dropped.
#[derive(Debug)]
pub(super) struct ChangeStream {
    pub(super) gathered: Arc<Gathered>,
    pub(super) _kept: Option<Kept>,
    /// Whoever watches keeps the connection open.
    pub(super) _client: ExecServerClient,
}

impl Stream for ChangeStream {
    type Item = Changes;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Changes>> {
        self.gathered.poll_changes(cx)
    }
}

fn weight(changes: &Changes) -> usize {
    changes.changes.len().max(1)
}

fn wake(mut state: MutexGuard<'_, State>) {
    let reader = state.reader.take();
    drop(state);
    if let Some(reader) = reader {
        reader.wake();
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use exec_wire::fs::{Change, ChangeKind};

    use super::*;

    fn gathered() -> Gathered {
        Gathered::new(WatchId::new("w").unwrap())
    }

    fn changed(count: usize) -> Changed {
        let change = |number| Change {
            path: format!("file:///{number}").parse().unwrap(),
            kind: ChangeKind::Modified,
        };
        Changed {
            watch_id: WatchId::new("w").unwrap(),
            changes: (0..count).map(change).collect(),
            overflow: false,
            ended: false,
        }
    }

    fn poll(gathered: &Gathered) -> Poll<Option<Changes>> {
        gathered.poll_changes(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn changes_come_as_they_were_told_and_then_the_end() {
        let gathered = gathered();
        assert_eq!(poll(&gathered), Poll::Pending);
        gathered.handle_changed(changed(2));
        gathered.handle_changed(changed(1));
        gathered.end();
        for count in [2, 1] {
            let Poll::Ready(Some(changes)) = poll(&gathered) else {
                panic!("changes are there");
            };
            assert_eq!((changes.changes.len(), changes.overflow), (count, false));
        }
        assert_eq!(poll(&gathered), Poll::Ready(None));
    }

    #[test]
    fn too_many_changes_are_one_overflow() {
        let gathered = gathered();
        gathered.handle_changed(changed(limits::MAX_GATHERED_CHANGES));
        gathered.handle_changed(changed(1));
        gathered.handle_changed(changed(3));
        let overflow = Changes {
            changes: Vec::new(),
            overflow: true,
        };
        assert_eq!(poll(&gathered), Poll::Ready(Some(overflow)));
        let Poll::Ready(Some(later)) = poll(&gathered) else {
            panic!("what came later is there");
        };
        assert_eq!((later.changes.len(), later.overflow), (3, false));
        assert_eq!(poll(&gathered), Poll::Pending);
    }

    #[test]
    fn tellings_without_a_change_are_bounded_too() {
        let gathered = gathered();
        for _ in 0..=limits::MAX_GATHERED_CHANGES {
            gathered.handle_changed(changed(0));
        }
        assert_eq!(gathered.lock().queue.len(), 1);
    }
}
