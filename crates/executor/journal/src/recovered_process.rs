//! What a journal says about its process.

use exec_core::output_log::ExitInfo;
use exec_wire::{
    id::{OutputSeq, WriteId},
    process::TerminalSize,
};

use crate::{
    event_summary::{EventSummary, ProcessPids, Termination},
    journal_head::JournalHead,
};

/// What a journal says about its process.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct RecoveredProcess {
    /// Facts that never change.
    pub head: JournalHead,
    /// OS pids. Absent: the start was not recorded.
    pub started: Option<ProcessPids>,
    /// Next sequence number to assign.
    pub next_seq: OutputSeq,
    /// Oldest retained sequence number of output.
    pub first_seq: Option<OutputSeq>,
    /// Sequence number, exit and time in milliseconds since the Unix epoch.
    pub exit: Option<(OutputSeq, ExitInfo, u64)>,
    /// Sequence number of the close.
    pub closed: Option<OutputSeq>,
    /// Time of the close in milliseconds since the Unix epoch.
    pub closed_at_ms: Option<u64>,
    /// The most recent accepted write ids in their order.
    pub write_ids: Vec<WriteId>,
    /// No further input follows.
    pub input_end: bool,
    /// The command's input is closed.
    pub input_closed: bool,
    /// Terminal size, once it was resized.
    pub size: Option<TerminalSize>,
    /// Termination in progress.
    pub terminating: Option<Termination>,
    /// The process was detached after its start.
    pub detached: bool,
    /// Bytes of output ever written.
    pub bytes_total: u64,
    /// Bytes of each stream ever written, in the order of `OutputStream`.
    pub stream_bytes: [u64; 3],
    /// Bytes of output that were not committed before, and are now chunks.
    pub tail_bytes: u64,
}

/// What the segments of a journal add to its events.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SegmentSummary {
    /// Highest sequence number, or 0.
    pub(crate) highest: OutputSeq,
    pub(crate) first: Option<OutputSeq>,
    /// Bytes of each stream in the segments.
    pub(crate) stream_bytes: [u64; 3],
    pub(crate) tail_bytes: u64,
}

impl RecoveredProcess {
    /// Joins the parts of a journal.
    pub(crate) fn new(head: JournalHead, events: EventSummary, segments: SegmentSummary) -> Self {
        let evicted = events.evicted;
        let mut stream_bytes = evicted.bytes;
        for (total, retained) in stream_bytes.iter_mut().zip(segments.stream_bytes) {
            *total = total.saturating_add(retained);
        }
        let bytes = stream_bytes.iter();
        Self {
            head,
            started: events.started,
            next_seq: last_seq(&events, segments.highest).next(),
            first_seq: segments.first,
            exit: events.exit,
            closed: events.closed.map(|(seq, _)| seq),
            closed_at_ms: events.closed.map(|(_, at_ms)| at_ms),
            write_ids: events.write_ids.into(),
            input_end: events.input_end,
            input_closed: events.input_closed,
            size: events.size,
            terminating: events.terminating,
            detached: events.detached,
            bytes_total: bytes.fold(0, |sum, bytes| sum.saturating_add(*bytes)),
            stream_bytes,
            tail_bytes: segments.tail_bytes,
        }
    }

    /// Returns whether the process ended.
    pub fn is_ended(&self) -> bool {
        self.closed.is_some()
    }
}

/// Returns the highest sequence number of events and output.
pub(crate) fn last_seq(events: &EventSummary, highest: OutputSeq) -> OutputSeq {
    let exit = events.exit.as_ref().map(|(seq, ..)| *seq);
    let closed = events.closed.map(|(seq, _)| seq);
    let others = [exit, closed, Some(events.evicted.last_seq)];
    others.into_iter().flatten().fold(highest, OutputSeq::max)
}
