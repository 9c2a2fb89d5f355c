//! Sessions: a process table and a lease. The server's table of detached processes is a session
//! that never expires.
//!
//! A session outlives its connection until the lease expires. Elsewhere: [`process_records`]
//! has the state of each process and evicts finished ones; [`retention`] holds unacknowledged
//! output.

mod process_records;
mod retention;
mod session_process;
mod session_table;
mod tunnel_registry;

use std::{
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError, atomic::AtomicBool},
    time::{Duration, Instant},
};

use exec_core::{
    lease::{Lease, ResumeError},
    output_log::{BackpressureMode, FollowOptions, FollowStart},
};
use exec_env::{
    durable::{DurableOwner, DurableProcess, DurableSession, DurableState, HistorySelection},
    environment::Environment,
    process::ExecProcess,
};
use exec_transport::link::Principal;
use exec_wire::{
    id::{ProcessId, SessionId},
    limits,
    process::{AcknowledgeProcess, ProcessSummary, TerminateMode, WaitUntil},
};
use tokio::{sync::Notify, task::AbortHandle, time::sleep};

use self::process_records::{ProcessRecord, ProcessRecords, all_of};
pub(crate) use self::{
    retention::{RetentionMode, UnackedOutput},
    session_process::{
        OwnerCell, ProcessLookup, ProcessSpan, SessionProcess, StartReservation, owner_of, state_of,
    },
    session_table::SessionTable,
    tunnel_registry::TunnelRegistry,
};
use crate::{
    connection::MethodFamily,
    connection_files::AbortOnDrop,
    metrics::{GaugeSnapshot, ServiceMetrics},
    send_queue::SendQueue,
};

/// A session. Dropping the last reference kills the process trees.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) id: SessionId,
    pub(crate) environment: Environment,
    pub(crate) tunnels: Arc<TunnelRegistry>,
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
    /// Whether the session is saved, so that a later server restores it.
    saved: bool,
    /// When unacknowledged output of an absent client is released.
    unacked_until: Option<Instant>,
    processes: ProcessRecords,
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
            saved: false,
            unacked_until: None,
            processes: ProcessRecords::default(),
        };
        Self {
            id,
            tunnels: Arc::default(),
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
        let cancel = Arc::new(Notify::new());
        let max_processes = self.session_limits.max_processes;
        let key = self
            .lock()
            .processes
            .reserve(id, Arc::clone(&cancel), max_processes)?;
        Ok(StartReservation {
            session: Arc::clone(self),
            key,
            cancel,
        })
    }

    pub(crate) fn find(&self, id: &ProcessId) -> ProcessLookup {
        self.lock().processes.find(id)
    }

    pub(crate) fn list(&self) -> Vec<ProcessSummary> {
        let processes: Vec<_> = self.started().collect();
        processes.iter().map(|process| process.summary()).collect()
    }

    /// Returns the processes of which any part is alive.
    pub(crate) fn live_processes(&self) -> Vec<Arc<dyn ExecProcess>> {
        let live = self.started().filter(|process| process.has_live_tree());
        live.map(|process| Arc::clone(&process.handle)).collect()
    }

    /// Lists the processes that are not durable, and run or have unacknowledged output for a client.
    pub(crate) fn list_ordinary(&self) -> Vec<ProcessSummary> {
        let has_client = self.is_attached();
        let summaries = self.started().map(|process| {
            let is_needed = has_client && process.has_unacked();
            (process.summary(), is_needed)
        });
        let ordinary = summaries.filter(|(process, is_needed)| {
            process.durable.is_none() && (process.running || *is_needed)
        });
        ordinary.map(|(process, _)| process).collect()
    }

    /// Attaches a new session to its first client.
    pub(crate) fn attach(&self, send_queue: Arc<SendQueue>, retention_mode: RetentionMode) {
        let mut state = self.lock();
        state.send_queue = Some(send_queue);
        state.retention_mode = retention_mode;
    }

    /// Returns the send queue of the attached client.
    pub(crate) fn send_queue(&self) -> Option<Arc<SendQueue>> {
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
                let started = state.processes.started();
                started.for_each(|process| process.hold_unacked());
            }
        }
        let started = state.processes.started().cloned();
        let followed: Vec<_> = started.chain(state.processes.handed_over()).collect();
        drop(state);
        for process in followed {
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
            state.processes.recount(all_of(&acknowledged.process_id));
        }
    }

    /// Adds the gauges of this session to a snapshot.
    pub(crate) fn add_to(&self, gauges: &mut GaugeSnapshot) {
        let (processes, send_queue) = {
            let state = self.lock();
            let processes: Vec<_> = state.processes.started().cloned().collect();
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

    /// Returns the expiry of a session that may be evicted: no client is attached, no process or
    /// descendant is alive, and no tunnel is open.
    pub(crate) fn evictable_until(&self) -> Option<Instant> {
        let state = self.lock();
        let expires_at = state.lease.poll_timeout()?;
        let is_idle = state.processes.have_ended() && self.tunnels.is_empty();
        is_idle.then_some(expires_at)
    }

    /// Returns whether the lease has expired.
    pub(crate) fn is_expired(&self, now: Instant) -> bool {
        self.lock()
            .lease
            .poll_timeout()
            .is_some_and(|deadline| deadline <= now)
    }

    /// Returns the name of the authenticated client.
    pub(crate) fn principal_name(&self) -> Option<String> {
        self.principal.as_ref().map(|name| name.0.to_string())
    }

    /// Saves the session, once, so that a later server restores it.
    pub(crate) fn save(&self, durable: &dyn DurableState) -> io::Result<()> {
        let mut state = self.lock();
        if state.saved {
            return Ok(());
        }
        durable.save_session(&DurableSession {
            id: self.id.clone(),
            principal: self.principal_name(),
            acknowledges: state.retention_mode == RetentionMode::UntilAcknowledged,
        })?;
        state.saved = true;
        Ok(())
    }

    /// Continues a session of an earlier server without its client.
    pub(super) fn restore(&self, session: &DurableSession) {
        let mut state = self.lock();
        state.saved = true;
        if session.acknowledges {
            state.retention_mode = RetentionMode::UntilAcknowledged;
        }
    }

    /// Enters a process of an earlier server.
    pub(crate) fn restore_process(
        self: &Arc<Self>,
        restored: DurableProcess,
    ) -> Result<(), AdmitError> {
        let process = Arc::new(SessionProcess {
            family: MethodFamily::Process,
            handle: restored.process,
            argv: restored.argv,
            cwd: restored.cwd,
            tty: restored.tty,
            network: Arc::clone(&self.environment.network),
            owner: OwnerCell::new(self, restored.owner == DurableOwner::Server),
            watcher: None,
            unacked: UnackedOutput::default(),
            released: AtomicBool::default(),
        });
        process.network.adopt(&process.handle);
        let ended = process.handle.status().closed;
        {
            let mut state = self.lock();
            let max_processes = match ended {
                true => usize::MAX,
                false => self.session_limits.max_processes,
            };
            state.processes.adopt(&process, max_processes)?;
            if state.retention_mode == RetentionMode::UntilAcknowledged {
                process.hold_unacked();
            }
        }
        if ended {
            self.retain_finished(&process);
        } else {
            Self::watch_exit(&process, ProcessSpan::none(), Arc::clone(&self.metrics));
        }
        drop(restored.hold);
        Ok(())
    }

    /// Evicts finished durable processes that match, after their records were removed.
    pub(crate) fn evict_recorded(&self, selection: &HistorySelection) {
        for process in self.started() {
            let status = process.handle.status();
            let matches = selection
                .process_id
                .as_ref()
                .is_none_or(|id| id == process.handle.id())
                && selection
                    .started_at_ms
                    .is_none_or(|at| at == status.started_at_ms);
            if matches && status.closed && process.handle.record_id().is_some() {
                self.evict(&process);
            }
        }
    }

    /// Leaves all durable processes to the next server, from the call on. Others stay. Resolves
    /// once nothing here reads or writes them any more.
    pub(crate) fn release_durable(&self) -> impl Future<Output = ()> + use<> {
        let released: Vec<_> = self.started().map(|process| process.release()).collect();
        async move {
            for released in released {
                released.await;
            }
        }
    }

    /// Terminates every process that ends with this server, with the given mode.
    pub(crate) fn terminate_all(&self, mode: TerminateMode) {
        for process in self.started().filter(|process| !process.is_released()) {
            drop(process.handle.terminate(mode));
        }
    }

    /// Waits until every process that ends with this server has exited or closed its output. Holds
    /// no reference to the processes meanwhile, so that dropping them still kills them.
    pub(crate) async fn wait_all(&self, until: WaitUntil) {
        let ending = self.started().filter(|process| !process.is_released());
        let waits = ending.map(|process| process.handle.wait(until, None));
        let waits: Vec<_> = waits.collect();
        for wait in waits {
            drop(wait.await);
        }
    }

    /// Drops every process, which kills the process trees, and closes every tunnel.
    pub(crate) fn clear(&self) {
        self.tunnels.clear("session has ended");
        let processes = self.lock().processes.drain();
        // The lock is released now.
        drop(processes);
    }

    fn started(&self) -> impl Iterator<Item = Arc<SessionProcess>> + use<> {
        let started: Vec<_> = self.lock().processes.started().cloned().collect();
        started.into_iter()
    }

    /// Moves a process of another session into this table, which is the server's. The process
    /// outlives that session, and the client there still receives its events.
    pub(crate) fn take_over(
        self: &Arc<Self>,
        from: &Self,
        process: &Arc<SessionProcess>,
    ) -> Result<(), AdmitError> {
        let max_processes = self.session_limits.max_processes;
        self.lock().processes.adopt(process, max_processes)?;
        process.handle.record_detached();
        // Change the owner first: a task that retains the process at its exit looks it up in the
        // owner's table.
        process.owner.detach(self);
        let record = from.lock().processes.hand_over(process);
        process.release_unacked();
        match record {
            Some(ProcessRecord::Finished(_)) => self.retain_finished(process),
            Some(_) => {}
            // The session ended or evicted the process meanwhile.
            None => {
                self.lock().processes.remove(process);
                return Err(AdmitError::Gone(process.handle.id().clone()));
            }
        }
        Ok(())
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
        while !owner.mark_finished(process) {
            match process.owner.session() {
                Some(session) if !Arc::ptr_eq(&session, &owner) => owner = session,
                _ => return,
            }
        }
    }

    /// Retains a finished process of this table and evicts others beyond the limits. Returns
    /// `false` if it is not in this table.
    fn mark_finished(self: &Arc<Self>, process: &Arc<SessionProcess>) -> bool {
        let evicted = self
            .lock()
            .processes
            .finish(process, || AbortOnDrop(self.expire_later(process)));
        // The lock is released now, and the evicted processes are dropped.
        evicted.is_some()
    }

    /// Spawns a task that evicts a finished process after the retention time.
    fn expire_later(self: &Arc<Self>, process: &Arc<SessionProcess>) -> AbortHandle {
        let retention = self.session_limits.retention;
        let weak = (Arc::downgrade(self), Arc::downgrade(process));
        let expire = async move {
            loop {
                sleep(retention).await;
                let (Some(session), Some(process)) = (weak.0.upgrade(), weak.1.upgrade()) else {
                    return;
                };
                // Unacknowledged output does not expire with age.
                if !process.has_unacked() {
                    session.evict(&process);
                    return;
                }
            }
        };
        tokio::spawn(expire).abort_handle()
    }

    /// Evicts a finished process. Returns `false` if it has not finished.
    pub(crate) fn evict(&self, process: &Arc<SessionProcess>) -> bool {
        self.lock().processes.evict(process)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Releases all unacknowledged output.
    fn release_unacked(&mut self) {
        let started = self.processes.started();
        started.for_each(|process| process.release_unacked());
        self.processes.recount(..);
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
