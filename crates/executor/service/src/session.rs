//! Sessions: who owns which process, and for how long without a connection.

mod network_watcher;
mod retention;
mod session_process;
mod session_table;

use std::{
    collections::BTreeMap,
    convert::Infallible,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::{Duration, Instant},
};

use exec_core::{
    lease::{Lease, ResumeError},
    log::{Follow, From, Pace},
};
use exec_env::environment::Environment;
use exec_transport::link::Principal;
use exec_wire::{
    id::{ProcessId, SessionId},
    limits,
    process::{Acknowledged, ProcessSummary, TerminateMode, WaitUntil},
};
use tokio::{
    sync::{Notify, oneshot},
    time::timeout,
};

pub(crate) use self::{
    network_watcher::{ClientNetworkWatcher, PolicyClient},
    retention::{RetentionMode, UnackedOutput},
    session_process::{OwnerCell, ProcessLookup, ProcessSpan, SessionProcess, StartReservation},
    session_table::SessionTable,
};
use self::{
    retention::RetainedProcesses,
    session_process::{ProcessEntry, ProcessTable},
};
use crate::{
    meters::{Levels, Meters},
    send_queue::SendQueue,
};

/// A session. When the last clone is dropped, the trees of its processes are killed.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) id: SessionId,
    pub(crate) environment: Environment,
    /// Who opened it, if that has a name.
    pub(super) principal: Option<Principal>,
    session_limits: SessionLimits,
    meters: Arc<Meters>,
    state: Mutex<State>,
}

/// What a session may hold, and for how long.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SessionLimits {
    /// Processes that may live at once.
    pub(crate) max_processes: usize,
    /// How long a finished process stays readable.
    pub(crate) retention: Duration,
}

#[derive(Debug)]
struct State {
    lease: Lease,
    send_queue: Option<Arc<SendQueue>>,
    /// What the client counts on that is attached, or was.
    retention_mode: RetentionMode,
    /// Until when what it has not acknowledged is kept without a connection.
    unacked_until: Option<Instant>,
    table: ProcessTable,
    finished: RetainedProcesses,
    /// Detached processes among the finished whose id is being given away. They are back in the table
    /// if nothing starts by it.
    displaced: BTreeMap<ProcessId, Arc<SessionProcess>>,
    /// Processes that are over and forgotten, but whose descendants live.
    orphaned_trees: Vec<Arc<SessionProcess>>,
    /// Processes that the server took over. Their events go on being sent to this session's client.
    adopted: Vec<Weak<SessionProcess>>,
}

/// What becomes of a session without a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DetachDeadlines {
    /// When what its client has not acknowledged is let go of, if that is kept.
    pub(crate) unacked_until: Option<Instant>,
    /// When it ends.
    pub(crate) ends: Instant,
}

/// Why a process gets no place in a table.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub(crate) enum AdmitError {
    /// Caller: the id names another one.
    #[error("process {0} already exists")]
    Exists(ProcessId),
    /// Caller: there are too many.
    #[error("session already has {0} processes, which is its limit")]
    TooMany(usize),
    /// Caller: it is forgotten by now.
    #[error("unknown process id {0}")]
    Gone(ProcessId),
}

impl Session {
    pub(crate) fn new(
        id: SessionId,
        environment: Environment,
        principal: Option<Principal>,
        lease: Lease,
        session_limits: SessionLimits,
        meters: Arc<Meters>,
    ) -> Self {
        let state = State {
            lease,
            send_queue: None,
            retention_mode: RetentionMode::RetainedOnly,
            unacked_until: None,
            table: ProcessTable::new(),
            finished: RetainedProcesses::default(),
            displaced: BTreeMap::new(),
            orphaned_trees: Vec::new(),
            adopted: Vec::new(),
        };
        Self {
            id,
            environment,
            principal,
            session_limits,
            meters,
            state: Mutex::new(state),
        }
    }

    /// Takes a place for a process that is about to start. A detached one that has finished gives its
    /// id away when it has started: it is kept for long, and people use a name again.
    pub(crate) fn admit(self: &Arc<Self>, id: &ProcessId) -> Result<StartReservation, AdmitError> {
        let mut state = self.lock();
        let displaced = match state.table.get(id) {
            None => None,
            Some(ProcessEntry::Started(process))
                if process.is_detached() && state.finished.contains(process) =>
            {
                Some(Arc::clone(process))
            }
            Some(_) => return Err(AdmitError::Exists(id.clone())),
        };
        state
            .orphaned_trees
            .retain(|process| process.handle.status().tree_alive);
        let left = displaced
            .iter()
            .filter(|process| process.handle.status().tree_alive);
        if state.live_count() + left.count() >= self.session_limits.max_processes {
            return Err(AdmitError::TooMany(self.session_limits.max_processes));
        }
        if let Some(process) = displaced {
            state.displaced.insert(id.clone(), process);
        }
        let cancel = Arc::new(Notify::new());
        state
            .table
            .insert(id.clone(), ProcessEntry::Starting(Arc::clone(&cancel)));
        Ok(StartReservation {
            session: Arc::clone(self),
            id: id.clone(),
            cancel,
            started: false,
        })
    }

    pub(crate) fn find(&self, id: &ProcessId) -> ProcessLookup {
        ProcessLookup::of(self.lock().table.get(id))
    }

    pub(crate) fn list(&self) -> Vec<ProcessSummary> {
        let processes: Vec<_> = self.started().collect();
        processes.iter().map(|process| process.summary()).collect()
    }

    /// Connects a new session to its first client.
    pub(crate) fn attach(&self, send_queue: Arc<SendQueue>, retention_mode: RetentionMode) {
        let mut state = self.lock();
        state.send_queue = Some(send_queue);
        state.retention_mode = retention_mode;
    }

    /// Returns the way to the client, while one is connected.
    pub(super) fn send_queue(&self) -> Option<Arc<SendQueue>> {
        self.lock().send_queue.clone()
    }

    /// Connects a detached session to a client that came back. Its processes report there from
    /// now on; what it missed it reads.
    pub(crate) fn resume(
        &self,
        send_queue: &Arc<SendQueue>,
        retention_mode: RetentionMode,
        now: Instant,
    ) -> Result<(), ResumeError> {
        let mut state = self.lock();
        state.lease.handle_resume(now)?;
        state.send_queue = Some(Arc::clone(send_queue));
        state.retention_mode = retention_mode;
        state.unacked_until = None;
        match retention_mode {
            RetentionMode::RetainedOnly => state.release_unacked(),
            RetentionMode::UntilAcknowledged => {
                state.started().for_each(|process| process.hold_unacked())
            }
        }
        let adopted: Vec<_> = state.adopted.iter().filter_map(Weak::upgrade).collect();
        drop(state);
        for process in self.started().chain(adopted) {
            follow(send_queue, &process, From::Now);
        }
        Ok(())
    }

    /// The connection is gone. Returns what happens when, unless its client comes back.
    pub(crate) fn detach(&self, now: Instant) -> Option<DetachDeadlines> {
        let mut state = self.lock();
        state.send_queue = None;
        state.lease.handle_disconnect(now);
        if state.retention_mode == RetentionMode::UntilAcknowledged {
            state.unacked_until = Some(now + limits::UNACKNOWLEDGED_HOLD);
        }
        let unacked_until = state.unacked_until;
        let ends = state.lease.poll_timeout()?;
        Some(DetachDeadlines {
            unacked_until,
            ends,
        })
    }

    /// Lets go of what the client has not acknowledged, if it was away for too long.
    pub(crate) fn expire_unacked(&self, now: Instant) {
        let mut state = self.lock();
        if state.unacked_until.is_some_and(|until| until <= now) {
            state.unacked_until = None;
            state.release_unacked();
        }
    }

    /// Lets go of what was kept for a client that is away, and will not be back.
    pub(crate) fn abandon_absent_client(&self) {
        let mut state = self.lock();
        if state.send_queue.is_none() {
            state.release_unacked();
        }
    }

    /// The client has taken events of a process. One that is not known, or that nothing is kept of,
    /// is ignored.
    pub(crate) fn acknowledge(&self, acknowledged: &Acknowledged) {
        if let ProcessLookup::Started(process) = self.find(&acknowledged.process_id)
            && process.acknowledge(acknowledged.seq)
        {
            let mut state = self.lock();
            state.finished.recount(|one| Arc::ptr_eq(one, &process));
        }
    }

    /// Adds what is in this table to what is in others.
    pub(crate) fn add_to(&self, levels: &mut Levels) {
        let (processes, send_queue) = {
            let state = self.lock();
            let processes: Vec<_> = state.started().cloned().collect();
            (processes, state.send_queue.clone())
        };
        for process in processes {
            let status = process.handle.status();
            levels.retained_bytes += status.retained_bytes;
            if status.exit.is_some() {
                levels.processes_finished += 1;
            } else {
                levels.processes_running += 1;
                levels.detached_running += usize::from(process.is_detached());
            }
        }
        levels.outbox_bytes += send_queue.map_or(0, |send_queue| send_queue.buffered_bytes());
    }

    /// Tells whether a client is connected.
    pub(crate) fn is_attached(&self) -> bool {
        self.lock().send_queue.is_some()
    }

    /// Returns when it ends, if nobody is connected and nothing runs, be it what a process has left
    /// behind: it is there only for a client that may want to come back.
    pub(crate) fn evictable_until(&self) -> Option<Instant> {
        let state = self.lock();
        let ends = state.lease.poll_timeout()?;
        let over = |process: &Arc<SessionProcess>| {
            let status = process.handle.status();
            status.exit.is_some() && !status.tree_alive
        };
        let idle = |entry: &ProcessEntry| match entry {
            ProcessEntry::Starting(_) => false,
            ProcessEntry::Started(process) => over(process),
        };
        let evicted = state.table.values().all(idle) && state.orphaned_trees.iter().all(over);
        evicted.then_some(ends)
    }

    /// Tells whether the time without a connection is up.
    pub(crate) fn is_expired(&self, now: Instant) -> bool {
        self.lock()
            .lease
            .poll_timeout()
            .is_some_and(|deadline| deadline <= now)
    }

    /// Asks every process to end within the grace period.
    pub(crate) fn terminate_all(&self, mode: TerminateMode) {
        for process in self.started() {
            drop(process.handle.terminate(mode));
        }
    }

    /// Waits until every process has ended, or its output has, too. Holds none of them meanwhile: one
    /// that is let go of is to end.
    pub(crate) async fn wait_all(&self, until: WaitUntil) {
        let waits = self
            .started()
            .map(|process| process.handle.wait(until, None));
        let waits: Vec<_> = waits.collect();
        for ended in waits {
            drop(ended.await);
        }
    }

    /// Lets go of every process: their trees are killed.
    pub(crate) fn clear(&self) {
        let mut state = self.lock();
        let (table, orphaned_trees) = (
            std::mem::take(&mut state.table),
            std::mem::take(&mut state.orphaned_trees),
        );
        let finished = std::mem::take(&mut state.finished);
        let displaced = std::mem::take(&mut state.displaced);
        for entry in table.values() {
            if let ProcessEntry::Starting(cancel) = entry {
                cancel.notify_one();
            }
        }
        drop(state);
        drop((table, finished, displaced, orphaned_trees));
    }

    fn started(&self) -> impl Iterator<Item = Arc<SessionProcess>> + use<> {
        let started: Vec<_> = self.lock().started().cloned().collect();
        started.into_iter()
    }

    /// Takes a process of another session into this table, which is the server's: it outlives that
    /// session. The client there goes on getting its events.
    pub(crate) fn take_over(
        self: &Arc<Self>,
        from: &Self,
        process: &Arc<SessionProcess>,
    ) -> Result<(), AdmitError> {
        let id = process.handle.id();
        let mut state = self.lock();
        if state.table.contains_key(id) {
            return Err(AdmitError::Exists(id.clone()));
        }
        if state.live_count() >= self.session_limits.max_processes {
            return Err(AdmitError::TooMany(self.session_limits.max_processes));
        }
        state
            .table
            .insert(id.clone(), ProcessEntry::Started(Arc::clone(process)));
        drop(state);
        // In this order: whoever retains it when it ends finds it in the table of its owner.
        process.owner.detach(self);
        let released = from.release(process);
        process.release_unacked();
        match released {
            ReleaseOutcome::Running => {}
            ReleaseOutcome::Finished => self.retain_finished(process),
            // Its session ended meanwhile, or has forgotten it.
            ReleaseOutcome::Missing => {
                self.lock().table.remove(id);
                return Err(AdmitError::Gone(id.clone()));
            }
        }
        Ok(())
    }

    /// Gives a process away.
    fn release(&self, process: &Arc<SessionProcess>) -> ReleaseOutcome {
        let mut state = self.lock();
        if !state.contains(process) {
            return ReleaseOutcome::Missing;
        }
        state.table.remove(process.handle.id());
        state.adopted.retain(|one| one.strong_count() > 0);
        state.adopted.push(Arc::downgrade(process));
        match state.finished.remove(process) {
            true => ReleaseOutcome::Finished,
            false => ReleaseOutcome::Running,
        }
    }

    /// Drops a process from the table some time after its output ended.
    fn watch_exit(process: &Arc<SessionProcess>, span: ProcessSpan, meters: Arc<Meters>) {
        let exited = process.handle.wait(WaitUntil::Exited, None);
        let closed = process.handle.wait(WaitUntil::Closed, None);
        let process = Arc::downgrade(process);
        tokio::spawn(async move {
            let exited = exited.await;
            span.end(exited.ok().and_then(|status| status.exit), &meters);
            drop(closed.await);
            let Some(process) = process.upgrade() else {
                return;
            };
            if let Some(watcher) = &process.watcher {
                watcher.end();
            }
            if let Some(session) = process.owner.session() {
                session.retain_finished(&process);
            }
        });
    }

    /// Keeps a finished process for a while. If another table took it over, it is kept there.
    fn retain_finished(self: &Arc<Self>, process: &Arc<SessionProcess>) {
        let mut owner = Arc::clone(self);
        let mut evicted_rx = loop {
            if let Some(evicted_rx) = owner.mark_finished(process) {
                break evicted_rx;
            }
            match process.owner.session() {
                Some(session) if !Arc::ptr_eq(&session, &owner) => owner = session,
                _ => return,
            }
        };
        let retention = owner.session_limits.retention;
        let weak = (Arc::downgrade(&owner), Arc::downgrade(process));
        tokio::spawn(async move {
            loop {
                // It may be forgotten for another reason, long before that.
                if timeout(retention, &mut evicted_rx).await.is_ok() {
                    return;
                }
                let (Some(session), Some(process)) = (weak.0.upgrade(), weak.1.upgrade()) else {
                    return;
                };
                // What somebody may yet ask for again does not fall out for its age.
                if !process.has_unacked() {
                    session.forget(&process);
                    return;
                }
            }
        });
    }

    /// Counts a process among the finished, and forgets others of them if they are too many. Returns
    /// what resolves when it is forgotten; nothing if it is not in this table.
    fn mark_finished(
        &self,
        process: &Arc<SessionProcess>,
    ) -> Option<oneshot::Receiver<Infallible>> {
        // Declared before the lock is taken, so that processes are dropped behind it.
        let mut forgotten = Vec::new();
        let mut state = self.lock();
        if !state.contains(process) {
            return None;
        }
        let evicted_rx = state.finished.push(Arc::clone(process));
        while let Some(process) = state.finished.next_eviction().cloned() {
            state.forget(&process);
            forgotten.push(process);
        }
        Some(evicted_rx)
    }

    /// Forgets a finished process. Returns `false` if it has not finished.
    pub(crate) fn forget(&self, process: &Arc<SessionProcess>) -> bool {
        self.lock().forget(process)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a process was that a session gave away.
enum ReleaseOutcome {
    Running,
    Finished,
    /// It was not in the table.
    Missing,
}

impl State {
    /// Tells whether a process is in the table.
    fn contains(&self, process: &Arc<SessionProcess>) -> bool {
        let entry = self.table.get(process.handle.id());
        matches!(entry, Some(ProcessEntry::Started(one)) if Arc::ptr_eq(one, process))
    }

    fn started(&self) -> impl Iterator<Item = &Arc<SessionProcess>> {
        self.table.values().filter_map(|entry| match entry {
            ProcessEntry::Starting(_) => None,
            ProcessEntry::Started(process) => Some(process),
        })
    }

    /// Counts the processes that live, or whose descendants do.
    fn live_count(&self) -> usize {
        let truncate_for_log = self.finished.len() - self.displaced.len();
        // What those leave whose id is given away is counted already: nothing is refused later.
        let left = self
            .displaced
            .values()
            .filter(|process| process.handle.status().tree_alive);
        self.table.len() - truncate_for_log + left.count() + self.orphaned_trees.len()
    }

    /// Lets go of whatever was not acknowledged.
    fn release_unacked(&mut self) {
        self.started().for_each(|process| process.release_unacked());
        self.finished.recount(|_| true);
    }

    /// Drops a finished process from the table; its id is free again. Returns `false` if it has not
    /// finished.
    fn forget(&mut self, process: &Arc<SessionProcess>) -> bool {
        if !self.finished.remove(process) {
            return false;
        }
        let id = process.handle.id();
        if self.displaced.remove(id).is_none() {
            self.table.remove(id);
        }
        process.release_unacked();
        if process.handle.status().tree_alive {
            self.orphaned_trees.push(Arc::clone(process));
        }
        true
    }
}

/// Sends the events of a process to a connection.
pub(crate) fn follow(send_queue: &SendQueue, process: &SessionProcess, from: From) {
    // A detached process is not held up by those who watch it.
    let pace = if process.is_detached() {
        Pace::Free
    } else {
        Pace::Held
    };
    let events = process.handle.follow(Follow { from, pace });
    send_queue.follow(process.handle.id().clone(), process.family, events);
}
