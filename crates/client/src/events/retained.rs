//! What the driver and the handles of one process look at together: its events, in order. The lock
//! is held for moments and never across an await.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use exec_core::log::{Event, FollowedLog, OutputLog, Retention};
use exec_env::process::{ProcessError, Status};
use exec_wire::{
    error::RpcError,
    id::{OutputSeq, ProcessId},
    process::{OutputPage, ProcessStarted},
};
use tokio::sync::Notify;

use super::reorder::{Broken, Reorder};
use crate::{driver::Watch, hub::Hub};

#[derive(Debug)]
pub(crate) struct ProcessEvents {
    id: ProcessId,
    pub(super) hub: Arc<Hub>,
    watch: Option<Watch>,
    state: Mutex<State>,
    /// Wakes those who wait for something to be recorded.
    recorded: Notify,
}

#[derive(Debug)]
pub(super) struct State {
    order: Reorder,
    /// Whether `process/read` was asked to fill a gap.
    filling: bool,
    /// Numbers its events as the server does: both begin with 1 and have no holes.
    pub(super) followed: FollowedLog,
    written: [u64; 3],
    pub(super) end: Option<End>,
    released: bool,
    os_pid: Option<u32>,
    started_at_ms: u64,
}

/// Why no further event will come, although the close has not.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum End {
    /// The connection is gone.
    Disconnected,
    /// The events of this process are.
    Broken(Broken),
}

impl ProcessEvents {
    pub(crate) fn new(
        id: ProcessId,
        hub: Arc<Hub>,
        watch: Option<Watch>,
        started_at_ms: u64,
    ) -> Self {
        let state = State {
            order: Reorder::new(),
            filling: false,
            followed: FollowedLog::new(OutputLog::new(Retention::default())),
            written: [0; 3],
            end: None,
            released: false,
            os_pid: None,
            started_at_ms,
        };
        Self {
            id,
            hub,
            watch,
            state: Mutex::new(state),
            recorded: Notify::new(),
        }
    }

    pub(crate) fn id(&self) -> &ProcessId {
        &self.id
    }

    /// Returns who watches its network, if anybody does.
    pub(crate) fn watch(&self) -> Option<&Watch> {
        self.watch.as_ref()
    }

    /// Takes an event. Returns after which number `process/read` is to be asked, if events are
    /// missing.
    pub(crate) fn handle_event(&self, event: Event) -> Result<Option<OutputSeq>, Broken> {
        let mut state = self.lock();
        state.order.handle_event(event)?;
        let gap = state.order.gap().filter(|_| !state.filling);
        state.filling |= gap.is_some();
        self.record(state)?;
        Ok(gap)
    }

    /// Takes what `process/read` answered.
    pub(crate) fn handle_page(&self, page: OutputPage) -> Result<Option<OutputSeq>, Broken> {
        let mut state = self.lock();
        state.order.handle_page(page)?;
        let gap = state.order.gap();
        state.filling = gap.is_some();
        self.record(state)?;
        Ok(gap)
    }

    pub(crate) fn handle_started(&self, started: &ProcessStarted) {
        let mut state = self.lock();
        state.os_pid = started.os_pid;
        state.started_at_ms = started.started_at_ms;
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

    /// No further event will come.
    pub(crate) fn end(&self, end: End) {
        let mut state = self.lock();
        state.end.get_or_insert(end);
        // Followers look whether there is an end, too.
        state.followed.record(|_| ());
        drop(state);
        self.recorded.notify_waiters();
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

    /// Fails if no further event will come.
    pub(crate) fn check(&self) -> Result<(), ProcessError> {
        match self.lock().end {
            None => Ok(()),
            Some(End::Disconnected) => Err(ProcessError::Disconnected),
            Some(End::Broken(broken)) => Err(RpcError::internal(broken.to_string()).into()),
        }
    }

    /// Looks at what was recorded.
    pub(crate) fn look<T>(&self, look: impl FnOnce(&OutputLog) -> T) -> T {
        look(self.lock().followed.log())
    }

    pub(crate) fn status(&self) -> Status {
        let state = self.lock();
        let log = state.followed.log();
        Status {
            exit: log.exit().cloned(),
            closed: log.is_closed(),
            // Nobody tells when descendants that closed their output end.
            tree_alive: !log.is_closed() && state.end.is_none(),
            next_seq: log.next_seq(),
            retained_bytes: log.retained_bytes(),
            os_pid: state.os_pid,
            started_at_ms: state.started_at_ms,
        }
    }

    /// Returns how many bytes came on each stream.
    pub(crate) fn written(&self) -> [u64; 3] {
        self.lock().written
    }

    /// Returns how far the slowest follower that may not lose anything lags behind, in bytes.
    pub(crate) fn lag(&self) -> u64 {
        self.lock().followed.lag()
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing panics while it holds the lock; if something did, the state is still whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn record(&self, mut state: MutexGuard<'_, State>) -> Result<(), Broken> {
        while let Some(event) = state.order.poll_event() {
            let seq = event.seq();
            if let Event::Output(chunk) = &event {
                state.written[chunk.stream as usize] += chunk.data.len() as u64;
            }
            let recorded = state.followed.record(|log| match event {
                Event::Output(chunk) => log.append(chunk.stream, chunk.data),
                Event::Exited(_, exit) => log.record_exit(exit),
                Event::Closed(_) => log.record_close(),
            });
            if recorded != Some(seq) {
                return Err(Broken::Impossible(seq));
            }
        }
        drop(state);
        self.recorded.notify_waiters();
        Ok(())
    }
}
