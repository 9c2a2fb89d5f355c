//! What the owner of a process and everybody else look at together: the log, the input queue, and
//! what was asked for. The lock is held for moments and never across an await.

use std::{
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, ready},
};

use exec_core::log::{Follow, FollowedLog, FollowerId, OutputLog};
use exec_env::process::{ExecProcessEvent, Hold};
use exec_wire::{id::OutputSeq, process::ExitCause};
use futures_util::Stream;
use tokio::{sync::Notify, time::Instant};

use crate::{spawner::Child, stdin_queue::StdinQueue};

#[derive(Debug)]
pub(crate) struct SharedState {
    state: Mutex<ProcessState>,
    /// Wakes readers and waiters: something was recorded.
    pub(crate) recorded: Notify,
    /// Wakes the owner: input waits, a follower caught up, a deadline changed.
    pub(crate) wake_task: Notify,
}

#[derive(Debug)]
pub(crate) struct ProcessState {
    followed: FollowedLog,
    pub(crate) input: StdinQueue,
    /// The supervisor, while anything of the tree may live.
    pub(crate) child: Option<Arc<Child>>,
    /// Why the process is being ended, once it is.
    pub(crate) cause: Option<ExitCause>,
    /// When a graceful end stops being graceful.
    pub(crate) kill_at: Option<Instant>,
    /// Nobody holds the process any more.
    pub(crate) dropped: bool,
}

impl ProcessState {
    pub(crate) fn log(&self) -> &OutputLog {
        self.followed.log()
    }
}

impl SharedState {
    pub(crate) fn new(log: OutputLog, input: StdinQueue, child: Arc<Child>) -> Self {
        let state = ProcessState {
            followed: FollowedLog::new(log),
            input,
            child: Some(child),
            cause: None,
            kill_at: None,
            dropped: false,
        };
        Self {
            state: Mutex::new(state),
            recorded: Notify::new(),
            wake_task: Notify::new(),
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, ProcessState> {
        // Nothing panics while it holds the lock; if something did, the state is still whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records something and wakes everybody who waits for it.
    pub(crate) fn record<T>(&self, record: impl FnOnce(&mut OutputLog) -> T) -> T {
        let recorded = self.lock().followed.record(record);
        self.recorded.notify_waiters();
        recorded
    }

    /// Tells whether a follower that may not lose anything lags too far behind.
    pub(crate) fn is_backpressured(&self) -> bool {
        self.lock().followed.is_held()
    }
}

/// A follower's stream of events.
#[derive(Debug)]
pub(crate) struct FollowerEvents {
    shared: Arc<SharedState>,
    id: FollowerId,
}

impl FollowerEvents {
    pub(crate) fn new(shared: &Arc<SharedState>, follow: Follow) -> Self {
        let id = shared.lock().followed.follow(follow);
        Self {
            shared: Arc::clone(shared),
            id,
        }
    }
}

impl Stream for FollowerEvents {
    type Item = ExecProcessEvent;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<ExecProcessEvent>> {
        let polled = self.shared.lock().followed.poll_event(self.id, cx);
        let followed = ready!(polled);
        if followed.released {
            self.shared.wake_task.notify_one();
        }
        Poll::Ready(followed.event.map(ExecProcessEvent::from))
    }
}

impl Drop for FollowerEvents {
    fn drop(&mut self) {
        self.shared.lock().followed.unfollow(self.id);
        // Whoever it held up may go on.
        self.shared.wake_task.notify_one();
    }
}

/// Keeps what somebody has not acknowledged.
#[derive(Debug)]
pub(crate) struct OutputHold {
    shared: Arc<SharedState>,
    id: FollowerId,
}

impl OutputHold {
    pub(crate) fn new(shared: &Arc<SharedState>, after: OutputSeq) -> Self {
        let id = shared.lock().followed.hold(after);
        Self {
            shared: Arc::clone(shared),
            id,
        }
    }
}

impl Hold for OutputHold {
    fn acknowledge(&self, seq: OutputSeq) {
        let released = self.shared.lock().followed.acknowledge(self.id, seq);
        if released {
            self.shared.wake_task.notify_one();
        }
    }
}

impl Drop for OutputHold {
    fn drop(&mut self) {
        self.shared.lock().followed.unfollow(self.id);
        // Whoever it held up may go on.
        self.shared.wake_task.notify_one();
    }
}
