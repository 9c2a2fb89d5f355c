//! The segment of a journal that is written.
//!
//! Invariant: bytes are first in a data file and then described by a record of the index, so that
//! what follows the last record of a stream is at most one chunk that was not committed.

use std::{
    io,
    os::fd::{BorrowedFd, OwnedFd},
    sync::Arc,
};

use exec_wire::{id::OutputSeq, process::OutputStream};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::{Errno, retry_on_intr},
    pipe::{SpliceFlags, splice},
};

use crate::{
    index_record::{INDEX_HEADER, IndexRecord, STREAMS},
    journal_error::JournalError,
    private_file::{OpenMode, PrivateFile, remove_file},
    segment::{IndexScan, SegmentNumber},
};

/// Bytes in a data file that no record describes yet.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct PendingChunk {
    pub(crate) stream: OutputStream,
    pub(crate) offset: u64,
    pub(crate) length: u32,
}

/// Segment that is closed to further writes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FullSegment {
    pub(crate) number: SegmentNumber,
    pub(crate) first: Option<OutputSeq>,
    pub(crate) last: Option<OutputSeq>,
    pub(crate) index_len: u64,
    /// Length of each data file.
    pub(crate) data_len: [u64; 3],
}

impl FullSegment {
    /// Returns the bytes of all files.
    pub(crate) fn bytes(&self) -> u64 {
        self.index_len + self.data_len.iter().sum::<u64>()
    }

    /// Removes the files, first the one that makes them visible.
    pub(crate) fn remove(&self, directory: &OwnedFd) -> io::Result<()> {
        remove_file(directory, &self.number.index_name())?;
        for stream in STREAMS {
            remove_file(directory, &self.number.data_name(stream))?;
        }
        Ok(())
    }
}

/// Segment that is written. Its files are created when they are needed.
#[derive(Debug)]
pub(crate) struct SegmentWriter {
    directory: Arc<OwnedFd>,
    index: Option<PrivateFile>,
    data: [Option<PrivateFile>; 3],
    state: FullSegment,
}

impl SegmentWriter {
    /// Describes a segment without files.
    pub(crate) fn new(directory: Arc<OwnedFd>, number: SegmentNumber) -> Self {
        let state = FullSegment {
            number,
            first: None,
            last: None,
            index_len: 0,
            data_len: [0; 3],
        };
        Self {
            directory,
            index: None,
            data: [const { None }; 3],
            state,
        }
    }

    /// Opens a segment for appending behind the valid part of its index. Returns the bytes that no
    /// record describes, too.
    pub(crate) fn reopen(
        directory: Arc<OwnedFd>,
        number: SegmentNumber,
        scan: &IndexScan,
    ) -> io::Result<(Self, Vec<PendingChunk>)> {
        let mut writer = Self::new(directory, number);
        let directory = &writer.directory;
        let index = PrivateFile::open_existing(directory, &number.index_name(), OpenMode::Write)?;
        if let Some(index) = &index
            && scan.file_len != scan.valid_len()
        {
            index.truncate(scan.valid_len())?;
        }
        writer.index = index;
        writer.state.index_len = scan.valid_len();
        writer.state.first = scan.first;
        writer.state.last = scan.last;
        let mut rest = Vec::new();
        for stream in STREAMS {
            let name = number.data_name(stream);
            let file = PrivateFile::open_existing(directory, &name, OpenMode::Write)?;
            let Some(file) = file else { continue };
            let (len, indexed) = (file.len()?, scan.data_ends[stream as usize]);
            rest.extend(split(stream, indexed, len));
            writer.state.data_len[stream as usize] = len.max(indexed);
            writer.data[stream as usize] = Some(file);
        }
        Ok((writer, rest))
    }

    /// Returns the number.
    pub(crate) fn number(&self) -> SegmentNumber {
        self.state.number
    }

    /// Returns the first sequence number.
    pub(crate) fn first(&self) -> Option<OutputSeq> {
        self.state.first
    }

    /// Returns the bytes of all files.
    pub(crate) fn bytes(&self) -> u64 {
        self.state.bytes()
    }

    /// Returns the length of each data file.
    pub(crate) fn data_len(&self) -> [u64; 3] {
        self.state.data_len
    }

    /// Closes the files.
    pub(crate) fn finish(self) -> FullSegment {
        self.state
    }

    /// Moves up to `most` bytes from a pipe to the end of a data file. Returns `None` if the pipe
    /// is empty, and a chunk of length 0 at its end.
    pub(crate) fn splice(
        &mut self,
        stream: OutputStream,
        source: BorrowedFd<'_>,
        most: usize,
    ) -> Result<Option<PendingChunk>, JournalError> {
        let offset = self.state.data_len[stream as usize];
        let chunk = |length| PendingChunk {
            stream,
            offset,
            length,
        };
        let file = match &self.data[stream as usize] {
            Some(file) => file,
            None => match poll_pipe(source).map_err(JournalError::io("poll the output"))? {
                PipeState::Readable => {
                    let name = self.state.number.data_name(stream);
                    let created = PrivateFile::open(&self.directory, &name, OpenMode::CreateNew)
                        .map_err(JournalError::io("create a data file"))?;
                    self.data[stream as usize].insert(created)
                }
                PipeState::Empty => return Ok(None),
                PipeState::Ended => return Ok(Some(chunk(0))),
            },
        };
        let flags = SpliceFlags::NONBLOCK;
        let moved =
            retry_on_intr(|| splice(source, None, file, Some(&mut offset.clone()), most, flags));
        match moved {
            Ok(count) => {
                self.state.data_len[stream as usize] += count as u64;
                Ok(Some(chunk(u32::try_from(count).unwrap_or(u32::MAX))))
            }
            Err(Errno::AGAIN) => Ok(None),
            Err(errno) => Err(JournalError::io("splice output into the journal")(
                errno.into(),
            )),
        }
    }

    /// Reads the bytes of a chunk.
    pub(crate) fn read(&self, chunk: &PendingChunk) -> Result<Vec<u8>, JournalError> {
        let damaged = |reason: &str| JournalError::Damaged {
            file: "data file",
            reason: reason.to_owned(),
        };
        let file = self.data[chunk.stream as usize].as_ref();
        let file = file.ok_or_else(|| damaged("the file is missing"))?;
        let data = file
            .read_at(chunk.offset, chunk.length as usize)
            .map_err(JournalError::io("read output back"))?;
        if data.len() == chunk.length as usize {
            Ok(data)
        } else {
            Err(damaged("another program shortened it"))
        }
    }

    /// Appends a record to the index. After an error it can be repeated.
    pub(crate) fn append(&mut self, record: &IndexRecord) -> Result<(), JournalError> {
        let index = match &self.index {
            Some(index) => index,
            None => {
                let name = self.state.number.index_name();
                let created = PrivateFile::open(&self.directory, &name, OpenMode::CreateNew)
                    .map_err(JournalError::io("create an index"))?;
                self.index.insert(created)
            }
        };
        let write = JournalError::io("write an index");
        let record_bytes = record.encode();
        if self.state.index_len == 0 {
            let first = [INDEX_HEADER.as_slice(), &record_bytes].concat();
            index.write_at(&first, 0).map_err(write)?;
            self.state.index_len = first.len() as u64;
        } else {
            index
                .write_at(&record_bytes, self.state.index_len)
                .map_err(write)?;
            self.state.index_len += record_bytes.len() as u64;
        }
        self.state.first.get_or_insert(record.seq);
        self.state.last = Some(record.seq);
        Ok(())
    }

    /// Returns the time at which a stream was last written, in milliseconds since the Unix epoch.
    pub(crate) fn written_at_ms(&self, stream: OutputStream) -> io::Result<u64> {
        let Some(file) = &self.data[stream as usize] else {
            return Ok(0);
        };
        Ok(modified_ms(&file.stat()?))
    }
}

/// Returns the time of the last write in milliseconds since the Unix epoch.
pub(crate) fn modified_ms(stat: &rustix::fs::Stat) -> u64 {
    let seconds = u64::try_from(stat.st_mtime).unwrap_or_default();
    seconds
        .saturating_mul(1000)
        .saturating_add(stat.st_mtime_nsec / 1_000_000)
}

/// Splits a range of a data file into chunks.
fn split(stream: OutputStream, start: u64, end: u64) -> impl Iterator<Item = PendingChunk> {
    let most = exec_wire::limits::OUTPUT_CHUNK_BYTES as u64;
    (start..end)
        .step_by(exec_wire::limits::OUTPUT_CHUNK_BYTES)
        .map(move |offset| {
            let length = u32::try_from(most.min(end - offset)).unwrap_or(u32::MAX);
            PendingChunk {
                stream,
                offset,
                length,
            }
        })
}

/// What a read from a pipe would return.
#[derive(Clone, Copy, Debug)]
enum PipeState {
    Readable,
    Empty,
    Ended,
}

fn poll_pipe(pipe: BorrowedFd<'_>) -> io::Result<PipeState> {
    let mut polled = [PollFd::from_borrowed_fd(pipe, PollFlags::IN)];
    retry_on_intr(|| poll(&mut polled, Some(&Timespec::default())).map(drop))?;
    let found = polled[0].revents();
    Ok(if found.contains(PollFlags::IN) {
        PipeState::Readable
    } else if found.is_empty() {
        PipeState::Empty
    } else {
        PipeState::Ended
    })
}
