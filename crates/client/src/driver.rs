//! The task that owns a connection: reads, writes, matches answers to calls, and hands every event
//! to its process and every change to its watch.

mod processes;
mod questions;
mod waiter;
mod watches;

use std::{error::Error, future::poll_fn, io, sync::Arc, time::Duration};

use bytes::Bytes;
use exec_core::peer::Calls;
use exec_transport::link::{Encoding, Link, MessageWriter, ReadError};
use exec_wire::{
    fs::{CloseFile, Unwatch, WatchMissing},
    id::OutputSeq,
    limits,
    message::{Message, Notification, RequestId, split_binary},
    method::Method,
    outgoing::Outgoing,
    process::{ReadProcess, TerminateMode, TerminateProcess},
};
use serde_json::value::RawValue;
use tokio::{
    sync::mpsc,
    time::{sleep, timeout},
};

use self::{
    processes::{Processes, Room},
    questions::Questions,
    watches::Watches,
};
pub(crate) use self::{
    questions::Watch,
    waiter::{Answered, Ask, Opens, Reply, Request, Waiter},
};
use crate::{
    client::CallError,
    events::{Broken, End, ProcessEvents},
    hub::{Hub, Kept, Released},
    notification::{self, Told},
};

/// What is encoded before it is flushed although more is asked.
const GATHER_BYTES: usize = 256 << 10;
/// How often, and how many messages at a time, are read where there is little room.
const SLOW_PERIOD: Duration = Duration::from_millis(10);
const SLOW_MESSAGES: u32 = 4;
/// How long a peer may take to read the last words.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// The id of requests whose answer nobody needs.
const UNANSWERED: &str = "release";

pub(crate) struct Driver {
    link: Link,
    encoding: Encoding,
    asks: mpsc::Receiver<Ask>,
    calls: Calls<Waiter>,
    unanswered: usize,
    /// Messages that may be read although there is little room.
    allowance: u32,
    processes: Processes,
    watches: Watches,
    questions: Questions,
    hub: Arc<Hub>,
}

/// Peer: the connection is given up.
#[derive(Debug, thiserror::Error)]
enum DriveError {
    #[error("connection cannot be read")]
    Read(#[from] ReadError),
    #[error("connection cannot be written to")]
    Write(#[from] io::Error),
    #[error("message does not decode")]
    Message(#[source] Box<dyn Error + Send + Sync>),
}

impl Driver {
    pub(crate) fn new(
        link: Link,
        encoding: Encoding,
        asks: mpsc::Receiver<Ask>,
        hub: Arc<Hub>,
    ) -> Self {
        let calls = Calls::new(limits::MAX_REQUESTS_IN_FLIGHT);
        Self {
            link,
            encoding,
            asks,
            calls,
            unanswered: 0,
            allowance: 0,
            processes: Processes::default(),
            watches: Watches::default(),
            questions: Questions::default(),
            hub,
        }
    }

    /// Runs until nobody needs the connection, or it is gone. Then everything fails at once.
    pub(crate) async fn run(mut self) {
        if let Err(error) = self.drive().await {
            let reason = error.source().map(ToString::to_string);
            tracing::debug!(peer = self.link.peer, %error, reason, "connection is given up");
        }
        self.processes.disconnect();
        self.watches.disconnect();
    }

    async fn drive(&mut self) -> Result<(), DriveError> {
        loop {
            self.end_released();
            let room = self.room();
            let may_read = room == Room::Enough || (room == Room::Little && self.allowance > 0);
            let slow = room == Room::Little && self.allowance == 0;
            let may_ask = self.link.writer.buffered() < GATHER_BYTES;
            tokio::select! {
                flushed = tend(&mut *self.link.writer) => {
                    flushed?;
                    self.questions.handle_flushed();
                }
                message = self.link.reader.next(), if may_read => match message? {
                    Some(message) => {
                        self.allowance = self.allowance.saturating_sub(1);
                        self.handle_message(&message)?;
                    }
                    None => return Ok(()),
                },
                () = sleep(SLOW_PERIOD), if slow => self.allowance = SLOW_MESSAGES,
                ask = self.asks.recv(), if may_ask => match ask {
                    Some(ask) => self.handle_ask(ask),
                    None => {
                        self.end_released();
                        // A peer that does not take them finds the connection closed all the same.
                        drop(timeout(LAST_WORDS, self.link.writer.close()).await);
                        return Ok(());
                    }
                },
                answer = self.questions.next_answer(), if !self.questions.is_empty() => {
                    self.say(answer);
                }
                () = self.hub.poked() => {}
            }
        }
    }

    /// Tells whether there is room for what would be read.
    fn room(&mut self) -> Room {
        let look = |driver: &mut Self| driver.processes.room(driver.hub.is_awaited());
        let full = look(self) != Room::Enough;
        self.hub.set_full(full);
        // Looked at again: who caught up before it was said that this matters told nobody.
        look(self)
    }

    fn handle_ask(&mut self, Ask { request, waiter }: Ask) {
        let refusal = match &waiter {
            _ if self.unanswered >= limits::MAX_REQUESTS_IN_FLIGHT => {
                Some(CallError::TooMany(limits::MAX_REQUESTS_IN_FLIGHT))
            }
            // Registered before it is launched: its events may come before the answer.
            Waiter::Start(_, process) if !self.processes.register(process) => {
                Some(CallError::IdInUse(process.id().clone()))
            }
            // A change that nobody wants any more does not begin.
            Waiter::File(reply, _) if reply.is_closed() => return,
            Waiter::Call(_) | Waiter::Start(..) | Waiter::Fill(_) | Waiter::File(..) => None,
        };
        match (refusal, waiter) {
            (None, Waiter::File(reply, opens)) => {
                let opens = self.watches.register(opens);
                self.ask(request, Waiter::File(reply, opens));
            }
            (None, waiter) => self.ask(request, waiter),
            (
                Some(refusal),
                Waiter::Call(reply) | Waiter::Start(reply, _) | Waiter::File(reply, _),
            ) => {
                // A caller that gave up needs no answer.
                drop(reply.send(Err(refusal)));
            }
            (Some(_), Waiter::Fill(process)) => self.give_up(&process, lost(&process)),
        }
    }

    fn ask(&mut self, request: Request, waiter: Waiter) {
        if let Ok(id) = self.calls.ask(waiter) {
            self.unanswered += 1;
            self.link.writer.push(request(&id), self.encoding);
        }
    }

    fn handle_message(&mut self, frame: &Bytes) -> Result<(), DriveError> {
        let (text, data) = match split_binary(frame) {
            None => (frame.clone(), None),
            Some(Ok((text, data))) => (text, Some(data)),
            Some(Err(error)) => return Err(DriveError::Message(error.into())),
        };
        let message = Message::decode_with(&text, data);
        match message.map_err(|error| DriveError::Message(error.into()))? {
            Message::Notification(told) => self.handle_notification(&told)?,
            Message::Request(request) => {
                let answer = self.questions.handle_request(&request, &self.processes);
                self.say(answer);
            }
            answer @ (Message::Response(_) | Message::Error(_)) => {
                if let Some(answer) = self.calls.handle_answer(answer) {
                    self.unanswered -= 1;
                    let answered = |result: &RawValue| Answered {
                        result: text.slice_ref(result.get().as_bytes()),
                        data: answer.data,
                        kept: None,
                    };
                    let result = answer.result.map(answered).map_err(CallError::Remote);
                    self.handle_answer(answer.waiter, result);
                }
            }
        }
        Ok(())
    }

    fn handle_notification(&mut self, told: &Notification<'_>) -> Result<(), DriveError> {
        let decoded = notification::decode(told);
        match decoded.map_err(|error| DriveError::Message(error.into()))? {
            Told::Event(id, event) => {
                if let Some(process) = self.processes.find(&id) {
                    let recorded = process.handle_event(event);
                    self.go_on(&process, recorded);
                }
            }
            Told::Started(started) => {
                if let Some(process) = self.processes.find(&started.process_id) {
                    process.handle_started(&started);
                }
            }
            Told::Changed(changed) => self.watches.handle_changed(changed),
            Told::MissingChanged(changed) => self.watches.handle_missing_changed(changed),
            Told::Decided(decision) => {
                let process = self.processes.find(&decision.process_id);
                if let Some(watch) = process.as_ref().and_then(|process| process.watch()) {
                    watch.watcher().record(decision);
                }
            }
            Told::Unknown => {}
        }
        Ok(())
    }

    fn handle_answer(&mut self, waiter: Waiter, result: Reply) {
        match waiter {
            Waiter::Call(reply) => drop(reply.send(result)),
            Waiter::Start(reply, process) => {
                let started = result.is_ok();
                if !started {
                    self.processes.forget(&process);
                }
                // Nobody waits for it any more: it is to be ended.
                if reply.send(result).is_err() && started {
                    self.terminate(&process);
                }
            }
            Waiter::Fill(process) => {
                let page = result
                    .ok()
                    .and_then(|page| serde_json::from_slice(&page.result).ok());
                let recorded = match page {
                    Some(page) => process.handle_page(page),
                    None => Err(lost(&process)),
                };
                self.go_on(&process, recorded);
            }
            Waiter::File(reply, opens) => {
                let result = match result {
                    Ok(answered) => Ok(Answered {
                        kept: opened(opens).map(|opened| Kept::new(&self.hub, opened)),
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

    /// Acts on what recording came to.
    fn go_on(&mut self, process: &Arc<ProcessEvents>, recorded: Result<Option<OutputSeq>, Broken>) {
        match recorded {
            Ok(None) => {}
            Ok(Some(after)) => {
                let read = ReadProcess {
                    process_id: process.id().clone(),
                    after_seq: Some(after),
                    max_bytes: None,
                    wait_ms: None,
                };
                let method = ReadProcess::NAME.as_str();
                let request = Box::new(move |id: &RequestId| Outgoing::request(id, method, &read));
                self.handle_ask(Ask {
                    request,
                    waiter: Waiter::Fill(Arc::clone(process)),
                });
            }
            Err(broken) => self.give_up(process, broken),
        }
        self.processes.note(process);
    }

    /// Fails one process: its events are lost, the others are not concerned.
    fn give_up(&mut self, process: &Arc<ProcessEvents>, broken: Broken) {
        tracing::warn!(process = %process.id(), %broken, "process is given up");
        process.end(End::Broken(broken));
        self.terminate(process);
        self.processes.forget(process);
    }

    /// Ends and closes what nobody holds any more.
    fn end_released(&mut self) {
        for released in self.hub.take_released() {
            match released {
                // One that is not known did not start, or its start is not sent yet.
                Released::Process(process) => {
                    if self.processes.knows(&process) {
                        self.terminate(&process);
                        self.processes.note(&process);
                    }
                }
                Released::File(handle_id) => self.tell(&CloseFile { handle_id }),
                Released::Watch(watch_id) => {
                    self.watches.remove(&watch_id);
                    self.tell(&Unwatch { watch_id });
                }
                Released::Missing(number) => self.end_missing(number),
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

    fn terminate(&mut self, process: &ProcessEvents) {
        self.tell(&TerminateProcess {
            process_id: process.id().clone(),
            mode: Some(TerminateMode::Force),
        });
    }

    /// Asks for something whose answer nobody needs.
    fn tell<M: Method>(&mut self, params: &M) {
        let id = RequestId::Text(UNANSWERED.into());
        let request = Outgoing::request(&id, M::NAME.as_str(), params);
        self.link.writer.push(request, self.encoding);
    }

    /// Answers the server, if there is an answer yet.
    fn say(&mut self, answer: Option<Outgoing>) {
        if let Some(answer) = answer {
            self.link.writer.push(answer, self.encoding);
        }
    }
}

fn lost(process: &ProcessEvents) -> Broken {
    Broken::Lost(process.look(|log| log.next_seq()))
}

fn opened(opens: Opens) -> Option<Released> {
    match opens {
        Opens::Nothing | Opens::Missing(..) => None,
        Opens::File(handle) => Some(Released::File(handle)),
        Opens::Watch(watch) => Some(Released::Watch(watch.id().clone())),
    }
}

/// Flushes what is buffered, or waits until the link itself has something to flush.
async fn tend(writer: &mut dyn MessageWriter) -> io::Result<()> {
    if writer.buffered() == 0 {
        poll_fn(|cx| writer.poll_upkeep(cx)).await;
    }
    writer.flush().await
}
