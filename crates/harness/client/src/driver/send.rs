//! What is sent to the server: calls, and what handles let go of.

use std::sync::Arc;

use exec_env::process::ProcessError;
use exec_wire::{
    error::RpcError,
    fs::{CloseFile, Unwatch, WatchMissing},
    http::CancelHttpRequest,
    id::{OutputSeq, ProcessId},
    limits,
    message::RequestId,
    method::{Method, PROCESS_ACKNOWLEDGE},
    outgoing::Outgoing,
    process::{Acknowledged, ReadProcess, TerminateMode, TerminateProcess},
};

use super::{
    backpressure::Windows,
    call::{Ask, Opens, Repeat, Waiter},
    connection::{Connection, Sent},
    session_processes::Farewell,
};
use crate::{
    client_shared::Released,
    error::ExecServerError,
    events::{Missing, Owner, ProcessEvents},
};

/// The id of requests whose answer nobody needs.
const UNANSWERED: &str = "release";

impl Connection {
    /// Takes a call.
    pub(super) fn handle_ask(&mut self, ask: Ask) {
        // What nobody wants any more does not begin.
        if let Waiter::File(..) | Waiter::Start(..) | Waiter::Attach(..) = &ask.waiter
            && !ask.waiter.is_awaited()
        {
            return;
        }
        let Some(ask) = self.defer(ask) else {
            return;
        };
        if let Some(refusal) = self.refusal(&ask) {
            return ask.waiter.fail(refusal);
        }
        let Ask {
            method,
            request,
            repeat,
            about,
            waiter,
        } = ask;
        let waiter = match waiter {
            Waiter::File(reply, opens) => {
                self.bodies.register(&opens);
                Waiter::File(reply, self.watches.register(opens))
            }
            waiter @ (Waiter::Call(_)
            | Waiter::Start(..)
            | Waiter::Adopt(..)
            | Waiter::Attach(..)
            | Waiter::List(_)
            | Waiter::Release(_)
            | Waiter::Fill(_)
            | Waiter::End(_)) => waiter,
        };
        self.send(Ask {
            method,
            request,
            repeat,
            about,
            waiter,
        });
    }

    fn refusal(&mut self, ask: &Ask) -> Option<ExecServerError> {
        if let Some(process) = &ask.about {
            if let Err(error) = process.check() {
                return Some(given_up(error));
            }
            if process.is_over() {
                let text = format!("process {} is over", process.id());
                return Some(ExecServerError::Remote(RpcError::invalid_request(text)));
            }
        }
        match &ask.waiter {
            _ if self.unanswered >= limits::MAX_REQUESTS_IN_FLIGHT => {
                Some(ExecServerError::TooMany(limits::MAX_REQUESTS_IN_FLIGHT))
            }
            // Registered before it is launched: its events may come before the answer.
            Waiter::Start(_, process) | Waiter::Attach(_, process, _)
                if !self.register(process) =>
            {
                Some(ExecServerError::IdInUse(process.id().clone()))
            }
            Waiter::File(_, Opens::Uses(connection)) if *connection != self.number => {
                Some(ExecServerError::Interrupted {
                    method: ask.method.as_str(),
                    reason: "what it names was opened over a connection that broke".to_owned(),
                })
            }
            Waiter::Call(_)
            | Waiter::Start(..)
            | Waiter::Adopt(..)
            | Waiter::Attach(..)
            | Waiter::List(_)
            | Waiter::Release(_)
            | Waiter::Fill(_)
            | Waiter::End(_)
            | Waiter::File(..) => None,
        }
    }

    /// Takes a process in, unless its id is taken.
    fn register(&mut self, process: &Arc<ProcessEvents>) -> bool {
        self.processes.register(process) || {
            // The one before may have been let go of a moment ago.
            self.handle_poked();
            self.processes.register(process)
        }
    }

    /// Sends a call.
    pub(super) fn send(&mut self, ask: Ask) {
        let Ask {
            method,
            request,
            repeat,
            about,
            waiter,
        } = ask;
        let number = self.asked + 1;
        let mut message = None;
        let sent = self.calls.ask_with(|id| {
            message = Some(request(id));
            let again = (repeat != Repeat::Never).then_some(request);
            Sent {
                number,
                method,
                repeat,
                about,
                waiter,
                again,
            }
        });
        if let (Ok(_), Some(message)) = (sent, message) {
            self.asked = number;
            self.unanswered += 1;
            self.link.writer.push(message, self.encoding);
        }
    }

    pub(super) fn ask<M: Method + Send + 'static>(&mut self, params: M, waiter: Waiter) {
        let method = M::NAME;
        self.send(Ask {
            method,
            request: Box::new(move |id| Outgoing::request(id, method.as_str(), &params)),
            repeat: Repeat::of(method),
            about: None,
            waiter,
        });
    }

    /// Reads what is missing of a process.
    pub(super) fn read(&mut self, process: &ProcessEvents, missing: Missing, waiter: Waiter) {
        let read = ReadProcess {
            process_id: process.id().clone(),
            after_seq: Some(missing.after),
            max_bytes: missing.max_bytes,
            wait_ms: Some(0),
        };
        self.ask(read, waiter);
    }

    /// Ends a process that has failed, and then forgets it.
    pub(super) fn end(&mut self, process: &Arc<ProcessEvents>) {
        let waiter = Waiter::End(Arc::clone(process));
        self.ask(force(process), waiter);
    }

    /// Ends a process that nobody holds. It stays until its close.
    pub(super) fn terminate(&mut self, process: &ProcessEvents) {
        self.tell(&force(process));
    }

    /// Acknowledges what was taken of a process, if it is enough to be worth it.
    pub(super) fn acknowledge(&mut self, process: &ProcessEvents) {
        match process.take_due() {
            Some(seq) if process.ends_with(seq) => self.say_farewell(process.id(), seq),
            Some(seq) => self.say_taken(process.id(), seq),
            None => {}
        }
    }

    fn say_taken(&mut self, id: &ProcessId, seq: OutputSeq) {
        let taken = Acknowledged {
            process_id: id.clone(),
            seq,
        };
        let told = Outgoing::notification(PROCESS_ACKNOWLEDGE, &taken);
        self.link.writer.push(told, self.encoding);
    }

    /// Acknowledges the last of a process, and remembers it until that has arrived.
    pub(super) fn say_farewell(&mut self, id: &ProcessId, seq: OutputSeq) {
        self.say_taken(id, seq);
        let farewell = Farewell {
            id: id.clone(),
            seq,
            asked: self.asked,
        };
        let past = &mut self.processes.past;
        past.handle_farewell(farewell, self.answered);
    }

    /// Acknowledges all that there is of a process that has failed: what waits for that does not end.
    pub(super) fn let_go(&mut self, process: &ProcessEvents) {
        if self.windows == Windows::PerProcess {
            self.say_farewell(process.id(), OutputSeq(u64::MAX));
        }
    }

    /// Forgets a process that is over, and that nobody holds.
    pub(super) fn tidy(&mut self, process: &Arc<ProcessEvents>) {
        if process.is_done() && self.processes.knows(process) {
            // All of it is here, whoever still reads it.
            if let Some(seq) = process.take_rest() {
                self.say_farewell(process.id(), seq);
            }
            self.processes.retire(process);
        }
    }

    /// Looks what handles have to say.
    pub(super) fn handle_poked(&mut self) {
        for process in self.hub.take_due() {
            match process.owner() {
                Owner::Session if self.processes.knows(&process) => self.acknowledge(&process),
                Owner::Session => {}
                Owner::Server => self.take_turn(&process),
            }
        }
        for released in self.hub.take_released() {
            match released {
                // One that is not known did not start, or its start is not sent yet.
                Released::Process(process) => {
                    if self.processes.knows(&process) {
                        // One that has failed is being ended already.
                        if !process.is_failed() {
                            self.terminate(&process);
                        }
                        self.tidy(&process);
                    }
                }
                Released::Attached(process) => self.handle_parted(&process),
                Released::File(handle_id, connection) => {
                    if connection == self.number {
                        self.tell(&CloseFile { handle_id });
                    }
                }
                Released::Watch(watch_id) => {
                    if self.watches.remove(&watch_id) {
                        self.tell(&Unwatch { watch_id });
                    }
                }
                Released::Missing(number) => self.end_missing(number),
                Released::Body(request_id) => {
                    if self.bodies.remove(&request_id) {
                        self.tell(&CancelHttpRequest { request_id });
                    }
                }
            }
        }
    }

    /// Ends a watch for missing paths, unless another one does: the wire has no other way to say so
    /// than to ask for a watch of nothing.
    fn end_missing(&mut self, number: u64) {
        let hub = Arc::clone(&self.hub);
        let mut last = hub.missing();
        if self.watches.remove_missing(number) && *last == number {
            *last += 1;
            self.tell(&WatchMissing {
                watch_id: *last,
                missing: Vec::new(),
                present: None,
                sandbox: None,
            });
        }
    }

    /// Asks for something whose answer nobody needs.
    pub(super) fn tell<M: Method>(&mut self, params: &M) {
        let id = RequestId::Text(UNANSWERED.into());
        let request = Outgoing::request(&id, M::NAME.as_str(), params);
        self.link.writer.push(request, self.encoding);
    }

    /// Answers the server, if there is an answer yet.
    pub(super) fn say(&mut self, answer: Option<Outgoing>) {
        if let Some(answer) = answer {
            self.link.writer.push(answer, self.encoding);
        }
    }
}

/// Why nothing is asked about a process that has failed.
fn given_up(error: ProcessError) -> ExecServerError {
    match error {
        ProcessError::Remote(error) => ExecServerError::Remote(error),
        ProcessError::Disconnected(gone) => gone.into(),
        ProcessError::Terminated
        | ProcessError::StdinFull
        | ProcessError::NoTerminal(_)
        | ProcessError::EmptySize
        | _ => ExecServerError::Remote(RpcError::internal(error.to_string())),
    }
}

fn force(process: &ProcessEvents) -> TerminateProcess {
    TerminateProcess {
        process_id: process.id().clone(),
        mode: Some(TerminateMode::Force),
    }
}
