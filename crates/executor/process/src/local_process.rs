//! The handle of a local process, as callers use it, and the state that it shares with the process
//! task: output log, stdin queue, pending termination.
//!
//! Invariant: the lock of the shared state is held briefly and never across an await.

use std::{
    any::Any,
    collections::VecDeque,
    os::fd::OwnedFd,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use exec_core::output_log::{
    FollowOptions, FollowedLog, FollowerId, LogPage, OutputChunk, OutputLog, OutputSnapshot,
};
use exec_env::process::{
    EventStream, ExecProcess, ExecProcessEvent, OutputHold, OutputReadRequest, ProcessError,
    ProcessStatus,
};
use exec_journal::{JournalEvent, now_ms};
use exec_spawn::process_tree::TreeMember;
use exec_wire::{
    id::{OutputSeq, ProcessId, WriteId},
    limits,
    process::{
        ExitCause, ProcessSignal, ResourceUsage, TerminalSize, TerminateMode, WaitUntil,
        WriteStatus,
    },
};
use futures_util::{
    Stream,
    future::{BoxFuture, FutureExt, ready},
};
use rustix::time::{ClockId, clock_gettime};
use tokio::{
    io::unix::AsyncFd,
    sync::{Notify, watch},
    time::{Instant, timeout},
};

use crate::{
    child_input::ChildInput, durable_record::DurableRecord, process_archive::ProcessArchive,
    process_task::usage_of_tree, spawner::SupervisedChild, stdin_queue::EnqueueOutcome, stdio,
};

/// Output of a page from the archive without a limit of its reader.
const MAX_PAGE_BYTES: usize = 8 << 20;

/// A process on this machine. Dropping the last handle kills its process tree.
#[derive(Debug)]
pub struct LocalProcess {
    id: ProcessId,
    shared: Arc<SharedState>,
    terminal: Option<Weak<AsyncFd<OwnedFd>>>,
    pid: u32,
    started_at_ms: u64,
}

impl LocalProcess {
    pub(crate) fn new(
        id: ProcessId,
        shared: Arc<SharedState>,
        terminal: Option<Weak<AsyncFd<OwnedFd>>>,
        pid: u32,
        started_at_ms: u64,
    ) -> Self {
        Self {
            id,
            shared,
            terminal,
            pid,
            started_at_ms,
        }
    }

    /// Opens an accepted process of the tree that is alive, the command if possible.
    pub fn open_member(&self, accept: impl Fn(&TreeMember) -> bool) -> Option<TreeMember> {
        self.live_child()?.open_member(accept)
    }

    /// Returns the OS pids of the tree, parents first.
    pub fn tree_pids(&self) -> Vec<i32> {
        self.live_child()
            .map_or_else(Vec::new, |child| child.pids())
    }

    fn live_child(&self) -> Option<Arc<SupervisedChild>> {
        self.shared.lock().child.clone()
    }

    fn enqueue(
        &self,
        enqueue: impl FnOnce(&mut TaskState) -> EnqueueOutcome,
    ) -> BoxFuture<'static, Result<WriteStatus, ProcessError>> {
        let mut state = self.shared.lock();
        if state.cause.is_some() {
            return ready(Err(ProcessError::Terminated)).boxed();
        }
        let outcome = enqueue(&mut state);
        drop(state);
        // The process task writes what the pipe did not take and resets the idle timer.
        self.shared.wake_task.notify_one();
        match outcome {
            EnqueueOutcome::Accepted => ready(Ok(WriteStatus::Accepted)).boxed(),
            EnqueueOutcome::Closed => ready(Ok(WriteStatus::StdinClosed)).boxed(),
            EnqueueOutcome::Overflow => ready(Err(ProcessError::StdinFull)).boxed(),
            EnqueueOutcome::Unrecorded => ready(Err(ProcessError::StorageFull)).boxed(),
            EnqueueOutcome::Waiting(queued) => async {
                // The sender reports or drops: the write was queued, or discarded with the process.
                let _ = queued.await;
                Ok(WriteStatus::Accepted)
            }
            .boxed(),
        }
    }
}

impl ExecProcess for LocalProcess {
    fn id(&self) -> &ProcessId {
        &self.id
    }

    fn status(&self) -> ProcessStatus {
        status(&self.shared.lock(), self.pid, self.started_at_ms)
    }

    fn follow(&self, follow: FollowOptions) -> EventStream {
        Box::pin(FollowerEvents::new(&self.shared, follow))
    }

    fn hold(&self, after: OutputSeq) -> Box<dyn OutputHold> {
        Box::new(OutputLogHold::new(&self.shared, after))
    }

    fn read(&self, read: OutputReadRequest) -> BoxFuture<'_, Result<LogPage, ProcessError>> {
        async move {
            // A wait too long to be represented never times out.
            let deadline = Instant::now().checked_add(read.wait);
            loop {
                // Registered before the check, so that a record made in between still wakes this
                // task.
                let recorded = self.shared.recorded.notified();
                {
                    let state = self.shared.lock();
                    let out_of_time = deadline.is_some_and(|deadline| deadline <= Instant::now());
                    if state.log().needs_archive(read.after) {
                        drop(state);
                        return Ok(self.shared.archived_page(read.after, read.max_bytes));
                    }
                    if out_of_time
                        || read.wait.is_zero()
                        || state.log().is_readable_after(read.after)
                    {
                        return Ok(state.log().page(read.after, read.max_bytes));
                    }
                }
                match deadline {
                    Some(deadline) => {
                        let _ = tokio::time::timeout_at(deadline, recorded).await;
                    }
                    None => recorded.await,
                }
            }
        }
        .boxed()
    }

    fn write(
        &self,
        id: Option<WriteId>,
        data: Bytes,
    ) -> BoxFuture<'static, Result<WriteStatus, ProcessError>> {
        self.enqueue(|state| state.input.write(id, data))
    }

    fn close_stdin(
        &self,
        id: Option<WriteId>,
    ) -> BoxFuture<'static, Result<WriteStatus, ProcessError>> {
        self.enqueue(|state| state.input.close(id))
    }

    fn resize(&self, size: TerminalSize) -> BoxFuture<'static, Result<(), ProcessError>> {
        let outcome = match &self.terminal {
            None => Err(ProcessError::NoTerminal(self.id.clone())),
            Some(_) if size.rows == 0 || size.cols == 0 => Err(ProcessError::EmptySize),
            Some(terminal) => {
                // Nothing to resize once the terminal is closed.
                if let Some(terminal) = terminal.upgrade()
                    && let Err(error) = stdio::resize(terminal.get_ref(), size)
                {
                    tracing::debug!(%error, "failed to resize terminal");
                }
                if let Some(durable) = &self.shared.durable {
                    let TerminalSize { rows, cols } = size;
                    durable.try_record(&JournalEvent::Resize { rows, cols });
                }
                Ok(())
            }
        };
        ready(outcome).boxed()
    }

    fn signal(&self, signal: ProcessSignal) -> BoxFuture<'static, Result<(), ProcessError>> {
        if let Some(child) = &self.shared.lock().child {
            child.signal(signal_number(signal));
        }
        ready(Ok(())).boxed()
    }

    fn terminate(&self, mode: TerminateMode) -> BoxFuture<'static, Result<bool, ProcessError>> {
        let mut state = self.shared.lock();
        let running = state.log().exit().is_none();
        if let Some(child) = state.child.clone() {
            if running {
                state.cause.get_or_insert(ExitCause::Terminated);
            }
            if let Some(durable) = &self.shared.durable {
                durable.try_record(&JournalEvent::Terminating {
                    cause: ExitCause::Terminated,
                    kill_at_boot_ms: kill_time_since_boot(mode),
                });
            }
            match mode {
                TerminateMode::Force => child.kill_tree(),
                TerminateMode::Graceful { timeout_ms } => {
                    child.signal(libc::SIGTERM);
                    // A stopped process handles SIGTERM only after it is continued.
                    child.signal(libc::SIGCONT);
                    let deadline = Instant::now().checked_add(Duration::from_millis(timeout_ms));
                    state.kill_at = [state.kill_at, deadline].into_iter().flatten().min();
                }
            }
        }
        drop(state);
        self.shared.wake_task.notify_one();
        ready(Ok(running)).boxed()
    }

    fn wait(
        &self,
        until: WaitUntil,
        limit: Option<Duration>,
    ) -> BoxFuture<'static, Result<ProcessStatus, ProcessError>> {
        let (shared, pid, started_at_ms) = (Arc::clone(&self.shared), self.pid, self.started_at_ms);
        async move {
            let reached = async {
                loop {
                    let recorded = shared.recorded.notified();
                    {
                        let state = shared.lock();
                        let is_reached = match until {
                            WaitUntil::Exited => state.log().exit().is_some(),
                            WaitUntil::Closed => state.log().is_closed(),
                        };
                        if is_reached {
                            return;
                        }
                    }
                    recorded.await;
                }
            };
            match limit {
                Some(limit) => {
                    let _ = timeout(limit, reached).await;
                }
                None => reached.await,
            }
            Ok(status(&shared.lock(), pid, started_at_ms))
        }
        .boxed()
    }

    fn usage(&self) -> Option<ResourceUsage> {
        let is_running = {
            let state = self.shared.lock();
            state.child.is_some() && state.log().exit().is_none()
        };
        if !is_running {
            return None;
        }
        let wall_ms = now_ms().saturating_sub(self.started_at_ms);
        Some(usage_of_tree(self.pid, wall_ms))
    }

    fn snapshot(&self) -> BoxFuture<'_, Result<OutputSnapshot, ProcessError>> {
        let snapshot = match &self.shared.archive {
            Some(archive) => {
                let stream_bytes = self.shared.lock().log().stream_bytes();
                archive.snapshot(stream_bytes)
            }
            None => self.shared.lock().log().snapshot(),
        };
        ready(Ok(snapshot)).boxed()
    }

    fn record_id(&self) -> Option<String> {
        let archive = self.shared.archive.as_ref();
        archive.map(|archive| archive.id.to_string())
    }

    fn as_any(&self) -> Option<&dyn Any> {
        Some(self)
    }

    fn record_detached(&self) {
        if let Some(durable) = &self.shared.durable {
            durable.try_record(&JournalEvent::Detached);
        }
    }

    fn read_times(&self, after: OutputSeq, max_bytes: usize) -> Vec<(OutputSeq, u64)> {
        let Some(archive) = &self.shared.archive else {
            return Vec::new();
        };
        let chunks = archive.reader.page(after, max_bytes).unwrap_or_default();
        let times = chunks
            .into_iter()
            .map(|timed| (timed.chunk.seq, timed.time_ms));
        times.collect()
    }

    fn release(&self) -> BoxFuture<'static, bool> {
        let shared = Arc::clone(&self.shared);
        let child = shared.durable.as_ref().and(shared.lock().child.clone());
        let Some(child) = child else {
            return ready(false).boxed();
        };
        // At once: the runtime may end before the future is polled.
        child.release();
        shared.lock().released = true;
        shared.wake_task.notify_one();
        async move {
            // The sender lives as long as `shared`, so waiting cannot fail.
            let mut stopped = shared.task_stopped.subscribe();
            drop(stopped.wait_for(|stopped| *stopped).await);
            // From now on the next server alone signals and kills it.
            shared.lock().child = None;
            true
        }
        .boxed()
    }
}

impl Drop for LocalProcess {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.dropped = true;
        if state.released {
            return;
        }
        if let Some(child) = state.child.clone() {
            state.cause.get_or_insert(ExitCause::Terminated);
            child.kill_tree();
        }
        drop(state);
        self.shared.wake_task.notify_one();
    }
}

fn status(state: &TaskState, pid: u32, started_at_ms: u64) -> ProcessStatus {
    ProcessStatus {
        exit: state.log().exit().cloned(),
        closed: state.log().is_closed(),
        tree_alive: state.child.is_some(),
        next_seq: state.log().next_seq(),
        retained_bytes: state.log().retained_bytes(),
        // A process that was lost before its start was recorded has none.
        os_pid: (pid != 0).then_some(pid),
        started_at_ms,
    }
}

/// Returns the number of a signal that a client may send.
fn signal_number(signal: ProcessSignal) -> i32 {
    match signal {
        ProcessSignal::Interrupt => libc::SIGINT,
        ProcessSignal::Terminate => libc::SIGTERM,
        ProcessSignal::Kill => libc::SIGKILL,
        ProcessSignal::Hangup => libc::SIGHUP,
        ProcessSignal::Quit => libc::SIGQUIT,
        ProcessSignal::Stop => libc::SIGSTOP,
        ProcessSignal::Continue => libc::SIGCONT,
        ProcessSignal::User1 => libc::SIGUSR1,
        ProcessSignal::User2 => libc::SIGUSR2,
    }
}

/// Returns when a graceful termination becomes a kill, in milliseconds since boot.
fn kill_time_since_boot(mode: TerminateMode) -> Option<u64> {
    let TerminateMode::Graceful { timeout_ms } = mode else {
        return None;
    };
    Some(since_boot_ms().saturating_add(timeout_ms))
}

/// Returns the time since boot in milliseconds. Changes of the wall clock do not affect it.
pub(crate) fn since_boot_ms() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    let nanos = u64::try_from(now.tv_nsec).unwrap_or(0);
    seconds
        .saturating_mul(1000)
        .saturating_add(nanos / 1_000_000)
}

#[derive(Debug)]
pub(crate) struct SharedState {
    state: Mutex<TaskState>,
    /// Journal of a durable process that runs.
    pub(crate) durable: Option<Arc<DurableRecord>>,
    /// Journal to read evicted output from.
    archive: Option<ProcessArchive>,
    /// Whether the process task has stopped.
    pub(crate) task_stopped: watch::Sender<bool>,
    /// Wakes readers and waiters after the log has changed.
    pub(crate) recorded: Notify,
    /// Wakes the process task: stdin was queued, a follower caught up, or a deadline changed.
    pub(crate) wake_task: Notify,
}

#[derive(Debug)]
pub(crate) struct TaskState {
    followed: FollowedLog,
    pub(crate) input: Box<dyn ChildInput>,
    /// The supervised child, while any process of the tree may be alive.
    pub(crate) child: Option<Arc<SupervisedChild>>,
    /// Why the process is being terminated, once that was requested.
    pub(crate) cause: Option<ExitCause>,
    /// When a graceful termination becomes a kill.
    pub(crate) kill_at: Option<Instant>,
    /// Whether the last handle was dropped.
    pub(crate) dropped: bool,
    /// Whether this server stops, and the durable process goes on without it.
    pub(crate) released: bool,
}

impl TaskState {
    pub(crate) fn log(&self) -> &OutputLog {
        self.followed.log()
    }
}

impl SharedState {
    /// Creates the state of a process; a durable one has a journal. Without a child it has ended,
    /// and only the journal is left.
    pub(crate) fn new(
        log: OutputLog,
        input: Box<dyn ChildInput>,
        child: Option<Arc<SupervisedChild>>,
        journal: Option<ProcessArchive>,
    ) -> Self {
        let state = TaskState {
            followed: FollowedLog::new(log),
            input,
            child,
            cause: None,
            kill_at: None,
            dropped: false,
            released: false,
        };
        Self {
            state: Mutex::new(state),
            durable: journal.as_ref().and_then(|journal| journal.live.clone()),
            archive: journal,
            task_stopped: watch::Sender::new(false),
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
        let (recorded, next) = {
            let mut state = self.lock();
            (state.followed.record(record), state.log().next_seq())
        };
        if let Some(durable) = &self.durable {
            durable.set_next_seq(next);
        }
        self.recorded.notify_waiters();
        recorded
    }

    /// Returns the last event that everyone who must not lose output has consumed.
    pub(crate) fn protected_after(&self) -> Option<OutputSeq> {
        self.lock().followed.protected_after()
    }

    /// Reads one page from the archive. Its size is bounded, even if the caller sets no limit: such
    /// a caller expects everything, so the page then ends before an exit or close that it does not
    /// reach.
    fn archived_page(&self, after: OutputSeq, max_bytes: Option<usize>) -> LogPage {
        let mut chunks = self.read_archive(after, max_bytes.unwrap_or(MAX_PAGE_BYTES));
        let state = self.lock();
        let log = state.log();
        let Some(last) = chunks.last().map(|chunk| chunk.seq) else {
            // The archive has lost what the memory has evicted.
            return log.page(after, max_bytes);
        };
        if max_bytes.is_none() && !log.needs_archive(last) {
            let mut page = log.page(last, None);
            chunks.append(&mut page.chunks);
            return LogPage { chunks, ..page };
        }
        let mut page = log.page(OutputSeq(u64::MAX - 1), Some(1));
        page.next_seq = last.next();
        page.chunks = chunks;
        if max_bytes.is_none() {
            page.closed = false;
            if page.exit_seq.is_some_and(|seq| seq > last) {
                (page.exit, page.exit_seq) = (None, None);
            }
        }
        page
    }

    /// Reads output from the archive. Blocks briefly on the disk; recent output is in memory.
    fn read_archive(&self, after: OutputSeq, max_bytes: usize) -> Vec<OutputChunk> {
        let Some(archive) = &self.archive else {
            return Vec::new();
        };
        archive.read(after, max_bytes)
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
    /// Chunks that were read from the archive, which are next.
    archived: VecDeque<OutputChunk>,
}

impl FollowerEvents {
    pub(crate) fn new(shared: &Arc<SharedState>, follow: FollowOptions) -> Self {
        let id = shared.lock().followed.follow(follow);
        Self {
            shared: Arc::clone(shared),
            id,
            archived: VecDeque::new(),
        }
    }

    /// Returns the first chunk of the archive after `cursor`.
    fn archived_chunk(&mut self, cursor: OutputSeq) -> Option<OutputChunk> {
        while self
            .archived
            .pop_front_if(|chunk| chunk.seq <= cursor)
            .is_some()
        {}
        if self.archived.is_empty() {
            let chunks = self
                .shared
                .read_archive(cursor, limits::FOLLOW_WINDOW_BYTES);
            self.archived = chunks.into();
        }
        self.archived.front().cloned()
    }
}

impl Stream for FollowerEvents {
    type Item = ExecProcessEvent;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<ExecProcessEvent>> {
        loop {
            let Some(cursor) = self.shared.lock().followed.archived_cursor(self.id) else {
                break;
            };
            let chunk = self.archived_chunk(cursor);
            let event = self.shared.lock().followed.deliver_archived(self.id, chunk);
            if let Some(event) = event {
                return Poll::Ready(Some(ExecProcessEvent::from(event)));
            }
        }
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
