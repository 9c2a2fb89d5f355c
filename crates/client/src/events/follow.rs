//! Following a process: its retained events, then those that come.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use exec_core::log::{Event, Follow, FollowerId};
use futures_util::Stream;

use super::retained::ProcessEvents;
use crate::client::ExecServerClient;

/// A follower's stream of events. Ends early if the connection does.
#[derive(Debug)]
pub(crate) struct Followed {
    events: Arc<ProcessEvents>,
    id: FollowerId,
    /// Whoever follows keeps the connection open.
    _client: ExecServerClient,
}

impl Followed {
    pub(crate) fn new(
        events: &Arc<ProcessEvents>,
        follow: Follow,
        client: ExecServerClient,
    ) -> Self {
        let id = events.lock().followed.follow(follow);
        Self {
            events: Arc::clone(events),
            id,
            _client: client,
        }
    }
}

impl Stream for Followed {
    type Item = Event;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Event>> {
        let mut state = self.events.lock();
        let Poll::Ready(followed) = state.followed.poll_event(self.id, cx) else {
            let ended = state.end.is_some();
            return if ended {
                Poll::Ready(None)
            } else {
                Poll::Pending
            };
        };
        drop(state);
        // The driver may have stopped reading because of this one.
        self.events.hub.poke_if_full();
        Poll::Ready(followed.event)
    }
}

impl Drop for Followed {
    fn drop(&mut self) {
        self.events.lock().followed.unfollow(self.id);
        self.events.hub.poke();
    }
}
