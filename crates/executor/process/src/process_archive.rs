//! The journal of a process as its handle reads it, while the process runs and after it has ended.

use std::sync::Arc;

use exec_core::output_log::{HeadTail, OutputChunk, OutputSnapshot};
use exec_journal::{JournalReader, RecordId};
use exec_wire::{id::OutputSeq, limits, process::OutputStream};

use crate::durable_record::DurableRecord;

/// First and last bytes of a stream that a snapshot shows.
const SNAPSHOT_HEAD_BYTES: usize = limits::RETAINED_OUTPUT_BYTES / 8;
const SNAPSHOT_TAIL_BYTES: usize = limits::RETAINED_OUTPUT_BYTES - SNAPSHOT_HEAD_BYTES;

/// The journal of a process.
#[derive(Debug)]
pub(crate) struct ProcessArchive {
    pub(crate) id: RecordId,
    pub(crate) reader: JournalReader,
    /// The writer, while the process runs.
    pub(crate) live: Option<Arc<DurableRecord>>,
}

impl ProcessArchive {
    /// Opens the journal of a process that runs.
    pub(crate) fn live(record: Arc<DurableRecord>) -> Self {
        Self {
            id: record.id(),
            reader: record.reader(),
            live: Some(record),
        }
    }

    /// Wraps the journal of a process that has ended.
    pub(crate) fn ended(id: RecordId, reader: JournalReader) -> Self {
        Self {
            id,
            reader,
            live: None,
        }
    }

    /// Reads chunks after `after`. The first one is returned whole.
    pub(crate) fn read(&self, after: OutputSeq, max_bytes: usize) -> Vec<OutputChunk> {
        match self.reader.page(after, max_bytes) {
            Ok(chunks) => chunks.into_iter().map(|timed| timed.chunk).collect(),
            Err(error) => {
                tracing::error!(%error, "failed to read output from the journal");
                Vec::new()
            }
        }
    }

    /// Returns head and tail of each stream. `stream_bytes` is what each has ever written.
    pub(crate) fn snapshot(&self, stream_bytes: [u64; 3]) -> OutputSnapshot {
        let head_tail = |stream| self.head_tail(stream, stream_bytes[stream as usize]);
        OutputSnapshot {
            stdout: head_tail(OutputStream::Stdout),
            stderr: head_tail(OutputStream::Stderr),
            terminal: head_tail(OutputStream::Pty),
        }
    }

    fn head_tail(&self, stream: OutputStream, total: u64) -> HeadTail {
        let Ok(head) = self.reader.head_bytes(stream, SNAPSHOT_HEAD_BYTES) else {
            return HeadTail::default();
        };
        let tail = self.reader.tail_bytes(stream, SNAPSHOT_TAIL_BYTES);
        let (mut data, tail) = (head.data, tail.unwrap_or_default());
        // Head and tail overlap in short output.
        let written = usize::try_from(total).unwrap_or(usize::MAX);
        let overlap = (data.len() + tail.len()).saturating_sub(written);
        data.extend_from_slice(tail.get(overlap..).unwrap_or_default());
        HeadTail {
            omitted: total.saturating_sub(data.len() as u64),
            data,
        }
    }
}
