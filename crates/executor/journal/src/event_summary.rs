//! What the events of a process add up to.

use std::collections::VecDeque;

use exec_core::output_log::ExitInfo;
use exec_wire::{
    id::{OutputSeq, WriteId},
    limits::REMEMBERED_WRITE_IDS,
    process::{ExitCause, TerminalSize},
};

use crate::journal_event::JournalEvent;

/// OS pids of a process.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ProcessPids {
    /// The command.
    pub os_pid: u32,
    /// Its supervisor.
    pub supervisor_pid: u32,
    /// The spawner.
    pub spawner_pid: u32,
}

/// Termination in progress.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Termination {
    /// Reason.
    pub cause: ExitCause,
    /// Time of the SIGKILL in milliseconds since boot, after a graceful start.
    pub kill_at_boot_ms: Option<u64>,
}

/// Output that was evicted.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct EvictedRange {
    /// Number of the first segment that was not evicted.
    pub(crate) next_segment: u64,
    /// Last evicted sequence number, or 0.
    pub(crate) last_seq: OutputSeq,
    /// Evicted bytes of each stream.
    pub(crate) bytes: [u64; 3],
}

impl EvictedRange {
    /// Returns the event that records it.
    pub(crate) fn to_event(self) -> JournalEvent {
        JournalEvent::Evicted {
            segment: self.next_segment.saturating_sub(1),
            last_seq: self.last_seq,
            bytes: self.bytes,
        }
    }
}

/// What the events of a process add up to.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct EventSummary {
    pub(crate) started: Option<ProcessPids>,
    /// The most recent ones in their order.
    pub(crate) write_ids: VecDeque<WriteId>,
    /// End of the accepted input in its file.
    pub(crate) accepted_input: u64,
    pub(crate) input_end: bool,
    pub(crate) input_closed: bool,
    pub(crate) size: Option<TerminalSize>,
    pub(crate) terminating: Option<Termination>,
    pub(crate) exit: Option<(OutputSeq, ExitInfo, u64)>,
    pub(crate) closed: Option<(OutputSeq, u64)>,
    pub(crate) detached: bool,
    pub(crate) evicted: EvictedRange,
}

impl EventSummary {
    /// Adds an event.
    pub(crate) fn apply(&mut self, event: JournalEvent) {
        match event {
            JournalEvent::Started {
                os_pid,
                supervisor_pid,
                spawner_pid,
            } => {
                self.started = Some(ProcessPids {
                    os_pid,
                    supervisor_pid,
                    spawner_pid,
                });
            }
            JournalEvent::Input { id, offset, len } => {
                self.accepted_input = offset.saturating_add(len).min(i64::MAX.unsigned_abs());
                if let Some(id) = id {
                    self.write_ids.push_back(id);
                }
                if self.write_ids.len() > REMEMBERED_WRITE_IDS {
                    self.write_ids.pop_front();
                }
            }
            JournalEvent::InputReset => self.accepted_input = 0,
            JournalEvent::InputEnd => self.input_end = true,
            JournalEvent::InputClosed => self.input_closed = true,
            JournalEvent::Resize { rows, cols } => self.size = Some(TerminalSize { rows, cols }),
            JournalEvent::Terminating {
                cause,
                kill_at_boot_ms,
            } => {
                self.terminating = Some(Termination {
                    cause,
                    kill_at_boot_ms,
                });
            }
            JournalEvent::Exited { seq, exit, at_ms } => self.exit = Some((seq, exit, at_ms)),
            JournalEvent::Closed { seq, at_ms } => self.closed = Some((seq, at_ms)),
            JournalEvent::Detached => self.detached = true,
            JournalEvent::Evicted {
                segment,
                last_seq,
                bytes,
            } => {
                let next_segment = segment.saturating_add(1);
                self.evicted = EvictedRange {
                    next_segment,
                    last_seq,
                    bytes,
                };
            }
        }
    }

    /// Returns the shortest list of events that adds up to the same.
    pub(crate) fn into_events(self) -> Vec<JournalEvent> {
        let mut events = Vec::with_capacity(self.write_ids.len() + 16);
        events.extend(self.started.map(|pids| JournalEvent::Started {
            os_pid: pids.os_pid,
            supervisor_pid: pids.supervisor_pid,
            spawner_pid: pids.spawner_pid,
        }));
        events.extend((self.evicted.next_segment > 0).then(|| self.evicted.to_event()));
        let offset = self.accepted_input;
        let input = |id| JournalEvent::Input { id, offset, len: 0 };
        events.extend(self.write_ids.into_iter().map(Some).map(input));
        events.push(input(None));
        events.extend(self.input_end.then_some(JournalEvent::InputEnd));
        events.extend(self.input_closed.then_some(JournalEvent::InputClosed));
        events.extend(self.size.map(|size| JournalEvent::Resize {
            rows: size.rows,
            cols: size.cols,
        }));
        events.extend(
            self.terminating
                .map(|termination| JournalEvent::Terminating {
                    cause: termination.cause,
                    kill_at_boot_ms: termination.kill_at_boot_ms,
                }),
        );
        events.extend(self.detached.then_some(JournalEvent::Detached));
        let exit = self.exit;
        events.extend(exit.map(|(seq, exit, at_ms)| JournalEvent::Exited { seq, exit, at_ms }));
        events.extend(
            self.closed
                .map(|(seq, at_ms)| JournalEvent::Closed { seq, at_ms }),
        );
        events
    }
}
