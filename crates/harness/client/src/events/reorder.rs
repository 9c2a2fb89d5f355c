//! Restores the sequence order of the events of one process. Invariant: output events are numbered
//! from 1 without gaps.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};

use exec_core::output_log::{ExitInfo, LogEvent, OutputChunk};
use exec_env::process::ProcessError;
use exec_wire::{
    error::RpcError,
    id::{OutputSeq, ProcessId},
    process::{ExitCause, OutputPage, PageChunk},
    signal_name::known_signal_name,
};

/// Maximum number of events that wait for an earlier one. More than in the stock client, because
/// after a resume live events arrive before the page with the earlier ones.
const MAX_EVENTS: usize = 65_536;
/// Maximum size of output that waits for an earlier event.
const MAX_BYTES: usize = 4 << 20;
/// Maximum chunk size, as in the stock client.
pub(super) const MAX_CHUNK_BYTES: usize = 1 << 20;

#[derive(Debug)]
pub(crate) struct EventReorder {
    /// The next sequence number to output.
    next: OutputSeq,
    ready: VecDeque<LogEvent>,
    early_events: BTreeMap<OutputSeq, LogEvent>,
    early_bytes: usize,
    /// The last event that was dropped because too many wait. The server is asked for it again.
    dropped_through: OutputSeq,
    exit_seen: bool,
}

/// Peer: the events of one process are unusable. Other processes are not affected.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub(crate) enum EventsError {
    #[error("event {} is larger than {MAX_CHUNK_BYTES} bytes", .0.0)]
    Oversized(OutputSeq),
    #[error("{}", describe_lost(*.0, *.1))]
    Lost(OutputSeq, OutputSeq),
    #[error("event {} is out of order", .0.0)]
    Impossible(OutputSeq),
    #[error("{0}")]
    Malformed(String),
    #[error("the server has forgotten it: {0}")]
    Unknown(String),
    #[error("the server has another process with this id")]
    Replaced,
    #[error("failed to read its output: {0}")]
    ReadFailed(String),
}

impl EventsError {
    /// Returns the error of all later operations on the process.
    pub(crate) fn error(&self, id: &ProcessId) -> ProcessError {
        RpcError::internal(format!("process {id} failed: {self}")).into()
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
            dropped_through: OutputSeq(0),
            exit_seen: false,
        }
    }

    /// Handles an event. Drops duplicates, and early events beyond the limit: a fast process writes
    /// faster than a client catches up.
    pub(crate) fn handle_event(&mut self, event: LogEvent) -> Result<(), EventsError> {
        let waits = event.seq() > self.next;
        let is_full = self.early_events.len() >= MAX_EVENTS || self.early_bytes >= MAX_BYTES;
        if waits && is_full {
            self.dropped_through = self.dropped_through.max(event.seq());
            return Ok(());
        }
        self.insert_event(event)
    }

    fn insert_event(&mut self, event: LogEvent) -> Result<(), EventsError> {
        let event = match event {
            // The oldest servers do not number the close: it follows all other events.
            LogEvent::Closed(OutputSeq(0)) => {
                let last = self
                    .early_events
                    .last_key_value()
                    .map(|(seq, _)| seq.next());
                LogEvent::Closed(last.unwrap_or(self.next))
            }
            LogEvent::Output(_) | LogEvent::Exited(..) | LogEvent::Closed(_) => event,
        };
        if event.seq() < self.next || self.early_events.contains_key(&event.seq()) {
            return Ok(());
        }
        if event_bytes(&event) > MAX_CHUNK_BYTES {
            return Err(EventsError::Oversized(event.seq()));
        }
        self.exit_seen |= matches!(event, LogEvent::Exited(..));
        if event.seq() > self.next {
            self.early_bytes += event_bytes(&event);
            self.early_events.insert(event.seq(), event);
            return Ok(());
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

    /// Handles a partial page of `process/read`. Returns where to continue.
    pub(crate) fn handle_partial_page(
        &mut self,
        page: OutputPage,
        after: OutputSeq,
    ) -> Result<OutputSeq, EventsError> {
        let end = OutputSeq(page.next_seq.0.saturating_sub(1));
        if let (Some(seq), Some(exit)) = (page.exit_seq, page_exit(&page)) {
            // Events after the exit need not wait for the last page.
            self.handle_exit(seq, exit)?;
        }
        self.handle_chunks(page.chunks)?;
        if end > after {
            Ok(end)
        } else {
            let text = format!(
                "`process/read` after {} made no progress: it ended at {}",
                after.0, end.0
            );
            Err(EventsError::Malformed(text))
        }
    }

    /// Handles the exit from a page, unless it is known. Its sequence number must be unused.
    fn handle_exit(&mut self, seq: OutputSeq, exit: ExitInfo) -> Result<(), EventsError> {
        if self.exit_seen {
            return Ok(());
        }
        if seq < self.next || self.early_events.contains_key(&seq) {
            let text = format!(
                "`process/read` reports an exit at {}, which was output",
                seq.0
            );
            return Err(EventsError::Malformed(text));
        }
        self.insert_event(LogEvent::Exited(seq, exit))
    }

    fn handle_chunks(&mut self, chunks: Vec<PageChunk>) -> Result<(), EventsError> {
        for chunk in chunks {
            let data = chunk.chunk.0;
            self.insert_event(LogEvent::Output(OutputChunk {
                seq: chunk.seq,
                stream: chunk.stream,
                data,
            }))?;
        }
        Ok(())
    }

    /// Handles a complete response of `process/read` after [`gap`](Self::gap). If it does not fill
    /// the gap, the missing events are lost.
    pub(crate) fn handle_page(&mut self, page: OutputPage) -> Result<(), EventsError> {
        let exit = page_exit(&page).filter(|_| !self.exit_seen);
        self.handle_chunks(page.chunks)?;
        let closed = OutputSeq(page.next_seq.0.saturating_sub(1));
        let end = if page.closed { closed } else { page.next_seq };
        if let Some(exit) = exit
            // Older servers do not report its number: it is the only one that is missing.
            && let Some(seq) = page.exit_seq.or_else(|| self.only_missing(end))
        {
            self.handle_exit(seq, exit)?;
        }
        if page.closed {
            self.insert_event(LogEvent::Closed(closed))?;
        }
        if self.next < page.next_seq {
            let next_early = self.early_events.keys().next().copied();
            let end = next_early.map_or(page.next_seq, |next_early| next_early.min(page.next_seq));
            Err(EventsError::Lost(self.next, OutputSeq(end.0 - 1)))
        } else {
            Ok(())
        }
    }

    /// Returns the next event in order.
    pub(crate) fn poll_event(&mut self) -> Option<LogEvent> {
        self.ready.pop_front()
    }

    /// Returns the last event before a gap, if events wait behind one or were dropped there.
    pub(crate) fn gap(&self) -> Option<OutputSeq> {
        let has_gap = !self.early_events.is_empty() || self.dropped_through > self.last();
        has_gap.then_some(self.last())
    }

    /// Returns the highest sequence number received, in order or not.
    pub(crate) fn seen(&self) -> OutputSeq {
        let early_messages = self.early_events.last_key_value().map(|(seq, _)| *seq);
        let seen = early_messages.unwrap_or(self.last());
        seen.max(self.dropped_through)
    }

    /// Returns the last sequence number that was output.
    pub(crate) fn last(&self) -> OutputSeq {
        OutputSeq(self.next.0 - 1)
    }

    /// Returns the missing sequence number below `end`, if exactly one is missing.
    fn only_missing(&self, end: OutputSeq) -> Option<OutputSeq> {
        let received = self.early_events.range(..end).count() as u64;
        (end.0.checked_sub(self.next.0)? == received + 1).then_some(())?;
        let mut seq = self.next;
        while self.early_events.contains_key(&seq) {
            seq = seq.next();
        }
        Some(seq)
    }
}

/// Returns the exit status from a page, if present. Older servers report only the code.
fn page_exit(page: &OutputPage) -> Option<ExitInfo> {
    Some(ExitInfo {
        code: page.exit_code?,
        signal: page.signal.as_deref().map(known_signal_name),
        cause: page.cause.unwrap_or(ExitCause::Unknown),
        usage: page.usage,
        sandbox_denied: page.sandbox_denied,
    })
}

fn event_bytes(event: &LogEvent) -> usize {
    match event {
        LogEvent::Output(chunk) => chunk.data.len(),
        LogEvent::Exited(..) | LogEvent::Closed(_) => 0,
    }
}
