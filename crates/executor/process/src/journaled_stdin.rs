//! Stdin of a durable child: input is recorded in the journal, then accepted, then delivered.
//!
//! A server that dies between any two steps loses no accepted input and repeats none: the delivered
//! length is the position of the input file, which the kernel advances as it moves the bytes.

use std::{collections::VecDeque, os::fd::OwnedFd, sync::Arc};

use bytes::Bytes;
use exec_journal::{JournalError, JournalEvent};
use exec_spawn::keeper::KeeperSlot;
use exec_wire::id::WriteId;
use tokio::{io::unix::AsyncFd, task::spawn_blocking};

use crate::{
    child_input::ChildInput,
    durable_record::{DurableRecord, HoldingPipe},
    stdin_queue::{AcceptedWrites, EnqueueOutcome, WriteCallers},
    stdio,
};

/// Undelivered bytes above which further input waits. They are on disk.
const UNDELIVERED_BYTES: u64 = 8 << 20;
/// The same for a terminal. Lower, so that the user soon notices that the program does not read.
const UNDELIVERED_TERMINAL_BYTES: u64 = 16 << 10;
/// Most writes that may wait, and their total bytes.
const WAITING_WRITES: usize = 1024;
const WAITING_BYTES: u64 = 64 << 20;

/// Input on its way to the stdin of a durable child.
#[derive(Debug)]
pub(crate) struct JournaledStdin {
    record: Arc<DurableRecord>,
    target: JournaledTarget,
    accepted: AcceptedWrites,
    /// Recorded input that is not delivered.
    undelivered_bytes: u64,
    /// Input that waits until less is undelivered. It is not accepted yet.
    unrecorded: VecDeque<UnrecordedInput>,
    unrecorded_bytes: u64,
    /// Whether recorded input is waiting for delivery.
    is_waiting: bool,
    /// Whether the end of input was accepted. Descriptors close once everything is delivered.
    ended: bool,
    activity: bool,
}

/// Input that waits to be recorded.
#[derive(Debug)]
struct UnrecordedInput {
    id: Option<WriteId>,
    data: Bytes,
    /// The end of input, instead of data.
    end: bool,
    callers: WriteCallers,
}

/// Where input is delivered to.
#[derive(Debug)]
pub(crate) enum JournaledTarget {
    /// The child has no stdin, or its end was delivered.
    Closed,
    /// The server's end of the pipe.
    Pipe(Arc<AsyncFd<OwnedFd>>),
    /// The terminal, and the pipe in front of it.
    Terminal(Arc<AsyncFd<OwnedFd>>, HoldingPipe),
    /// The reader closed its end; further input is discarded.
    ReaderGone,
}

impl JournaledStdin {
    /// Creates the queue with what an earlier server has accepted. Input may be waiting.
    pub(crate) fn new(
        record: Arc<DurableRecord>,
        target: JournaledTarget,
        accepted: impl IntoIterator<Item = WriteId>,
        ended: bool,
    ) -> Self {
        let mut remembered = AcceptedWrites::default();
        accepted.into_iter().for_each(|id| remembered.insert(id));
        Self {
            record,
            target,
            accepted: remembered,
            undelivered_bytes: 0,
            unrecorded: VecDeque::new(),
            unrecorded_bytes: 0,
            is_waiting: true,
            ended,
            activity: false,
        }
    }
}

impl ChildInput for JournaledStdin {
    fn write(&mut self, id: Option<WriteId>, data: Bytes) -> EnqueueOutcome {
        self.accept(id, data, false)
    }

    fn close(&mut self, id: Option<WriteId>) -> EnqueueOutcome {
        let end_of_file = match &self.target {
            JournaledTarget::Terminal(fd, _) => Some([stdio::end_of_file(fd.get_ref())]),
            JournaledTarget::Closed | JournaledTarget::Pipe(_) | JournaledTarget::ReaderGone => {
                None
            }
        };
        match end_of_file {
            Some(byte) => self.accept(id, Bytes::copy_from_slice(&byte), false),
            None => self.accept(id, Bytes::new(), true),
        }
    }

    fn take_activity(&mut self) -> bool {
        std::mem::take(&mut self.activity)
    }

    fn blocked(&self) -> Option<Arc<AsyncFd<OwnedFd>>> {
        match &self.target {
            JournaledTarget::Pipe(fd) | JournaledTarget::Terminal(fd, _) => {
                self.is_waiting.then(|| Arc::clone(fd))
            }
            JournaledTarget::Closed | JournaledTarget::ReaderGone => None,
        }
    }

    fn flush(&mut self) {
        self.deliver();
        while self.undelivered_bytes <= self.undelivered_limit()
            && let Some(input) = self.unrecorded.pop_front()
        {
            let length = input.data.len() as u64;
            // Nothing follows the end.
            if !self.ended && !self.record_input(input.id.as_ref(), &input.data, input.end) {
                // A full disk. The caller goes on waiting.
                self.unrecorded.push_front(input);
                return;
            }
            self.unrecorded_bytes -= length;
            input.callers.release();
        }
    }

    fn discard_input(&mut self) {
        if let JournaledTarget::Pipe(_) | JournaledTarget::Terminal(..) = self.target {
            self.target = JournaledTarget::ReaderGone;
        }
        self.is_waiting = false;
        self.undelivered_bytes = 0;
        self.unrecorded_bytes = 0;
        for input in self.unrecorded.drain(..) {
            input.callers.release();
        }
    }
}

impl JournaledStdin {
    fn accept(&mut self, id: Option<WriteId>, data: Bytes, end: bool) -> EnqueueOutcome {
        // Checked first: a repeated id is accepted again, even after the end of input.
        if id.as_ref().is_some_and(|id| self.accepted.contains(id)) {
            return EnqueueOutcome::Accepted;
        }
        match &self.target {
            JournaledTarget::Closed => return EnqueueOutcome::Closed,
            JournaledTarget::ReaderGone => return EnqueueOutcome::Accepted,
            JournaledTarget::Pipe(_) | JournaledTarget::Terminal(..) if self.ended => {
                return EnqueueOutcome::Closed;
            }
            JournaledTarget::Pipe(_) | JournaledTarget::Terminal(..) => self.activity = true,
        }
        if !self.unrecorded.is_empty() || self.undelivered_bytes > self.undelivered_limit() {
            return self.postpone(id, data, end);
        }
        match self.record_input(id.as_ref(), &data, end) {
            true => EnqueueOutcome::Accepted,
            false => EnqueueOutcome::Unrecorded,
        }
    }

    fn undelivered_limit(&self) -> u64 {
        match &self.target {
            JournaledTarget::Terminal(..) => UNDELIVERED_TERMINAL_BYTES,
            JournaledTarget::Pipe(_) | JournaledTarget::Closed | JournaledTarget::ReaderGone => {
                UNDELIVERED_BYTES
            }
        }
    }

    /// Lets input wait until less is undelivered.
    fn postpone(&mut self, id: Option<WriteId>, data: Bytes, end: bool) -> EnqueueOutcome {
        if id.is_some()
            && let Some(input) = self.unrecorded.iter_mut().find(|input| input.id == id)
        {
            return EnqueueOutcome::Waiting(input.callers.join());
        }
        let length = data.len() as u64;
        if self.unrecorded.len() >= WAITING_WRITES || self.unrecorded_bytes + length > WAITING_BYTES
        {
            return EnqueueOutcome::Overflow;
        }
        let mut callers = WriteCallers::default();
        let wait = callers.join();
        self.unrecorded_bytes += length;
        self.unrecorded.push_back(UnrecordedInput {
            id,
            data,
            end,
            callers,
        });
        EnqueueOutcome::Waiting(wait)
    }

    /// Records input and delivers it if nothing else is waiting. Returns whether it was recorded.
    fn record_input(&mut self, id: Option<&WriteId>, data: &[u8], end: bool) -> bool {
        let recorded = match end {
            // The end first: if only that is recorded, a repeated call finds stdin closed.
            true => self
                .record
                .record(&JournalEvent::InputEnd)
                .and_then(|()| self.record.append_input(id, &[])),
            false => self.record.append_input(id, data),
        };
        if let Err(error) = recorded {
            tracing::warn!(%error, "failed to record input");
            return false;
        }
        if let Some(id) = id {
            self.accepted.insert(id.clone());
        }
        self.ended |= end;
        self.undelivered_bytes += data.len() as u64;
        let was_waiting = std::mem::replace(&mut self.is_waiting, true);
        if !was_waiting {
            self.deliver();
        }
        true
    }

    fn deliver(&mut self) {
        let delivered = match &self.target {
            JournaledTarget::Closed | JournaledTarget::ReaderGone => {
                self.is_waiting = false;
                return;
            }
            JournaledTarget::Pipe(fd) => self.record.deliver_input(fd.get_ref(), None),
            JournaledTarget::Terminal(fd, pipe) => {
                self.record.deliver_input(fd.get_ref(), Some(pipe))
            }
        };
        match delivered {
            Ok(remaining @ 1..) => self.undelivered_bytes = remaining,
            Ok(0) => {
                self.is_waiting = false;
                self.undelivered_bytes = 0;
                if self.ended {
                    self.close_descriptors();
                }
            }
            Err(JournalError::ReaderGone) => self.discard_input(),
            Err(error) => tracing::warn!(%error, "failed to deliver input"),
        }
    }

    /// Closes every duplicate of the pipe, so that the child reads its end.
    fn close_descriptors(&mut self) {
        if let JournaledTarget::Pipe(_) = self.target {
            self.target = JournaledTarget::Closed;
            let record = Arc::clone(&self.record);
            // The keeper may be slow, and the caller holds the lock of the process.
            spawn_blocking(move || {
                record.release_slot(KeeperSlot::Stdin);
                record.try_record(&JournalEvent::InputClosed);
            });
        }
    }
}
