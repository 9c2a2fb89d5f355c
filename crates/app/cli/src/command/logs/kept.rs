//! What a server keeps of a process's output, read page by page.

use exec_wire::{id::OutputSeq, process::OutputPage};

use super::Piece;
use crate::command::failure::Failure;

/// What a server keeps of a process's output. As long as that is bounded there, it is here.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    /// What was written, in order.
    pub(crate) pieces: Vec<Piece>,
    /// The number of the last event.
    pub(crate) last: OutputSeq,
    /// There was more before.
    pub(crate) incomplete: bool,
    /// There was more in between.
    pub(crate) gap: bool,
    /// There will be no more.
    pub(crate) closed: bool,
}

impl Kept {
    /// Reads what there is before `until`; of a process that has ended, everything. `ask` returns what
    /// comes after an event.
    pub(super) async fn read(
        until: OutputSeq,
        ask: impl AsyncFn(OutputSeq) -> Result<OutputPage, Failure>,
    ) -> Result<Self, Failure> {
        let mut kept = Self::default();
        loop {
            let page = ask(kept.last).await?;
            let first = page.chunks.first().map(|chunk| chunk.seq);
            // Its end has a number, too: only what it wrote at the beginning can be missing.
            let beginning = kept.pieces.is_empty() && !kept.incomplete;
            let missing = first.is_some_and(|seq| seq > kept.last.next());
            kept.incomplete |= beginning && missing;
            kept.gap |= !beginning && missing;
            let last = OutputSeq(page.next_seq.0.saturating_sub(1));
            // That it is closed says nothing of this page; but its end does not move any more.
            let is_enough = !page.closed && last.next() >= until;
            let over = page.chunks.is_empty() || last <= kept.last || is_enough;
            kept.last = kept.last.max(last);
            let pieces = page.chunks.into_iter();
            kept.pieces
                .extend(pieces.map(|chunk| (chunk.stream, chunk.chunk.0)));
            if over {
                kept.closed = page.closed;
                return Ok(kept);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// A page that one chunk fits in, of a process that wrote `written` of them.
    fn page(after: OutputSeq, written: u64, closed: bool) -> OutputPage {
        let (seq, end) = (after.0 + 1, written + 1);
        let chunk = json!({"seq": seq, "stream": "stdout", "chunk": "eA=="});
        let chunks: Vec<_> = (seq < end).then_some(chunk).into_iter().collect();
        let page = json!({
            "chunks": chunks,
            "nextSeq": if seq < end { seq + 1 } else { end },
            "exited": closed,
            "exitCode": closed.then_some(0),
            "closed": closed,
        });
        serde_json::from_value(page).unwrap()
    }

    #[tokio::test]
    async fn one_that_goes_on_writing_is_read_to_where_it_was() {
        let ask = async |after: OutputSeq| Ok(page(after, after.0 + 9, false));
        let kept = Kept::read(OutputSeq(3), ask).await.unwrap();
        assert_eq!((kept.pieces.len(), kept.last), (2, OutputSeq(2)));
        assert!(!kept.closed && !kept.gap && !kept.incomplete);
    }

    #[tokio::test]
    async fn one_that_ends_meanwhile_is_read_to_its_end() {
        let ask = async |after: OutputSeq| Ok(page(after, 5, after.0 > 0));
        let kept = Kept::read(OutputSeq(3), ask).await.unwrap();
        assert_eq!((kept.pieces.len(), kept.last), (5, OutputSeq(5)));
        assert!(kept.closed && !kept.gap && !kept.incomplete);
    }
}
