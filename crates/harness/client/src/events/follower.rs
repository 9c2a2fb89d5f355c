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
use crate::{client::ExecServerClient, client_shared::ReleaseGuard};

/// A follower's stream of events. Ends with the close, or else with a failure.
#[derive(Debug)]
pub(crate) struct EventFollower {
    follower: FollowerHandle,
    /// The failure was told.
    failed: bool,
    /// Whoever follows keeps the connection open.
    _client: ExecServerClient,
    /// And a process of the server attached.
    _release_guard: Option<Arc<ReleaseGuard>>,
}

impl EventFollower {
    pub(crate) fn new(
        events: &Arc<ProcessEvents>,
        follow: Follow,
        client: ExecServerClient,
        release_guard: Option<Arc<ReleaseGuard>>,
    ) -> Self {
        Self {
            follower: FollowerHandle::new(events, events.with_followed(|log| log.follow(follow))),
            failed: false,
            _client: client,
            _release_guard: release_guard,
        }
    }
}

impl Stream for EventFollower {
    type Item = ExecProcessEvent;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<ExecProcessEvent>> {
        let FollowerHandle { events, id } = &self.follower;
        let polled = events.with_followed(|log| log.poll_event(*id, cx));
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
pub(crate) struct RemoteHold(FollowerHandle);

impl RemoteHold {
    pub(crate) fn new(events: &Arc<ProcessEvents>, after: OutputSeq) -> Self {
        Self(FollowerHandle::new(
            events,
            events.with_followed(|log| log.hold(after)),
        ))
    }
}

impl Hold for RemoteHold {
    fn acknowledge(&self, seq: OutputSeq) {
        let FollowerHandle { events, id } = &self.0;
        events.with_followed(|log| log.acknowledge(*id, seq));
    }
}

/// A place among the followers of a process, given back when it is dropped.
#[derive(Debug)]
struct FollowerHandle {
    events: Arc<ProcessEvents>,
    id: FollowerId,
}

impl FollowerHandle {
    fn new(events: &Arc<ProcessEvents>, id: FollowerId) -> Self {
        let events = Arc::clone(events);
        Self { events, id }
    }
}

impl Drop for FollowerHandle {
    fn drop(&mut self) {
        self.events.with_followed(|log| log.unfollow(self.id));
    }
}

/// What is told at once: a sixteenth of what may be untold, so that the process never waits for it.
const ACK_BATCH_BYTES: u64 = 64 << 10;
/// Events that are told at once, however small.
const ACK_BATCH_EVENTS: u64 = 256;

/// How far the server was told.
#[derive(Debug, Default)]
pub(super) struct AckCursor {
    seq: OutputSeq,
    bytes: u64,
    /// Told to a connection that is gone: it may not have arrived.
    unconfirmed: bool,
    /// The driver knows that there is something to tell.
    pub(super) scheduled: bool,
}

impl AckCursor {
    /// Returns whether enough was taken to tell so. After the last events, all is enough.
    pub(super) fn is_due(&self, log: &FollowedLog) -> bool {
        let (seq, bytes) = log.taken();
        let ended = log.log().exit().is_some() && seq.next() == log.log().next_seq();
        let more = seq > self.seq;
        (self.unconfirmed && seq > OutputSeq(0))
            || (more && ended)
            || seq.0.saturating_sub(self.seq.0) >= ACK_BATCH_EVENTS
            || bytes.saturating_sub(self.bytes) >= ACK_BATCH_BYTES
    }

    /// Takes what is to be told.
    pub(super) fn advance(&mut self, log: &FollowedLog) -> OutputSeq {
        let (seq, bytes) = log.taken();
        *self = Self {
            // Someone who began to follow later does not take back what was told.
            seq: self.seq.max(seq),
            bytes: self.bytes.max(bytes),
            unconfirmed: false,
            scheduled: false,
        };
        self.seq
    }

    /// Takes all that there is, whoever has not taken it. `None`: it was told.
    pub(super) fn advance_to_end(&mut self, log: &FollowedLog) -> Option<OutputSeq> {
        let last = OutputSeq(log.log().next_seq().0 - 1);
        let more = last > self.seq;
        self.seq = last;
        more.then_some(last)
    }

    /// The connection is another one.
    pub(super) fn mark_unconfirmed(&mut self) {
        self.unconfirmed = true;
        self.scheduled = false;
    }
}
