//! Handles messages from the server: notifications, server requests, responses.

use std::sync::Arc;

use bytes::Bytes;
use exec_core::log::Event;
use exec_wire::{
    http::CancelHttpRequest,
    message::{Message, Notification, split_binary},
    process::Terminated,
};
use serde_json::value::RawValue;

use super::{
    backpressure::Windows,
    call::{Answered, Opens, Reply, Waiter},
    connection::{Cause, Connection},
};
use crate::{
    client_shared::{Kept, Released},
    error::ExecServerError,
    events::{Broken, Missing, Owner, ProcessEvents},
    notification::{self, Told, Undecodable},
};

impl Connection {
    pub(super) fn handle_message(&mut self, frame: &Bytes) -> Result<(), Cause> {
        let malformed = |error: &dyn std::error::Error| {
            Cause::Protocol(format!("server sent a malformed message: {error}"))
        };
        let (text, data) = match split_binary(frame) {
            None => (frame.clone(), None),
            Some(Ok((text, data))) => (text, Some(data)),
            Some(Err(error)) => return Err(malformed(&error)),
        };
        let message = Message::decode_with(&text, data).map_err(|error| malformed(&error))?;
        match message {
            Message::Notification(told) => self.handle_notification(&told)?,
            Message::Request(request) => {
                let answer = self.questions.handle_request(&request, &self.processes);
                self.say(answer);
            }
            answer @ (Message::Response(_) | Message::Error(_)) => {
                if let Some(answer) = self.calls.handle_answer(answer) {
                    self.unanswered -= 1;
                    self.handle_use(answer.waiter.number);
                    let answered = |result: &RawValue| Answered {
                        result: text.slice_ref(result.get().as_bytes()),
                        data: answer.data,
                        kept: None,
                        connection: self.number,
                    };
                    let result = answer.result.map(answered);
                    let result = result.map_err(ExecServerError::Remote);
                    self.handle_answer(answer.waiter.waiter, result);
                }
            }
        }
        Ok(())
    }

    fn handle_notification(&mut self, told: &Notification<'_>) -> Result<(), Cause> {
        match notification::decode(told) {
            Ok(Told::Event(id, event)) => {
                if !self.releasing.contains(&id)
                    && let Some(process) = self.processes.find(&id)
                {
                    let closed = matches!(event, Event::Closed(_));
                    let recorded = process.handle_event(event);
                    self.go_on(&process, recorded);
                    if closed && process.is_failed() && process.owner() == Owner::Session {
                        self.let_go(&process);
                        self.processes.retire(&process);
                    }
                }
            }
            Ok(Told::Started(started)) => {
                if let Some(process) = self.processes.find(&started.process_id) {
                    process.handle_started(&started);
                }
            }
            Ok(Told::Changed(changed)) => self.watches.handle_changed(changed),
            Ok(Told::MissingChanged(changed)) => self.watches.handle_missing_changed(changed),
            Ok(Told::Decided(decision)) => {
                let process = self.processes.find(&decision.process_id);
                if let Some(watch) = process.as_ref().and_then(|process| process.watch()) {
                    watch.watcher().record(decision);
                }
            }
            Ok(Told::BodyDelta(delta, data)) => {
                if let Some(request_id) = self.bodies.handle_delta(delta, data) {
                    self.tell(&CancelHttpRequest { request_id });
                }
            }
            Ok(Told::Unknown) => {}
            Err(Undecodable { process, reason }) => {
                let text = format!("`{}` does not decode: {reason}", told.method);
                match process {
                    None => return Err(Cause::Protocol(text)),
                    // Others are not concerned.
                    Some(id) => {
                        if let Some(process) = self.processes.find(&id) {
                            self.go_on(&process, Err(Broken::Malformed(text)));
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// Acts on what recording came to.
    pub(super) fn go_on(
        &mut self,
        process: &Arc<ProcessEvents>,
        recorded: Result<Option<Missing>, Broken>,
    ) {
        match recorded {
            Ok(None) => {}
            Ok(Some(missing)) => {
                self.read(process, missing, Waiter::Fill(Arc::clone(process)));
            }
            Err(broken) => self.give_up(process, &broken),
        }
        match process.owner() {
            Owner::Session => {
                self.acknowledge(process);
                self.tidy(process);
            }
            Owner::Server => self.take_turn(process),
        }
    }

    /// Fails one process: its events are lost, the others are not concerned.
    pub(super) fn give_up(&mut self, process: &Arc<ProcessEvents>, broken: &Broken) {
        // The server is told once.
        if process.fail(broken.error(process.id())) {
            tracing::warn!(process = %process.id(), %broken, "process is given up");
            match process.owner() {
                Owner::Session => self.end(process),
                Owner::Server => self.part_with(process),
            }
        }
    }
}

impl Connection {
    pub(super) fn handle_answer(&mut self, waiter: Waiter, result: Reply) {
        match waiter {
            Waiter::Call(reply) => drop(reply.send(result)),
            Waiter::Start(reply, process) => {
                let started = result.is_ok();
                self.has_started |= started;
                process.handle_launched();
                if !started {
                    self.processes.forget(&process);
                }
                // Nobody waits for it any more: it is to be ended.
                if reply.send(result).is_err() && started {
                    self.terminate(&process);
                    if process.owner() == Owner::Server {
                        self.part_with(&process);
                    }
                }
            }
            Waiter::Adopt(reply, process) => self.handle_adopted(reply, &process, result),
            Waiter::Attach(pending, process, after) => {
                self.handle_attached(pending, &process, after, result);
            }
            Waiter::List(processes) => self.handle_listed(processes, &result),
            Waiter::Release(id) => self.handle_released(&id),
            Waiter::Fill(process) => self.handle_page(&process, result),
            Waiter::End(process) => self.handle_ended(&process, result),
            Waiter::File(reply, opens) => {
                self.bodies.handle_answer(&opens, result.is_ok());
                let result = match result {
                    Ok(answered) => Ok(Answered {
                        kept: self
                            .opened(opens)
                            .map(|opened| Kept::new(&self.hub, opened)),
                        ..answered
                    }),
                    Err(error) => {
                        self.watches.forget(&opens);
                        Err(error)
                    }
                };
                // Nobody waits for it any more: what it has opened is let go of.
                drop(reply.send(result));
            }
        }
    }

    /// Forgets a process that has failed, unless its last events are still to be acknowledged.
    fn handle_ended(&mut self, process: &Arc<ProcessEvents>, result: Reply) {
        if !self.processes.knows(process) {
            return;
        }
        self.let_go(process);
        let running = result.is_ok_and(|answered| {
            serde_json::from_slice(&answered.result).is_ok_and(|Terminated { running, .. }| running)
        });
        if self.windows == Windows::Shared || !running {
            self.processes.retire(process);
        }
    }

    fn opened(&self, opens: Opens) -> Option<Released> {
        match opens {
            Opens::Nothing | Opens::Uses(_) | Opens::Missing(..) => None,
            Opens::File(handle) => Some(Released::File(handle, self.number)),
            Opens::Watch(watch) => Some(Released::Watch(watch.id().clone())),
            // Whoever asked lets go of it.
            Opens::Body(_) => None,
        }
    }
}
