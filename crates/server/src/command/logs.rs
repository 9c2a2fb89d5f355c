//! `exec-server logs`.

mod tail;

use std::process::ExitCode;

use bytes::Bytes;
use clap::Args;
use exec_client::client::ExecServerClient;
use exec_wire::{
    id::{OutputSeq, ProcessId},
    process::{OutputStream, ReadProcess},
};

use self::tail::last_lines;
use super::{
    detached::{self, call_failed},
    failure::{Failure, FailureKind},
    place::{Place, Where},
    stream::{End, Owner, Signals, Sink, Talk, Terminal, complain, telling, unwritten},
};

/// Prints what a detached process wrote.
///
/// A server keeps the last part of it: a mebibyte, if nobody set it otherwise. Ctrl-C ends following;
/// the process goes on.
#[derive(Args, Clone, Debug)]
pub struct Logs {
    #[command(flatten)]
    #[doc(hidden)]
    pub place: Where,

    /// Goes on until the process ends.
    #[arg(short, long)]
    pub follow: bool,

    /// Prints only the last lines of what is kept.
    #[arg(short = 'n', long, value_name = "LINES")]
    pub tail: Option<usize>,

    /// The id that `run --detach` printed, or a beginning of it.
    pub id: String,
}

/// What is asked for at once.
const PAGE_BYTES: usize = 1 << 20;

/// A piece of output.
type Piece = (OutputStream, Bytes);

impl Logs {
    /// Prints what a detached process wrote.
    pub(crate) async fn run(self) -> Result<ExitCode, Failure> {
        let place = Place::open(&self.place).await?;
        let client = &place.client;
        let found = telling(client, detached::find_one(client, &self.id)).await?;
        let id = found.process_id;
        let kept = telling(client, Kept::read(client, &id)).await?;
        if kept.incomplete && self.tail.is_none() {
            complain("earlier output is not kept any more");
        }
        let pieces = match self.tail {
            Some(lines) => last_lines(kept.pieces, lines),
            None => kept.pieces,
        };
        for (stream, data) in pieces {
            if let Err(error) = Sink.write(stream, data).await {
                return unwritten(&error);
            }
        }
        if kept.gap {
            complain("some output was written too fast to be kept, and is missing here");
        }
        if !self.follow || kept.closed {
            return Ok(ExitCode::SUCCESS);
        }
        let attached = telling(client, client.attach(id.clone(), Some(kept.last))).await;
        let failed = |error| Failure::new(FailureKind::Failed, error);
        let talk = Talk {
            client: client.clone(),
            process: attached.map_err(call_failed)?,
            signals: Signals::listen().map_err(failed)?,
            after: kept.last,
            owner: Owner::Server,
            input: None,
            terminal: Terminal::None,
            keys: None,
            limit: None,
        };
        let end = talk.run().await.map_err(failed)?;
        // What it ended with is for `wait` to tell.
        if matches!(end, End::Exited(_) | End::Closed) {
            return Ok(ExitCode::SUCCESS);
        }
        end.status(Owner::Server, &id, &place)
    }
}

/// What a server keeps of a process's output. As long as that is bounded there, it is here.
#[derive(Debug)]
struct Kept {
    pieces: Vec<Piece>,
    /// The number of the last event.
    last: OutputSeq,
    /// There was more before.
    incomplete: bool,
    /// There was more in between.
    gap: bool,
    /// There will be no more.
    closed: bool,
}

impl Kept {
    async fn read(client: &ExecServerClient, id: &ProcessId) -> Result<Self, Failure> {
        let mut kept = Self {
            pieces: Vec::new(),
            last: OutputSeq(0),
            incomplete: false,
            gap: false,
            closed: false,
        };
        // What is written from now on is not waited for: there may always be more.
        let now = detached::now(client, id).await?;
        loop {
            let page = client.call(ReadProcess {
                process_id: id.clone(),
                after_seq: Some(kept.last),
                max_bytes: Some(PAGE_BYTES),
                wait_ms: None,
            });
            let page = page.await.map_err(call_failed)?;
            let first = page.chunks.first().map(|chunk| chunk.seq);
            // Its end has a number, too: only what it wrote at the beginning can be missing.
            let beginning = kept.pieces.is_empty() && !kept.incomplete;
            let missing = first.is_some_and(|seq| seq > kept.last.next());
            kept.incomplete |= beginning && missing;
            kept.gap |= !beginning && missing;
            let last = OutputSeq(page.next_seq.0.saturating_sub(1));
            let over = page.chunks.is_empty() || last <= kept.last || last.next() >= now.next_seq;
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
