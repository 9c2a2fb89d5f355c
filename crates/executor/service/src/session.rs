//! Sessions: a process table and a lease. The server's table of detached processes is a session
//! that never expires.
//!
//! A session outlives its connection until the lease expires. Elsewhere: [`retention`] bounds
//! finished processes and holds unacknowledged output.

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
    output_log::{BackpressureMode, FollowOptions, FollowStart},
};
use exec_env::environment::Environment;
use exec_transport::link::Principal;
use exec_wire::{
    id::{ProcessId, SessionId},
    limits,
    process::{AcknowledgeProcess, ProcessSummary, TerminateMode, WaitUntil},
};
use tokio::{
    sync::{Notify, oneshot},
    time::timeout,
};

use self::{
    retention::RetainedProcesses,
    session_process::{ProcessEntry, ProcessTable},
};
pub(crate) use self::{
    retention::{RetentionMode, UnackedOutput},
    session_process::{OwnerCell, ProcessLookup, ProcessSpan, SessionProcess, StartReservation},
    session_table::SessionTable,
};
use crate::{
    metrics::{GaugeSnapshot, ServiceMetrics},
    send_queue::SendQueue,
};

/// A session. Dropping the last reference kills the process trees.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) id: SessionId,
    pub(crate) environment: Environment,
    /// Authenticated client that opened the session.
    pub(super) principal: Option<Principal>,
    session_limits: SessionLimits,
    metrics: Arc<ServiceMetrics>,
    state: Mutex<State>,
}

/// Process limit and retention time of a session.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SessionLimits {
    /// Maximum number of live processes.
    pub(crate) max_processes: usize,
    /// How long a finished process stays readable.
    pub(crate) retention: Duration,
}

#[derive(Debug)]
struct State {
    lease: Lease,
    send_queue: Option<Arc<SendQueue>>,
    /// Retention mode of the current or last client.
    retention_mode: RetentionMode,
    /// When unacknowledged output of an absent client is released.
    unacked_until: Option<Instant>,
    table: ProcessTable,
    finished: RetainedProcesses,
    /// Finished detached processes with an id that a new start reuses. They return to the table if
    /// the start fails.
    displaced: BTreeMap<ProcessId, Arc<SessionProcess>>,
    /// Processes that were evicted while descendants of their exited root are alive.
    orphaned_trees: Vec<Arc<SessionProcess>>,
    /// Processes that the server took over. The session's client still receives their events.
    handed_over: Vec<Weak<SessionProcess>>,
}

/// Deadlines of a session without a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DetachDeadlines {
    /// When unacknowledged output is released, if it is held.
    pub(crate) unacked_until: Option<Instant>,
    /// When the session expires.
    pub(crate) expires_at: Instant,
}

/// Why a process cannot enter a table.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub(crate) enum AdmitError {
    /// Caller: the id is in use.
    #[error("process {0} already exists")]
    Exists(ProcessId),
    /// Caller: the session is at its limit.
    #[error("session is at its limit of {0} processes")]
    TooMany(usize),
    /// Caller: the process was evicted.
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
        metrics: Arc<ServiceMetrics>,
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
            handed_over: Vec::new(),
        };
        Self {
            id,
            environment,
            principal,
            session_limits,
            metrics,
            state: Mutex::new(state),
        }
    }

    /// Reserves an id for a process that is about to start. A finished detached process is
    /// displaced by a successful start: it is retained for long, and people reuse names.
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
        let live_displaced = displaced
            .iter()
            .filter(|process| process.handle.status().tree_alive);
        if state.live_count() + live_displaced.count() >= self.session_limits.max_processes {
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

    /// Attaches a new session to its first client.
    pub(crate) fn attach(&self, send_queue: Arc<SendQueue>, retention_mode: RetentionMode) {
        let mut state = self.lock();
        state.send_queue = Some(send_queue);
        state.retention_mode = retention_mode;
    }

    /// Returns the send queue of the attached client.
    pub(super) fn send_queue(&self) -> Option<Arc<SendQueue>> {
        self.lock().send_queue.clone()
    }

    /// Attaches a detached session to a client that resumes it. Events go there from now on; the
    /// client reads missed output itself.
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
        let handed_over: Vec<_> = state.handed_over.iter().filter_map(Weak::upgrade).collect();
        drop(state);
        for process in self.started().chain(handed_over) {
            follow(send_queue, &process, FollowStart::Now);
        }
        Ok(())
    }

    /// Detaches the session from its lost connection. Returns its deadlines unless the client
    /// resumes.
    pub(crate) fn detach(&self, now: Instant) -> Option<DetachDeadlines> {
        let mut state = self.lock();
        state.send_queue = None;
        state.lease.handle_disconnect(now);
        if state.retention_mode == RetentionMode::UntilAcknowledged {
            state.unacked_until = Some(now + limits::UNACKNOWLEDGED_RETENTION);
        }
        let unacked_until = state.unacked_until;
        let expires_at = state.lease.poll_timeout()?;
        Some(DetachDeadlines {
            unacked_until,
            expires_at,
        })
    }

    /// Releases unacknowledged output if the client has been absent for too long.
    pub(crate) fn expire_unacked(&self, now: Instant) {
        let mut state = self.lock();
        if state.unacked_until.is_some_and(|until| until <= now) {
            state.unacked_until = None;
            state.release_unacked();
        }
    }

    /// Releases unacknowledged output of an absent client when the server shuts down.
    pub(crate) fn abandon_absent_client(&self) {
        let mut state = self.lock();
        if state.send_queue.is_none() {
            state.release_unacked();
        }
    }

    /// Moves the ack cursor of a process. Ignores unknown processes and those without
    /// unacknowledged output.
    pub(crate) fn acknowledge(&self, acknowledged: &AcknowledgeProcess) {
        if let ProcessLookup::Started(process) = self.find(&acknowledged.process_id)
            && process.acknowledge(acknowledged.seq)
        {
            let mut state = self.lock();
            state.finished.recount(|other| Arc::ptr_eq(other, &process));
        }
    }

    /// Adds the gauges of this session to a snapshot.
    pub(crate) fn add_to(&self, gauges: &mut GaugeSnapshot) {
        let (processes, send_queue) = {
            let state = self.lock();
            let processes: Vec<_> = state.started().cloned().collect();
            (processes, state.send_queue.clone())
        };
        for process in processes {
            let status = process.handle.status();
            gauges.retained_bytes += status.retained_bytes;
            if status.exit.is_some() {
                gauges.processes_finished += 1;
            } else {
                gauges.processes_running += 1;
                gauges.detached_running += usize::from(process.is_detached());
            }
        }
        gauges.send_queue_bytes += send_queue.map_or(0, |send_queue| send_queue.buffered_bytes());
    }

    /// Returns whether a client is attached.
    pub(crate) fn is_attached(&self) -> bool {
        self.lock().send_queue.is_some()
    }

    /// Returns the expiry of a session that may be evicted: no client is attached and no process or
    /// descendant is alive.
    pub(crate) fn evictable_until(&self) -> Option<Instant> {
        let state = self.lock();
        let expires_at = state.lease.poll_timeout()?;
        let has_ended = |process: &Arc<SessionProcess>| {
            let status = process.handle.status();
            status.exit.is_some() && !status.tree_alive
        };
        let idle = |entry: &ProcessEntry| match entry {
            ProcessEntry::Starting(_) => false,
            ProcessEntry::Started(process) => has_ended(process),
        };
        let evictable =
            state.table.values().all(idle) && state.orphaned_trees.iter().all(has_ended);
        evictable.then_some(expires_at)
    }

    /// Returns whether the lease has expired.
    pub(crate) fn is_expired(&self, now: Instant) -> bool {
        self.lock()
            .lease
            .poll_timeout()
            .is_some_and(|deadline| deadline <= now)
    }

    /// Terminates every process with the given mode.
    pub(crate) fn terminate_all(&self, mode: TerminateMode) {
        for process in self.started() {
            drop(process.handle.terminate(mode));
        }
    }

    /// Waits until every process has exited or closed its output. Holds no reference to the
    /// processes meanwhile, so that dropping them still kills them.
    pub(crate) async fn wait_all(&self, until: WaitUntil) {
        let waits = self
            .started()
            .map(|process| process.handle.wait(until, None));
        let waits: Vec<_> = waits.collect();
        for wait in waits {
            drop(wait.await);
        }
    }

    /// Drops every process, which kills the process trees.
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

    /// Moves a process of another session into this table, which is the server's. The process
    /// outlives that session, and the client there still receives its events.
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
        // Change the owner first: a task that retains the process at its exit looks it up in the
        // owner's table.
        process.owner.detach(self);
        let released = from.release(process);
        process.release_unacked();
        match released {
            ReleaseOutcome::Running => {}
            ReleaseOutcome::Finished => self.retain_finished(process),
            // The session ended or evicted the process meanwhile.
            ReleaseOutcome::Missing => {
                self.lock().table.remove(id);
                return Err(AdmitError::Gone(id.clone()));
            }
        }
        Ok(())
    }

    /// Removes a process from this table because the server takes it over.
    fn release(&self, process: &Arc<SessionProcess>) -> ReleaseOutcome {
        let mut state = self.lock();
        if !state.contains(process) {
            return ReleaseOutcome::Missing;
        }
        state.table.remove(process.handle.id());
        state
            .handed_over
            .retain(|process| process.strong_count() > 0);
        state.handed_over.push(Arc::downgrade(process));
        match state.finished.remove(process) {
            true => ReleaseOutcome::Finished,
            false => ReleaseOutcome::Running,
        }
    }

    /// Records the exit of a process and retains it after its output has closed.
    fn watch_exit(process: &Arc<SessionProcess>, span: ProcessSpan, metrics: Arc<ServiceMetrics>) {
        let exited = process.handle.wait(WaitUntil::Exited, None);
        let closed = process.handle.wait(WaitUntil::Closed, None);
        let process = Arc::downgrade(process);
        tokio::spawn(async move {
            let exited = exited.await;
            span.end(exited.ok().and_then(|status| status.exit), &metrics);
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

    /// Retains a finished process for the retention time, in the table of its current owner.
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
                // An eviction ends the wait early.
                if timeout(retention, &mut evicted_rx).await.is_ok() {
                    return;
                }
                let (Some(session), Some(process)) = (weak.0.upgrade(), weak.1.upgrade()) else {
                    return;
                };
                // Unacknowledged output does not expire with age.
                if !process.has_unacked() {
                    session.evict(&process);
                    return;
                }
            }
        });
    }

    /// Moves a process to the retained ones and evicts others beyond the limits. Returns a receiver
    /// that resolves at its eviction, or `None` if it is not in this table.
    fn mark_finished(
        &self,
        process: &Arc<SessionProcess>,
    ) -> Option<oneshot::Receiver<Infallible>> {
        // Declared before the guard, so that processes are dropped after the lock is released.
        let mut evicted = Vec::new();
        let mut state = self.lock();
        if !state.contains(process) {
            return None;
        }
        let evicted_rx = state.finished.push(Arc::clone(process));
        while let Some(process) = state.finished.next_eviction().cloned() {
            state.evict(&process);
            evicted.push(process);
        }
        Some(evicted_rx)
    }

    /// Evicts a finished process. Returns `false` if it has not finished.
    pub(crate) fn evict(&self, process: &Arc<SessionProcess>) -> bool {
        self.lock().evict(process)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// State of a process when a session released it.
enum ReleaseOutcome {
    Running,
    Finished,
    /// The process was not in the table.
    Missing,
}

impl State {
    /// Returns whether a process is in the table.
    fn contains(&self, process: &Arc<SessionProcess>) -> bool {
        let entry = self.table.get(process.handle.id());
        matches!(entry, Some(ProcessEntry::Started(other)) if Arc::ptr_eq(other, process))
    }

    fn started(&self) -> impl Iterator<Item = &Arc<SessionProcess>> {
        self.table.values().filter_map(|entry| match entry {
            ProcessEntry::Starting(_) => None,
            ProcessEntry::Started(process) => Some(process),
        })
    }

    /// Counts processes that are alive or have live descendants.
    fn live_count(&self) -> usize {
        let retained = self.finished.len() - self.displaced.len();
        // Count displaced processes with live descendants now, so that a later eviction cannot
        // exceed the limit.
        let live_displaced = self
            .displaced
            .values()
            .filter(|process| process.handle.status().tree_alive);
        self.table.len() - retained + live_displaced.count() + self.orphaned_trees.len()
    }

    /// Releases all unacknowledged output.
    fn release_unacked(&mut self) {
        self.started().for_each(|process| process.release_unacked());
        self.finished.recount(|_| true);
    }

    /// Removes a finished process and frees its id. Returns `false` if it has not finished.
    fn evict(&mut self, process: &Arc<SessionProcess>) -> bool {
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
pub(crate) fn follow(send_queue: &SendQueue, process: &SessionProcess, from: FollowStart) {
    // Clients do not apply backpressure to a detached process.
    let pace = if process.is_detached() {
        BackpressureMode::Skip
    } else {
        BackpressureMode::Pause
    };
    let events = process.handle.follow(FollowOptions {
        start: from,
        backpressure: pace,
    });
    send_queue.follow(process.handle.id().clone(), process.family, events);
}
