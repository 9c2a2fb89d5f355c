//! What the owner of a process and everybody else look at together: the log, who follows it, the
//! input queue, and what was asked for. The lock is held for moments and never across an await.

use std::{
    collections::BTreeMap,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
};

use exec_core::log::{Event, OutputLog};
use exec_env::process::{Follow, From, Pace};
use exec_wire::{id::OutputSeq, limits, process::ExitCause};
use futures_util::Stream;
use tokio::{sync::Notify, time::Instant};

use crate::{input::Input, spawner::Child};

#[derive(Debug)]
pub(crate) struct Shared {
    state: Mutex<State>,
    /// Wakes readers and waiters: something was recorded.
    pub(crate) recorded: Notify,
    /// Wakes the owner: input waits, a follower caught up, a deadline changed.
    pub(crate) poke: Notify,
}

#[derive(Debug)]
pub(crate) struct State {
    pub(crate) log: OutputLog,
    pub(crate) input: Input,
    /// The supervisor, while anything of the tree may live.
    pub(crate) child: Option<Arc<Child>>,
    /// Why the process is being ended, once it is.
    pub(crate) cause: Option<ExitCause>,
    /// When a graceful end stops being graceful.
    pub(crate) kill_at: Option<Instant>,
    followers: BTreeMap<u64, Follower>,
    next_follower: u64,
}

#[derive(Debug)]
struct Follower {
    cursor: OutputSeq,
    /// Bytes recorded up to the cursor.
    taken: u64,
    pace: Pace,
    waker: Option<Waker>,
}

impl Shared {
    pub(crate) fn new(log: OutputLog, input: Input, child: Arc<Child>) -> Self {
        Self {
            state: Mutex::new(State {
                log,
                input,
                child: Some(child),
                cause: None,
                kill_at: None,
                followers: BTreeMap::new(),
                next_follower: 0,
            }),
            recorded: Notify::new(),
            poke: Notify::new(),
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing panics while it holds the lock; if something did, the state is still whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records something and wakes everybody who waits for it.
    pub(crate) fn record<T>(&self, record: impl FnOnce(&mut OutputLog) -> T) -> T {
        let mut state = self.lock();
        let recorded = record(&mut state.log);
        for follower in state.followers.values_mut() {
            if let Some(waker) = follower.waker.take() {
                waker.wake();
            }
        }
        drop(state);
        self.recorded.notify_waiters();
        recorded
    }

    /// Tells whether a follower that may not lose anything lags too far behind.
    pub(crate) fn is_held(&self) -> bool {
        let state = self.lock();
        let appended = state.log.appended_bytes();
        state
            .followers
            .values()
            .any(|follower| follower.holds(appended))
    }
}

impl State {
    /// Keeps the log from dropping what a held follower was not sent yet.
    fn hold_log(&mut self) {
        let held = self
            .followers
            .values()
            .filter(|follower| follower.pace == Pace::Held);
        let after = held.map(|follower| follower.cursor).min();
        self.log.hold_after(after);
    }
}

impl Follower {
    fn holds(&self, appended: u64) -> bool {
        self.pace == Pace::Held && appended - self.taken >= limits::FOLLOW_WINDOW_BYTES as u64
    }
}

/// A follower's stream of events.
#[derive(Debug)]
pub(crate) struct Events {
    shared: Arc<Shared>,
    key: u64,
    ended: bool,
}

impl Events {
    pub(crate) fn new(shared: &Arc<Shared>, follow: Follow) -> Self {
        let mut state = shared.lock();
        let cursor = match follow.from {
            From::After(seq) => seq,
            From::Now => OutputSeq(state.log.next_seq().0 - 1),
        };
        let taken = state.log.appended_bytes() - state.log.bytes_after(cursor);
        let key = state.next_follower;
        state.next_follower += 1;
        state.followers.insert(
            key,
            Follower {
                cursor,
                taken,
                pace: follow.pace,
                waker: None,
            },
        );
        state.hold_log();
        drop(state);
        Self {
            shared: Arc::clone(shared),
            key,
            ended: false,
        }
    }
}

impl Stream for Events {
    type Item = Event;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Event>> {
        if self.ended {
            return Poll::Ready(None);
        }
        let mut guard = self.shared.lock();
        let state = &mut *guard;
        let Some(follower) = state.followers.get_mut(&self.key) else {
            return Poll::Ready(None);
        };
        let Some(event) = state.log.event_after(follower.cursor) else {
            // Past the close, or follower of what is over: nothing will come.
            if state.log.is_closed() {
                drop(guard);
                self.ended = true;
                return Poll::Ready(None);
            }
            if !follower
                .waker
                .as_ref()
                .is_some_and(|waker| waker.will_wake(cx.waker()))
            {
                follower.waker = Some(cx.waker().clone());
            }
            return Poll::Pending;
        };
        follower.cursor = event.seq();
        let appended = state.log.appended_bytes();
        let held_before = follower.holds(appended);
        follower.taken = appended - state.log.bytes_after(follower.cursor);
        let caught_up = held_before && !follower.holds(appended);
        if follower.pace == Pace::Held {
            state.hold_log();
        }
        drop(guard);
        if caught_up {
            self.shared.poke.notify_one();
        }
        self.ended = matches!(event, Event::Closed(_));
        Poll::Ready(Some(event))
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.followers.remove(&self.key);
        state.hold_log();
        drop(state);
        // Whoever it held up may go on.
        self.shared.poke.notify_one();
    }
}
