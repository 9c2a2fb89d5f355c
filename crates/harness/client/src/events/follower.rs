//! Following a process, and the cursor of acknowledged output.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use exec_core::output_log::{FollowOptions, FollowedLog, FollowerId};
use exec_env::process::{ExecProcessEvent, OutputHold};
use exec_wire::id::OutputSeq;
use futures_util::Stream;

use super::ProcessEvents;
use crate::{client::ExecServerClient, client_shared::ReleaseGuard};

/// A stream of the events of a process. Ends with the close or a failure.
#[derive(Debug)]
pub(crate) struct EventFollower {
    follower: FollowerHandle,
    /// The failure was returned.
    failed: bool,
    /// A follower keeps the connection open.
    _client: ExecServerClient,
    /// A follower keeps a server-owned process attached.
    _release_guard: Option<Arc<ReleaseGuard>>,
}

impl EventFollower {
    pub(crate) fn new(
        events: &Arc<ProcessEvents>,
        follow: FollowOptions,
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

/// Holds unacknowledged output.
#[derive(Debug)]
pub(crate) struct RemoteHold(FollowerHandle);

impl RemoteHold {
    pub(crate) fn new(events: &Arc<ProcessEvents>, after: OutputSeq) -> Self {
        Self(FollowerHandle::new(
            events,
            events.with_followed(|log| log.retain_unacked(after)),
        ))
    }
}

impl OutputHold for RemoteHold {
    fn acknowledge(&self, seq: OutputSeq) {
        let FollowerHandle { events, id } = &self.0;
        events.with_followed(|log| log.acknowledge(*id, seq));
    }
}

/// A registered follower. Dropping it unregisters.
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

/// Output size that makes an ack due: a sixteenth of the server's window, so that the process never
/// waits for acks.
const ACK_BATCH_BYTES: u64 = 64 << 10;
/// Number of events that makes an ack due, however small they are.
const ACK_BATCH_EVENTS: u64 = 256;

/// How far output was acknowledged to the server.
#[derive(Debug, Default)]
pub(super) struct AckCursor {
    seq: OutputSeq,
    bytes: u64,
    /// Sent on a previous connection and possibly lost.
    unconfirmed: bool,
    /// The driver knows that an ack is due.
    pub(super) scheduled: bool,
}

impl AckCursor {
    /// Returns whether an ack is due: after a batch, or after the last events.
    pub(super) fn is_due(&self, log: &FollowedLog) -> bool {
        let (seq, bytes) = log.consumed();
        let ended = log.log().exit().is_some() && seq.next() == log.log().next_seq();
        let more = seq > self.seq;
        (self.unconfirmed && seq > OutputSeq(0))
            || (more && ended)
            || seq.0.saturating_sub(self.seq.0) >= ACK_BATCH_EVENTS
            || bytes.saturating_sub(self.bytes) >= ACK_BATCH_BYTES
    }

    /// Advances the cursor to the consumed output.
    pub(super) fn advance(&mut self, log: &FollowedLog) -> OutputSeq {
        let (seq, bytes) = log.consumed();
        *self = Self {
            // A follower that joined later does not move the cursor back.
            seq: self.seq.max(seq),
            bytes: self.bytes.max(bytes),
            unconfirmed: false,
            scheduled: false,
        };
        self.seq
    }

    /// Advances the cursor to the end of the log. `None` if it was there already.
    pub(super) fn advance_to_end(&mut self, log: &FollowedLog) -> Option<OutputSeq> {
        let last = OutputSeq(log.log().next_seq().0 - 1);
        let more = last > self.seq;
        self.seq = last;
        more.then_some(last)
    }

    /// Prepares for another connection.
    pub(super) fn mark_unconfirmed(&mut self) {
        self.unconfirmed = true;
        self.scheduled = false;
    }
}
