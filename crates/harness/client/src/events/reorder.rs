//! Puts the events of one process back into the order of their numbers.
//! Invariant: what comes out is numbered from 1 without holes.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};

use exec_core::log::{Event, Exit, OutputChunk};
use exec_env::process::ProcessError;
use exec_wire::{
    error::RpcError,
    id::{OutputSeq, ProcessId},
    process::{ExitCause, OutputPage, PageChunk},
};

use crate::notification::signal_name;

/// Events that may wait for an earlier one. More than the stock client allows: after a resume live
/// events come before the page that the earlier ones are on.
const MAX_EVENTS: usize = 65_536;
/// Bytes of output that may wait for an earlier event.
const MAX_BYTES: usize = 4 << 20;
/// Largest chunk: as the stock client.
pub(super) const MAX_CHUNK_BYTES: usize = 1 << 20;

#[derive(Debug)]
pub(crate) struct EventReorder {
    /// The number that comes out next.
    next: OutputSeq,
    ready: VecDeque<Event>,
    early_events: BTreeMap<OutputSeq, Event>,
    early_bytes: usize,
    exit_seen: bool,
}

/// Peer: the events of one process cannot be put in order. Others are not concerned.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub(crate) enum EventsError {
    #[error("more than {MAX_BYTES} bytes or {MAX_EVENTS} events came before event {}", .0.0)]
    Overflow(OutputSeq),
    #[error("event {} is larger than {MAX_CHUNK_BYTES} bytes", .0.0)]
    Oversized(OutputSeq),
    #[error("{}", describe_lost(*.0, *.1))]
    Lost(OutputSeq, OutputSeq),
    #[error("event {} cannot follow those before it", .0.0)]
    Impossible(OutputSeq),
    #[error("{0}")]
    Malformed(String),
    #[error("server does not know it any more: {0}")]
    Unknown(String),
    #[error("what the server knows by this id is another process")]
    Replaced,
    #[error("its output cannot be read: {0}")]
    ReadFailed(String),
}

impl EventsError {
    /// What everything fails with that is done to the process from then on.
    pub(crate) fn error(&self, id: &ProcessId) -> ProcessError {
        RpcError::internal(format!("process {id} is given up: {self}")).into()
    }
}

fn describe_lost(first: OutputSeq, last: OutputSeq) -> String {
    if first == last {
        format!("event {} is lost", first.0)
    } else {
        format!("events {} to {} are lost", first.0, last.0)
    }
}

impl EventReorder {
    pub(crate) fn new() -> Self {
        Self {
            next: OutputSeq(1),
            ready: VecDeque::new(),
            early_events: BTreeMap::new(),
            early_bytes: 0,
            exit_seen: false,
        }
    }

    /// Takes an event; one that is known already is dropped.
    pub(crate) fn handle_event(&mut self, event: Event) -> Result<(), EventsError> {
        let event = match event {
            // The oldest peers do not number the close: it is behind all that came.
            Event::Closed(OutputSeq(0)) => {
                let last = self
                    .early_events
                    .last_key_value()
                    .map(|(seq, _)| seq.next());
                Event::Closed(last.unwrap_or(self.next))
            }
            Event::Output(_) | Event::Exited(..) | Event::Closed(_) => event,
        };
        if event.seq() < self.next || self.early_events.contains_key(&event.seq()) {
            return Ok(());
        }
        if event_bytes(&event) > MAX_CHUNK_BYTES {
            return Err(EventsError::Oversized(event.seq()));
        }
        self.exit_seen |= matches!(event, Event::Exited(..));
        if event.seq() > self.next {
            self.early_bytes += event_bytes(&event);
            self.early_events.insert(event.seq(), event);
            let overflow = self.early_events.len() > MAX_EVENTS || self.early_bytes > MAX_BYTES;
            return if overflow {
                Err(EventsError::Overflow(self.next))
            } else {
                Ok(())
            };
        }
        self.next = self.next.next();
        self.ready.push_back(event);
        while let Some(event) = self.early_events.remove(&self.next) {
            self.early_bytes -= event_bytes(&event);
            self.next = self.next.next();
            self.ready.push_back(event);
        }
        Ok(())
    }

    /// Takes a part of what `process/read` has to answer after a number. Returns where to go on.
    pub(crate) fn handle_partial_page(
        &mut self,
        page: OutputPage,
        after: OutputSeq,
    ) -> Result<OutputSeq, EventsError> {
        let end = OutputSeq(page.next_seq.0.saturating_sub(1));
        if let (Some(seq), Some(exit)) = (page.exit_seq, page_exit(&page)) {
            // What comes behind it need not wait for the last part.
            self.handle_exit(seq, exit)?;
        }
        self.handle_chunks(page.chunks)?;
        if end > after {
            Ok(end)
        } else {
            let text = format!("`process/read` after {} goes on at {}", after.0, end.0);
            Err(EventsError::Malformed(text))
        }
    }

    /// Takes the exit that a page tells of, unless it is known. Its number must be free.
    fn handle_exit(&mut self, seq: OutputSeq, exit: Exit) -> Result<(), EventsError> {
        if self.exit_seen {
            return Ok(());
        }
        if seq < self.next || self.early_events.contains_key(&seq) {
            let text = format!(
                "`process/read` tells of an exit at {}, which was output",
                seq.0
            );
            return Err(EventsError::Malformed(text));
        }
        self.handle_event(Event::Exited(seq, exit))
    }

    fn handle_chunks(&mut self, chunks: Vec<PageChunk>) -> Result<(), EventsError> {
        for chunk in chunks {
            let data = chunk.chunk.0;
            self.handle_event(Event::Output(OutputChunk {
                seq: chunk.seq,
                stream: chunk.stream,
                data,
            }))?;
        }
        Ok(())
    }

    /// Takes all that `process/read` has to answer after [`gap`](Self::gap). If that does not fill it,
    /// nothing will.
    pub(crate) fn handle_page(&mut self, page: OutputPage) -> Result<(), EventsError> {
        let exit = page_exit(&page).filter(|_| !self.exit_seen);
        self.handle_chunks(page.chunks)?;
        let closed = OutputSeq(page.next_seq.0.saturating_sub(1));
        let end = if page.closed { closed } else { page.next_seq };
        if let Some(exit) = exit
            // Older peers do not tell its number: it is the only one that nothing has.
            && let Some(seq) = page.exit_seq.or_else(|| self.only_missing(end))
        {
            self.handle_exit(seq, exit)?;
        }
        if page.closed {
            self.handle_event(Event::Closed(closed))?;
        }
        if self.next < page.next_seq {
            let known = self.early_events.keys().next().copied();
            let end = known.map_or(page.next_seq, |known| known.min(page.next_seq));
            Err(EventsError::Lost(self.next, OutputSeq(end.0 - 1)))
        } else {
            Ok(())
        }
    }

    /// Takes the next event in order.
    pub(crate) fn poll_event(&mut self) -> Option<Event> {
        self.ready.pop_front()
    }

    /// Returns the last number before a gap that something waits behind.
    pub(crate) fn gap(&self) -> Option<OutputSeq> {
        (!self.early_events.is_empty()).then_some(self.last())
    }

    /// Returns the last number that came, in order or not.
    pub(crate) fn seen(&self) -> OutputSeq {
        let early_messages = self.early_events.last_key_value().map(|(seq, _)| *seq);
        early_messages.unwrap_or(self.last())
    }

    /// Returns the last number that came out.
    pub(crate) fn last(&self) -> OutputSeq {
        OutputSeq(self.next.0 - 1)
    }

    /// Returns the one number below `end` that has not come, if it is only one.
    fn only_missing(&self, end: OutputSeq) -> Option<OutputSeq> {
        let come = self.early_events.range(..end).count() as u64;
        (end.0.checked_sub(self.next.0)? == come + 1).then_some(())?;
        let mut seq = self.next;
        while self.early_events.contains_key(&seq) {
            seq = seq.next();
        }
        Some(seq)
    }
}

/// Returns how the process ended, if a page says so. Older peers tell no more than the code.
fn page_exit(page: &OutputPage) -> Option<Exit> {
    Some(Exit {
        code: page.exit_code?,
        signal: page.signal.as_deref().map(signal_name),
        cause: page.cause.unwrap_or(ExitCause::Unknown),
        usage: page.usage,
        sandbox_denied: page.sandbox_denied,
    })
}

fn event_bytes(event: &Event) -> usize {
    match event {
        Event::Output(chunk) => chunk.data.len(),
        Event::Exited(..) | Event::Closed(_) => 0,
    }
}
