//! `exec-server logs`.

use std::process::ExitCode;

use bytes::Bytes;
use clap::Args;
use exec_client::client::ExecServerClient;
use exec_wire::{
    id::{OutputSeq, ProcessId},
    process::{OutputPage, OutputStream, ReadProcess},
};

use crate::command::{
    connect::{ConnectedEnv, EnvArgs},
    detached::{self, call_failure},
    failure::{CommandFailure, FailureKind},
    process_session::{
        OutputSink, ProcessSession, SessionEnd, SessionOwner, SignalListener, TerminalUse,
        output_failure, print_notice, show_outages,
    },
};

/// Prints the output of a detached process.
///
/// The server retains the end of it, by default one mebibyte. Ctrl-C ends following; the process
/// keeps running.
#[derive(Args, Clone, Debug)]
pub struct LogsCommand {
    #[command(flatten)]
    #[doc(hidden)]
    pub env_args: EnvArgs,

    /// Follows the output until the process exits.
    #[arg(short, long)]
    pub follow: bool,

    /// Prints only the last lines of the retained output.
    #[arg(short = 'n', long, value_name = "LINES")]
    pub tail: Option<usize>,

    /// Id that `run --detach` printed, or a unique prefix of it.
    pub id: String,
}

/// Bytes requested at once.
const PAGE_BYTES: usize = 1 << 20;

/// Chunk of output.
type OutputPiece = (OutputStream, Bytes);

impl LogsCommand {
    /// Prints the retained output, and follows it on request.
    pub(crate) async fn run(self) -> Result<ExitCode, CommandFailure> {
        let env = ConnectedEnv::open(&self.env_args).await?;
        let client = &env.client;
        let found = show_outages(client, detached::find_one(client, &self.id)).await?;
        let id = found.process_id;
        let output = show_outages(client, retained_output(client, &id)).await?;
        if output.incomplete && self.tail.is_none() {
            print_notice("earlier output is no longer retained");
        }
        let pieces = match self.tail {
            Some(lines) => last_lines(output.pieces, lines),
            None => output.pieces,
        };
        for (stream, data) in pieces {
            if let Err(error) = OutputSink.write(stream, data).await {
                return output_failure(&error);
            }
        }
        if output.gap {
            print_notice("some output is missing here: it was written faster than it was read");
        }
        if !self.follow || output.closed {
            return Ok(ExitCode::SUCCESS);
        }
        let attached = show_outages(client, client.attach(id.clone(), Some(output.last))).await;
        let failed = |error| CommandFailure::new(FailureKind::Failed, error);
        let session = ProcessSession {
            client: client.clone(),
            process: attached.map_err(call_failure)?,
            signals: SignalListener::listen().map_err(failed)?,
            after: output.last,
            owner: SessionOwner::Server,
            input: None,
            terminal: TerminalUse::None,
            keys: None,
            snapshot: Vec::new(),
            limit: None,
        };
        let end = session.run().await.map_err(failed)?;
        // `wait` reports the exit status.
        if matches!(end, SessionEnd::Exited(_) | SessionEnd::Closed) {
            return Ok(ExitCode::SUCCESS);
        }
        end.status(SessionOwner::Server, &id, &env)
    }
}

/// Reads the retained output of a process.
pub(crate) async fn retained_output(
    client: &ExecServerClient,
    id: &ProcessId,
) -> Result<RetainedOutput, CommandFailure> {
    // Does not wait for new output, which may never end.
    let now = detached::output_position(client, id).await?;
    let read_page = async |after| {
        let page = client.call(ReadProcess {
            process_id: id.clone(),
            after_seq: Some(after),
            max_bytes: Some(PAGE_BYTES),
            wait_ms: None,
            times: false,
        });
        page.await.map_err(call_failure)
    };
    RetainedOutput::read(now.next_seq, read_page).await
}

/// Output that the server retains of a process, bounded by its limit.
#[derive(Debug, Default)]
pub(crate) struct RetainedOutput {
    /// Chunks in order.
    pub(crate) pieces: Vec<OutputPiece>,
    /// Sequence number of the last event.
    pub(crate) last: OutputSeq,
    /// Earlier output was dropped.
    pub(crate) incomplete: bool,
    /// There is a gap in the middle.
    pub(crate) gap: bool,
    /// The output is complete.
    pub(crate) closed: bool,
}

impl RetainedOutput {
    /// Reads up to `until`; of an exited process, everything. `read_page` returns the page after an
    /// event.
    async fn read(
        until: OutputSeq,
        read_page: impl AsyncFn(OutputSeq) -> Result<OutputPage, CommandFailure>,
    ) -> Result<Self, CommandFailure> {
        let mut output = Self::default();
        loop {
            let page = read_page(output.last).await?;
            let first = page.chunks.first().map(|chunk| chunk.seq);
            // The exit has a number, too: only output at the beginning can be missing.
            let beginning = output.pieces.is_empty() && !output.incomplete;
            let missing = first.is_some_and(|seq| seq > output.last.next());
            output.incomplete |= beginning && missing;
            output.gap |= !beginning && missing;
            let last = OutputSeq(page.next_seq.0.saturating_sub(1));
            // `closed` does not describe this page, but then the end no longer moves.
            let is_enough = !page.closed && last.next() >= until;
            let over = page.chunks.is_empty() || last <= output.last || is_enough;
            output.last = output.last.max(last);
            let pieces = page.chunks.into_iter();
            output
                .pieces
                .extend(pieces.map(|chunk| (chunk.stream, chunk.chunk.0)));
            if over {
                output.closed = page.closed;
                return Ok(output);
            }
        }
    }
}

/// Keeps the last `lines` lines across both streams. An unterminated last line counts.
fn last_lines(mut pieces: Vec<OutputPiece>, lines: usize) -> Vec<OutputPiece> {
    if lines == 0 {
        return Vec::new();
    }
    let mut remaining = lines;
    let mut last = true;
    for index in (0..pieces.len()).rev() {
        let data = &pieces[index].1;
        let ends = data
            .iter()
            .enumerate()
            .rev()
            .filter(|(_, byte)| **byte == b'\n');
        for (end, _) in ends {
            // The newline at the very end starts no new line.
            if std::mem::take(&mut last) && end + 1 == data.len() {
                continue;
            }
            remaining -= 1;
            if remaining == 0 {
                let tail = data.slice(end + 1..);
                pieces[index].1 = tail;
                pieces.drain(..index);
                pieces.retain(|(_, data)| !data.is_empty());
                return pieces;
            }
        }
        last &= data.is_empty();
    }
    pieces
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use exec_wire::process::OutputStream::{self, Stderr, Stdout};
    use serde_json::json;

    use super::*;

    /// Returns a page with room for one chunk, of a process that wrote `written` chunks.
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
    async fn output_of_a_running_process_is_read_up_to_the_start_position() {
        let ask = async |after: OutputSeq| Ok(page(after, after.0 + 9, false));
        let output = RetainedOutput::read(OutputSeq(3), ask).await.unwrap();
        assert_eq!((output.pieces.len(), output.last), (2, OutputSeq(2)));
        assert!(!output.closed && !output.gap && !output.incomplete);
    }

    #[tokio::test]
    async fn output_of_a_process_that_exits_meanwhile_is_read_completely() {
        let ask = async |after: OutputSeq| Ok(page(after, 5, after.0 > 0));
        let output = RetainedOutput::read(OutputSeq(3), ask).await.unwrap();
        assert_eq!((output.pieces.len(), output.last), (5, OutputSeq(5)));
        assert!(output.closed && !output.gap && !output.incomplete);
    }

    fn pieces(texts: &[(OutputStream, &'static str)]) -> Vec<OutputPiece> {
        let piece = |(stream, text): &(OutputStream, &'static str)| (*stream, Bytes::from(*text));
        texts.iter().map(piece).collect()
    }

    #[test]
    fn last_lines_are_counted_across_chunks() {
        let all = pieces(&[
            (Stdout, "one\ntw"),
            (Stdout, "o\nthree\n"),
            (Stderr, "four\n"),
        ]);
        let last = |lines| last_lines(all.clone(), lines);
        assert_eq!(last(0), pieces(&[]));
        assert_eq!(last(1), pieces(&[(Stderr, "four\n")]));
        assert_eq!(last(2), pieces(&[(Stdout, "three\n"), (Stderr, "four\n")]));
        let three = [(Stdout, "tw"), (Stdout, "o\nthree\n"), (Stderr, "four\n")];
        assert_eq!(last(3), pieces(&three));
        assert_eq!(last(4), all);
        assert_eq!(last(9), all);
    }

    #[test]
    fn unterminated_line_counts_as_a_line() {
        let all = pieces(&[(Stdout, "one\ntwo")]);
        assert_eq!(last_lines(all.clone(), 1), pieces(&[(Stdout, "two")]));
        assert_eq!(last_lines(all.clone(), 2), all);
    }
}
