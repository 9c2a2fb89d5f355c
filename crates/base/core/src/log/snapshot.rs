//! Head and tail of each stream, for those who want a bounded picture of everything written.

use bytes::Bytes;
use exec_wire::{id::OutputSeq, process::OutputStream};

use super::retained::OutputLog;

/// The beginning of one stream, kept while the log's own chunks fall out behind it.
#[derive(Debug)]
pub(super) struct Head {
    limit: usize,
    parts: Vec<Bytes>,
    kept: usize,
    total: u64,
    /// The last chunk that went in whole.
    last: OutputSeq,
    /// The chunk that went in partly, and how much of it.
    split: Option<(OutputSeq, usize)>,
}

impl Head {
    pub(super) fn new(limit: usize) -> Self {
        Self {
            limit,
            parts: Vec::new(),
            kept: 0,
            total: 0,
            last: OutputSeq(0),
            split: None,
        }
    }

    pub(super) fn push(&mut self, seq: OutputSeq, data: &Bytes) {
        self.total += data.len() as u64;
        let room = self.limit - self.kept;
        if room == 0 {
            return;
        }
        let taken = data.slice(..room.min(data.len()));
        self.kept += taken.len();
        if taken.len() == data.len() {
            self.last = seq;
        } else {
            self.split = Some((seq, taken.len()));
        }
        self.parts.push(taken);
    }
}

/// The first and the last bytes of a stream, and how many are missing between them.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct HeadTail {
    /// Head and tail, one after the other.
    pub data: Vec<u8>,
    /// Bytes dropped between them.
    pub omitted: u64,
}

/// Head and tail of every stream.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Snapshot {
    /// Standard output.
    pub stdout: HeadTail,
    /// Standard error.
    pub stderr: HeadTail,
    /// The terminal.
    pub terminal: HeadTail,
}

impl OutputLog {
    /// Returns the head and the tail of what was written to each stream.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot {
            stdout: self.head_tail(OutputStream::Stdout),
            stderr: self.head_tail(OutputStream::Stderr),
            terminal: self.head_tail(OutputStream::Pty),
        }
    }

    fn head_tail(&self, stream: OutputStream) -> HeadTail {
        let head = &self.heads[stream as usize];
        let mut data = head.parts.concat();
        for chunk in self.chunks.range(self.index_after(head.last)..) {
            if chunk.stream == stream {
                let in_head = head.split.filter(|(seq, _)| *seq == chunk.seq);
                data.extend_from_slice(&chunk.data[in_head.map_or(0, |(_, length)| length)..]);
            }
        }
        let omitted = head.total - data.len() as u64;
        HeadTail { data, omitted }
    }
}
