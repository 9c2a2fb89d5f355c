//! Following a process: its retained events, then those that come.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use exec_core::log::Event;
use exec_env::process::{Follow, From, Pace};
use exec_wire::id::OutputSeq;
use futures_util::Stream;

use super::retained::{ProcessEvents, State};
use crate::client::ExecServerClient;

#[derive(Debug)]
pub(super) struct Follower {
    cursor: OutputSeq,
    /// Bytes recorded up to the cursor.
    pub(super) taken: u64,
    pub(super) pace: Pace,
    pub(super) waker: Option<Waker>,
}

/// A follower's stream of events. Ends early if the connection does.
#[derive(Debug)]
pub(crate) struct Followed {
    events: Arc<ProcessEvents>,
    key: u64,
    ended: bool,
    /// Whoever follows keeps the connection open.
    _client: ExecServerClient,
}

impl Followed {
    pub(crate) fn new(
        events: &Arc<ProcessEvents>,
        follow: Follow,
        client: ExecServerClient,
    ) -> Self {
        let mut state = events.lock();
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
            events: Arc::clone(events),
            key,
            ended: false,
            _client: client,
        }
    }
}

impl State {
    /// Keeps the log from dropping what a held follower was not given yet.
    fn hold_log(&mut self) {
        let held = self
            .followers
            .values()
            .filter(|follower| follower.pace == Pace::Held);
        let after = held.map(|follower| follower.cursor).min();
        self.log.hold_after(after);
    }
}

impl Stream for Followed {
    type Item = Event;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Event>> {
        if self.ended {
            return Poll::Ready(None);
        }
        let mut guard = self.events.lock();
        let state = &mut *guard;
        let Some(follower) = state.followers.get_mut(&self.key) else {
            return Poll::Ready(None);
        };
        let Some(event) = state.log.event_after(follower.cursor) else {
            if state.log.is_closed() || state.end.is_some() {
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
        let consecutive = event.seq() == follower.cursor.next();
        follower.cursor = event.seq();
        follower.taken = match &event {
            // Something was dropped in between.
            Event::Output(_) | Event::Exited(..) | Event::Closed(_) if !consecutive => {
                state.log.appended_bytes() - state.log.bytes_after(event.seq())
            }
            Event::Output(chunk) => follower.taken + chunk.data.len() as u64,
            Event::Exited(..) | Event::Closed(_) => follower.taken,
        };
        if follower.pace == Pace::Held {
            state.hold_log();
            // The driver may have stopped reading because of this one.
            self.events.hub.poke_if_full();
        }
        drop(guard);
        self.ended = matches!(event, Event::Closed(_));
        Poll::Ready(Some(event))
    }
}

impl Drop for Followed {
    fn drop(&mut self) {
        let mut state = self.events.lock();
        state.followers.remove(&self.key);
        state.hold_log();
        drop(state);
        self.events.hub.poke();
    }
}
