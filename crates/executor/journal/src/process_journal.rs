//! Writes the journal of one process.
//!
//! Invariant: output moves from its pipe into a data file in one system call. It becomes visible
//! with its index record; recovery commits pending output after the next start.

mod recovered_segments;
#[cfg(test)]
pub(crate) mod tests;

use std::{
    collections::VecDeque,
    os::fd::{BorrowedFd, OwnedFd},
    sync::Arc,
};

use bytes::Bytes;
use exec_wire::{
    id::{OutputSeq, WriteId},
    limits::OUTPUT_CHUNK_BYTES,
    process::OutputStream,
};

use crate::{
    event_file::EventFile,
    event_summary::EvictedRange,
    index_record::IndexRecord,
    input_file::{Delivery, InputFile},
    journal_error::JournalError,
    journal_event::JournalEvent,
    journal_head::JournalHead,
    journal_reader::JournalReader,
    limits::JournalLimits,
    record_id::RecordId,
    saved_heads::SavedHeads,
    segment::SegmentNumber,
    segment_writer::{FullSegment, PendingChunk, SegmentWriter},
};

/// Writes the journal of one process. There must be one at a time.
#[derive(Debug)]
pub struct ProcessJournal {
    id: RecordId,
    head: JournalHead,
    directory: Arc<OwnedFd>,
    limits: JournalLimits,
    events: EventFile,
    input: InputState,
    /// Segments before the current one, oldest first.
    full: VecDeque<FullSegment>,
    current: SegmentWriter,
    evicted: EvictedRange,
    /// There was no space for the event of the last eviction.
    is_eviction_unrecorded: bool,
    /// Chunks that were spliced and not committed: one, or more after a restart.
    pending: VecDeque<PendingChunk>,
    protected_after: Option<OutputSeq>,
    /// Highest committed sequence number.
    last_seq: OutputSeq,
}

/// Input of a process.
#[derive(Debug)]
enum InputState {
    /// There was none so far.
    Unused,
    /// Open.
    Open(InputFile),
    /// Its position is unknown.
    PositionLost,
}

impl ProcessJournal {
    /// Creates the files of a record in its empty directory.
    pub(crate) fn create(
        id: RecordId,
        head: &JournalHead,
        directory: OwnedFd,
        limits: JournalLimits,
    ) -> Result<Self, JournalError> {
        head.save(&directory)?;
        let directory = Arc::new(directory);
        Ok(Self {
            id,
            head: head.clone(),
            limits,
            events: EventFile::new(directory.clone()),
            input: InputState::Unused,
            full: VecDeque::new(),
            current: SegmentWriter::new(directory.clone(), SegmentNumber(0)),
            evicted: EvictedRange::default(),
            is_eviction_unrecorded: false,
            pending: VecDeque::new(),
            protected_after: None,
            last_seq: OutputSeq(0),
            directory,
        })
    }

    /// Returns the id of the record.
    pub fn id(&self) -> RecordId {
        self.id
    }

    /// Returns the facts that never change.
    pub fn head(&self) -> &JournalHead {
        &self.head
    }

    /// Moves at most `most` bytes of output from a pipe into the journal. Returns `None` if the
    /// pipe is empty and 0 at its end. The bytes are not visible before [`Self::commit`].
    pub fn splice(
        &mut self,
        stream: OutputStream,
        source: BorrowedFd<'_>,
        most: usize,
    ) -> Result<Option<usize>, JournalError> {
        if !self.pending.is_empty() {
            return Err(JournalError::Uncommitted);
        }
        self.make_room()?;
        let chunk = self
            .current
            .splice(stream, source, most.min(OUTPUT_CHUNK_BYTES))?;
        self.pending.extend(chunk.filter(|chunk| chunk.length > 0));
        Ok(chunk.map(|chunk| chunk.length as usize))
    }

    /// Makes the oldest pending chunk visible under a sequence number, and returns its bytes. After
    /// an error the chunk is still pending, and the commit can be repeated.
    pub fn commit(&mut self, seq: OutputSeq, time_ms: u64) -> Result<Bytes, JournalError> {
        let chunk = *self.pending.front().ok_or(JournalError::NothingPending)?;
        if seq <= self.last_seq {
            return Err(JournalError::NotAscending {
                seq,
                last: self.last_seq,
            });
        }
        let data = self.current.read(&chunk)?;
        let record = IndexRecord {
            seq,
            time_ms,
            offset: chunk.offset,
            length: chunk.length,
            stream: chunk.stream,
            checksum: crc32fast::hash(&data),
        };
        self.current.append(&record)?;
        self.last_seq = seq;
        self.pending.pop_front();
        Ok(data.into())
    }

    /// Returns whether a chunk waits for its commit.
    pub fn pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Returns the stream of the chunk that waits for its commit.
    pub fn pending_stream(&self) -> Option<OutputStream> {
        self.pending.front().map(|chunk| chunk.stream)
    }

    /// Records an event.
    pub fn record(&mut self, event: &JournalEvent) -> Result<(), JournalError> {
        self.events.append(event)
    }

    /// Returns the open file description of the input, which the keeper must hold. Creates a
    /// missing file.
    pub fn input_file(&mut self) -> Result<BorrowedFd<'_>, JournalError> {
        self.open_input().map(|(input, _)| input.description())
    }

    /// Appends input. After an error none of it is accepted.
    pub fn append_input(&mut self, id: Option<&WriteId>, data: &[u8]) -> Result<(), JournalError> {
        let (input, events) = self.open_input()?;
        input.append(id, data, events)
    }

    /// Moves at most `most` bytes of accepted input into a pipe, without blocking. The pipe then
    /// refers to pages of the input file.
    pub fn deliver_input(
        &mut self,
        target: BorrowedFd<'_>,
        most: usize,
    ) -> Result<Delivery, JournalError> {
        let (input, events) = self.open_input()?;
        input.deliver(target, most, events)
    }

    /// Returns the accepted bytes of input that are not delivered.
    pub fn undelivered_input(&self) -> u64 {
        match &self.input {
            InputState::Open(input) => input.remaining(),
            InputState::Unused | InputState::PositionLost => 0,
        }
    }

    /// Returns a reader of the committed output.
    pub fn reader(&self) -> JournalReader {
        JournalReader::new(self.directory.clone())
    }

    /// Returns the size of output, events and undelivered input.
    pub fn bytes(&self) -> u64 {
        self.output_bytes() + self.events.len() + self.undelivered_input()
    }

    /// Returns the oldest retained sequence number of output, or the one after the last.
    pub fn first_seq(&self) -> OutputSeq {
        let mut full = self.full.iter().filter_map(|segment| segment.first);
        let first = full.next().or(self.current.first());
        first.unwrap_or_else(|| self.last_seq.next())
    }

    /// Protects output after `after` from eviction. `None` removes the protection.
    pub fn protect(&mut self, after: Option<OutputSeq>) {
        self.protected_after = after;
    }

    fn open_input(&mut self) -> Result<(&mut InputFile, &mut EventFile), JournalError> {
        if matches!(self.input, InputState::Unused) {
            self.input = InputState::Open(InputFile::create(&self.directory)?);
        }
        match &mut self.input {
            InputState::Open(input) => Ok((input, &mut self.events)),
            InputState::Unused | InputState::PositionLost => Err(JournalError::NoInput),
        }
    }

    fn output_bytes(&self) -> u64 {
        let full: u64 = self.full.iter().map(FullSegment::bytes).sum();
        full + self.current.bytes()
    }

    /// Starts a new segment if the current one is full, and evicts the oldest ones above the cap.
    fn make_room(&mut self) -> Result<(), JournalError> {
        self.record_eviction();
        if self.current.bytes() >= self.limits.segment_bytes() {
            let next = SegmentWriter::new(self.directory.clone(), self.current.number().next());
            let full = std::mem::replace(&mut self.current, next);
            self.full.push_back(full.finish());
        }
        while self.output_bytes() >= self.limits.process_bytes {
            let Some(oldest) = self.full.front().copied() else {
                break;
            };
            let is_protected = |after| oldest.last.is_some_and(|last| last > after);
            if self.protected_after.is_some_and(is_protected) {
                return Err(JournalError::Protected);
            }
            self.evict(&oldest)?;
        }
        Ok(())
    }

    /// Removes the oldest segment.
    fn evict(&mut self, oldest: &FullSegment) -> Result<(), JournalError> {
        // Without space the head ends early: eviction makes space, and must not need it.
        SavedHeads::save(&self.directory, oldest.number, &self.evicted).ok();
        let mut evicted = self.evicted;
        evicted.next_segment = oldest.number.next().0;
        evicted.last_seq = oldest.last.unwrap_or(evicted.last_seq);
        for (total, bytes) in evicted.bytes.iter_mut().zip(oldest.data_len) {
            *total = total.saturating_add(bytes);
        }
        let recorded = self.events.append(&evicted.to_event());
        oldest
            .remove(&self.directory)
            .map_err(JournalError::io("remove a segment"))?;
        self.evicted = evicted;
        self.full.pop_front();
        self.is_eviction_unrecorded = recorded.is_err();
        self.record_eviction();
        Ok(())
    }

    /// Records an eviction for which there was no space before. Until then, totals would begin with
    /// the oldest segment.
    fn record_eviction(&mut self) {
        if self.is_eviction_unrecorded {
            let recorded = self.events.append(&self.evicted.to_event());
            self.is_eviction_unrecorded = recorded.is_err();
        }
    }
}
