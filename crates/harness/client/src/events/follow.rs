//! Following a process: its retained events, then those that come.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use exec_core::log::{Follow, FollowerId};
use exec_env::process::{ExecProcessEvent, Hold};
use exec_wire::id::OutputSeq;
use futures_util::Stream;

use super::retained::ProcessEvents;
use crate::{client::ExecServerClient, hub::Kept};

/// A follower's stream of events. Ends with the close, or else with a failure.
#[derive(Debug)]
pub(crate) struct Followed {
    follower: Follower,
    /// The failure was told.
    failed: bool,
    /// Whoever follows keeps the connection open.
    _client: ExecServerClient,
    /// And a process of the server attached.
    _kept: Option<Arc<Kept>>,
}

impl Followed {
    pub(crate) fn new(
        events: &Arc<ProcessEvents>,
        follow: Follow,
        client: ExecServerClient,
        kept: Option<Arc<Kept>>,
    ) -> Self {
        Self {
            follower: Follower::new(events, events.follow(|log| log.follow(follow))),
            failed: false,
            _client: client,
            _kept: kept,
        }
    }
}

impl Stream for Followed {
    type Item = ExecProcessEvent;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<ExecProcessEvent>> {
        let Follower { events, id } = &self.follower;
        let polled = events.follow(|log| log.poll_event(*id, cx));
        match (polled, events.check()) {
            (Poll::Ready(followed), _) => Poll::Ready(followed.event.map(ExecProcessEvent::from)),
            (Poll::Pending, Ok(())) => Poll::Pending,
            (Poll::Pending, Err(_)) if self.failed => Poll::Ready(None),
            (Poll::Pending, Err(error)) => {
                self.failed = true;
                Poll::Ready(Some(ExecProcessEvent::Failed(error)))
            }
        }
    }
}

/// Keeps what somebody has not acknowledged.
#[derive(Debug)]
pub(crate) struct Held(Follower);

impl Held {
    pub(crate) fn new(events: &Arc<ProcessEvents>, after: OutputSeq) -> Self {
        Self(Follower::new(events, events.follow(|log| log.hold(after))))
    }
}

impl Hold for Held {
    fn acknowledge(&self, seq: OutputSeq) {
        let Follower { events, id } = &self.0;
        events.follow(|log| log.acknowledge(*id, seq));
    }
}

/// A place among the followers of a process, given back when it is dropped.
#[derive(Debug)]
struct Follower {
    events: Arc<ProcessEvents>,
    id: FollowerId,
}

impl Follower {
    fn new(events: &Arc<ProcessEvents>, id: FollowerId) -> Self {
        let events = Arc::clone(events);
        Self { events, id }
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.events.follow(|log| log.unfollow(self.id));
    }
}
