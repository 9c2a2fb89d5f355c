//! What the driver and the handles of one process look at together: its events, in order. The lock
//! is held for moments and never across an await.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use exec_core::log::{Event, OutputLog, Retention};
use exec_env::process::{Pace, ProcessError, Status};
use exec_wire::{
    error::RpcError,
    id::{OutputSeq, ProcessId},
    process::{OutputPage, ProcessStarted},
};
use tokio::sync::Notify;

use super::{
    follow::Follower,
    reorder::{Broken, Reorder},
};
use crate::hub::Hub;

#[derive(Debug)]
pub(crate) struct ProcessEvents {
    id: ProcessId,
    pub(super) hub: Arc<Hub>,
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
    pub(super) log: OutputLog,
    written: [u64; 3],
    pub(super) end: Option<End>,
    released: bool,
    os_pid: Option<u32>,
    started_at_ms: u64,
    pub(super) followers: BTreeMap<u64, Follower>,
    pub(super) next_follower: u64,
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
    pub(crate) fn new(id: ProcessId, hub: Arc<Hub>, started_at_ms: u64) -> Self {
        let state = State {
            order: Reorder::new(),
            filling: false,
            log: OutputLog::new(Retention::default()),
            written: [0; 3],
            end: None,
            released: false,
            os_pid: None,
            started_at_ms,
            followers: BTreeMap::new(),
            next_follower: 0,
        };
        Self {
            id,
            hub,
            state: Mutex::new(state),
            recorded: Notify::new(),
        }
    }

    pub(crate) fn id(&self) -> &ProcessId {
        &self.id
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
        self.lock().log.is_closed()
    }

    /// No further event will come.
    pub(crate) fn end(&self, end: End) {
        let mut state = self.lock();
        state.end.get_or_insert(end);
        self.wake(state);
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
        look(&self.lock().log)
    }

    pub(crate) fn status(&self) -> Status {
        let state = self.lock();
        Status {
            exit: state.log.exit().cloned(),
            closed: state.log.is_closed(),
            // Nobody tells when descendants that closed their output end.
            tree_alive: !state.log.is_closed() && state.end.is_none(),
            next_seq: state.log.next_seq(),
            retained_bytes: state.log.retained_bytes(),
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
        let state = self.lock();
        let appended = state.log.appended_bytes();
        let held = state
            .followers
            .values()
            .filter(|follower| follower.pace == Pace::Held);
        held.map(|follower| appended - follower.taken)
            .max()
            .unwrap_or(0)
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing panics while it holds the lock; if something did, the state is still whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn record(&self, mut state: MutexGuard<'_, State>) -> Result<(), Broken> {
        while let Some(event) = state.order.poll_event() {
            let seq = event.seq();
            let recorded = match event {
                Event::Output(chunk) => {
                    state.written[chunk.stream as usize] += chunk.data.len() as u64;
                    state.log.append(chunk.stream, chunk.data)
                }
                Event::Exited(_, exit) => state.log.record_exit(exit),
                Event::Closed(_) => state.log.record_close(),
            };
            if recorded != Some(seq) {
                return Err(Broken::Impossible(seq));
            }
        }
        self.wake(state);
        Ok(())
    }

    fn wake(&self, mut state: MutexGuard<'_, State>) {
        for follower in state.followers.values_mut() {
            if let Some(waker) = follower.waker.take() {
                waker.wake();
            }
        }
        drop(state);
        self.recorded.notify_waiters();
    }
}
