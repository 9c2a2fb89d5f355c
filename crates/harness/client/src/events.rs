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

use exec_core::log::{Event, FollowedLog, OutputLog, Page, Retention};
use exec_env::process::{ProcessError, Read, Status};
use exec_wire::{
    id::{OutputSeq, ProcessId},
    process::{OutputPage, ProcessStarted, WaitUntil},
};
use tokio::{sync::Notify, time};

use self::{attachment::ProcessAttachment, follower::AckCursor, reorder::EventReorder};
use crate::{client_shared::ClientShared, driver::NetworkHook};

/// What is asked for at once where more did not come through.
const SMALL_PAGE_BYTES: usize = 32 << 10;

#[derive(Debug)]
pub(crate) struct ProcessEvents {
    id: ProcessId,
    shared: Arc<ClientShared>,
    network_hook: Option<NetworkHook>,
    owner: ProcessOwner,
    state: Mutex<EventsState>,
    /// Wakes those who wait for something to be recorded.
    recorded: Notify,
    /// Wakes those who wait for it to fail.
    failed: Notify,
}

#[derive(Debug)]
struct EventsState {
    reorder: EventReorder,
    /// What `process/read` was asked for to fill a gap, until it is filled.
    pending_read: Option<OutputGap>,
    /// The last number that had come when it was asked.
    last_seen: OutputSeq,
    /// Up to here all output was read in parts. An exit in between may be on the last page only.
    read_to: OutputSeq,
    /// A page did not come through before its connection broke: smaller ones may.
    pages: PageSize,
    /// Numbers its events as the server does: both begin with 1 and have no holes.
    followed: FollowedLog,
    ack_cursor: AckCursor,
    /// What else is known of it, if it belongs to the server.
    attachment: Option<ProcessAttachment>,
    /// How far followers lag behind, as the hub knows it.
    lag: u64,
    written: [u64; 3],
    /// Why no further event will come, although the close has not.
    failure: Option<ProcessError>,
    /// Why the server cannot be asked about it any more, although it came to its close.
    orphaned: Option<ProcessError>,
    released: bool,
    os_pid: Option<u32>,
    started_at_ms: u64,
}

impl ProcessEvents {
    pub(crate) fn new(
        id: ProcessId,
        shared: Arc<ClientShared>,
        network_hook: Option<NetworkHook>,
        started_at_ms: u64,
    ) -> Self {
        Self::with_owner(
            ProcessOwner::Session,
            id,
            shared,
            network_hook,
            started_at_ms,
        )
    }

    fn with_owner(
        owner: ProcessOwner,
        id: ProcessId,
        shared: Arc<ClientShared>,
        network_hook: Option<NetworkHook>,
        started_at_ms: u64,
    ) -> Self {
        let state = EventsState {
            reorder: EventReorder::new(),
            pending_read: None,
            last_seen: OutputSeq(0),
            read_to: OutputSeq(0),
            pages: PageSize::Whole,
            followed: FollowedLog::new(OutputLog::new(Retention::default())),
            ack_cursor: AckCursor::default(),
            attachment: None,
            lag: 0,
            written: [0; 3],
            failure: None,
            orphaned: None,
            released: false,
            os_pid: None,
            started_at_ms,
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

    /// Returns who it belongs to.
    pub(crate) fn owner(&self) -> ProcessOwner {
        self.owner
    }

    /// Returns who watches its network, if anybody does.
    pub(crate) fn network_hook(&self) -> Option<&NetworkHook> {
        self.network_hook.as_ref()
    }

    /// Takes an event. Returns what `process/read` is to be asked for, if events are missing.
    pub(crate) fn handle_event(&self, event: Event) -> Result<Option<OutputGap>, EventsError> {
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

    /// Takes what `process/read` answered. Returns what it is to be asked for next, if that is not all.
    pub(crate) fn handle_page(&self, page: OutputPage) -> Result<Option<OutputGap>, EventsError> {
        let mut state = self.lock();
        let Some(asked) = state
            .pending_read
            .take()
            .filter(|_| state.failure.is_none())
        else {
            return Ok(None);
        };
        let (end, closed) = (page.next_seq.0.saturating_sub(1), page.closed);
        let part = asked.max_bytes.is_some() && !page.chunks.is_empty();
        let gap_read = if part {
            let end = state.reorder.handle_partial_page(page, asked.after)?;
            state.read_to = end;
            Some(state.begin_read(end))
        } else if end < state.last_seen.0 {
            let seen = state.last_seen.0;
            let text = format!("`process/read` knows no event after {end}, but event {seen} came");
            return Err(EventsError::Malformed(text));
        } else {
            state.reorder.handle_page(page)?;
            state.pages = PageSize::Whole;
            state.reorder.gap().map(|after| state.begin_read(after))
        };
        self.record(state)?;
        if closed && !part && !self.is_closed() {
            return Err(EventsError::Impossible(OutputSeq(end)));
        }
        Ok(gap_read)
    }

    /// The connection broke before `process/read` was answered.
    pub(crate) fn handle_read_interrupted(&self) {
        self.lock().pages = PageSize::Small;
    }

    /// The connection is another one. Returns what `process/read` is to be asked for.
    pub(crate) fn handle_resume(&self) -> OutputGap {
        let mut state = self.lock();
        state.ack_cursor.mark_unconfirmed();
        let after = state.reorder.last().max(state.read_to);
        state.begin_read(after)
    }

    pub(crate) fn handle_started(&self, started: &ProcessStarted) {
        self.handle_start_time(started.started_at_ms, started.os_pid);
    }

    /// Nobody holds the process any more.
    pub(crate) fn release(&self) {
        self.lock().released = true;
    }

    pub(crate) fn is_released(&self) -> bool {
        self.lock().released
    }

    /// Returns whether its output ended.
    pub(crate) fn is_closed(&self) -> bool {
        self.lock().followed.log().is_closed()
    }

    /// Returns whether its output ended, and nobody holds it.
    pub(crate) fn is_finished(&self) -> bool {
        let state = self.lock();
        state.released && state.followed.log().is_closed()
    }

    /// Returns whether it ended before its output did.
    pub(crate) fn is_failed(&self) -> bool {
        self.lock().failure.is_some()
    }

    /// No further event will come. Returns whether that is news.
    pub(crate) fn fail(&self, error: ProcessError) -> bool {
        let mut state = self.lock();
        let news = state.failure.is_none() && !state.followed.log().is_closed();
        if news {
            state.failure = Some(error);
            // Followers look whether there is a failure, too.
            state.followed.record(|_| ());
            self.set_lag(&mut state);
        }
        drop(state);
        self.recorded.notify_waiters();
        self.failed.notify_waiters();
        news
    }

    /// Its session is lost: it fails, unless it is over.
    pub(crate) fn orphan(&self, error: &ProcessError) {
        self.lock().orphaned = Some(error.clone());
        self.fail(error.clone());
    }

    /// Waits until something is recorded that `done` looks for, or never will be.
    pub(crate) async fn wait_until<T>(
        &self,
        done: impl Fn(&OutputLog) -> Option<T>,
    ) -> Result<T, ProcessError> {
        let _waiting = self.shared.register_waiter();
        loop {
            // Registered before looking, so that nothing recorded in between is missed.
            let recorded = self.recorded.notified();
            if let Some(done) = self.with_log(&done) {
                return Ok(done);
            }
            self.check()?;
            recorded.await;
        }
    }

    /// Resolves when no further event will come, although the close has not.
    pub(crate) async fn wait_for_failure(&self) -> ProcessError {
        loop {
            // Registered before looking, so that no failure in between is missed.
            let failed = self.failed.notified();
            if let Err(error) = self.check() {
                return error;
            }
            failed.await;
        }
    }

    /// Fails if no further event will come.
    pub(crate) fn check(&self) -> Result<(), ProcessError> {
        self.lock().failure.clone().map_or(Ok(()), Err)
    }

    /// Fails if the server cannot be asked about it.
    pub(crate) fn check_reachable(&self) -> Result<(), ProcessError> {
        let state = self.lock();
        let fault = state.failure.as_ref().or(state.orphaned.as_ref());
        fault.cloned().map_or(Ok(()), Err)
    }

    /// Looks at what was recorded.
    pub(crate) fn with_log<T>(&self, with_log: impl FnOnce(&OutputLog) -> T) -> T {
        with_log(self.lock().followed.log())
    }

    /// Does something as a follower: it may catch up, or fall behind.
    fn with_followed<T>(self: &Arc<Self>, act: impl FnOnce(&mut FollowedLog) -> T) -> T {
        let mut state = self.lock();
        let acted = act(&mut state.followed);
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
        acted
    }

    /// Returns up to which number the server is to be told that its events were taken, if it is.
    pub(crate) fn take_ack(&self) -> Option<OutputSeq> {
        let mut state = self.lock();
        state.ack_cursor.scheduled = false;
        if !self.uses_acks() || state.failure.is_some() {
            return None;
        }
        let EventsState {
            ack_cursor,
            followed,
            ..
        } = &mut *state;
        ack_cursor
            .is_due(followed)
            .then(|| ack_cursor.advance(followed))
    }

    /// Returns the number of the close, if it came and the server is to be told that it was taken.
    pub(crate) fn take_final_ack(&self) -> Option<OutputSeq> {
        let mut state = self.lock();
        let EventsState {
            ack_cursor,
            followed,
            ..
        } = &mut *state;
        let whole = self.uses_acks() && followed.log().is_closed();
        whole.then(|| ack_cursor.advance_to_end(followed)).flatten()
    }

    /// Returns whether the server is told what was taken of it.
    fn uses_acks(&self) -> bool {
        self.owner == ProcessOwner::Session && self.shared.acks_enabled()
    }

    /// Returns whether this number is that of the close.
    pub(crate) fn closes_at(&self, seq: OutputSeq) -> bool {
        self.with_log(|log| log.is_closed() && log.next_seq() == seq.next())
    }

    pub(crate) fn status(&self) -> Status {
        let state = self.lock();
        let log = state.followed.log();
        Status {
            exit: log.exit().cloned(),
            closed: log.is_closed(),
            // Nobody tells when descendants that closed their output end.
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

    /// Returns how many bytes came on each stream.
    pub(crate) fn written(&self) -> [u64; 3] {
        self.lock().written
    }

    fn lock(&self) -> MutexGuard<'_, EventsState> {
        // Nothing panics while it holds the lock; if something did, the state is still whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn record(&self, mut state: MutexGuard<'_, EventsState>) -> Result<(), EventsError> {
        while let Some(event) = state.reorder.poll_event() {
            state.record(event)?;
        }
        self.handle_recorded(state);
        Ok(())
    }

    /// Wakes whoever waits for something to be recorded.
    fn handle_recorded(&self, mut state: MutexGuard<'_, EventsState>) {
        self.set_lag(&mut state);
        drop(state);
        self.recorded.notify_waiters();
    }

    /// Tells the hub how far followers lag behind. Those of a process that has failed hold up nobody.
    fn set_lag(&self, state: &mut EventsState) {
        let lag = match state.failure {
            None => state.followed.lag(),
            Some(_) => 0,
        };
        self.shared.set_lag(state.lag, lag);
        state.lag = lag;
    }
}

impl EventsState {
    fn record(&mut self, event: Event) -> Result<(), EventsError> {
        let seq = event.seq();
        if let Event::Output(chunk) = &event {
            self.written[chunk.stream as usize] += chunk.data.len() as u64;
        }
        let recorded = self.followed.record(|log| match event {
            Event::Output(chunk) => log.append(chunk.stream, chunk.data),
            Event::Exited(_, exit) => log.record_exit(exit),
            Event::Closed(_) => log.record_close(),
        });
        if recorded == Some(seq) {
            Ok(())
        } else {
            Err(EventsError::Impossible(seq))
        }
    }

    /// Notes that events after a number are asked for.
    fn begin_read(&mut self, after: OutputSeq) -> OutputGap {
        let max_bytes = match self.pages {
            PageSize::Whole => None,
            PageSize::Small => Some(SMALL_PAGE_BYTES),
        };
        self.last_seen = self.reorder.seen();
        *self.pending_read.insert(OutputGap { after, max_bytes })
    }
}

/// What `process/read` is to be asked for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct OutputGap {
    /// The last number that is known.
    pub(crate) after: OutputSeq,
    /// How much is wanted at once. Absent: all.
    pub(crate) max_bytes: Option<usize>,
}

/// How output is asked for.
#[derive(Clone, Copy, Debug)]
enum PageSize {
    Whole,
    Small,
}

impl Drop for ProcessEvents {
    fn drop(&mut self) {
        let lag = self.lock().lag;
        self.shared.set_lag(lag, 0);
    }
}

impl ProcessEvents {
    /// Reads retained output, and waits for some if there is none.
    pub(crate) async fn read_local(&self, read: Read) -> Result<Page, ProcessError> {
        self.check()?;
        if !read.wait.is_zero() {
            let news = self.wait_until(|log| log.has_news(read.after).then_some(()));
            with_limit(Some(read.wait), news).await?;
        }
        Ok(self.with_log(|log| log.page(read.after, read.max_bytes)))
    }

    /// Waits for the exit or the close.
    pub(crate) async fn wait_local(
        &self,
        until: WaitUntil,
        limit: Option<Duration>,
    ) -> Result<Status, ProcessError> {
        with_limit(limit, self.wait_until(|log| has_reached(log, until))).await?;
        Ok(self.status())
    }
}

/// Returns whether the process came so far.
pub(crate) fn has_reached(log: &OutputLog, until: WaitUntil) -> Option<()> {
    let has_reached = match until {
        WaitUntil::Exited => log.exit().is_some(),
        WaitUntil::Closed => log.is_closed(),
    };
    has_reached.then_some(())
}

/// Waits no longer than `limit`. That the time is up is no error.
async fn with_limit(
    limit: Option<Duration>,
    event: impl Future<Output = Result<(), ProcessError>>,
) -> Result<(), ProcessError> {
    match limit {
        None => event.await,
        Some(limit) => time::timeout(limit, event).await.unwrap_or(Ok(())),
    }
}
