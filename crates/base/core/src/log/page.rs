//! Paging through retained output without consuming it.

use exec_wire::id::OutputSeq;

use super::retained::{Exit, OutputChunk, OutputLog};

/// What a reader gets.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Page {
    /// Retained output after the cursor, ascending.
    pub chunks: Vec<OutputChunk>,
    /// Where to go on.
    pub next_seq: OutputSeq,
    /// How the process ended, once it did.
    pub exit: Option<Exit>,
    /// The number of that event, if it is known.
    pub exit_seq: Option<OutputSeq>,
    /// The output ended.
    pub closed: bool,
}

impl OutputLog {
    /// Returns retained output after `after`. The first chunk is always given, whole; the others
    /// as long as the total stays within `max_bytes`.
    pub fn page(&self, after: OutputSeq, max_bytes: Option<usize>) -> Page {
        let mut chunks = Vec::new();
        let mut total = 0;
        for chunk in self.chunks.range(self.index_after(after)..) {
            let with_it = total + chunk.data.len();
            if !chunks.is_empty() && max_bytes.is_some_and(|max| with_it > max) {
                break;
            }
            total = with_it;
            chunks.push(chunk.clone());
            if max_bytes.is_some_and(|max| total >= max) {
                break;
            }
        }
        let next_seq = match (max_bytes, chunks.last()) {
            (Some(_), Some(last)) => last.seq.next(),
            _ => self.next_seq(),
        };
        let exit = self.exit().cloned();
        Page {
            chunks,
            next_seq,
            exit,
            exit_seq: self.exit.as_ref().map(|(seq, _)| *seq),
            closed: self.is_closed(),
        }
    }

    /// Tells whether a waiting reader at `after` has something to look at: output, the close, or
    /// an exit that it has not seen.
    pub fn has_news(&self, after: OutputSeq) -> bool {
        self.index_after(after) < self.chunks.len()
            || self.closed.is_some()
            || (self.exit.is_some() && after.next() < self.next_seq())
    }
}
