//! Following a process, and the cursor of acknowledged output.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use exec_core::log::{Follow, FollowedLog, FollowerId};
use exec_env::process::{ExecProcessEvent, Hold};
use exec_wire::id::OutputSeq;
use futures_util::Stream;

use super::ProcessEvents;
use crate::{client::ExecServerClient, client_shared::Kept};

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

/// What is told at once: a sixteenth of what may be untold, so that the process never waits for it.
const BATCH_BYTES: u64 = 64 << 10;
/// Events that are told at once, however small.
const BATCH_EVENTS: u64 = 256;

/// How far the server was told.
#[derive(Debug, Default)]
pub(super) struct Told {
    seq: OutputSeq,
    bytes: u64,
    /// Told to a connection that is gone: it may not have arrived.
    doubtful: bool,
    /// The driver knows that there is something to tell.
    pub(super) due: bool,
}

impl Told {
    /// Tells whether enough was taken to tell so. After the last events, all is enough.
    pub(super) fn is_due(&self, log: &FollowedLog) -> bool {
        let (seq, bytes) = log.taken();
        let ended = log.log().exit().is_some() && seq.next() == log.log().next_seq();
        let more = seq > self.seq;
        (self.doubtful && seq > OutputSeq(0))
            || (more && ended)
            || seq.0.saturating_sub(self.seq.0) >= BATCH_EVENTS
            || bytes.saturating_sub(self.bytes) >= BATCH_BYTES
    }

    /// Takes what is to be told.
    pub(super) fn take(&mut self, log: &FollowedLog) -> OutputSeq {
        let (seq, bytes) = log.taken();
        *self = Self {
            // Someone who began to follow later does not take back what was told.
            seq: self.seq.max(seq),
            bytes: self.bytes.max(bytes),
            doubtful: false,
            due: false,
        };
        self.seq
    }

    /// Takes all that there is, whoever has not taken it. `None`: it was told.
    pub(super) fn take_all(&mut self, log: &FollowedLog) -> Option<OutputSeq> {
        let last = OutputSeq(log.log().next_seq().0 - 1);
        let more = last > self.seq;
        self.seq = last;
        more.then_some(last)
    }

    /// The connection is another one.
    pub(super) fn doubt(&mut self) {
        self.doubtful = true;
        self.due = false;
    }
}
