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
    network_watcher::{Client, Watcher},
    retention::{Keeping, Kept},
    session_process::{Found, Life, OwnerCell, Process, Starting},
    session_table::Registry,
};
use self::{
    retention::Finished,
    session_process::{Entry, Table},
};
use crate::{
    meters::{Levels, Meters},
    send_queue::Outbox,
};

/// A session. When the last clone is dropped, the trees of its processes are killed.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) id: SessionId,
    pub(crate) environment: Environment,
    /// Who opened it, if that has a name.
    pub(super) principal: Option<Principal>,
    bounds: Bounds,
    meters: Arc<Meters>,
    state: Mutex<State>,
}

/// What a session may hold, and for how long.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// Processes that may live at once.
    pub(crate) most_processes: usize,
    /// How long a finished process stays readable.
    pub(crate) retention: Duration,
}

#[derive(Debug)]
struct State {
    lease: Lease,
    outbox: Option<Arc<Outbox>>,
    /// What the client counts on that is attached, or was.
    keeping: Keeping,
    /// Until when what it has not acknowledged is kept without a connection.
    kept_until: Option<Instant>,
    table: Table,
    finished: Finished,
    /// Detached processes among the finished whose id is being given away. They are back in the table
    /// if nothing starts by it.
    replaced: BTreeMap<ProcessId, Arc<Process>>,
    /// Processes that are over and forgotten, but whose descendants live.
    remnants: Vec<Arc<Process>>,
    /// Processes that the server took over. Their events go on being sent to this session's client.
    taken_over: Vec<Weak<Process>>,
}

/// What becomes of a session without a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Detached {
    /// When what its client has not acknowledged is let go of, if that is kept.
    pub(crate) kept_until: Option<Instant>,
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
        bounds: Bounds,
        meters: Arc<Meters>,
    ) -> Self {
        let state = State {
            lease,
            outbox: None,
            keeping: Keeping::Retained,
            kept_until: None,
            table: Table::new(),
            finished: Finished::default(),
            replaced: BTreeMap::new(),
            remnants: Vec::new(),
            taken_over: Vec::new(),
        };
        Self {
            id,
            environment,
            principal,
            bounds,
            meters,
            state: Mutex::new(state),
        }
    }

    /// Takes a place for a process that is about to start. A detached one that has finished gives its
    /// id away when it has started: it is kept for long, and people use a name again.
    pub(crate) fn admit(self: &Arc<Self>, id: &ProcessId) -> Result<Starting, AdmitError> {
        let mut state = self.lock();
        let replaced = match state.table.get(id) {
            None => None,
            Some(Entry::Started(process))
                if process.is_detached() && state.finished.contains(process) =>
            {
                Some(Arc::clone(process))
            }
            Some(_) => return Err(AdmitError::Exists(id.clone())),
        };
        state
            .remnants
            .retain(|process| process.handle.status().tree_alive);
        let left = replaced
            .iter()
            .filter(|process| process.handle.status().tree_alive);
        if state.live() + left.count() >= self.bounds.most_processes {
            return Err(AdmitError::TooMany(self.bounds.most_processes));
        }
        if let Some(process) = replaced {
            state.replaced.insert(id.clone(), process);
        }
        let cancel = Arc::new(Notify::new());
        state
            .table
            .insert(id.clone(), Entry::Starting(Arc::clone(&cancel)));
        Ok(Starting {
            session: Arc::clone(self),
            id: id.clone(),
            cancel,
            started: false,
        })
    }

    pub(crate) fn find(&self, id: &ProcessId) -> Found {
        Found::of(self.lock().table.get(id))
    }

    pub(crate) fn list(&self) -> Vec<ProcessSummary> {
        let processes: Vec<_> = self.started().collect();
        processes.iter().map(|process| process.summary()).collect()
    }

    /// Connects a new session to its first client.
    pub(crate) fn attach(&self, outbox: Arc<Outbox>, keeping: Keeping) {
        let mut state = self.lock();
        state.outbox = Some(outbox);
        state.keeping = keeping;
    }

    /// Returns the way to the client, while one is connected.
    pub(super) fn outbox(&self) -> Option<Arc<Outbox>> {
        self.lock().outbox.clone()
    }

    /// Connects a detached session to a client that came back. Its processes report there from
    /// now on; what it missed it reads.
    pub(crate) fn resume(
        &self,
        outbox: &Arc<Outbox>,
        keeping: Keeping,
        now: Instant,
    ) -> Result<(), ResumeError> {
        let mut state = self.lock();
        state.lease.handle_resume(now)?;
        state.outbox = Some(Arc::clone(outbox));
        state.keeping = keeping;
        state.kept_until = None;
        match keeping {
            Keeping::Retained => state.let_go(),
            Keeping::Unacknowledged => state.started().for_each(|process| process.keep()),
        }
        let taken_over: Vec<_> = state.taken_over.iter().filter_map(Weak::upgrade).collect();
        drop(state);
        for process in self.started().chain(taken_over) {
            follow(outbox, &process, From::Now);
        }
        Ok(())
    }

    /// The connection is gone. Returns what happens when, unless its client comes back.
    pub(crate) fn detach(&self, now: Instant) -> Option<Detached> {
        let mut state = self.lock();
        state.outbox = None;
        state.lease.handle_disconnect(now);
        if state.keeping == Keeping::Unacknowledged {
            state.kept_until = Some(now + limits::UNACKNOWLEDGED_HOLD);
        }
        let kept_until = state.kept_until;
        let ends = state.lease.poll_timeout()?;
        Some(Detached { kept_until, ends })
    }

    /// Lets go of what the client has not acknowledged, if it was away for too long.
    pub(crate) fn handle_absence(&self, now: Instant) {
        let mut state = self.lock();
        if state.kept_until.is_some_and(|until| until <= now) {
            state.kept_until = None;
            state.let_go();
        }
    }

    /// Lets go of what was kept for a client that is away, and will not be back.
    pub(crate) fn give_up_client(&self) {
        let mut state = self.lock();
        if state.outbox.is_none() {
            state.let_go();
        }
    }

    /// The client has taken events of a process. One that is not known, or that nothing is kept of,
    /// is ignored.
    pub(crate) fn acknowledge(&self, acknowledged: &Acknowledged) {
        if let Found::Started(process) = self.find(&acknowledged.process_id)
            && process.acknowledge(acknowledged.seq)
        {
            let mut state = self.lock();
            state.finished.recount(|one| Arc::ptr_eq(one, &process));
        }
    }

    /// Adds what is in this table to what is in others.
    pub(crate) fn add_to(&self, levels: &mut Levels) {
        let (processes, outbox) = {
            let state = self.lock();
            let processes: Vec<_> = state.started().cloned().collect();
            (processes, state.outbox.clone())
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
        levels.outbox_bytes += outbox.map_or(0, |outbox| outbox.waiting_bytes());
    }

    /// Tells whether a client is connected.
    pub(crate) fn is_attached(&self) -> bool {
        self.lock().outbox.is_some()
    }

    /// Returns when it ends, if nobody is connected and nothing runs, be it what a process has left
    /// behind: it is there only for a client that may want to come back.
    pub(crate) fn spare_until(&self) -> Option<Instant> {
        let state = self.lock();
        let ends = state.lease.poll_timeout()?;
        let over = |process: &Arc<Process>| {
            let status = process.handle.status();
            status.exit.is_some() && !status.tree_alive
        };
        let idle = |entry: &Entry| match entry {
            Entry::Starting(_) => false,
            Entry::Started(process) => over(process),
        };
        let spare = state.table.values().all(idle) && state.remnants.iter().all(over);
        spare.then_some(ends)
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
    pub(crate) async fn all_ended(&self, until: WaitUntil) {
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
        let (table, remnants) = (
            std::mem::take(&mut state.table),
            std::mem::take(&mut state.remnants),
        );
        let finished = std::mem::take(&mut state.finished);
        let replaced = std::mem::take(&mut state.replaced);
        for entry in table.values() {
            if let Entry::Starting(cancel) = entry {
                cancel.notify_one();
            }
        }
        drop(state);
        drop((table, finished, replaced, remnants));
    }

    fn started(&self) -> impl Iterator<Item = Arc<Process>> + use<> {
        let started: Vec<_> = self.lock().started().cloned().collect();
        started.into_iter()
    }

    /// Takes a process of another session into this table, which is the server's: it outlives that
    /// session. The client there goes on getting its events.
    pub(crate) fn take_over(
        self: &Arc<Self>,
        from: &Self,
        process: &Arc<Process>,
    ) -> Result<(), AdmitError> {
        let id = process.handle.id();
        let mut state = self.lock();
        if state.table.contains_key(id) {
            return Err(AdmitError::Exists(id.clone()));
        }
        if state.live() >= self.bounds.most_processes {
            return Err(AdmitError::TooMany(self.bounds.most_processes));
        }
        state
            .table
            .insert(id.clone(), Entry::Started(Arc::clone(process)));
        drop(state);
        // In this order: whoever retains it when it ends finds it in the table of its owner.
        process.owner.detach(self);
        let released = from.release(process);
        process.let_go();
        match released {
            ReleaseOutcome::Running => {}
            ReleaseOutcome::Finished => self.retain(process),
            // Its session ended meanwhile, or has forgotten it.
            ReleaseOutcome::Missing => {
                self.lock().table.remove(id);
                return Err(AdmitError::Gone(id.clone()));
            }
        }
        Ok(())
    }

    /// Gives a process away.
    fn release(&self, process: &Arc<Process>) -> ReleaseOutcome {
        let mut state = self.lock();
        if !state.has(process) {
            return ReleaseOutcome::Missing;
        }
        state.table.remove(process.handle.id());
        state.taken_over.retain(|one| one.strong_count() > 0);
        state.taken_over.push(Arc::downgrade(process));
        match state.finished.remove(process) {
            true => ReleaseOutcome::Finished,
            false => ReleaseOutcome::Running,
        }
    }

    /// Drops a process from the table some time after its output ended.
    fn forget_later(process: &Arc<Process>, life: Life, meters: Arc<Meters>) {
        let exited = process.handle.wait(WaitUntil::Exited, None);
        let closed = process.handle.wait(WaitUntil::Closed, None);
        let process = Arc::downgrade(process);
        tokio::spawn(async move {
            let exited = exited.await;
            life.end(exited.ok().and_then(|status| status.exit), &meters);
            drop(closed.await);
            let Some(process) = process.upgrade() else {
                return;
            };
            if let Some(watcher) = &process.watcher {
                watcher.end();
            }
            if let Some(session) = process.owner.session() {
                session.retain(&process);
            }
        });
    }

    /// Keeps a finished process for a while. If another table took it over, it is kept there.
    fn retain(self: &Arc<Self>, process: &Arc<Process>) {
        let mut owner = Arc::clone(self);
        let mut gone = loop {
            if let Some(gone) = owner.finish(process) {
                break gone;
            }
            match process.owner.session() {
                Some(session) if !Arc::ptr_eq(&session, &owner) => owner = session,
                _ => return,
            }
        };
        let retention = owner.bounds.retention;
        let weak = (Arc::downgrade(&owner), Arc::downgrade(process));
        tokio::spawn(async move {
            loop {
                // It may be forgotten for another reason, long before that.
                if timeout(retention, &mut gone).await.is_ok() {
                    return;
                }
                let (Some(session), Some(process)) = (weak.0.upgrade(), weak.1.upgrade()) else {
                    return;
                };
                // What somebody may yet ask for again does not fall out for its age.
                if !process.is_kept() {
                    session.forget(&process);
                    return;
                }
            }
        });
    }

    /// Counts a process among the finished, and forgets others of them if they are too many. Returns
    /// what resolves when it is forgotten; nothing if it is not in this table.
    fn finish(&self, process: &Arc<Process>) -> Option<oneshot::Receiver<Infallible>> {
        // Declared before the lock is taken, so that processes are dropped behind it.
        let mut forgotten = Vec::new();
        let mut state = self.lock();
        if !state.has(process) {
            return None;
        }
        let gone = state.finished.push(Arc::clone(process));
        while let Some(process) = state.finished.excess().cloned() {
            state.forget(&process);
            forgotten.push(process);
        }
        Some(gone)
    }

    /// Forgets a finished process. Returns `false` if it has not finished.
    pub(crate) fn forget(&self, process: &Arc<Process>) -> bool {
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
    fn has(&self, process: &Arc<Process>) -> bool {
        let entry = self.table.get(process.handle.id());
        matches!(entry, Some(Entry::Started(one)) if Arc::ptr_eq(one, process))
    }

    fn started(&self) -> impl Iterator<Item = &Arc<Process>> {
        self.table.values().filter_map(|entry| match entry {
            Entry::Starting(_) => None,
            Entry::Started(process) => Some(process),
        })
    }

    /// Counts the processes that live, or whose descendants do.
    fn live(&self) -> usize {
        let shown = self.finished.len() - self.replaced.len();
        // What those leave whose id is given away is counted already: nothing is refused later.
        let left = self
            .replaced
            .values()
            .filter(|process| process.handle.status().tree_alive);
        self.table.len() - shown + left.count() + self.remnants.len()
    }

    /// Lets go of whatever was not acknowledged.
    fn let_go(&mut self) {
        self.started().for_each(|process| process.let_go());
        self.finished.recount(|_| true);
    }

    /// Drops a finished process from the table; its id is free again. Returns `false` if it has not
    /// finished.
    fn forget(&mut self, process: &Arc<Process>) -> bool {
        if !self.finished.remove(process) {
            return false;
        }
        let id = process.handle.id();
        if self.replaced.remove(id).is_none() {
            self.table.remove(id);
        }
        process.let_go();
        if process.handle.status().tree_alive {
            self.remnants.push(Arc::clone(process));
        }
        true
    }
}

/// Sends the events of a process to a connection.
pub(crate) fn follow(outbox: &Outbox, process: &Process, from: From) {
    // A detached process is not held up by those who watch it.
    let pace = if process.is_detached() {
        Pace::Free
    } else {
        Pace::Held
    };
    let events = process.handle.follow(Follow { from, pace });
    outbox.follow(process.handle.id().clone(), process.dialect, events);
}
