//! What is sent to the server: calls, and what handles let go of.

use std::sync::Arc;

use exec_wire::{
    fs::{CloseFile, Unwatch, WatchMissing},
    http::CancelHttpRequest,
    limits,
    message::RequestId,
    method::{Method, PROCESS_ACKNOWLEDGE},
    outgoing::Outgoing,
    process::{Acknowledged, ReadProcess, TerminateMode, TerminateProcess},
};

use super::{
    connection::{Connection, Sent},
    repeat::Repeat,
    waiter::{Ask, Opens, Waiter},
};
use crate::{
    error::ExecServerError,
    events::{Missing, ProcessEvents},
    hub::Released,
};

/// The id of requests whose answer nobody needs.
const UNANSWERED: &str = "release";

impl Connection {
    /// Takes a call.
    pub(super) fn handle_ask(&mut self, ask: Ask) {
        if let Some(refusal) = self.refusal(&ask) {
            return ask.waiter.fail(refusal);
        }
        let Ask {
            method,
            request,
            waiter,
        } = ask;
        let waiter = match waiter {
            // A change that nobody wants any more does not begin.
            Waiter::File(reply, _) if reply.is_closed() => return,
            Waiter::File(reply, opens) => {
                self.bodies.register(&opens);
                Waiter::File(reply, self.watches.register(opens))
            }
            waiter @ (Waiter::Call(_)
            | Waiter::Start(..)
            | Waiter::Adopt(..)
            | Waiter::Fill(_)
            | Waiter::End(_)) => waiter,
        };
        self.send(Ask {
            method,
            request,
            waiter,
        });
    }

    fn refusal(&mut self, ask: &Ask) -> Option<ExecServerError> {
        match &ask.waiter {
            _ if self.unanswered >= limits::MAX_REQUESTS_IN_FLIGHT => {
                Some(ExecServerError::TooMany(limits::MAX_REQUESTS_IN_FLIGHT))
            }
            // Registered before it is launched: its events may come before the answer.
            Waiter::Start(_, process) if !self.processes.register(process) => {
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
            | Waiter::Fill(_)
            | Waiter::End(_)
            | Waiter::File(..) => None,
        }
    }

    /// Sends a call.
    pub(super) fn send(&mut self, ask: Ask) {
        let Ask {
            method,
            request,
            waiter,
        } = ask;
        let mut message = None;
        let sent = self.calls.ask_with(|id| {
            message = Some(request(id));
            let again = (Repeat::of(method) != Repeat::Never).then_some(request);
            Sent {
                method,
                waiter,
                again,
            }
        });
        if let (Ok(_), Some(message)) = (sent, message) {
            self.unanswered += 1;
            self.link.writer.push(message, self.encoding);
        }
    }

    fn ask<M: Method + Send + 'static>(&mut self, params: M, waiter: Waiter) {
        let method = M::NAME;
        self.send(Ask {
            method,
            request: Box::new(move |id| Outgoing::request(id, method.as_str(), &params)),
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
        if let Some(seq) = process.take_due() {
            let taken = Acknowledged {
                process_id: process.id().clone(),
                seq,
            };
            let told = Outgoing::notification(PROCESS_ACKNOWLEDGE, &taken);
            self.link.writer.push(told, self.encoding);
        }
    }

    /// Looks what handles have to say.
    pub(super) fn handle_poked(&mut self) {
        for process in self.hub.take_due() {
            if self.processes.knows(&process) {
                self.acknowledge(&process);
            }
        }
        for released in self.hub.take_released() {
            match released {
                // One that is not known did not start, or its start is not sent yet.
                Released::Process(process) => {
                    if self.processes.knows(&process) {
                        self.terminate(&process);
                        self.processes.tidy(&process);
                    }
                }
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

fn force(process: &ProcessEvents) -> TerminateProcess {
    TerminateProcess {
        process_id: process.id().clone(),
        mode: Some(TerminateMode::Force),
    }
}
