//! State shared by the process task and the handles of a process: output log, stdin queue, pending
//! termination.
//!
//! Invariant: the lock is held briefly and never across an await.

use std::{
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, ready},
};

use exec_core::output_log::{FollowOptions, FollowedLog, FollowerId, OutputLog};
use exec_env::process::{ExecProcessEvent, OutputHold};
use exec_wire::{id::OutputSeq, process::ExitCause};
use futures_util::Stream;
use tokio::{sync::Notify, time::Instant};

use crate::{spawner::SupervisedChild, stdin_queue::StdinQueue};

#[derive(Debug)]
pub(crate) struct SharedState {
    state: Mutex<TaskState>,
    /// Wakes readers and waiters after the log has changed.
    pub(crate) recorded: Notify,
    /// Wakes the process task: stdin was queued, a follower caught up, or a deadline changed.
    pub(crate) wake_task: Notify,
}

#[derive(Debug)]
pub(crate) struct TaskState {
    followed: FollowedLog,
    pub(crate) input: StdinQueue,
    /// The supervised child, while any process of the tree may be alive.
    pub(crate) child: Option<Arc<SupervisedChild>>,
    /// Why the process is being terminated, once that was requested.
    pub(crate) cause: Option<ExitCause>,
    /// When a graceful termination becomes a kill.
    pub(crate) kill_at: Option<Instant>,
    /// Whether the last handle was dropped.
    pub(crate) dropped: bool,
}

impl TaskState {
    pub(crate) fn log(&self) -> &OutputLog {
        self.followed.log()
    }
}

impl SharedState {
    pub(crate) fn new(log: OutputLog, input: StdinQueue, child: Arc<SupervisedChild>) -> Self {
        let state = TaskState {
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

    pub(crate) fn lock(&self) -> MutexGuard<'_, TaskState> {
        // No code panics while holding the lock. If one did, the state would still be consistent.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the log and wakes all waiters.
    pub(crate) fn record<T>(&self, record: impl FnOnce(&mut OutputLog) -> T) -> T {
        let recorded = self.lock().followed.record(record);
        self.recorded.notify_waiters();
        recorded
    }

    /// Returns whether backpressure applies: a follower that must not lose output lags too far
    /// behind.
    pub(crate) fn is_backpressured(&self) -> bool {
        self.lock().followed.is_backpressured()
    }
}

/// The event stream of one follower.
#[derive(Debug)]
pub(crate) struct FollowerEvents {
    shared: Arc<SharedState>,
    id: FollowerId,
}

impl FollowerEvents {
    pub(crate) fn new(shared: &Arc<SharedState>, follow: FollowOptions) -> Self {
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
        if followed.backpressure_ended {
            self.shared.wake_task.notify_one();
        }
        Poll::Ready(followed.event.map(ExecProcessEvent::from))
    }
}

impl Drop for FollowerEvents {
    fn drop(&mut self) {
        self.shared.lock().followed.unfollow(self.id);
        // The process task may have been paused for this follower.
        self.shared.wake_task.notify_one();
    }
}

/// Keeps output in the log until its holder acknowledges it.
#[derive(Debug)]
pub(crate) struct OutputLogHold {
    shared: Arc<SharedState>,
    id: FollowerId,
}

impl OutputLogHold {
    pub(crate) fn new(shared: &Arc<SharedState>, after: OutputSeq) -> Self {
        let id = shared.lock().followed.retain_unacked(after);
        Self {
            shared: Arc::clone(shared),
            id,
        }
    }
}

impl OutputHold for OutputLogHold {
    fn acknowledge(&self, seq: OutputSeq) {
        let released = self.shared.lock().followed.acknowledge(self.id, seq);
        if released {
            self.shared.wake_task.notify_one();
        }
    }
}

impl Drop for OutputLogHold {
    fn drop(&mut self) {
        self.shared.lock().followed.unfollow(self.id);
        // The process task may have been paused for this hold.
        self.shared.wake_task.notify_one();
    }
}
