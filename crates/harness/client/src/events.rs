//! The events of one remote process: ordered, retained, followed.
//!
//! Shared by the driver and the handles of the process. The lock is held for moments and never
//! across an await.

mod attachment;
mod follower;
mod reorder;

pub(crate) use self::{
    attachment::{Launch, Origin, Owner, Replay, Turn},
    follower::{Followed, Held},
    reorder::Broken,
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

use self::{attachment::Attachment, follower::Told, reorder::Reorder};
use crate::{client_shared::Hub, driver::Watch};

/// What is asked for at once where more did not come through.
const PAGE_BYTES: usize = 32 << 10;

#[derive(Debug)]
pub(crate) struct ProcessEvents {
    id: ProcessId,
    hub: Arc<Hub>,
    watch: Option<Watch>,
    owner: Owner,
    state: Mutex<State>,
    /// Wakes those who wait for something to be recorded.
    recorded: Notify,
    /// Wakes those who wait for it to fail.
    failed: Notify,
}

#[derive(Debug)]
struct State {
    order: Reorder,
    /// What `process/read` was asked for to fill a gap, until it is filled.
    filling: Option<Missing>,
    /// The last number that had come when it was asked.
    seen: OutputSeq,
    /// Up to here all output was read in parts. An exit in between may be on the last page only.
    read_to: OutputSeq,
    /// A page did not come through before its connection broke: smaller ones may.
    pages: Pages,
    /// Numbers its events as the server does: both begin with 1 and have no holes.
    followed: FollowedLog,
    told: Told,
    /// What else is known of it, if it belongs to the server.
    attachment: Option<Attachment>,
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
        hub: Arc<Hub>,
        watch: Option<Watch>,
        started_at_ms: u64,
    ) -> Self {
        Self::of(Owner::Session, id, hub, watch, started_at_ms)
    }

    fn of(
        owner: Owner,
        id: ProcessId,
        hub: Arc<Hub>,
        watch: Option<Watch>,
        started_at_ms: u64,
    ) -> Self {
        let state = State {
            order: Reorder::new(),
            filling: None,
            seen: OutputSeq(0),
            read_to: OutputSeq(0),
            pages: Pages::Whole,
            followed: FollowedLog::new(OutputLog::new(Retention::default())),
            told: Told::default(),
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
            hub,
            watch,
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
    pub(crate) fn owner(&self) -> Owner {
        self.owner
    }

    /// Returns who watches its network, if anybody does.
    pub(crate) fn watch(&self) -> Option<&Watch> {
        self.watch.as_ref()
    }

    /// Takes an event. Returns what `process/read` is to be asked for, if events are missing.
    pub(crate) fn handle_event(&self, event: Event) -> Result<Option<Missing>, Broken> {
        let mut state = self.lock();
        if state.failure.is_some() {
            return Ok(None);
        }
        if self.owner == Owner::Server {
            return self.handle_attached_event(state, event).map(|()| None);
        }
        state.order.handle_event(event)?;
        let gap = state.order.gap().filter(|_| state.filling.is_none());
        let missing = gap.map(|after| state.fill(after));
        self.record(state)?;
        Ok(missing)
    }

    /// Takes what `process/read` answered. Returns what it is to be asked for next, if that is not all.
    pub(crate) fn handle_page(&self, page: OutputPage) -> Result<Option<Missing>, Broken> {
        let mut state = self.lock();
        let Some(asked) = state.filling.take().filter(|_| state.failure.is_none()) else {
            return Ok(None);
        };
        let (end, closed) = (page.next_seq.0.saturating_sub(1), page.closed);
        let part = asked.max_bytes.is_some() && !page.chunks.is_empty();
        let missing = if part {
            let end = state.order.handle_part(page, asked.after)?;
            state.read_to = end;
            Some(state.fill(end))
        } else if end < state.seen.0 {
            let seen = state.seen.0;
            let text = format!("`process/read` knows no event after {end}, but event {seen} came");
            return Err(Broken::Malformed(text));
        } else {
            state.order.handle_page(page)?;
            state.pages = Pages::Whole;
            state.order.gap().map(|after| state.fill(after))
        };
        self.record(state)?;
        if closed && !part && !self.is_over() {
            return Err(Broken::Impossible(OutputSeq(end)));
        }
        Ok(missing)
    }

    /// The connection broke before `process/read` was answered.
    pub(crate) fn handle_unread(&self) {
        self.lock().pages = Pages::Small;
    }

    /// The connection is another one. Returns what `process/read` is to be asked for.
    pub(crate) fn handle_resume(&self) -> Missing {
        let mut state = self.lock();
        state.told.doubt();
        let after = state.order.last().max(state.read_to);
        state.fill(after)
    }

    pub(crate) fn handle_started(&self, started: &ProcessStarted) {
        self.handle_born(started.started_at_ms, started.os_pid);
    }

    /// Nobody holds the process any more.
    pub(crate) fn release(&self) {
        self.lock().released = true;
    }

    pub(crate) fn is_released(&self) -> bool {
        self.lock().released
    }

    /// Tells whether its output ended.
    pub(crate) fn is_over(&self) -> bool {
        self.lock().followed.log().is_closed()
    }

    /// Tells whether its output ended, and nobody holds it.
    pub(crate) fn is_done(&self) -> bool {
        let state = self.lock();
        state.released && state.followed.log().is_closed()
    }

    /// Tells whether it ended before its output did.
    pub(crate) fn is_failed(&self) -> bool {
        self.lock().failure.is_some()
    }

    /// No further event will come. Tells whether that is news.
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
    pub(crate) async fn until<T>(
        &self,
        done: impl Fn(&OutputLog) -> Option<T>,
    ) -> Result<T, ProcessError> {
        let _waiting = self.hub.wait();
        loop {
            // Registered before looking, so that nothing recorded in between is missed.
            let recorded = self.recorded.notified();
            if let Some(done) = self.look(&done) {
                return Ok(done);
            }
            self.check()?;
            recorded.await;
        }
    }

    /// Resolves when no further event will come, although the close has not.
    pub(crate) async fn until_failed(&self) -> ProcessError {
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
    pub(crate) fn look<T>(&self, look: impl FnOnce(&OutputLog) -> T) -> T {
        look(self.lock().followed.log())
    }

    /// Does something as a follower: it may catch up, or fall behind.
    fn follow<T>(self: &Arc<Self>, act: impl FnOnce(&mut FollowedLog) -> T) -> T {
        let mut state = self.lock();
        let acted = act(&mut state.followed);
        self.set_lag(&mut state);
        let is_due = match &state.attachment {
            None => self.hub.acknowledges() && state.told.is_due(&state.followed),
            Some(attachment) => attachment.turn(state.followed.lag()).is_some(),
        };
        let due = is_due && !state.told.due && state.failure.is_none();
        state.told.due |= due;
        drop(state);
        if due {
            self.hub.say_due(Arc::clone(self));
        }
        acted
    }

    /// Returns up to which number the server is to be told that its events were taken, if it is.
    pub(crate) fn take_due(&self) -> Option<OutputSeq> {
        let mut state = self.lock();
        state.told.due = false;
        if !self.is_acknowledged() || state.failure.is_some() {
            return None;
        }
        let State { told, followed, .. } = &mut *state;
        told.is_due(followed).then(|| told.take(followed))
    }

    /// Returns the number of the close, if it came and the server is to be told that it was taken.
    pub(crate) fn take_rest(&self) -> Option<OutputSeq> {
        let mut state = self.lock();
        let State { told, followed, .. } = &mut *state;
        let whole = self.is_acknowledged() && followed.log().is_closed();
        whole.then(|| told.take_all(followed)).flatten()
    }

    /// Tells whether the server is told what was taken of it.
    fn is_acknowledged(&self) -> bool {
        self.owner == Owner::Session && self.hub.acknowledges()
    }

    /// Tells whether this number is that of the close.
    pub(crate) fn ends_with(&self, seq: OutputSeq) -> bool {
        self.look(|log| log.is_closed() && log.next_seq() == seq.next())
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
                .map_or(log.next_seq(), |attachment| attachment.next(log.next_seq())),
            retained_bytes: log.retained_bytes(),
            os_pid: state.os_pid,
            started_at_ms: state.started_at_ms,
        }
    }

    /// Returns how many bytes came on each stream.
    pub(crate) fn written(&self) -> [u64; 3] {
        self.lock().written
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing panics while it holds the lock; if something did, the state is still whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn record(&self, mut state: MutexGuard<'_, State>) -> Result<(), Broken> {
        while let Some(event) = state.order.poll_event() {
            state.record(event)?;
        }
        self.handle_recorded(state);
        Ok(())
    }

    /// Wakes whoever waits for something to be recorded.
    fn handle_recorded(&self, mut state: MutexGuard<'_, State>) {
        self.set_lag(&mut state);
        drop(state);
        self.recorded.notify_waiters();
    }

    /// Tells the hub how far followers lag behind. Those of a process that has failed hold up nobody.
    fn set_lag(&self, state: &mut State) {
        let lag = match state.failure {
            None => state.followed.lag(),
            Some(_) => 0,
        };
        self.hub.set_lag(state.lag, lag);
        state.lag = lag;
    }
}

impl State {
    fn record(&mut self, event: Event) -> Result<(), Broken> {
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
            Err(Broken::Impossible(seq))
        }
    }

    /// Notes that events after a number are asked for.
    fn fill(&mut self, after: OutputSeq) -> Missing {
        let max_bytes = match self.pages {
            Pages::Whole => None,
            Pages::Small => Some(PAGE_BYTES),
        };
        self.seen = self.order.seen();
        *self.filling.insert(Missing { after, max_bytes })
    }
}

/// What `process/read` is to be asked for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Missing {
    /// The last number that is known.
    pub(crate) after: OutputSeq,
    /// How much is wanted at once. Absent: all.
    pub(crate) max_bytes: Option<usize>,
}

/// How output is asked for.
#[derive(Clone, Copy, Debug)]
enum Pages {
    Whole,
    Small,
}

impl Drop for ProcessEvents {
    fn drop(&mut self) {
        let lag = self.lock().lag;
        self.hub.set_lag(lag, 0);
    }
}

impl ProcessEvents {
    /// Reads retained output, and waits for some if there is none.
    pub(crate) async fn read_here(&self, read: Read) -> Result<Page, ProcessError> {
        self.check()?;
        if !read.wait.is_zero() {
            let news = self.until(|log| log.has_news(read.after).then_some(()));
            in_time(Some(read.wait), news).await?;
        }
        Ok(self.look(|log| log.page(read.after, read.max_bytes)))
    }

    /// Waits for the exit or the close.
    pub(crate) async fn wait_here(
        &self,
        until: WaitUntil,
        limit: Option<Duration>,
    ) -> Result<Status, ProcessError> {
        in_time(limit, self.until(|log| reached(log, until))).await?;
        Ok(self.status())
    }
}

/// Tells whether the process came so far.
pub(crate) fn reached(log: &OutputLog, until: WaitUntil) -> Option<()> {
    let reached = match until {
        WaitUntil::Exited => log.exit().is_some(),
        WaitUntil::Closed => log.is_closed(),
    };
    reached.then_some(())
}

/// Waits no longer than `limit`. That the time is up is no error.
async fn in_time(
    limit: Option<Duration>,
    event: impl Future<Output = Result<(), ProcessError>>,
) -> Result<(), ProcessError> {
    match limit {
        None => event.await,
        Some(limit) => time::timeout(limit, event).await.unwrap_or(Ok(())),
    }
}
