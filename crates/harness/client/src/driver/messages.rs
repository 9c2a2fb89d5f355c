//! What comes from the server.

use std::sync::Arc;

use bytes::Bytes;
use exec_core::log::Event;
use exec_wire::{
    http::CancelHttpRequest,
    message::{Message, Notification, split_binary},
};
use serde_json::value::RawValue;

use super::{
    connection::{Cause, Connection},
    waiter::{Answered, Waiter},
};
use crate::{
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
