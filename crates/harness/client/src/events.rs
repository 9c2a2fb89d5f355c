//! The events of one remote process: ordered, retained, followed.
//!
//! Shared by the driver and the handles of the process. The lock is held for moments and never
//! across an await.

mod attachment;
mod follower;
mod reorder;

pub(crate) use self::{
    attachment::{AttachmentOrigin, FlowControl, LaunchRequest, ProcessOwner, ReplayRange},
    follower::{EventFollower, RemoteHold},
    reorder::EventsError,
};

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use exec_core::output_log::{FollowedLog, LogEvent, LogPage, OutputLog, RetentionLimits};
use exec_env::process::{OutputReadRequest, ProcessError, ProcessStatus};
use exec_wire::{
    id::{OutputSeq, ProcessId},
    limits,
    process::{OutputPage, WaitUntil},
};
use tokio::{sync::Notify, time};

use self::{attachment::ProcessAttachment, follower::AckCursor, reorder::EventReorder};
use crate::{backend::now_ms, client_shared::ClientShared, driver::NetworkHook};

/// Fewer chunks than a server with a journal puts into one page at most.
const MANY_CHUNKS: usize = 4096;
/// Page size after a larger page was interrupted.
const SMALL_PAGE_BYTES: usize = 32 << 10;

#[derive(Debug)]
pub(crate) struct ProcessEvents {
    id: ProcessId,
    shared: Arc<ClientShared>,
    network_hook: Option<NetworkHook>,
    owner: ProcessOwner,
    state: Mutex<EventsState>,
    /// Wakes waiters of events.
    recorded: Notify,
    /// Wakes waiters of a failure.
    failed: Notify,
}

#[derive(Debug)]
struct EventsState {
    reorder: EventReorder,
    /// The pending `process/read` that fills a gap.
    pending_read: Option<OutputGap>,
    /// The last event that had arrived when the read was sent.
    last_seen: OutputSeq,
    /// End of the output that was read in parts. An exit before it may be on the last page only.
    read_to: OutputSeq,
    /// Page size of reads, which is limited after a page was interrupted by a disconnect.
    page_bytes: Option<usize>,
    /// Assigns the same sequence numbers as the server: from 1 and without gaps.
    followed: FollowedLog,
    ack_cursor: AckCursor,
    /// State of a server-owned process.
    attachment: Option<ProcessAttachment>,
    /// Lag of the followers, as included in the shared total.
    lag: u64,
    written: [u64; 3],
    /// Why no further event will arrive, although the process is not closed.
    failure: Option<ProcessError>,
    /// Why calls for a closed process fail after its session was lost.
    orphaned: Option<ProcessError>,
    released: bool,
    os_pid: Option<u32>,
    started_at_ms: u64,
}

impl ProcessEvents {
    /// Creates the events of a process, which is server-owned if it has an `origin`.
    pub(crate) fn new(
        id: ProcessId,
        shared: Arc<ClientShared>,
        network_hook: Option<NetworkHook>,
        origin: Option<AttachmentOrigin>,
    ) -> Self {
        let owner = match origin {
            None => ProcessOwner::Session,
            Some(_) => ProcessOwner::Server,
        };
        let state = EventsState {
            reorder: EventReorder::new(),
            pending_read: None,
            last_seen: OutputSeq(0),
            read_to: OutputSeq(0),
            page_bytes: None,
            followed: FollowedLog::new(OutputLog::new(RetentionLimits::default())),
            ack_cursor: AckCursor::default(),
            attachment: origin.map(ProcessAttachment::new),
            lag: 0,
            written: [0; 3],
            failure: None,
            orphaned: None,
            released: false,
            os_pid: None,
            started_at_ms: now_ms(),
        };
        Self {
            id,
            shared,
            network_hook,
            owner,
            state: Mutex::new(state),
            recorded: Notify::new(),
            failed: Notify::new(),
        }
    }

    pub(crate) fn id(&self) -> &ProcessId {
        &self.id
    }

    /// Returns the owner of the process.
    pub(crate) fn owner(&self) -> ProcessOwner {
        self.owner
    }

    /// Returns the network policy hook, if there is one.
    pub(crate) fn network_hook(&self) -> Option<&NetworkHook> {
        self.network_hook.as_ref()
    }

    /// Handles an event. Returns the read that is needed to fill a gap.
    pub(crate) fn handle_event(&self, event: LogEvent) -> Result<Option<OutputGap>, EventsError> {
        let mut state = self.lock();
        if state.failure.is_some() {
            return Ok(None);
        }
        if self.owner == ProcessOwner::Server {
            return self.handle_attached_event(state, event).map(|()| None);
        }
        state.reorder.handle_event(event)?;
        let gap = state.reorder.gap().filter(|_| state.pending_read.is_none());
        let gap_read = gap.map(|after| state.begin_read(after));
        self.record(state)?;
        Ok(gap_read)
    }

    /// Handles a page of `process/read`. Returns the next read, if the page was not the last.
    pub(crate) fn handle_page(&self, page: OutputPage) -> Result<Option<OutputGap>, EventsError> {
        let mut state = self.lock();
        let Some(read) = state
            .pending_read
            .take()
            .filter(|_| state.failure.is_none())
        else {
            return Ok(None);
        };
        let (end, closed) = (page.next_seq.0.saturating_sub(1), page.closed);
        let part = page.chunks.last().is_some_and(|last| {
            let is_cut = page.next_seq == last.seq.next() && is_large(&page);
            read.max_bytes.is_some() || is_cut
        });
        let gap_read = if part {
            let end = state.reorder.handle_partial_page(page, read.after)?;
            state.read_to = end;
            Some(state.begin_read(end))
        } else if end < state.last_seen.0 {
            let seen = state.last_seen.0;
            let text = format!("`process/read` ends at event {end}, but event {seen} was received");
            return Err(EventsError::Malformed(text));
        } else {
            state.reorder.handle_page(page)?;
            state.page_bytes = None;
            state.reorder.gap().map(|after| state.begin_read(after))
        };
        self.record(state)?;
        if closed && !part && !self.is_closed() {
            return Err(EventsError::Impossible(OutputSeq(end)));
        }
        Ok(gap_read)
    }

    /// Records that the connection broke during `process/read`.
    pub(crate) fn handle_read_interrupted(&self) {
        self.lock().page_bytes = Some(SMALL_PAGE_BYTES);
    }

    /// Prepares for another connection. Returns the read that is needed.
    pub(crate) fn handle_resume(&self) -> OutputGap {
        let mut state = self.lock();
        state.ack_cursor.mark_unconfirmed();
        let after = state.reorder.last().max(state.read_to);
        state.begin_read(after)
    }

    /// Records that the last handle was dropped.
    pub(crate) fn release(&self) {
        self.lock().released = true;
    }

    pub(crate) fn is_released(&self) -> bool {
        self.lock().released
    }

    /// Returns whether the output has ended.
    pub(crate) fn is_closed(&self) -> bool {
        self.lock().followed.log().is_closed()
    }

    /// Returns whether the output has ended and the last handle was dropped.
    pub(crate) fn is_finished(&self) -> bool {
        let state = self.lock();
        state.released && state.followed.log().is_closed()
    }

    /// Returns whether the process failed before its close.
    pub(crate) fn is_failed(&self) -> bool {
        self.lock().failure.is_some()
    }

    /// Fails the process. Returns whether it had not failed or closed before.
    pub(crate) fn fail(&self, error: ProcessError) -> bool {
        let mut state = self.lock();
        let is_first = state.failure.is_none() && !state.followed.log().is_closed();
        if is_first {
            state.failure = Some(error);
            // Wakes followers, which check for a failure.
            state.followed.record(|_| ());
            self.set_lag(&mut state);
        }
        drop(state);
        self.recorded.notify_waiters();
        self.failed.notify_waiters();
        is_first
    }

    /// Records the loss of the session: fails the process unless it is closed.
    pub(crate) fn orphan(&self, error: &ProcessError) {
        self.lock().orphaned = Some(error.clone());
        self.fail(error.clone());
    }

    /// Waits until `condition` returns a value for the log, or the process fails.
    pub(crate) async fn wait_until<T>(
        &self,
        condition: impl Fn(&OutputLog) -> Option<T>,
    ) -> Result<T, ProcessError> {
        let _waiting = self.shared.register_waiter();
        loop {
            // Registered before the check, so that no event in between is missed.
            let recorded = self.recorded.notified();
            if let Some(value) = self.with_log(&condition) {
                return Ok(value);
            }
            self.check()?;
            recorded.await;
        }
    }

    /// Resolves when the process fails.
    pub(crate) async fn wait_for_failure(&self) -> ProcessError {
        loop {
            // Registered before the check, so that no failure in between is missed.
            let failed = self.failed.notified();
            if let Err(error) = self.check() {
                return error;
            }
            failed.await;
        }
    }

    /// Fails if the process has failed.
    pub(crate) fn check(&self) -> Result<(), ProcessError> {
        self.lock().failure.clone().map_or(Ok(()), Err)
    }

    /// Fails if the server cannot be asked about the process.
    pub(crate) fn check_reachable(&self) -> Result<(), ProcessError> {
        let state = self.lock();
        let fault = state.failure.as_ref().or(state.orphaned.as_ref());
        fault.cloned().map_or(Ok(()), Err)
    }

    /// Reads the log.
    pub(crate) fn with_log<T>(&self, with_log: impl FnOnce(&OutputLog) -> T) -> T {
        with_log(self.lock().followed.log())
    }

    /// Acts as a follower, which may change the lag or make an ack due.
    fn with_followed<T>(self: &Arc<Self>, operation: impl FnOnce(&mut FollowedLog) -> T) -> T {
        let mut state = self.lock();
        let result = operation(&mut state.followed);
        self.set_lag(&mut state);
        let is_due = match &state.attachment {
            None => self.shared.acks_enabled() && state.ack_cursor.is_due(&state.followed),
            Some(attachment) => attachment.flow_control(state.followed.lag()).is_some(),
        };
        let due = is_due && !state.ack_cursor.scheduled && state.failure.is_none();
        state.ack_cursor.scheduled |= due;
        drop(state);
        if due {
            self.shared.schedule_ack(Arc::clone(self));
        }
        result
    }

    /// Returns the sequence number to acknowledge, if an ack is due.
    pub(crate) fn take_ack(&self) -> Option<OutputSeq> {
        let state = &mut *self.lock();
        state.ack_cursor.scheduled = false;
        let is_due =
            self.uses_acks() && state.failure.is_none() && state.ack_cursor.is_due(&state.followed);
        is_due.then(|| state.ack_cursor.advance(&state.followed))
    }

    /// Returns the sequence number of the close, if it must still be acknowledged.
    pub(crate) fn take_final_ack(&self) -> Option<OutputSeq> {
        let state = &mut *self.lock();
        let is_complete = self.uses_acks() && state.followed.log().is_closed();
        is_complete
            .then(|| state.ack_cursor.advance_to_end(&state.followed))
            .flatten()
    }

    /// Returns whether output of this process is acknowledged.
    fn uses_acks(&self) -> bool {
        self.owner == ProcessOwner::Session && self.shared.acks_enabled()
    }

    /// Returns whether the close has this sequence number.
    pub(crate) fn closes_at(&self, seq: OutputSeq) -> bool {
        self.with_log(|log| log.is_closed() && log.next_seq() == seq.next())
    }

    pub(crate) fn status(&self) -> ProcessStatus {
        let state = self.lock();
        let log = state.followed.log();
        ProcessStatus {
            exit: log.exit().cloned(),
            closed: log.is_closed(),
            // The server does not report when descendants without open output end.
            tree_alive: !log.is_closed() && state.failure.is_none(),
            next_seq: state
                .attachment
                .as_ref()
                .map_or(log.next_seq(), |attachment| {
                    attachment.next_visible(log.next_seq())
                }),
            retained_bytes: log.retained_bytes(),
            os_pid: state.os_pid,
            started_at_ms: state.started_at_ms,
        }
    }

    /// Returns the number of bytes received on each stream.
    pub(crate) fn written(&self) -> [u64; 3] {
        self.lock().written
    }

    fn lock(&self) -> MutexGuard<'_, EventsState> {
        // Ignores poisoning: no code panics under the lock, and the state would still be
        // consistent.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn record(&self, mut state: MutexGuard<'_, EventsState>) -> Result<(), EventsError> {
        while let Some(event) = state.reorder.poll_event() {
            state.record(event)?;
        }
        self.handle_recorded(state);
        Ok(())
    }

    /// Wakes waiters of events.
    fn handle_recorded(&self, mut state: MutexGuard<'_, EventsState>) {
        self.set_lag(&mut state);
        drop(state);
        self.recorded.notify_waiters();
    }

    /// Updates the shared lag. Followers of a failed process cause no backpressure.
    fn set_lag(&self, state: &mut EventsState) {
        let lag = match state.failure {
            None => state.followed.lag(),
            Some(_) => 0,
        };
        self.shared.set_lag(state.lag, lag);
        state.lag = lag;
    }
}

/// Returns whether a page is so large that a server with a journal may have ended it early,
/// although it was asked for everything.
fn is_large(page: &OutputPage) -> bool {
    let bytes: usize = page.chunks.iter().map(|chunk| chunk.chunk.0.len()).sum();
    bytes >= limits::RETAINED_OUTPUT_BYTES / 2 || page.chunks.len() >= MANY_CHUNKS
}

impl EventsState {
    fn record(&mut self, event: LogEvent) -> Result<(), EventsError> {
        let seq = event.seq();
        if let LogEvent::Output(chunk) = &event {
            self.written[chunk.stream as usize] += chunk.data.len() as u64;
        }
        let recorded = self.followed.record(|log| match event {
            LogEvent::Output(chunk) => log.append(chunk.stream, chunk.data),
            LogEvent::Exited(_, exit) => log.record_exit(exit),
            LogEvent::Closed(_) => log.record_close(),
        });
        if recorded == Some(seq) {
            Ok(())
        } else {
            Err(EventsError::Impossible(seq))
        }
    }

    /// Records a read of the events after `after`.
    fn begin_read(&mut self, after: OutputSeq) -> OutputGap {
        let max_bytes = self.page_bytes;
        self.last_seen = self.reorder.seen();
        *self.pending_read.insert(OutputGap { after, max_bytes })
    }
}

/// Parameters of a `process/read` that fills a gap.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct OutputGap {
    /// The last known event.
    pub(crate) after: OutputSeq,
    /// Page size. Absent: everything.
    pub(crate) max_bytes: Option<usize>,
}

impl Drop for ProcessEvents {
    fn drop(&mut self) {
        let lag = self.lock().lag;
        self.shared.set_lag(lag, 0);
    }
}

impl ProcessEvents {
    /// Reads retained output from the local log, waiting for new events if requested. Used with
    /// servers that handle requests one at a time and would be blocked by a waiting read.
    pub(crate) async fn read_local(
        &self,
        read: OutputReadRequest,
    ) -> Result<LogPage, ProcessError> {
        self.check()?;
        if !read.wait.is_zero() {
            let new_events = self.wait_until(|log| log.is_readable_after(read.after).then_some(()));
            with_limit(Some(read.wait), new_events).await?;
        }
        Ok(self.with_log(|log| log.page(read.after, read.max_bytes)))
    }

    /// Waits for the exit or the close in the local log.
    pub(crate) async fn wait_local(
        &self,
        until: WaitUntil,
        limit: Option<Duration>,
    ) -> Result<ProcessStatus, ProcessError> {
        with_limit(limit, self.wait_until(|log| has_reached(log, until))).await?;
        Ok(self.status())
    }
}

/// Returns whether the process has exited or closed.
pub(crate) fn has_reached(log: &OutputLog, until: WaitUntil) -> Option<()> {
    let has_reached = match until {
        WaitUntil::Exited => log.exit().is_some(),
        WaitUntil::Closed => log.is_closed(),
    };
    has_reached.then_some(())
}

/// Applies a time limit, the end of which is not an error.
async fn with_limit(
    limit: Option<Duration>,
    event: impl Future<Output = Result<(), ProcessError>>,
) -> Result<(), ProcessError> {
    match limit {
        None => event.await,
        Some(limit) => time::timeout(limit, event).await.unwrap_or(Ok(())),
    }
}
