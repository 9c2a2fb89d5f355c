//! The journal of one durable process, shared by its process task and its handle.
//!
//! Invariant: what a client can see is in the journal. Output gets its index record before it
//! enters the output log, and the exit is recorded before the supervisor's report is consumed.

use std::{
    fmt, io,
    os::fd::{AsFd, OwnedFd},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use bytes::Bytes;
use exec_journal::{JournalError, JournalEvent, JournalReader, ProcessJournal, RecordId, now_ms};
use exec_spawn::keeper::KeeperSlot;
use exec_wire::{
    id::{OutputSeq, WriteId},
    limits,
    process::OutputStream,
};
use rustix::{
    io::Errno,
    pipe::{PipeFlags, SpliceFlags, pipe_with, splice},
};

use crate::{keeper_connection::KeeperConnection, stdio};

/// How long to wait before a journal on a full disk is tried again.
pub(crate) const FULL_RETRY: Duration = Duration::from_secs(1);
/// How long to wait while the journal is full of output that is not acknowledged.
pub(crate) const PROTECTED_RETRY: Duration = Duration::from_millis(20);

/// Journal and keeper record of one durable process.
pub(crate) struct DurableRecord {
    id: RecordId,
    journal: Mutex<ProcessJournal>,
    keeper: Arc<KeeperConnection>,
    /// Sequence number of the next event. Only the process task assigns numbers.
    next_seq: AtomicU64,
}

impl DurableRecord {
    pub(crate) fn new(
        journal: ProcessJournal,
        keeper: Arc<KeeperConnection>,
        next_seq: OutputSeq,
    ) -> Self {
        Self {
            id: journal.id(),
            journal: Mutex::new(journal),
            keeper,
            next_seq: AtomicU64::new(next_seq.0),
        }
    }

    pub(crate) fn id(&self) -> RecordId {
        self.id
    }

    pub(crate) fn reader(&self) -> JournalReader {
        self.lock().reader()
    }

    /// Updates the number of the next event after the log has assigned one.
    pub(crate) fn set_next_seq(&self, next: OutputSeq) {
        self.next_seq.store(next.0, Relaxed);
    }

    pub(crate) fn next_seq(&self) -> OutputSeq {
        OutputSeq(self.next_seq.load(Relaxed))
    }

    /// Keeps events after `after` in the journal, even at its cap.
    pub(crate) fn protect(&self, after: Option<OutputSeq>) {
        self.lock().protect(after);
    }

    /// Moves output of `source` into the journal and returns it. `None`: end of output. Fails with
    /// `WouldBlock` if nothing is available.
    pub(crate) fn read_output(
        &self,
        stream: OutputStream,
        source: &OwnedFd,
        holding_pipe: Option<&HoldingPipe>,
    ) -> Result<Option<Bytes>, OutputError> {
        let mut journal = self.lock();
        let pending = journal.pending_stream();
        if pending.is_some_and(|pending| pending != stream) {
            return Err(OutputError::Paused(FULL_RETRY));
        }
        if pending.is_none() {
            let moved = match holding_pipe {
                None => journal.splice(stream, source.as_fd(), limits::OUTPUT_CHUNK_BYTES)?,
                Some(pipe) => {
                    // Output that an earlier read or an earlier server has left comes first.
                    let left =
                        journal.splice(stream, pipe.read.as_fd(), limits::OUTPUT_CHUNK_BYTES)?;
                    match left {
                        Some(count) => Some(count),
                        None if pipe.fill(source)? == 0 => Some(0),
                        None => {
                            journal.splice(stream, pipe.read.as_fd(), limits::OUTPUT_CHUNK_BYTES)?
                        }
                    }
                }
            };
            match moved {
                None => return Err(OutputError::WouldBlock),
                Some(0) => return Ok(None),
                Some(_) => {}
            }
        }
        Ok(Some(journal.commit(self.next_seq(), now_ms())?))
    }

    /// Records an event.
    pub(crate) fn record(&self, event: &JournalEvent) -> Result<(), JournalError> {
        self.lock().record(event)
    }

    /// Records an event that no client relies on.
    pub(crate) fn try_record(&self, event: &JournalEvent) {
        if let Err(error) = self.record(event) {
            tracing::warn!(%error, ?event, "failed to record an event of a durable process");
        }
    }

    /// Records accepted input.
    pub(crate) fn append_input(
        &self,
        id: Option<&WriteId>,
        data: &[u8],
    ) -> Result<(), JournalError> {
        self.lock().append_input(id, data)
    }

    /// Delivers recorded input. Returns how many bytes are left.
    pub(crate) fn deliver_input(
        &self,
        target: &OwnedFd,
        holding_pipe: Option<&HoldingPipe>,
    ) -> Result<u64, JournalError> {
        let mut journal = self.lock();
        loop {
            let delivery = match holding_pipe {
                None => journal.deliver_input(target.as_fd(), limits::OUTPUT_CHUNK_BYTES)?,
                // The pipe's content counts as one byte: the file no longer contains it.
                Some(pipe) if !pipe.drain(target)? => {
                    return Ok(journal.undelivered_input().max(1));
                }
                Some(pipe) => {
                    journal.deliver_input(pipe.write.as_fd(), limits::OUTPUT_CHUNK_BYTES)?
                }
            };
            if delivery.bytes == 0 {
                return Ok(delivery.remaining);
            }
        }
    }

    /// Has the keeper close its duplicate of a descriptor. Blocks briefly.
    pub(crate) fn release_slot(&self, slot: KeeperSlot) {
        self.keeper.release(self.id, slot);
    }

    /// Has the keeper close all descriptors of the process. Blocks briefly.
    pub(crate) fn drop_descriptors(&self) {
        self.keeper.drop_record(self.id);
    }

    fn lock(&self) -> MutexGuard<'_, ProcessJournal> {
        // A panic leaves files that recovery would accept.
        self.journal.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for DurableRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DurableRecord")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

/// Why no output was read.
#[derive(Debug)]
pub(crate) enum OutputError {
    /// Nothing is available.
    WouldBlock,
    /// Nothing may be read for this long: the journal takes no output now.
    Paused(Duration),
    /// The descriptor failed.
    Failed,
}

impl From<JournalError> for OutputError {
    fn from(error: JournalError) -> Self {
        if matches!(error, JournalError::Protected) {
            return Self::Paused(PROTECTED_RETRY);
        }
        // The output stays in its pipe.
        tracing::warn!(%error, "failed to record output; a durable process is paused");
        Self::Paused(FULL_RETRY)
    }
}

impl From<Errno> for OutputError {
    fn from(errno: Errno) -> Self {
        match errno {
            Errno::AGAIN => Self::WouldBlock,
            _ => Self::Failed,
        }
    }
}

/// A pipe between a terminal and the journal. `splice` moves bytes only from or to a pipe. The
/// keeper holds both ends.
#[derive(Debug)]
pub(crate) struct HoldingPipe {
    pub(crate) read: OwnedFd,
    pub(crate) write: OwnedFd,
}

impl HoldingPipe {
    pub(crate) fn open() -> io::Result<Self> {
        let (read, write) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        Ok(Self { read, write })
    }

    /// Moves output of a terminal into the pipe. Returns the number of bytes; 0 at the end.
    fn fill(&self, terminal: &OwnedFd) -> Result<usize, Errno> {
        let flags = SpliceFlags::NONBLOCK | SpliceFlags::MOVE;
        match splice(
            terminal,
            None,
            &self.write,
            None,
            limits::OUTPUT_CHUNK_BYTES,
            flags,
        ) {
            // Reading a terminal fails with EIO once the child's end is closed.
            Err(Errno::IO) => Ok(0),
            moved => moved,
        }
    }

    /// Moves input from the pipe to a terminal. Returns whether the pipe is empty.
    fn drain(&self, terminal: &OwnedFd) -> Result<bool, JournalError> {
        let flags = SpliceFlags::NONBLOCK | SpliceFlags::MOVE;
        loop {
            if rustix::io::ioctl_fionread(&self.read).unwrap_or(0) == 0 {
                return Ok(true);
            }
            match splice(&self.read, None, terminal, None, stdio::LARGE_BYTES, flags) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(false),
                Err(_) => return Err(JournalError::ReaderGone),
            }
        }
    }
}
