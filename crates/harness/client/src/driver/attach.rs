//! Processes that belong to the server: how their events are taken, on this connection and the next.
//!
//! A connection follows such a process from `process/attach` to `process/release`. Invariant: a process
//! is attached at most once at a time, and not before a release of the same id is answered; until then
//! what still comes by the id is of before, and ignored. On another connection, and when followers have
//! caught up, it is attached again, after the last number that came. The server is asked what it knows by
//! the id first: that may be another process by now.

use std::sync::Arc;

use bytes::Bytes;
use exec_env::{disconnect::Disconnect, process::ProcessError};
use exec_wire::{
    id::{OutputSeq, ProcessId},
    limits,
    method::Method,
    process::{
        AttachProcess, Attached, ListProcesses, ProcessList, ProcessSummary, ReleaseProcess,
        Started,
    },
};
use serde::Serialize;

use super::{
    call::{Answered, Ask, Pending, Reply, Waiter},
    connection::Connection,
    resume_state::unread,
};
use crate::{
    error::ExecServerError,
    events::{Broken, ProcessEvents, Turn},
};

impl Connection {
    /// Keeps a call back that names a process which is being released, or which may be another one
    /// than it was. Returns it if it need not wait.
    pub(super) fn defer(&mut self, ask: Ask) -> Option<Ask> {
        let waits = match &ask.waiter {
            Waiter::Start(_, process) | Waiter::Attach(_, process, _) => {
                self.releasing.contains(process.id())
            }
            Waiter::Call(_)
            | Waiter::Adopt(..)
            | Waiter::Fill(_)
            | Waiter::End(_)
            | Waiter::List(_)
            | Waiter::Release(_)
            | Waiter::File(..) => {
                let about = ask.about.as_ref();
                about.is_some_and(|process| self.is_looked_up(process))
            }
        };
        if !waits {
            return Some(ask);
        }
        let most = limits::MAX_REQUESTS_IN_FLIGHT;
        if self.deferred.len() >= most {
            ask.waiter.fail(ExecServerError::TooMany(most));
        } else {
            self.deferred.push(ask);
        }
        None
    }

    /// Tells whether the server was asked what it knows by the id of this process.
    fn is_looked_up(&self, process: &Arc<ProcessEvents>) -> bool {
        let mut looked_up = self.looking_up.iter();
        looked_up.any(|one| Arc::ptr_eq(one, process))
    }

    /// Asks for the events of a process, after the last that came.
    fn attach(&mut self, pending: Pending, process: &Arc<ProcessEvents>) {
        let after = process.handle_attach();
        let params = AttachProcess {
            process_id: process.id().clone(),
            after_seq: Some(after),
            started_at_ms: None,
        };
        let waiter = Waiter::Attach(pending, Arc::clone(process), after);
        self.ask(params, waiter);
    }

    /// Asks for no more events of a process. It runs on.
    fn release(&mut self, id: &ProcessId) {
        if self.releasing.insert(id.clone()) {
            let process_id = id.clone();
            self.ask(
                ReleaseProcess {
                    process_id,
                    forget: false,
                },
                Waiter::Release(id.clone()),
            );
        }
    }

    /// Forgets a process of the server that nobody holds, or that has failed. It runs on.
    pub(super) fn part_with(&mut self, process: &Arc<ProcessEvents>) {
        if !self.processes.knows(process) {
            return;
        }
        if !process.is_over() {
            self.release(process.id());
        }
        self.processes.forget(process);
        let gone = "nobody holds the process any more".to_owned();
        process.fail(ProcessError::Disconnected(Disconnect::Transport(gone)));
    }

    /// Nobody holds a process of the server any more.
    pub(super) fn handle_parted(&mut self, process: &Arc<ProcessEvents>) {
        // Whether there is one is not known before its start is answered.
        if !process.is_starting() {
            self.part_with(process);
        }
    }

    /// Has the server stop or go on, as followers lag behind or caught up.
    pub(super) fn take_turn(&mut self, process: &Arc<ProcessEvents>) {
        if self.releasing.contains(process.id()) || !self.processes.knows(process) {
            return;
        }
        match process.take_turn() {
            Some(Turn::Stop) => self.release(process.id()),
            // Nothing was heard of it since it stopped, which may be long ago.
            Some(Turn::GoOn) => self.look_up(vec![(Pending::Nobody, Arc::clone(process))]),
            None => {}
        }
    }

    /// What comes by the id is of now again.
    pub(super) fn handle_released(&mut self, id: &ProcessId) {
        self.releasing.remove(id);
        if let Some(process) = self.processes.find(id) {
            self.take_turn(&process);
        }
        self.handle_deferred();
    }

    fn handle_deferred(&mut self) {
        for ask in std::mem::take(&mut self.deferred) {
            self.handle_ask(ask);
        }
    }

    /// Goes on with a process of the server on another connection. Returns what is to be looked up.
    pub(super) fn take_up_attached(
        &mut self,
        process: &Arc<ProcessEvents>,
        pending: Pending,
    ) -> Option<(Pending, Arc<ProcessEvents>)> {
        if process.is_released() || process.is_failed() {
            // What this connection does not follow need not be released on it.
            self.processes.forget(process);
            self.interrupt(pending);
            return None;
        }
        if process.is_over() {
            // All of it came, though no answer did.
            match pending {
                Pending::Nobody => {}
                Pending::Attach(_) => pending.settle(Ok(self.attached(process))),
                Pending::Start(_) => pending.settle(Ok(self.started(process.id()))),
            }
            return None;
        }
        Some((pending, Arc::clone(process)))
    }

    /// Looks up what the server knows by the ids of these processes.
    pub(super) fn look_up(&mut self, processes: Vec<(Pending, Arc<ProcessEvents>)>) {
        if processes.is_empty() {
            return;
        }
        for (_, process) in &processes {
            process.handle_look_up();
            self.looking_up.push(Arc::clone(process));
        }
        self.ask(ListProcesses::default(), Waiter::List(processes));
    }

    pub(super) fn handle_listed(
        &mut self,
        processes: Vec<(Pending, Arc<ProcessEvents>)>,
        list: &Reply,
    ) {
        let list = list
            .as_ref()
            .ok()
            .and_then(|list| serde_json::from_slice::<ProcessList>(&list.result).ok());
        for (pending, process) in processes {
            self.looking_up.retain(|one| !Arc::ptr_eq(one, &process));
            if !self.processes.knows(&process) {
                self.interrupt(pending);
                continue;
            }
            let Some(list) = &list else {
                // It may be attached all the same; only whether a start came to something is not known.
                match pending {
                    Pending::Start(_) => self.drop_pending(&process, pending),
                    Pending::Attach(_) | Pending::Nobody => self.attach(pending, &process),
                }
                continue;
            };
            let by_id = |summary: &&ProcessSummary| summary.process_id == *process.id();
            match list.processes.iter().find(by_id) {
                Some(summary) if process.is(summary) => {
                    process.handle_born(summary.started_at_ms, summary.os_pid);
                    self.attach(pending, &process);
                }
                Some(_) if matches!(pending, Pending::Nobody) => {
                    self.give_up(&process, &Broken::Another);
                }
                None if matches!(pending, Pending::Nobody) => {
                    let text = format!("unknown process id {}", process.id());
                    self.give_up(&process, &Broken::Unknown(text));
                }
                Some(_) | None => self.drop_pending(&process, pending),
            }
        }
        self.handle_deferred();
    }

    /// It cannot be attached, or was not started.
    fn drop_pending(&mut self, process: &Arc<ProcessEvents>, pending: Pending) {
        self.processes.forget(process);
        let error = match &pending {
            Pending::Attach(_) => ExecServerError::UnknownProcess(process.id().clone()),
            Pending::Start(_) | Pending::Nobody => self.not_started(),
        };
        pending.fail(error);
    }

    /// Takes the answer to `process/attach`, which was to begin after a number.
    pub(super) fn handle_attached(
        &mut self,
        pending: Pending,
        process: &Arc<ProcessEvents>,
        after: OutputSeq,
        result: Reply,
    ) {
        if !self.processes.knows(process) {
            return self.interrupt(pending);
        }
        let answered = match result {
            Ok(answered) => answered,
            Err(error) => return self.handle_unattached(pending, process, error),
        };
        let attached = match serde_json::from_slice::<Attached>(&answered.result) {
            Ok(attached) => attached,
            Err(error) => {
                let text = format!("result of `process/attach`: {error}");
                self.give_up(process, &Broken::Malformed(text));
                // The caller decodes it, too, and tells.
                return pending.settle(Ok(answered));
            }
        };
        if after >= attached.next_seq {
            return self.handle_beyond(pending, process, after, attached.next_seq);
        }
        match pending {
            Pending::Nobody => {}
            Pending::Attach(reply) => {
                self.has_started = true;
                // A handle that nobody took says so itself.
                drop(reply.send(Ok(answered)));
            }
            Pending::Start(reply) => {
                self.has_started = true;
                process.handle_launched();
                let answered = self.started(process.id());
                if reply.send(Ok(answered)).is_err() {
                    // Whether it is the one that was to be started is only likely: it is left alone.
                    self.part_with(process);
                }
            }
        }
    }

    /// There are fewer events than there were: it is another process.
    fn handle_beyond(
        &mut self,
        pending: Pending,
        process: &Arc<ProcessEvents>,
        after: OutputSeq,
        next: OutputSeq,
    ) {
        self.give_up(process, &Broken::Another);
        pending.fail(ExecServerError::NoSuchEvent {
            process: process.id().clone(),
            after,
            last: OutputSeq(next.0.saturating_sub(1)),
        });
    }

    fn handle_unattached(
        &mut self,
        pending: Pending,
        process: &Arc<ProcessEvents>,
        error: ExecServerError,
    ) {
        match pending {
            Pending::Nobody => {
                let broken = unread(error);
                self.give_up(process, &broken);
            }
            Pending::Attach(_) => {
                self.processes.forget(process);
                pending.fail(error);
            }
            Pending::Start(_) => self.drop_pending(process, pending),
        }
    }

    /// Makes the answer to a start that came to something.
    pub(super) fn started(&self, id: &ProcessId) -> Answered {
        let started = Started {
            process_id: id.clone(),
            sandbox_type: None,
        };
        self.answered(&started)
    }

    fn attached(&self, process: &ProcessEvents) -> Answered {
        let status = process.status();
        self.answered(&Attached {
            next_seq: status.next_seq,
            running: status.exit.is_none(),
        })
    }

    fn answered(&self, result: &impl Serialize) -> Answered {
        Answered {
            result: Bytes::from(serde_json::to_vec(result).unwrap_or_default()),
            data: None,
            kept: None,
            connection: self.number,
        }
    }

    /// Whoever waits for it hears that the connection broke.
    fn interrupt(&self, pending: Pending) {
        let error = match &pending {
            Pending::Start(_) => self.not_started(),
            Pending::Attach(_) | Pending::Nobody => ExecServerError::Interrupted {
                method: AttachProcess::NAME.as_str(),
                reason: self.cause.clone(),
            },
        };
        pending.fail(error);
    }
}
