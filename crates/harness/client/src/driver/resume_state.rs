//! What outlives a connection, and how it is taken up on the next one.
//!
//! Every process is read after the last number that came of it: the server repeats nothing by itself,
//! and sends what happens from the resume on. A start that was not answered is decided by the same
//! read. Then the calls that may be made again are, in their order and before any other.
//!
//! A read that is cut off again is made smaller: on connections that do not last, something comes through.

use std::sync::Arc;

use exec_env::{disconnect::Disconnect, process::ProcessError};
use exec_wire::{error::ErrorCode, id::SessionId, method::Method, process::StartProcess};
use tokio::{sync::oneshot, time::Instant};

use super::{
    backpressure::Windows,
    call::{Ask, ConnectionNumber, Pending, Reply, Waiter},
    connection::Connection,
    session_processes::{Farewell, Processes},
};
use crate::{
    client_shared::Hub,
    error::ExecServerError,
    events::{Broken, Owner, ProcessEvents},
    handshake::Opened,
};

/// What outlives a connection.
#[derive(Debug)]
pub(super) struct Remains {
    pub(super) session: SessionId,
    /// Why the connection was given up.
    pub(super) cause: String,
    /// Since when there is none, or none that came to anything.
    pub(super) since: Instant,
    pub(super) processes: Processes,
    /// Starts that were not answered, and processes that were to be attached.
    pub(super) pending: Vec<(Pending, Arc<ProcessEvents>)>,
    /// Calls that are made again.
    pub(super) repeats: Vec<Ask>,
    /// Calls that were not made.
    pub(super) unsent: Vec<Ask>,
}

impl Remains {
    /// The session is lost.
    pub(super) fn fail(mut self, gone: &Disconnect) {
        self.processes
            .fail(&ProcessError::Disconnected(gone.clone()));
        for (pending, _) in self.pending {
            pending.fail(gone.clone().into());
        }
        for ask in self.repeats.into_iter().chain(self.unsent) {
            ask.waiter.fail(gone.clone().into());
        }
    }

    /// Fails what belongs to the session, and returns what does not.
    pub(super) fn fail_session(mut self, gone: &Disconnect) -> Self {
        let attached = self.processes.take_attached();
        let of_server =
            |(_, process): &mut (_, Arc<ProcessEvents>)| process.owner() == Owner::Server;
        let pending = self.pending.extract_if(.., of_server).collect();
        let of_server = |ask: &mut Ask| ask.about.is_some();
        let repeats = self.repeats.extract_if(.., of_server).collect();
        let unsent = self.unsent.extract_if(.., of_server).collect();
        let kept = Self {
            session: self.session.clone(),
            cause: self.cause.clone(),
            since: self.since,
            processes: attached,
            pending,
            repeats,
            unsent,
        };
        self.fail(gone);
        kept
    }
}

impl Connection {
    /// Takes up a session. What came before the answer to `initialize` is handled when it is driven.
    pub(super) fn resume(
        opened: Opened,
        number: ConnectionNumber,
        hub: &Arc<Hub>,
        remains: Remains,
    ) -> Self {
        let mut connection = Self::new(opened, number, hub);
        connection.processes = remains.processes;
        // Processes know by themselves that they were let go of, and nothing else is left to close.
        drop(hub.take_released());
        connection.cause = remains.cause;
        connection.say_farewells();
        let mut all_pending = remains.pending;
        let mut unsure = Vec::new();
        let mut processes = connection.processes.all();
        if let Some(turns) = number.0.checked_rem(processes.len() as u64) {
            // Each is the first one at times: on connections that do not last, no other is answered.
            processes.rotate_left(usize::try_from(turns).unwrap_or_default());
        }
        for process in processes {
            let pending = all_pending
                .iter()
                .position(|(_, pending)| Arc::ptr_eq(pending, &process));
            let pending = pending.map_or(Pending::Nobody, |index| all_pending.swap_remove(index).0);
            match process.owner() {
                Owner::Session => connection.take_up(&process, pending),
                Owner::Server => {
                    unsure.extend(connection.take_up_attached(&process, pending));
                }
            }
        }
        connection.look_up(unsure);
        for ask in remains.repeats {
            match &ask.about {
                None => connection.send(ask),
                Some(_) => connection.handle_ask(ask),
            }
        }
        for ask in remains.unsent {
            connection.handle_ask(ask);
        }
        if connection.unanswered > 0 {
            connection.since = Some(remains.since);
        }
        connection
    }

    /// Acknowledges again what may not have arrived.
    fn say_farewells(&mut self) {
        for Farewell { id, seq, .. } in self.processes.past.take_unsure() {
            let taken = self.processes.find(&id);
            // The id may be that of another process, whose events were not taken.
            let lives = taken.is_some_and(|process| !process.is_over());
            if self.windows == Windows::PerProcess && !lives {
                self.say_farewell(&id, seq);
            }
        }
    }

    fn take_up(&mut self, process: &Arc<ProcessEvents>, pending: Pending) {
        let start = match pending {
            Pending::Start(reply) => Some(reply),
            // What is attached belongs to the server.
            Pending::Nobody | Pending::Attach(_) => None,
        };
        if start.is_some() && self.processes.past.knows(process.id()) {
            // What the server knows by this id may be the process of before.
            let gone = Disconnect::Transport(self.cause.clone());
            process.fail(ProcessError::Disconnected(gone));
        }
        if process.is_failed() {
            if let Some(reply) = start {
                drop(reply.send(Err(self.not_started())));
            }
            // It was to be ended, which the server may not have heard.
            return self.end(process);
        }
        if process.is_released() {
            self.terminate(process);
        }
        let waiter = match start {
            Some(reply) => Waiter::Adopt(reply, Arc::clone(process)),
            None if process.is_over() => return self.tidy(process),
            None => Waiter::Fill(Arc::clone(process)),
        };
        let missing = process.handle_resume();
        self.read(process, missing, waiter);
    }

    /// Decides about a start by whether the server knows the process.
    pub(super) fn handle_adopted(
        &mut self,
        reply: oneshot::Sender<Reply>,
        process: &Arc<ProcessEvents>,
        page: Reply,
    ) {
        match page {
            Ok(page) => {
                let answered = self.started(process.id());
                self.has_started = true;
                if reply.send(Ok(answered)).is_err() {
                    self.terminate(process);
                }
                self.handle_page(process, Ok(page));
            }
            Err(_) => {
                // It may be on its way to be started: ending what is not known does no harm.
                self.terminate(process);
                self.processes.retire(process);
                drop(reply.send(Err(self.not_started())));
            }
        }
    }

    pub(super) fn not_started(&self) -> ExecServerError {
        ExecServerError::Interrupted {
            method: StartProcess::NAME.as_str(),
            reason: self.cause.clone(),
        }
    }

    /// Takes what a process's events were asked for with.
    pub(super) fn handle_page(&mut self, process: &Arc<ProcessEvents>, page: Reply) {
        let recorded = match page {
            Ok(page) => serde_json::from_slice(&page.result)
                .map_err(|error| Broken::Malformed(format!("result of `process/read`: {error}")))
                .and_then(|page| process.handle_page(page)),
            Err(error) => Err(unread(error)),
        };
        self.go_on(process, recorded);
    }
}

/// What it means for a process that its events are not to be had.
pub(super) fn unread(error: ExecServerError) -> Broken {
    if let ExecServerError::Remote(error) = &error
        && error.code == ErrorCode::INVALID_REQUEST
    {
        return Broken::Unknown(error.message.clone());
    }
    Broken::Unread(error.to_string())
}
